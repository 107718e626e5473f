"""Plan, map, commit: a reduction from checked ranks to a result that is in place."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TypeAlias

from mpired.buffers import Encoder, FlatBuffer, FlatLayout
from mpired.buffers.source import open_source
from mpired.collectives.fold import Fold, Region
from mpired.collectives.plan import Plan, Segment
from mpired.storage import calls
from mpired.storage.output import Output, Scratch

Engine: TypeAlias = Callable[[Callable[[Segment], int], Iterable[Segment], int], Iterator[int]]
"""Applies a function to segments with so many workers; yields what it returns, as each is done."""

Progress: TypeAlias = Callable[[Iterable[int], int], Iterable[int]]
"""Watches the bytes as they are done, out of so many in all."""

_ALIGNMENT = 64


def run(plan: Plan, layout: FlatLayout | Encoder, output: Output, engine: Engine, progress: Progress) -> None:
    """Fold all segments into `output` and commit it.

    Raises
    ------
    MpiredError, OSError
        Before the commit: the output is as it was. Only `UnconfirmedError` comes after it.
    """
    if isinstance(layout, FlatLayout):
        _fold_into(plan, layout, output, engine, progress)
    else:
        with folded(plan, output, engine, progress) as results, calls.blaming(output.name):
            layout(results, output.fd)
    output.commit()


def _fold_into(plan: Plan, layout: FlatLayout, output: Output, engine: Engine, progress: Progress) -> None:
    """Let the workers write the result where it lies in the output."""
    end = layout.offset + plan.buffers[0][0].count * layout.stored.itemsize
    output.allocate(end)
    if layout.around is None:
        calls.pwrite_all(output.fd, layout.head, 0)
    else:
        _copy_around(layout.around, output, end)
    _fold(Fold(plan, output.shared_path, output.name, (Region(layout.offset, layout.stored),)), engine, progress)


def _copy_around(buffer: FlatBuffer, output: Output, end: int) -> None:
    """Copy what a file has before and after its buffer."""
    with closing(buffer.open()) as reader, calls.blaming(output.name):
        calls.copy_range(reader.fd, output.fd, 0, buffer.offset, 0)
        calls.copy_range(reader.fd, output.fd, buffer.end, buffer.source.nbytes, end)


@contextmanager
def folded(
    plan: Plan, output: Output | None, engine: Engine, progress: Progress
) -> Generator[list[FlatBuffer], None, None]:
    """Fold all segments into a scratch file beside the output, and give the results as native elements."""
    regions, end = [], 0
    for ranks in plan.buffers:
        regions.append(Region(end, ranks[0].datatype.form))
        end += -(-ranks[0].count * ranks[0].datatype.extent // _ALIGNMENT) * _ALIGNMENT
    with Scratch(output.directory, output.name) if output else Scratch() as scratch:
        scratch.allocate(end)
        _fold(Fold(plan, scratch.shared_path, scratch.name, tuple(regions)), engine, progress)
        source = open_source(scratch.shared_path)
        yield [
            FlatBuffer(source, ranks[0].datatype, ranks[0].count, region.stored, region.offset, name=ranks[0].name)
            for ranks, region in zip(plan.buffers, regions, strict=True)
        ]


def _fold(fold: Fold, engine: Engine, progress: Progress) -> None:
    plan = fold.plan
    for _ in progress(engine(fold, plan.segments, plan.jobs), plan.nbytes):
        pass
    for rank in plan.buffers[0]:
        rank.source.check_unchanged()
