"""Summaries of calls and descriptions of planned calls, as fields for JSON and as lines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mpired import codecs
from mpired.datatypes import Datatype, Group, beside
from mpired.datatypes.dtypes import dtype_name
from mpired.datatypes.predefined import column_names
from mpired.errors import MpiredWarning, OverflowWarning, SkippedWarning, number
from mpired.formats import FlatLayout
from mpired.formats.array import stored_array
from mpired.formats.convert import OF_A_PACKAGE
from mpired.ops import OPS, Op, summary
from mpired.ops.op import Rules

if TYPE_CHECKING:  # a command imports only the modules of its own call
    from mpired.collectives.call import Call
    from mpired.packing import Packing, Transfer
    from mpired.windows.transaction import WindowUpdate

_MAX_NAMES = 3
_MAX_TYPE = 60  # characters
_MAX_FILES = 8  # in the description of a planned call; there may be thousands
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class Summary(NamedTuple):
    """The summary of a collective."""

    op: str
    commute: bool
    buffers: list[dict[str, Any]]
    nranks: int
    nbytes: int  # of all ranks
    nan: str | None  # treatment of NaN; `None` if the datatypes have no NaN
    workers: int
    root: int
    output: str
    format: str
    call: str
    noutputs: int
    overflow: Sequence[dict[str, object]] = ()
    rules: Sequence[str] = ()  # descriptions of the other rules of values
    skipped: Sequence[dict[str, object]] = ()  # ranks, with the reasons
    inputs: Sequence[str] = ()  # names of the ranks that were combined
    engine: str = "local"
    machines: int = 1
    repeated: int = 0  # segments of lost workers
    spread: str = "elements"  # the division among the workers: "elements" or "ranks"
    left_out: Sequence[str] = ()  # arrays of the first rank's file that the result does not have

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
        elements = _describe_elements(self.buffers, self.nan, self.rules)
        without = f", without {', '.join(_abbreviate(self.left_out))}" if self.left_out else ""
        return f"{call}{_option_value(self.op)} of {ranks}, {elements}, {workers} -> {where} ({self.format}){without}"


def _describe_elements(buffers: Sequence[dict[str, Any]], nan: str | None, rules: Sequence[str]) -> str:
    """Return a description of the elements of the buffers, and of the rules for their values."""
    first, *others = buffers
    more = f" and {len(others)} more" if others else ""
    stored = f" of {first['stored']}" if first.get("stored") else ""
    phrases = [f"{first['count']} x {first['dtype'] or first['datatype']}{stored}{more}"]
    phrases += [f"NaN {nan}", *rules] if nan else rules
    names = _abbreviate([_packed_name(buffer["name"]) for buffer in buffers if buffer.get("unpacked")])
    return ", ".join([*phrases, f"{', '.join(names)} unpacked and not packed again"] if names else phrases)


def _packed_name(name: str) -> str:
    """Return the name of a packed array: of pairs with generated indices, which are not packed, that of the values."""
    values = name.rpartition(",")[0]
    return values if values and name == ",".join(column_names(values)) else name


def _where(path: str) -> str:
    """Return a path, or the words for standard output."""
    return "standard output" if path == "-" else path


def _abbreviate(names: Sequence[str]) -> list[str]:
    """Return the first names and the number of the others."""
    more = [f"{len(names) - _MAX_NAMES} more"] if len(names) > _MAX_NAMES else []
    return [*names[:_MAX_NAMES], *more]


def _option_value(ops: str) -> str:
    """Return the value of `--op` for the names of ops: `sum` for MPI_SUM."""
    values = {str(row): row.name.lower() for row in OPS}
    return ",".join(values.get(op, op) for op in ops.split(","))


def summarise_request(
    call: str,
    update: WindowUpdate,
    windows: Sequence[str],
    origins: Sequence[object],
    warnings: Sequence[MpiredWarning],
) -> tuple[dict[str, Any], str]:
    """Return the summary of a call on windows, as fields and as a line; `call` is the function of MPI."""
    names, skipped = tuple(map(str, windows)), update.skipped
    norigins = len(origins) - len(skipped)
    buffers = [
        {"datatype": str(datatype), "dtype": dtype_name(datatype), "count": count}  # the count of each origin
        for datatype, count in zip(update.datatypes, update.entries, strict=True)
    ]
    op, bad = update.request.op, skipped_in(warnings)
    nan, rules = _nan((op,), update.datatypes), summary((op,))
    fields = {
        "op": str(op),
        "buffers": buffers,
        "origins": norigins,  # without those that were applied before
        "windows": names,
        "protocols": update.protocols,
        "skipped": skipped,
        "call": call,
        "output": names[0] if len(names) == 1 else "in place",
        "overflow": [warning.details for warning in warnings if isinstance(warning, OverflowWarning)],
        "bad": bad,
        "inputs": list(map(str, origins)),
        "nan": nan,
        "rules": rules,
    }
    changed = [f"{name} ({protocol})" for name, protocol in zip(names, update.protocols, strict=True) if protocol]
    left_out = f" ({len(bad)} left out)" if bad else ""
    elements, where = _describe_elements(buffers, nan, rules), ", ".join(changed) or "nothing to change"
    return fields, f"{_option_value(str(op))} of {number(norigins, 'origin')}{left_out}, {elements} -> {where}"


def skipped_in(warnings: Sequence[MpiredWarning]) -> list[dict[str, object]]:
    """Return the unusable ranks or origins that warnings name, with the reasons."""
    lists = [warning.skipped for warning in warnings if isinstance(warning, SkippedWarning)]
    return [rank._asdict() for rank in itertools.chain(*lists)]


def summarise(call: Call, warnings: Sequence[MpiredWarning]) -> Summary:
    """Return the summary of a completed collective, or the figures of a planned one."""
    plans, elements = call.plans, call.elements
    files, root = [file for group in call.request.combined for file in group], call.request.options["root"]
    results, ops = [result for plan in plans for result in plan.results], plans[0].ops
    return Summary(
        op=str(ops[0]) if len(ops) == 1 else _option_value(",".join(map(str, ops))),
        commute=all(op.commute for op in ops),
        buffers=[
            {
                "name": buffer.name,
                "datatype": str(buffer.datatype),
                "dtype": dtype_name(buffer.datatype),
                "count": ranks[0].count,
                "stored": buffer.stored.name if buffer.stored.isbuiltin == OF_A_PACKAGE else None,
                "unpacked": stored_array(buffer).packed or None,
            }
            for buffer, ranks in zip(elements, plans[0].buffers, strict=True)
        ],
        nranks=len(files),
        nbytes=sum(plan.nbytes for plan in plans),
        nan=_nan(ops, [buffer.datatype for buffer in elements]),
        workers=max(plan.jobs for plan in plans),
        root=root,
        output=",".join(call.request.outputs) or (call.paths[0] if call.request.collective.to_root else "in place"),
        format=", ".join(sorted({result.format.name for result in results})) or files[0].format.name,
        call=call.request.collective.function,
        noutputs=len(results),
        overflow=[warning.details for warning in warnings if isinstance(warning, OverflowWarning)],
        rules=summary(ops) if any(op.rules != Rules() for op in ops) else (),
        skipped=[rank._asdict() for rank in call.request.skipped],
        inputs=[file.source.name for group in call.request.groups for file in group],
        engine=plans[0].engine.name,
        machines=max(plan.machines for plan in plans),
        repeated=getattr(plans[0].engine.connected, "repeated", 0),
        spread="ranks" if plans[0].lines else "elements",
        left_out=call.left_out if call.request.groups[0][root].names else (),
    )


def _nan(ops: Sequence[Op], datatypes: Sequence[Datatype]) -> str | None:
    """Return a description of the treatment of NaN, None if the datatypes or the ops have no NaN."""
    floating = Group.FLOATING_POINT | Group.COMPLEX
    if not any(row.form[0].kind == "f" if row.group is Group.PAIR else row.group in floating for row in datatypes):
        return None
    descriptions = {"ignore": "is left out", "mpi": "is as in MPI's libraries"}
    return " or ".join(dict.fromkeys(filter(None, (descriptions.get(op.rules.nan, op.nan) for op in ops)))) or None


class PackSummary(NamedTuple):
    """The summary of a packing or an unpacking."""

    call: str  # MPI_Pack or MPI_Unpack
    elements: int  # in the file of records
    datatype: str  # of an element
    dtype: str | None  # NumPy's name of the datatype; `None` if it has none
    units: int  # in the packed file
    unit: str  # the datatype of a unit
    unit_dtype: str | None
    output: str
    format: str
    kept: bool = False  # whether the bytes between the elements did not change
    inputs: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the summary on one line."""
        parts = []
        for count, name, dtype in (self.elements, self.datatype, self.dtype), (self.units, self.unit, self.unit_dtype):
            short = name if len(name) <= _MAX_TYPE else f"{name[:_MAX_TYPE]}..."
            parts.append(f"{count} x {beside(short, dtype)}")
        action = f"packed {', '.join(parts)}" if self.call == "MPI_Pack" else f"unpacked {', '.join(parts[::-1])}"
        kept = ", the bytes between kept" if self.kept else ""
        return f"{action}{kept} -> {_where(self.output)} ({self.format})"


