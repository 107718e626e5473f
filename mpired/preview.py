"""What a call would do, in figures: the answer of `--dry-run`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mpired import codecs, provenance
from mpired.buffers import FlatLayout
from mpired.values import number

if TYPE_CHECKING:  # a preview of one command need not wait for the modules of all
    from mpired.collectives.call import Call
    from mpired.collectives.plan import Plan
    from mpired.collectives.run import Result
    from mpired.packing.pack import Packing
    from mpired.windows.rehearsal import Rehearsal

_SHOWN = 8  # results, of perhaps thousands
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class Written(NamedTuple):
    """A file that would be written; `exact` tells whether its bytes are certain, None that they are not known."""

    path: str
    format: str
    nbytes: int | None
    exact: bool

    @property
    def text(self) -> str:
        """What it is, on a line."""
        where = "standard output" if self.path == "-" else self.path
        size = "" if self.nbytes is None else f", {'' if self.exact else 'about '}{amount(self.nbytes)}"
        return f"{where} ({self.format}){size}"


class Work(NamedTuple):
    """How a collective would be computed; the memory is about that of all processes together, the files those of one.

    Parameters
    ----------
    segments, workers
        How many tasks there are, and processes that do them.
    blocks
        For each buffer how many elements are read at a time.
    memory, open_files
        Bytes, and the most files that a process has open.
    spread
        What is divided among the workers, elements or ranks.
    """

    segments: int
    workers: int
    blocks: tuple[int, ...]
    memory: int
    open_files: int
    spread: str = "elements"


class Preview(NamedTuple):
    """What a call would do.

    Parameters
    ----------
    call, op
        The function of MPI, and what combines.
    buffers
        What the elements of each buffer are, and how many.
    nranks
        How many ranks, or origins, are read.
    nbytes
        What is read of them.
    written
        The files that are written.
    work
        How; None where it is done in one process, a block after another.
    """

    call: str
    op: str
    buffers: Sequence[dict[str, Any]]
    nranks: int
    nbytes: int
    written: Sequence[Written]
    work: Work | None = None
    skipped: Sequence[str] = ()

    def lines(self, ranks: str = "rank") -> list[str]:
        """Return what there is to say in lines."""
        what = ", ".join(f"{each['count']} x {each['datatype']}" for each in self.buffers)
        op = f" with {self.op}" if self.op else ""
        lines = [f"{self.call}{op} of {number(self.nranks, ranks)}: {what}", f"reads {amount(self.nbytes)}"]
        if self.work is not None:
            work = self.work
            blocks = ", ".join(map(str, work.blocks))
            workers = number(work.workers, "worker") + (", spread over ranks" if work.spread == "ranks" else "")
            lines += [
                f"{number(work.segments, 'segment')}, {workers}, {blocks} elements in a block",
                f"about {amount(work.memory)} of memory in all, at most {work.open_files} open files in a process",
            ]
        lines += [f"already applied, left out: {name}" for name in self.skipped[:_SHOWN]]
        lines += [f"writes {each.text}" for each in self.written[:_SHOWN]]
        if len(self.written) > _SHOWN:
            rest = self.written[_SHOWN:]
            lines.append(f"writes {len(rest)} more files, {amount(sum(each.nbytes or 0 for each in rest))}")
        return lines

    def details(self) -> dict[str, Any]:
        """Return the same for JSON."""
        work = self.work._asdict() if self.work else {}
        written = [each._asdict() for each in self.written]
        return {"dry_run": True, **self._asdict(), "work": work, "written": written}


def amount(nbytes: int) -> str:
    """Return a number of bytes with a unit, and with three digits at least."""
    power = min(max(nbytes, 1).bit_length() // 10, len(_UNITS) - 1)
    if power == 0:
        return number(nbytes, "byte")
    value = nbytes / 1024**power
    return f"{value:.{max(0, 2 - int(math.log10(max(value, 1))))}f} {_UNITS[power]}"


def of_collective(call: Call) -> Preview:
    """Return what a collective would do."""
    plans, files = call.plans, [file for group in call.collective.combined(call.groups) for file in group]
    model = call.groups[0][call.root]
    return Preview(
        call=call.collective.function,
        op=str(plans[0].op),
        buffers=[
            {"name": buffer.name, "datatype": str(buffer.datatype), "count": buffer.count} for buffer in model.buffers
        ],
        nranks=len(files),
        nbytes=sum(plan.nbytes for plan in plans),
        written=[_written(result, course.plan) for course in call.courses for result in course.results]
        + [Written(path, provenance.SUFFIX[1:], None, exact=False) for path in call.beside],
        work=Work(
            segments=sum(len(plan.segments) for plan in plans),
            workers=max(plan.jobs for plan in plans),
            blocks=tuple(
                min(block, ranks[0].count) for block, ranks in zip(plans[0].block_counts, plans[0].buffers, strict=True)
            ),
            memory=max(plan.memory for plan in plans),
            open_files=max(plan.open_files for plan in plans),
            spread=plans[0].spread,
        ),
    )


def _written(result: Result, plan: Plan) -> Written:
    """Return what is known of a result: of ranks whose end is not known, or that is compressed, not its bytes."""
    if plan.is_open:
        return Written(result.path, result.format, None, exact=False)
    nbytes, exact = result.nbytes(plan)
    return Written(result.path, result.format, nbytes, exact=exact and codecs.by_suffix(result.path) is None)


def of_packing(plan: Packing) -> Preview:
    """Return what a packing would do."""
    flat = plan.layout if isinstance(plan.layout, FlatLayout) else None
    stored = plan.packed.stored if flat is None else flat.stored
    nbytes = (0 if flat is None else flat.offset) + plan.count * stored.itemsize
    return Preview(
        call=plan.function,
        op="",
        buffers=[{"name": "", "datatype": str(plan.records.datatype), "count": plan.records.count}],
        nranks=1,
        nbytes=plan.records.nbytes,
        written=[Written(plan.path, plan.format, nbytes, flat is not None and codecs.by_suffix(plan.path) is None)],
    )


def of_request(call: str, rehearsal: Rehearsal, fetched: str | None = None) -> Preview:
    """Return what a request would do to its windows; `fetched` is where the old elements would go."""
    request, done = rehearsal.request, rehearsal.done
    nbytes = sum(count * datatype.itemsize for datatype, count in zip(done.datatypes, done.entries, strict=True))
    written = [Written(seen.name, seen.format, seen.nbytes, exact=True) for seen in rehearsal.windows]
    if fetched is not None and rehearsal.fetched is not None:
        written.append(Written(fetched, *rehearsal.fetched))
    return Preview(
        call=call,
        op=str(request.op),
        buffers=[
            {"name": "", "datatype": str(datatype), "count": count}
            for datatype, count in zip(done.datatypes, done.entries, strict=True)
        ],
        nranks=len(request.origins) - len(done.skipped),
        nbytes=nbytes * (len(request.origins) - len(done.skipped)),
        written=written,
        skipped=done.skipped,
    )
