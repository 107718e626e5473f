"""What was done: a summary line, or the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mpired.datatypes import Datatype, Group
from mpired.errors import OverflowWarning

if TYPE_CHECKING:  # a report of one command need not wait for the modules of all
    from mpired.buffers import RankFile
    from mpired.collectives.call import Call
    from mpired.packing.pack import Packing
    from mpired.packing.unpack import Unpacking
    from mpired.windows.request import Done


class Summary(NamedTuple):
    """A reduction in figures; `nbytes` is what was read of the ranks."""

    op: str
    commute: bool
    buffers: list[dict[str, Any]]
    nranks: int
    nbytes: int
    nan: str | None
    workers: int
    root: int
    output: str
    format: str
    call: str
    noutputs: int
    overflow: Sequence[dict[str, object]] = ()

    def line(self) -> str:
        """Return the summary on one line."""
        what = _elements(self.buffers)
        policy = f", NaN {self.nan}" if self.nan else ""
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        where = "standard output" if self.output == "-" else self.output
        if self.call != "MPI_Reduce":
            where = f"{self.noutputs} file{'' if self.noutputs == 1 else 's'}, {where}"
        ranks = f"{self.nranks} rank{'s' if self.nranks > 1 else ''}"
        call = "" if self.call == "MPI_Reduce" else f"{self.call} with "
        return f"{call}{self.op} of {ranks}, {what}{policy}, {workers} -> {where} ({self.format})"


def _elements(buffers: Sequence[dict[str, Any]]) -> str:
    """Return what the buffers hold, in words."""
    first, *others = buffers
    more = f" and {len(others)} more column{'' if len(others) == 1 else 's'}" if others else ""
    return f"{first['count']} x {first['datatype']}{more}"


class Updated(NamedTuple):
    """What became of windows, in figures.

    Parameters
    ----------
    op
        What combined.
    buffers
        What the elements of each buffer are, and how many each origin gave.
    origins
        How many were applied.
    windows, protocols
        The files, and how each was changed; "" if it was not.
    skipped, recovered
        The names of origins that had been applied before, and of windows whose last update was finished first.
    overflow
        For each window and buffer that overflowed how often, and where first.
    """

    op: str
    buffers: tuple[dict[str, Any], ...]
    origins: int
    windows: tuple[str, ...]
    protocols: tuple[str, ...]
    skipped: tuple[str, ...]
    recovered: tuple[str, ...]
    overflow: tuple[dict[str, object], ...] = ()

    @classmethod
    def of(cls, op: str, windows: Sequence[str], origins: Sequence[object], done: Done) -> Updated:
        """Return the figures of a request that is done."""
        buffers = tuple(
            {"datatype": str(datatype), "count": count}
            for datatype, count in zip(done.datatypes, done.entries, strict=True)
        )
        applied = len(origins) - len(done.skipped)
        names = tuple(map(str, windows))
        overflow = tuple(each.details for each in done.overflow)
        return cls(op, buffers, applied, names, done.protocols, done.skipped, done.recovered, overflow)

    def line(self) -> str:
        """Return the summary on one line."""
        changed = [
            f"{name} ({protocol})" for name, protocol in zip(self.windows, self.protocols, strict=True) if protocol
        ]
        where = ", ".join(changed) or "nothing to change"
        origins = f"{self.origins} origin{'' if self.origins == 1 else 's'}"
        what = _elements(self.buffers)
        return f"{self.op} of {origins}, {what} -> {where}"


def summarise(call: Call, overflow: Sequence[OverflowWarning] = ()) -> Summary:
    """Return the summary of a collective; `overflow` has the warnings of that."""
    plans, files = call.plans, [file for group in call.collective.combined(call.groups) for file in group]
    model, op = call.groups[0][call.root], plans[0].op
    return Summary(
        op=str(op),
        commute=op.commute,
        buffers=[
            {"name": buffer.name, "datatype": str(buffer.datatype), "count": buffer.count} for buffer in model.buffers
        ],
        nranks=len(files),
        nbytes=sum(plan.nbytes for plan in plans),
        nan=op.nan if any(_may_hold_nan(each.datatype) for each in model.buffers) else None,
        workers=max(plan.jobs for plan in plans),
        root=call.root,
        output=call.output or (call.paths[0] if call.collective.to_root else "in place"),
        format=", ".join(sorted({result.format for result in call.results})) or files[0].format,
        call=call.collective.function,
        noutputs=len(call.results),
        overflow=[each.details for each in overflow],
    )


def _may_hold_nan(datatype: Datatype) -> bool:
    if datatype.group is Group.PAIR:
        return datatype.form[0].kind == "f"
    return datatype.group in Group.FLOATING_POINT | Group.COMPLEX


class PackSummary(NamedTuple):
    """A packing or an unpacking in figures.

    Parameters
    ----------
    call
        MPI_Pack or MPI_Unpack.
    elements, datatype
        The elements that lie in the file of records.
    units, unit
        The packed elements.
    output, format
        The file that was written.
    kept
        Whether the bytes between the elements are those that the file had before.
    """

    call: str
    elements: int
    datatype: str
    units: int
    unit: str
    output: str
    format: str
    kept: bool = False

    def line(self) -> str:
        """Return the summary on one line."""
        records, units = (f"{self.elements} x {_short(self.datatype)}", f"{self.units} x {_short(self.unit)}")
        packs = self.call == "MPI_Pack"
        what = f"packed {records}, {units}" if packs else f"unpacked {units}, {records}"
        kept = ", the bytes between kept" if self.kept else ""
        where = "standard output" if self.output == "-" else self.output
        return f"{what}{kept} -> {where} ({self.format})"


_LONGEST_TYPE = 60


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TYPE else f"{text[:_LONGEST_TYPE]}..."


def summarise_packing(plan: Packing | Unpacking) -> PackSummary:
    """Return the summary of a packing or an unpacking."""
    return PackSummary(
        plan.function,
        plan.records.count,
        str(plan.records.datatype),
        plan.records.count * plan.packed.per_element,
        str(plan.packed.datatype),
        plan.path,
        plan.format,
        plan.keeps,
    )


_SHOWN_ENTRIES = 8


def describe_datatype(datatype: Datatype, byte_order: str | None = None) -> dict[str, Any]:
    """Return what a datatype is, for printing and for JSON; of a long type map the first entries and the last.

    `byte_order` is what its text says: "little", "big", "native" or nothing.
    """
    from mpired.buffers.rank import dtype_text  # noqa: PLC0415 - for this description only
    from mpired.datatypes.typemap import picture  # noqa: PLC0415

    typemap, drawn = datatype.typemap, picture.draw(datatype.typemap)
    numbers = range(typemap.entries)
    if typemap.entries > _SHOWN_ENTRIES:
        numbers = range(_SHOWN_ENTRIES - 1)
    shown = [typemap.entry(number) for number in numbers]
    last = [typemap.entry(typemap.entries - 1)] if len(shown) < typemap.entries else []
    return {
        "name": str(datatype),
        "combiner": f"MPI_COMBINER_{datatype.combiner}",
        "size": typemap.size,
        "lb": typemap.lb,
        "ub": typemap.ub,
        "extent": typemap.extent,
        "true_lb": typemap.true_lb,
        "true_extent": typemap.true_extent,
        "alignment": typemap.align,
        "entries": typemap.entries,
        "type_map": [[entry.name, entry.disp] for entry in shown + last],
        "numpy": None if datatype.dtype is None else dtype_text(datatype.dtype, byte_order),
        "numpy_is_packed": datatype.is_spread,
        "no_numpy": datatype.memory.obstacle if datatype.dtype is None else None,
        "external32": typemap.external,
        "picture": None if drawn is None else drawn._asdict(),
    }


def describe_file(file: RankFile) -> dict[str, Any]:
    """Return what a file holds, for printing and for JSON."""
    return {
        "file": file.source.name,
        "format": file.format,
        "nbytes": file.source.nbytes,
        "buffers": [
            {
                "name": buffer.name,
                "datatype": str(buffer.datatype),
                "count": buffer.count,
                "shape": None if buffer.shape is None else list(buffer.shape),
                "order": None if buffer.shape is None else "Fortran" if buffer.fortran_order else "C",
                "datarep": buffer.datarep,
                "byte_order": {"<": "little", ">": "big", "=": None}[buffer.byte_order],
                "nulls": getattr(buffer, "nulls", None) if buffer.columns else 0,
            }
            for buffer in file.buffers
        ],
        "other_columns": [
            {
                "name": other.name,
                "type": other.type,
                "count": other.count,
                "shape": None if other.shape is None else list(other.shape),
            }
            for other in file.others
        ],
        "obstacle": file.obstacle or None,
    }