def summarise_packing(transfer: Transfer) -> PackSummary:
    """Return the summary of a packing or an unpacking."""
    records, unit = transfer.records, transfer.packed.datatype
    return PackSummary(
        call=transfer.function,
        elements=records.count,
        datatype=str(records.datatype),
        dtype=dtype_name(records.datatype),
        units=transfer.count,
        unit=str(unit),
        unit_dtype=dtype_name(unit),
        output=transfer.path,
        format=transfer.format,
        kept=transfer.target is not None,
        inputs=tuple(source.name for source in transfer.sources),
    )


class PlannedFile(NamedTuple):
    """A file that a planned call would write."""

    path: str
    format: str
    nbytes: int | None  # `None` if unknown
    exact: bool  # whether `nbytes` is exact


class Description(NamedTuple):
    """The description of a planned call, which `--dry-run` prints."""

    call: str  # the function of MPI
    op: str
    buffers: Sequence[dict[str, Any]]  # name, datatype and count of each
    nranks: int  # ranks, or origins
    nbytes: int | None  # to read; `None` if the ranks have unknown length, like the counts
    written: Sequence[PlannedFile]
    # figures of the plan: segments, workers, elements in a block of each buffer, bytes of memory of all processes, open
    # files of a process, and `spread`; empty if one process does the work
    work: Mapping[str, Any] = {}
    skipped: Sequence[str] = ()  # origins that were applied before

    def lines(self, noun: str = "rank") -> list[str]:
        """Return the description in lines; `noun` is that of an input."""
        buffers = []
        for buffer in self.buffers:
            count = "an unknown number of" if buffer["count"] is None else f"{buffer['count']} x"
            buffers.append(f"{count} {buffer['datatype']}")
        op = f" with {self.op}" if self.op else ""
        lines = [f"{self.call}{op} of {number(self.nranks, noun)}: {', '.join(buffers)}"]
        lines.append("reads the ranks to their end" if self.nbytes is None else f"reads {amount(self.nbytes)}")
        if work := self.work:
            blocks = ", ".join(map(str, work["blocks"]))
            workers = number(work["workers"], "worker") + (", spread over ranks" if work["spread"] == "ranks" else "")
            files = f"at most {work['open_files']} open files in a process"
            lines += [
                f"{number(work['segments'], 'segment')}, {workers}, {blocks} elements in a block",
                f"about {amount(work['memory'])} of memory in all, {files}",
            ]
        lines += [f"already applied, left out: {name}" for name in self.skipped[:_MAX_FILES]]
        for file in self.written[:_MAX_FILES]:
            size = "" if file.nbytes is None else f", {'' if file.exact else 'about '}{amount(file.nbytes)}"
            lines.append(f"writes {_where(file.path)} ({file.format}){size}")
        if more := self.written[_MAX_FILES:]:
            lines.append(f"writes {len(more)} more files, {amount(sum(file.nbytes or 0 for file in more))}")
        return lines


