"""The extreme of all ranks and its place: the example of the standard, with arrays of any lengths (MPI-4.1, 6.9.4)."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mpired import engines, log, ops
from mpired.attempts import repeated
from mpired.collectives.plan import Plan, Segment, make_plan
from mpired.collectives.run import run_segments
from mpired.context import Context
from mpired.datatypes import TIMES, Datatype
from mpired.datatypes.times import as_times
from mpired.errors import CountError, DatatypeError, OpError
from mpired.formats import InputOptions, RankFile, RankObject
from mpired.formats.array import blocks
from mpired.formats.derived import Widening, in_order, widened
from mpired.formats.rank import choice, hint_text
from mpired.log import PERIOD, step
from mpired.ops import Op
from mpired.ops.state import valid_of
from mpired.ops.table import MAX, MIN
from mpired.options import EXTREMES, Options
from mpired.queries.elements import are_nan, index_of
from mpired.ranks.opening import open_groups, skipped_warning
from mpired.ranks.order import rank_list, unnatural

# The op on plain elements that each is.
_PLAIN = {**dict(zip(EXTREMES, (MAX, MIN), strict=True)), "max": MAX, "min": MIN}


@dataclass(frozen=True)
class Location:
    """An element, and where it is."""

    value: Any  # a scalar of NumPy
    rank: int
    file: str  # what messages call its file
    # an index of each dimension of an array, the row of a column, or else the number of the element
    index: tuple[int, ...]
    column: str = ""  # "" of files without columns


_PLACE = ["rank", "element", "buffer"]


def _no_elements(form: np.dtype) -> np.ndarray:
    """Return no elements: of each the value, and the numbers of its rank, of itself there, and of the buffer in all."""
    return np.empty(0, [("value", form), *((name, np.dtype("i8")) for name in _PLACE)])


class _Best(NamedTuple):
    """The best elements of some."""

    nbytes: int
    found: tuple[np.ndarray, ...]  # for each op, the first one first


@dataclass(frozen=True)
class _Order:
    """The order of elements for an op."""

    is_max: bool  # whether large elements come first
    number: int  # how many extremes are wanted

    @np.errstate(all="ignore")  # a NaN may be a signalling one
    def candidates(self, block: np.ndarray, best: np.ndarray, valid: np.ndarray | None) -> np.ndarray:
        """Return which valid elements of a block may be among the best, in ascending order; `best` are before them."""
        if self.number == 1 and valid is None:
            return np.array([(block.argmax if self.is_max else block.argmin)()])  # a NaN or NaT is the extreme, too
        if len(best) < self.number:
            chosen = np.ones(len(block), bool)
        else:  # of equal elements the first one counts
            worst = best["value"][-1]
            chosen = block > worst if self.is_max else block < worst
        if (nans := are_nan(block)) is not None:
            chosen |= nans
        return np.flatnonzero(chosen if valid is None else chosen & valid)

    def best_of(self, each: Sequence[np.ndarray]) -> np.ndarray:
        """Return the best of several, the same whatever their order."""
        found = np.concatenate(each)
        values = found["value"]
        # Numbers that stand for the values: smaller is better, and equal values have one.
        _, order = np.unique(values, return_inverse=True)
        order = -order if self.is_max else order
        if (nans := are_nan(values)) is not None:
            order = np.where(nans, -len(values) - 1, order)
        first = np.lexsort((found["buffer"], found["element"], found["rank"], order))[: self.number]
        return found[first]


def _search(plan: Plan, ranks: Sequence[int], orders: Sequence[_Order], segment: Segment) -> Iterator[_Best]:
    """Look at a segment, and yield the best elements of its pieces; `ranks` has the number of each buffer's rank."""
    # The plan has every buffer by itself. The best elements so far are compared with the rest of the segment first.
    (rank,), step = plan.buffers[segment.buffer], plan.block_counts[segment.buffer]
    form, nbytes = rank.datatype.compared, 0
    none = _no_elements(form)
    best, op, due = [none] * len(orders), plan.ops[0], time.monotonic() + PERIOD  # all have the same rules
    elements = blocks(rank, step, segment.start, segment.stop)
    for start, (block, not_null) in zip(range(segment.start, segment.stop, step), elements, strict=True):
        valid = valid_of(block, not_null, rank.datatype, op) if op.rules.leaves_out else None
        current = block.view(form)
        nbytes += current.nbytes
        for number, order in enumerate(orders):
            at = order.candidates(current, best[number], valid)
            found = np.empty(len(at), none.dtype)
            found["value"], found["element"] = current[at], start + at
            found["rank"], found["buffer"] = ranks[segment.buffer], segment.buffer
            best[number] = order.best_of((best[number], found))
        if (now := time.monotonic()) >= due:
            yield _Best(nbytes, (none,) * len(orders))
            nbytes, due = 0, now + PERIOD
    yield _Best(nbytes, tuple(best))


def _places(files: Sequence[RankFile], best: np.ndarray, plan: Plan) -> list[Location]:
    """Return where the best elements are."""
    buffers = plan.firsts
    datatype = buffers[0].datatype
    is_time = datatype.group in TIMES
    values, places = best["value"], best[_PLACE].tolist()
    if not places:
        reason = "are left out, all of them, by `nan`, `nulls` or `missing`; give fewer of these"
        raise CountError("the elements", reason)
    if count := sum(map(operator.eq, values, [buffers[buffer].unset for *_, buffer in places])):
        log.warn(log.unset(count, "the result", "give the variable a `_FillValue`"))
    values = as_times(values, datatype) if is_time else values
    return [
        Location(value, rank, files[rank].source.name, index_of(buffers[buffer], element), buffers[buffer].name)
        for value, (rank, element, buffer) in zip(values, places, strict=True)
    ]


