"""Summaries of calls, and what a dry run would do: lines, or the same as JSON."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mpired import codecs
from mpired.datatypes import Datatype, Group, beside
from mpired.datatypes.times import dtype_name
from mpired.errors import MpiredWarning, OverflowWarning, SkippedWarning, number
from mpired.formats import FlatLayout
from mpired.formats.array import REGISTERED, stored_array
from mpired.ops import OPS, Op, summary
from mpired.ops.op import Rules

if TYPE_CHECKING:  # a report of one command need not wait for the modules of all
    from mpired.collectives.call import Call
    from mpired.packing import Packing, Transfer
    from mpired.windows.transaction import Work as WindowsWork


_SHOWN_NAMES = 3
_LONGEST_TYPE = 60
_SHOWN = 8  # results of a dry run, of perhaps thousands
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class Summary(NamedTuple):
    """A reduction in figures."""

    op: str
    commute: bool
    buffers: list[dict[str, Any]]
    nranks: int
    nbytes: int  # of all ranks
    nan: str | None  # how NaN was treated
    workers: int
    root: int
    output: str
    format: str
    call: str
    noutputs: int
    overflow: Sequence[dict[str, object]] = ()
    rules: Sequence[str] = ()  # the other options of values, in words
    skipped: Sequence[dict[str, object]] = ()  # ranks that were left out
    inputs: Sequence[str] = ()  # the names of the other ranks
    engine: str = "local"
    machines: int = 1
    repeated: int = 0  # segments that were begun again because a worker was lost
    spread: str = "elements"  # or "ranks", which were divided among the workers
    left_out: Sequence[str] = ()  # arrays of the file that the result is like, which it has not

    def __repr__(self) -> str:
        return f"<{self.line()}>"

    def line(self) -> str:
        """Return the summary on one line."""
        workers = number(self.workers, "worker")
        if self.engine != "local":
            workers += f" on {number(self.machines, 'machine')} ({self.engine})"
        if self.spread == "ranks":
            workers += ", spread over ranks"
        if self.repeated:
            workers += f", {number(self.repeated, 'segment')} repeated"
        ranks = number(self.nranks, "rank") + (f" ({len(self.skipped)} left out)" if self.skipped else "")
        call, where = "", _where(self.output)
        if self.call != "MPI_Reduce":
            call, where = f"{self.call} with ", f"{number(self.noutputs, 'file')}, {where}"
        elements = _elements(self.buffers, self.nan, self.rules)
        without = f", without {', '.join(_some(self.left_out))}" if self.left_out else ""
        return f"{call}{_plain(self.op)} of {ranks}, {elements}, {workers} -> {where} ({self.format}){without}"


def _elements(buffers: Sequence[dict[str, Any]], nan: str | None, rules: Sequence[str]) -> str:
    """Return what the buffers hold, and how values were treated, in words."""
    first, *others = buffers
    more = f" and {len(others)} more" if others else ""
    of = f" of {first['stored']}" if first.get("stored") else ""
    texts = [f"{first['count']} x {first['dtype'] or first['datatype']}{of}{more}"]
    texts += [f"NaN {nan}", *rules] if nan else rules
    names = _some([buffer["name"] for buffer in buffers if buffer.get("unpacked")])
    return ", ".join([*texts, f"{', '.join(names)} unpacked and not packed again"] if names else texts)


def _where(path: str) -> str:
    return "standard output" if path == "-" else path


def _some(names: Sequence[str]) -> list[str]:
    """Return the first names, and how many more there are."""
    more = [f"{len(names) - _SHOWN_NAMES} more"] if len(names) > _SHOWN_NAMES else []
    return [*names[:_SHOWN_NAMES], *more]


def _plain(op: str) -> str:
    """Return the name of an op that `--op` takes: `sum` for MPI_SUM."""
    names = {str(row): row.name.lower() for row in OPS}
    return ",".join(names.get(each, each) for each in op.split(","))


def summarise_request(
    call: str, done: WindowsWork, windows: Sequence[str], origins: Sequence[object], warned: Sequence[MpiredWarning]
) -> tuple[dict[str, Any], str]:
    """Return the figures of a request by a function of MPI that has warned of this, and its line."""
    names, skipped = tuple(map(str, windows)), done.skipped
    norigins = len(origins) - len(skipped)
    buffers = [
        {"datatype": str(datatype), "dtype": dtype_name(datatype), "count": count}  # the count of each origin
        for datatype, count in zip(done.datatypes, done.entries, strict=True)
    ]
    op, bad = done.request.op, skipped_in(warned)
    nan, rules = _nan((op,), done.datatypes), summary((op,))
    figures = {
        "op": str(op),
        "buffers": buffers,
        "origins": norigins,  # how many were applied
        "windows": names,
        "protocols": done.protocols,
        "skipped": skipped,
        "call": call,
        "output": names[0] if len(names) == 1 else "in place",
        "overflow": [each.details for each in warned if isinstance(each, OverflowWarning)],
        "bad": bad,
        "inputs": list(map(str, origins)),
        "nan": nan,
        "rules": rules,
    }
    changed = zip(names, done.protocols, strict=True)
    where = ", ".join(f"{name} ({protocol})" for name, protocol in changed if protocol) or "nothing to change"
    less = f" ({len(bad)} left out)" if bad else ""
    what = _elements(buffers, nan, rules)
    return figures, f"{_plain(str(op))} of {number(norigins, 'origin')}{less}, {what} -> {where}"


def skipped_in(warned: Sequence[MpiredWarning]) -> list[dict[str, object]]:
    """Return the ranks, or origins, that were left out because they cannot be used, from the warnings of them."""
    return [each._asdict() for warning in warned if isinstance(warning, SkippedWarning) for each in warning.skipped]


def summarise(call: Call, warned: Sequence[MpiredWarning]) -> Summary:
    """Return the summary of a collective that is done, and has warned of this."""
    plans, elements = call.plans, call.elements
    files = [file for group in call.request.combined for file in group]
    results = [*itertools.chain(*call.results)]
    chosen = plans[0].ops
    return Summary(
        op=",".join(map(str, chosen)),
        commute=all(op.commute for op in chosen),
        buffers=[
            {
                "name": buffer.name,
                "datatype": str(buffer.datatype),
                "dtype": dtype_name(buffer.datatype),
                "count": plans[0].found if plans[0].has_unknown_length else buffer.count,
                "stored": buffer.stored.name if buffer.stored.isbuiltin == REGISTERED else None,
                "unpacked": stored_array(buffer).packed or None,
            }
            for buffer in elements
        ],
        nranks=len(files),
        nbytes=sum(plan.nbytes for plan in plans),
        nan=_nan(chosen, [each.datatype for each in elements]),
        workers=max(plan.jobs for plan in plans),
        root=call.request.options["root"],
        output=",".join(call.request.outputs) or (call.paths[0] if call.request.collective.to_root else "in place"),
        format=", ".join(sorted({result.format for result in results})) or files[0].format,
        call=call.request.collective.function,
        noutputs=len(results),
        overflow=[each.details for each in warned if isinstance(each, OverflowWarning)],
        rules=summary(chosen) if any(op.rules != Rules() for op in chosen) else (),
        skipped=[each._asdict() for each in call.request.skipped],
        inputs=[file.source.name for group in call.request.groups for file in group],
        engine=plans[0].engine.name,
        machines=max(plan.machines for plan in plans),
        repeated=getattr(plans[0].engine.connected, "repeated", 0),
        spread="ranks" if plans[0].lines else "elements",
        left_out=call.left_out,
    )


def _nan(ops: Sequence[Op], datatypes: Sequence[Datatype]) -> str | None:
    """Return the treatment of NaN, in words; None if there can be none, or the ops know none."""
    floating = Group.FLOATING_POINT | Group.COMPLEX
    if not any(each.form[0].kind == "f" if each.group is Group.PAIR else each.group in floating for each in datatypes):
        return None
    words = {"ignore": "is left out", "mpi": "is as in MPI's libraries"}
    return " or ".join(dict.fromkeys(filter(None, (words.get(op.rules.nan, op.nan) for op in ops)))) or None


class PackSummary(NamedTuple):
    """A packing or an unpacking in figures."""

    call: str  # MPI_Pack or MPI_Unpack
    elements: int  # in the file of records
    datatype: str
    dtype: str | None  # the name in NumPy, if there is one
    units: int  # the packed elements
    unit: str
    unit_dtype: str | None
    output: str
    format: str
    kept: bool = False  # whether the bytes between the elements are those that the file had before
    inputs: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the summary on one line."""
        parts = []
        for count, name, dtype in (self.elements, self.datatype, self.dtype), (self.units, self.unit, self.unit_dtype):
            short = name if len(name) <= _LONGEST_TYPE else f"{name[:_LONGEST_TYPE]}..."
            parts.append(f"{count} x {beside(short, dtype)}")
        what = f"packed {', '.join(parts)}" if self.call == "MPI_Pack" else f"unpacked {', '.join(parts[::-1])}"
        kept = ", the bytes between kept" if self.kept else ""
        return f"{what}{kept} -> {_where(self.output)} ({self.format})"