def amount(nbytes: int) -> str:
    """Return a number of bytes with a unit and three or more digits."""
    power = min(max(nbytes, 1).bit_length() // 10, len(_UNITS) - 1)
    if power == 0:
        return number(nbytes, "byte")
    value = nbytes / 1024**power
    return f"{value:.{max(0, 2 - int(math.log10(max(value, 1))))}f} {_UNITS[power]}"


def describe_call(call: Call) -> Description:
    """Return the description of a planned collective."""
    plans, figures = call.plans, summarise(call, ())
    is_unknown = plans[0].has_unknown_length
    blocks = zip(plans[0].block_counts, (ranks[0] for ranks in plans[0].buffers), strict=True)
    written = []
    for plan in plans:
        for result in plan.results:
            nbytes, exact = (None, False) if plan.has_unknown_length else result.nbytes(plan)
            exact = exact and codecs.by_suffix(result.path) is None
            written.append(PlannedFile(result.path, result.format.name, nbytes, exact=exact))
    written += [PlannedFile(path, path.rpartition(".")[2], None, exact=False) for path in call.sidecars]
    return Description(
        call=figures.call,
        op=figures.op,
        buffers=[
            {"name": buffer.name, "datatype": str(buffer.datatype), "count": None if is_unknown else buffer.count}
            for buffer in call.elements
        ],
        nranks=figures.nranks,
        nbytes=None if is_unknown else figures.nbytes,
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


def describe_packing(packing: Packing) -> Description:
    """Return the description of a planned packing."""
    records, nbytes, exact = packing.records, packing.count * packing.packed.stored.itemsize, False
    if isinstance(packing.layout, FlatLayout):
        nbytes, exact = packing.layout.end(packing.count), codecs.by_suffix(packing.path) is None
    return Description(
        call=packing.function,
        op="",
        buffers=[{"name": "", "datatype": str(records.datatype), "count": records.count}],
        nranks=1,
        nbytes=records.nbytes,
        written=[PlannedFile(packing.path, packing.format, nbytes, exact=exact)],
    )


def describe_request(call: str, update: WindowUpdate, fetched: PlannedFile | None) -> Description:
    """Return the description of a planned call on windows; `fetched` is the file of the old elements."""
    request, skipped = update.request, update.skipped
    norigins = len(request.origins) - len(skipped)
    elements = list(zip(update.datatypes, update.entries, strict=True))
    nbytes = sum(count * datatype.itemsize for datatype, count in elements)
    written = [PlannedFile(window.name, window.format.name, window.nbytes, exact=True) for window in update.windows]
    return Description(
        call=call,
        op=str(request.op),
        buffers=[{"name": "", "datatype": str(datatype), "count": count} for datatype, count in elements],
        nranks=norigins,
        nbytes=nbytes * norigins,
        written=written if fetched is None else [*written, fetched],
        skipped=skipped,
    )