def _op(op: ops.OpLike) -> Op:
    """Return the op that finds an extreme."""
    chosen = ops.resolve(op)
    if chosen is not None and not chosen.user and chosen.name.lower() in _PLAIN:
        return chosen
    raise OpError(f"{chosen or op}", "does not find an extreme; give `op='maxloc'` or `op='minloc'`")


def _locate(
    chosen: Sequence[Op], words: Sequence[str | RankObject], options: Options, context: Context
) -> list[list[Location]]:
    """Look at the ranks' headers and at their elements, and return the places of the extremes of each op."""
    plain = tuple(ops.with_policies(_PLAIN[op.name.lower()], options) for op in chosen)
    inputs = InputOptions.of(options, context)._replace(nullable=plain[0].rules.nulls != "error")
    with step("opening and checking the ranks"):
        (opened,) = open_groups([words], inputs, options, check=partial(_check, plain[0]))
    files = opened.files
    if opened.skipped:
        log.warn(skipped_warning(opened.skipped, len(files) + len(opened.skipped)))
    is_sorted = options["sort"] != "given" or options["rank_regex"] is not None
    if not is_sorted and (doubtful := unnatural([file.source.name for file in files])):
        log.warn(log.order(*doubtful, "numbers of the ranks"))
    in_c_order = partial(in_order, fortran_order=False)
    turned = [file._replace(buffers=tuple(map(in_c_order, file.buffers))) for file in files]
    types = [buffer.datatype for file in files for buffer in file.buffers]
    wide, widening = ops.widest(plain[0], types) or types[0], Widening(plain[0].rules.missing)
    turned = [file._replace(buffers=[widened(each, wide, widening) for each in file.buffers]) for file in turned]
    ranks = tuple(rank for rank, file in enumerate(files) for _ in file.buffers)
    ops.check_rules(plain[0], [wide], len(files))
    plan = make_plan(plain, turned, context, apart=True)
    orders = tuple(_Order(op.name == MAX.name, options["top"] or 1) for op in plain)
    best = [_no_elements(plan.firsts[0].datatype.compared)] * len(orders)
    for some in run_segments(plan, partial(_search, plan, ranks, orders), context):
        pairs = zip(orders, best, some.found, strict=True)
        best = [order.best_of((one, other)) for order, one, other in pairs]
    return [_places(files, each, plan) for each in best]


def _check(op: Op, file: RankFile, rank: int, first: tuple[int, RankFile]) -> None:
    """Raise an error unless the elements of a rank can be compared, with those of the first good one too."""
    file.check(op.groups, complete=True)
    name, own = file.source.name, [buffer.datatype for buffer in file.buffers]
    for buffer in file.buffers:
        where = f"{buffer.name!r}, " if buffer.name else ""
        if ops.widest(op, [buffer.datatype]) is None:
            what = f"{where}{buffer.datatype.label}, {buffer.datatype.group.title}"
            others = [(each.name, each.datatype.group) for each in file.buffers]
            hint = hint_text(choice(others, op.groups) if buffer.name else "", _wider(op, [buffer.datatype]))
            raise OpError(name, f"holds {what}, and an extreme is one of {op.groups.title}{hint}")
        if not buffer.count:
            raise CountError(name, f"rank {rank} has no elements, and so no extreme; leave it out")
    other, like = first
    if len(set(own)) > 1 and ops.widest(op, own) is None:
        columns = ", ".join(f"{buffer.name}: {buffer.datatype.label}" for buffer in file.buffers)
        hint = hint_text(f"choose with `columns='{file.buffers[0].name}'`", _wider(op, own))
        raise DatatypeError(name, f"has several datatypes ({columns}), and no order between them{hint}")
    both = [*own, *(buffer.datatype for buffer in like.buffers)]
    if len(set(both)) > 1 and ops.widest(op, both) is None:
        theirs = f"{like.source.name!r}) has {both[-1].label}"
        reason = f"rank {rank} has datatype {own[0].label}, but rank {other} ({theirs}"
        raise DatatypeError(name, f"{reason}{hint_text('convert to one datatype', _wider(op, both))}")


def _wider(op: Op, datatypes: Sequence[Datatype]) -> str:
    """Return the way out that compares elements of several datatypes, or truth values, in a wider one; "" for none."""
    wide = ops.widening(op, [datatypes])
    return f"compare in a wider one with `accumulate_in={wide!r}`" if wide else ""


def locate(
    words: Sequence[str | RankObject], op: ops.Ops, options: Options, context: Context
) -> dict[str, list[Location]]:
    """Return for each op the extremes of all elements of the ranks that `words` mean."""
    chosen = [*map(_op, ops.each_of(op))]
    labels, ranks = ops.labels(chosen), rank_list(words, options)
    with engines.connected(options) as engine:
        context = context._replace(engine=engine)
        found = repeated(partial(_locate, chosen, ranks, options), ranks, context)
    return dict(zip(labels, found, strict=True))
