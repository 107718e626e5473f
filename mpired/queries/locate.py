"""The extreme of all ranks and its place (MPI-4.1, 6.9.4: the example of MPI_MAXLOC); the ranks may differ in count."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mpired import engines, log, ops
from mpired.attempts import retry
from mpired.collectives.plan import Plan, Segment, make_plan
from mpired.collectives.run import run_segments
from mpired.context import Context
from mpired.datatypes import TIMES, Datatype
from mpired.datatypes.dtypes import as_times
from mpired.errors import CountError, DatatypeError, OpError
from mpired.formats import InputOptions, RankFile, RankObject
from mpired.formats.array import blocks
from mpired.formats.derived import Widening, in_order, widen_array
from mpired.formats.rank import columns_hint, hint_text
from mpired.log import PERIOD, step
from mpired.ops import Op
from mpired.ops.state import valid_of
from mpired.ops.table import MAX, MIN
from mpired.options import EXTREMES, Options
from mpired.queries.elements import are_nan, index_of
from mpired.ranks.opening import open_groups, skipped_warning
from mpired.ranks.order import rank_list, unnatural

# The op on elements without an index for each op of the command.
_PLAIN_OPS = {**dict(zip(EXTREMES, (MAX, MIN), strict=True)), "max": MAX, "min": MIN}


@dataclass(frozen=True)
class Location:
    """An element and its place."""

    value: Any  # a scalar of NumPy
    rank: int
    file: str  # the name of the rank's file in messages
    # an index of each dimension of an array, the row of a column, or the number of the element in a raw file
    index: tuple[int, ...]
    column: str = ""  # "" in files without columns


_PLACE = ["rank", "element", "buffer"]  # numbers: of a rank, of an element in its buffer, of a buffer of the plan


def _no_extremes(form: np.dtype) -> np.ndarray:
    """Return an empty array of extremes, which has the value and the place of each."""
    return np.empty(0, [("value", form), *((name, np.dtype("i8")) for name in _PLACE)])


class _Extremes(NamedTuple):
    """The extremes of a piece of a segment."""

    nbytes: int  # read
    by_op: tuple[np.ndarray, ...]  # in the order of the result


@dataclass(frozen=True)
class _Order:
    """The order of elements for an op."""

    is_max: bool  # whether large elements come first
    number: int  # of extremes in the result

    @np.errstate(all="ignore")  # of signalling NaNs
    def candidates(self, block: np.ndarray, extremes: np.ndarray, valid: np.ndarray | None) -> np.ndarray:
        """Return the positions of elements of a block that come before some of the `extremes` of earlier blocks."""
        if self.number == 1 and valid is None:
            return np.array([(block.argmax if self.is_max else block.argmin)()])  # a NaN or NaT comes first
        if len(extremes) < self.number:
            mask = np.ones(len(block), bool)
        else:  # an equal element comes after that of an earlier block
            last = extremes["value"][-1]
            mask = block > last if self.is_max else block < last
        if (nans := are_nan(block)) is not None:
            mask |= nans
        return np.flatnonzero(mask if valid is None else mask & valid)

    def merge(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the extremes of several parts, independent of the order of the parts."""
        extremes = np.concatenate(parts)
        values = extremes["value"]
        # The keys are numbers in the order of the result; equal values have the same key.
        _, keys = np.unique(values, return_inverse=True)
        keys = -keys if self.is_max else keys
        if (nans := are_nan(values)) is not None:
            keys = np.where(nans, -len(values) - 1, keys)
        return extremes[np.lexsort((extremes["buffer"], extremes["element"], extremes["rank"], keys))[: self.number]]


def _search(plan: Plan, ranks: Sequence[int], orders: Sequence[_Order], segment: Segment) -> Iterator[_Extremes]:
    """Yield the extremes of a segment of one buffer; `ranks` has the number of each buffer's rank."""
    (rank,), step = plan.buffers[segment.buffer], plan.block_counts[segment.buffer]
    form, nbytes = rank.datatype.compared, 0
    none = _no_extremes(form)
    extremes, op, due = [none] * len(orders), plan.ops[0], time.monotonic() + PERIOD  # all ops have the same rules
    elements = blocks(rank, step, segment.start, segment.stop)
    for start, (block, not_null) in zip(range(segment.start, segment.stop, step), elements, strict=True):
        valid = valid_of(block, not_null, rank.datatype, op) if op.rules.leaves_out else None
        values = block.view(form)
        nbytes += values.nbytes
        for number, order in enumerate(orders):
            positions = order.candidates(values, extremes[number], valid)
            candidates = np.empty(len(positions), none.dtype)
            candidates["value"], candidates["element"] = values[positions], start + positions
            candidates["rank"], candidates["buffer"] = ranks[segment.buffer], segment.buffer
            extremes[number] = order.merge((extremes[number], candidates))
        if (now := time.monotonic()) >= due:  # the bytes, for the progress
            yield _Extremes(nbytes, (none,) * len(orders))
            nbytes, due = 0, now + PERIOD
    yield _Extremes(nbytes, tuple(extremes))


def _locations(files: Sequence[RankFile], extremes: np.ndarray, plan: Plan) -> list[Location]:
    """Return the extremes as locations."""
    buffers = plan.firsts
    datatype = buffers[0].datatype
    values, places = extremes["value"], extremes[_PLACE].tolist()
    if not places:
        reason = "are left out, all of them, by `nan`, `nulls` or `missing`; give fewer of these"
        raise CountError("the elements", reason)
    if count := sum(map(operator.eq, values, [buffers[buffer].unset for *_, buffer in places])):
        log.warn(log.unset_warning(count, "the result", "give the variable a `_FillValue`"))
    values = as_times(values, datatype) if datatype.group in TIMES else values
    return [
        Location(value, rank, files[rank].source.name, index_of(buffers[buffer], element), buffers[buffer].name)
        for value, (rank, element, buffer) in zip(values, places, strict=True)
    ]