def summarise_packing(plan: Transfer) -> PackSummary:
    """Return the summary of a packing or an unpacking."""
    records, unit = plan.records, plan.packed.datatype
    return PackSummary(
        call=plan.function,
        elements=records.count,
        datatype=str(records.datatype),
        dtype=dtype_name(records.datatype),
        units=plan.count,
        unit=str(unit),
        unit_dtype=dtype_name(unit),
        output=plan.path,
        format=plan.format,
        kept=plan.target is not None,
        inputs=tuple(source.name for source in plan.sources),
    )


class PlannedFile(NamedTuple):
    """A file that would be written."""

    path: str
    format: str
    nbytes: int | None  # None if they are not known
    exact: bool  # whether the bytes are certain


class Description(NamedTuple):
    """The description of a planned call, which `--dry-run` prints."""

    call: str  # the function of MPI
    op: str
    buffers: Sequence[dict[str, Any]]  # the name, datatype and count of each
    nranks: int  # ranks, or origins
    nbytes: int | None  # that are read; None if only the end of the ranks shows them, and the counts
    written: Sequence[PlannedFile]  # files
    # segments, worker processes, elements in a block of each buffer, about how many bytes of memory all processes take,
    # at most how many files each has open, and the work of each; {} if one process does it
    work: Mapping[str, Any] = {}
    skipped: Sequence[str] = ()  # origins that were applied before

    def lines(self, ranks: str = "rank") -> list[str]:
        """Return what there is to say in lines."""
        counts = ["an unknown number of" if each["count"] is None else f"{each['count']} x" for each in self.buffers]
        what = ", ".join(f"{count} {each['datatype']}" for count, each in zip(counts, self.buffers, strict=True))
        op = f" with {self.op}" if self.op else ""
        lines = [f"{self.call}{op} of {number(self.nranks, ranks)}: {what}"]
        lines.append("reads the ranks to their end" if self.nbytes is None else f"reads {amount(self.nbytes)}")
        if work := self.work:
            blocks = ", ".join(map(str, work["blocks"]))
            workers = number(work["workers"], "worker") + (", spread over ranks" if work["spread"] == "ranks" else "")
            files = f"at most {work['open_files']} open files in a process"
            lines += [
                f"{number(work['segments'], 'segment')}, {workers}, {blocks} elements in a block",
                f"about {amount(work['memory'])} of memory in all, {files}",
            ]
        lines += [f"already applied, left out: {name}" for name in self.skipped[:_SHOWN]]
        for each in self.written[:_SHOWN]:
            size = "" if each.nbytes is None else f", {'' if each.exact else 'about '}{amount(each.nbytes)}"
            lines.append(f"writes {_where(each.path)} ({each.format}){size}")
        if len(self.written) > _SHOWN:
            rest = self.written[_SHOWN:]
            lines.append(f"writes {len(rest)} more files, {amount(sum(each.nbytes or 0 for each in rest))}")
        return lines


