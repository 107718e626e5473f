"""Summaries of calls, and what a dry run would do: lines, or the same as JSON."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mpired import codecs
from mpired.datatypes import DATATYPES, TIMES, Datatype, Group, beside
from mpired.datatypes.times import dtype_name
from mpired.errors import MpiredWarning, OverflowWarning, number
from mpired.formats import Array, FlatLayout
from mpired.formats.array import REGISTERED, stored_array
from mpired.formats.rank import dtype_text
from mpired.ops import OPS, Op, Use, summary
from mpired.ops.op import Rules
from mpired.values import listed

if TYPE_CHECKING:  # a report of one command need not wait for the modules of all
    from mpired.collectives.call import Call
    from mpired.formats import RankFile
    from mpired.formats.rank import SkippedArray
    from mpired.packing import Packing, Transfer
    from mpired.windows.call import Done
    from mpired.windows.transaction import Work as WindowsWork


_SHOWN_NAMES = 3
_LONGEST_TYPE = 60
_SHOWN = 8  # results of a dry run, of perhaps thousands
_SHOWN_ENTRIES = 8  # of a type map
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
    call: str, windows: Sequence[str], origins: Sequence[object], done: Done, output: str | None
) -> tuple[dict[str, Any], str]:
    """Return the figures of a request by a function of MPI, and its line; `output` has the old elements, if any."""
    names, norigins = tuple(map(str, windows)), len(origins) - len(done.skipped)
    buffers = [
        {"datatype": str(datatype), "dtype": dtype_name(datatype), "count": count}  # the count of each origin
        for datatype, count in zip(done.datatypes, done.entries, strict=True)
    ]
    nan, rules, left_out = _nan((done.op,), done.datatypes), summary((done.op,)), done.bad
    figures = {
        "op": str(done.op),
        "buffers": buffers,
        "origins": norigins,  # how many were applied
        "windows": names,
        "protocols": done.protocols,
        "skipped": done.skipped,
        "call": call,
        "output": output or (names[0] if len(names) == 1 else "in place"),
        "overflow": [each.details for each in done.cautions if isinstance(each, OverflowWarning)],
        "bad": [each._asdict() for each in left_out],
        "inputs": list(map(str, origins)),
        "nan": nan,
        "rules": rules,
    }
    changed = zip(names, done.protocols, strict=True)
    where = ", ".join(f"{name} ({protocol})" for name, protocol in changed if protocol) or "nothing to change"
    bad = f" ({len(left_out)} left out)" if left_out else ""
    what = _elements(buffers, nan, rules)
    return figures, f"{_plain(str(done.op))} of {number(norigins, 'origin')}{bad}, {what} -> {where}"


def summarise(call: Call, warned: Sequence[MpiredWarning]) -> Summary:
    """Return the summary of a collective that is done, and has warned of this."""
    plans, elements = call.plans, call.elements
    files = [file for group in call.request.combined for file in group]
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
        format=", ".join(sorted({result.format for result in call.results})) or files[0].format,
        call=call.request.collective.function,
        noutputs=len(call.results),
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


def describe_datatype(datatype: Datatype, byte_order: str | None = None) -> dict[str, Any]:
    """Return what a datatype is, for printing and for JSON; of a long type map the first entries and the last."""
    # `byte_order` is what its text says: "little", "big", "native" or nothing.
    from mpired.datatypes.typemap import picture  # noqa: PLC0415

    typemap, drawn, name = datatype.typemap, picture.draw(datatype.typemap), datatype.numpy_name
    # NAMED, VALUE_INDEX of an unnamed pair, or the constructor (MPI_Type_get_envelope).
    constructor = "VALUE_INDEX" if datatype.parts else datatype.name.partition("(")[0].upper()
    combiner = "NAMED" if datatype.is_named else constructor
    entries: Sequence[int] = range(typemap.entries)
    if len(entries) > _SHOWN_ENTRIES:
        entries = [*entries[: _SHOWN_ENTRIES - 1], entries[-1]]
    return {
        "name": str(datatype),
        "numpy_name": name or None,
        "same_form": [f"{row}" for row in DATATYPES if name and row.numpy_name == name and row is not datatype],
        "combiner": f"MPI_COMBINER_{combiner}",
        **{name: getattr(typemap, name) for name in ("size", "lb", "ub", "extent", "true_lb", "true_extent")},
        "alignment": typemap.align,
        "entries": typemap.entries,
        "type_map": [[entry.name, entry.disp] for entry in map(typemap.entry, entries)],
        "numpy": None if datatype.dtype is None else dtype_text(datatype.dtype, byte_order),
        "numpy_is_packed": datatype.is_spread,
        "no_numpy": datatype.memory.obstacle if datatype.dtype is None else None,
        "external32": typemap.external,
        "picture": None if drawn is None else drawn._asdict(),
    }


_LEFT_OUT = "`mpired reduce --nulls ignore` leaves nulls out"


def _label_and_use(buffer: Array) -> tuple[str, str | None]:
    """Return what elements are, in words, and what takes them; None if all that takes numbers or pairs does."""
    form, datatype, takers = buffer.form, buffer.datatype, None
    label, group = datatype.label, datatype.group
    if group in TIMES:
        label = label if buffer.columns else beside(f"{datatype}", dtype_name(datatype))
        takers = f"{_takers(group)} take it"
    elif group is Group.DERIVED:
        takers = "user-defined ops take it"
        if form is not None:  # a structure of a file, by its fields
            fields = ", ".join(f"{name} ({form[name]})" for name in form.names or ())
            label = f"structures of {fields}"
    if buffer.nulls:
        return label, _LEFT_OUT if group is not Group.DERIVED else "no op takes nulls, fill or filter them first"
    return label, takers


def _use_of_other(other: SkippedArray, file: RankFile) -> str:
    """Return the ways to use an array that is not a buffer."""
    if [each.name for each in file.others].count(other.name) > 1:
        return "other columns have this name, too"
    name = shlex.quote(listed([other.name]))
    kept = f", `mpired reduce --keep {name}` carries it" if file.names and other.keeps else ""
    if other.group is None:
        return f"{other.way_out}, no op takes it as it is{kept}" if other.way_out else f"no op takes it{kept}"
    if other.nulls:
        return f"{_LEFT_OUT}{kept}"
    return f"{_takers(other.group)} take it if `columns` names it"


def _takers(group: Group) -> str:
    """Return the names of the ops of reductions that take a group of datatypes."""
    return ", ".join(op.name.lower() for op in OPS if group in op.groups and Use.REDUCE in op.uses)


def describe_file(file: RankFile) -> dict[str, Any]:
    """Return what a file holds, for printing and for JSON."""
    others = [(other, _use_of_other(other, file)) for other in file.others]
    others += [(other, "carried into results as it is") for other in (file.kept.others if file.kept else ())]
    return {
        "file": file.source.name,
        "format": file.format,
        "nbytes": sum(source.nbytes for source in file.sources),
        "buffers": [_described(buffer, *_label_and_use(buffer)) for buffer in file.buffers],
        "other_columns": [_described(other, other.label or other.type, use) for other, use in others],
        "obstacle": file.obstacle or None,
    }


def _described(each: Array | SkippedArray, label: str, use: str | None) -> dict[str, Any]:
    """Return the description of an array, in the order of the JSON."""
    if isinstance(each, Array):
        datatype = {"datatype": str(each.datatype), "dtype": dtype_name(each.datatype)}
        order = None if each.shape is None else "Fortran" if each.fortran_order else "C"
        byte_order = {"<": "little", ">": "big", "=": None}[each.byte_order]
        stored = {"order": order, "datarep": each.datarep, "byte_order": byte_order}
    else:
        datatype, stored = {"type": each.type}, {}
    meta = {"nulls": each.nulls, "unit": each.unit or None, "storage": each.storage or None}
    count, shape = each.count, None if each.shape is None else list(each.shape)
    return {"name": each.name, **datatype, "count": count, "shape": shape, **stored, **meta, "label": label, "use": use}


class Written(NamedTuple):
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
    nbytes: int  # that are read
    written: Sequence[Written]  # files
    # segments, worker processes, elements in a block of each buffer, about how many bytes of memory all processes take,
    # at most how many files each has open, and the work of each; {} if one process does it
    work: Mapping[str, Any] = {}
    skipped: Sequence[str] = ()  # origins that were applied before

    def lines(self, ranks: str = "rank") -> list[str]:
        """Return what there is to say in lines."""
        what = ", ".join(f"{each['count']} x {each['datatype']}" for each in self.buffers)
        op = f" with {self.op}" if self.op else ""
        lines = [f"{self.call}{op} of {number(self.nranks, ranks)}: {what}", f"reads {amount(self.nbytes)}"]
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
    from mpired.provenance import SUFFIX  # noqa: PLC0415 - for a dry run only

    plans = call.plans
    blocks = zip(plans[0].block_counts, (ranks[0] for ranks in plans[0].buffers), strict=True)
    written = []
    for plan, results in zip(plans, call.results_by_plan, strict=True):
        for each in results:  # the bytes only if they are known: not of streams, nor compressed
            nbytes, exact = (None, False) if plan.has_unknown_length else each.nbytes(plan)
            exact = exact and codecs.by_suffix(each.path) is None
            written.append(Written(each.path, each.format, nbytes, exact=exact))
    written += [Written(path, SUFFIX[1:], None, exact=False) for path in call.beside]
    return Description(
        call=call.request.collective.function,
        op=",".join(map(str, plans[0].ops)),
        buffers=[{"name": each.name, "datatype": str(each.datatype), "count": each.count} for each in call.elements],
        nranks=sum(map(len, call.request.combined)),
        nbytes=sum(plan.nbytes for plan in plans),
        written=written,
        work={
            "segments": sum(len(plan.segments) for plan in plans),
            "workers": max(plan.jobs for plan in plans),
            "blocks": tuple(min(block, buffer.count) for block, buffer in blocks),
            "memory": max(plan.memory for plan in plans),
            "open_files": max(plan.open_files for plan in plans),
            "spread": "ranks" if plans[0].lines else "elements",
        },
    )


def describe_packing(plan: Packing) -> Description:
    """Return what a packing would do."""
    flat = plan.layout if isinstance(plan.layout, FlatLayout) else None
    stored = plan.packed.stored if flat is None else flat.stored
    nbytes = (0 if flat is None else flat.offset) + plan.count * stored.itemsize
    return Description(
        call=plan.function,
        op="",
        buffers=[{"name": "", "datatype": str(plan.records.datatype), "count": plan.records.count}],
        nranks=1,
        nbytes=plan.records.nbytes,
        written=[Written(plan.path, plan.format, nbytes, flat is not None and codecs.by_suffix(plan.path) is None)],
    )


def describe_request(call: str, planned: WindowsWork, fetched: Written | None) -> Description:
    """Return what a request would do to its windows; `fetched` takes the old elements."""
    request, done = planned.request, planned.done()
    norigins = len(request.origins) - len(done.skipped)
    elements = list(zip(done.datatypes, done.entries, strict=True))
    nbytes = sum(count * datatype.itemsize for datatype, count in elements)
    written = [Written(each.name, each.format.name, each.nbytes, exact=True) for each in planned.windows]
    return Description(
        call=call,
        op=str(request.op),
        buffers=[{"name": "", "datatype": str(datatype), "count": count} for datatype, count in elements],
        nranks=norigins,
        nbytes=nbytes * norigins,
        written=written if fetched is None else [*written, fetched],
        skipped=done.skipped,
    )