def _resolve(op: ops.OpLike) -> Op:
    """Return the op; refuse an op that does not find an extreme."""
    row = ops.resolve(op)
    if row is not None and not row.user and row.name.lower() in _PLAIN_OPS:
        return row
    raise OpError(f"{row or op}", "does not find an extreme; give `op='maxloc'` or `op='minloc'`")


def _locate(
    rows: Sequence[Op], ranks: Sequence[str | RankObject], options: Options, context: Context
) -> list[list[Location]]:
    """Check the headers of the ranks, and return the locations of the extremes for each op."""
    plain_ops = tuple(ops.with_rules(_PLAIN_OPS[op.name.lower()], options) for op in rows)
    op = plain_ops[0]  # all have the same rules
    inputs = InputOptions.of(options, context)._replace(nullable=op.rules.nulls != "error")
    with step("opening and checking the ranks"):
        (opened,) = open_groups([ranks], inputs, options, check=partial(_check, op))
    files = opened.files
    if opened.skipped:
        log.warn(skipped_warning(opened.skipped, len(files) + len(opened.skipped)))
    is_sorted = options["sort"] != "given" or options["rank_regex"] is not None
    if not is_sorted and (neighbours := unnatural([file.source.name for file in files])):
        log.warn(log.order_warning(*neighbours, "numbers of the ranks"))
    buffers = [buffer for file in files for buffer in file.buffers]
    datatypes = [buffer.datatype for buffer in buffers]
    wide, widening = ops.widest(op, datatypes) or datatypes[0], Widening(op.rules.missing)
    ops.check_rules(op, [wide], len(files))
    in_c_order = partial(in_order, fortran_order=False)
    converted = [
        file._replace(buffers=[widen_array(in_c_order(buffer), wide, widening) for buffer in file.buffers])
        for file in files
    ]
    plan = make_plan(plain_ops, converted, context, separate=True)
    orders = tuple(_Order(plain.name == MAX.name, options["top"] or 1) for plain in plain_ops)
    extremes = [_no_extremes(plan.firsts[0].datatype.compared)] * len(orders)
    rank_numbers = tuple(rank for rank, file in enumerate(files) for _ in file.buffers)
    with run_segments(plan, partial(_search, plan, rank_numbers, orders), context) as pieces:
        for piece in log.track(pieces):
            extremes = [order.merge(parts) for order, *parts in zip(orders, extremes, piece.by_op, strict=True)]
    return [_locations(files, of_op, plan) for of_op in extremes]


def _check(op: Op, file: RankFile, rank: int, first: tuple[int, RankFile]) -> None:
    """Raise an error unless the elements of a rank can be compared with each other and those of the first good rank."""
    file.check(op.groups, complete=True)
    name, datatypes = file.source.name, [buffer.datatype for buffer in file.buffers]
    for buffer in file.buffers:
        column = f"{buffer.name!r}, " if buffer.name else ""
        if ops.widest(op, [buffer.datatype]) is None:
            elements = f"{column}{buffer.datatype.label}, {buffer.datatype.group.title}"
            columns = [(other.name, other.datatype.group) for other in file.buffers]
            hint = hint_text(
                columns_hint(columns, op.groups) if buffer.name else "", _widening_hint(op, [buffer.datatype])
            )
            raise OpError(name, f"holds {elements}, and an extreme is one of {op.groups.title}{hint}")
        if not buffer.count:
            others = [(other.name, other.datatype.group) for other in file.buffers if other.count]
            hint = hint_text(columns_hint(others, op.groups) if others else "leave it out")
            empty = repr(buffer.name) if others else f"rank {rank}"
            raise CountError(name, f"{empty} has no elements, and so no extreme{hint}")
    first_rank, first_file = first
    if len(set(datatypes)) > 1 and ops.widest(op, datatypes) is None:
        labels = ", ".join(f"{buffer.name}: {buffer.datatype.label}" for buffer in file.buffers)
        hint = hint_text(f"choose with `columns='{file.buffers[0].name}'`", _widening_hint(op, datatypes))
        raise DatatypeError(name, f"has several datatypes ({labels}), and no order between them{hint}")
    both = [*datatypes, *(buffer.datatype for buffer in first_file.buffers)]
    if len(set(both)) > 1 and ops.widest(op, both) is None:
        other = f"rank {first_rank} ({first_file.source.name!r}) has {both[-1].label}"
        hint = hint_text("convert to one datatype", _widening_hint(op, both))
        raise DatatypeError(name, f"rank {rank} has datatype {datatypes[0].label}, but {other}{hint}")


def _widening_hint(op: Op, datatypes: Sequence[Datatype]) -> str:
    """Return the hint to compare elements of these datatypes, or truth values, in a wider datatype; or ""."""
    wide = ops.widening(op, [datatypes])
    return f"compare in a wider one with `accumulate_in={wide!r}`" if wide else ""


def locate(
    ranks: Sequence[str | RankObject], op: ops.Ops, options: Options, context: Context
) -> dict[str, list[Location]]:
    """Return the locations of the extremes of all ranks, by op."""
    rows = [*map(_resolve, ops.split_ops(op))]
    labels, ranks = ops.labels(rows), rank_list(ranks, options)
    with engines.connected(options) as engine:
        context = context._replace(engine=engine)
        locations = retry(partial(_locate, rows, ranks, options), ranks, context)
    return dict(zip(labels, locations, strict=True))