def amount(nbytes: int) -> str:
    """Return a number of bytes with a unit, and with three digits at least."""
    power = min(max(nbytes, 1).bit_length() // 10, len(_UNITS) - 1)
    if power == 0:
        return number(nbytes, "byte")
    value = nbytes / 1024**power
    return f"{value:.{max(0, 2 - int(math.log10(max(value, 1))))}f} {_UNITS[power]}"


def describe_call(call: Call) -> Description:
    """Return what a collective would do."""
    plans, figures = call.plans, summarise(call, ())
    is_open = plans[0].has_unknown_length
    blocks = zip(plans[0].block_counts, (ranks[0] for ranks in plans[0].buffers), strict=True)
    written = []
    for plan, results in zip(plans, call.results, strict=True):
        for each in results:  # the bytes only if they are known: not of streams, nor compressed
            nbytes, exact = (None, False) if plan.has_unknown_length else each.nbytes(plan)
            exact = exact and codecs.by_suffix(each.path) is None
            written.append(PlannedFile(each.path, each.format, nbytes, exact=exact))
    written += [PlannedFile(path, path.rpartition(".")[2], None, exact=False) for path in call.beside]
    return Description(
        call=figures.call,
        op=figures.op,
        buffers=[
            {"name": each.name, "datatype": str(each.datatype), "count": None if is_open else each.count}
            for each in call.elements
        ],
        nranks=figures.nranks,
        nbytes=None if is_open else figures.nbytes,
        written=written,
        work={
            "segments": sum(len(plan.segments) for plan in plans),
            "workers": figures.workers,
            "blocks": tuple(min(block, buffer.count) for block, buffer in blocks),
            "memory": max(plan.memory for plan in plans),
            "open_files": max(plan.open_files for plan in plans),
            "spread": figures.spread,
        },
    )


def describe_packing(plan: Packing) -> Description:
    """Return what a packing would do."""
    flat = plan.layout if isinstance(plan.layout, FlatLayout) else None
    nbytes = plan.count * plan.packed.stored.itemsize if flat is None else flat.end(plan.count)
    return Description(
        call=plan.function,
        op="",
        buffers=[{"name": "", "datatype": str(plan.records.datatype), "count": plan.records.count}],
        nranks=1,
        nbytes=plan.records.nbytes,
        written=[PlannedFile(plan.path, plan.format, nbytes, flat is not None and codecs.by_suffix(plan.path) is None)],
    )


def describe_request(call: str, planned: WindowsWork, fetched: PlannedFile | None) -> Description:
    """Return what a request would do to its windows; `fetched` takes the old elements."""
    request, skipped = planned.request, planned.skipped
    norigins = len(request.origins) - len(skipped)
    elements = list(zip(planned.datatypes, planned.entries, strict=True))
    nbytes = sum(count * datatype.itemsize for datatype, count in elements)
    written = [PlannedFile(each.name, each.format.name, each.nbytes, exact=True) for each in planned.windows]
    return Description(
        call=call,
        op=str(request.op),
        buffers=[{"name": "", "datatype": str(datatype), "count": count} for datatype, count in elements],
        nranks=norigins,
        nbytes=nbytes * norigins,
        written=written if fetched is None else [*written, fetched],
        skipped=skipped,
    )
