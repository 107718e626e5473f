"""The extreme of all ranks and its place: the example of the standard, with arrays of any lengths (MPI-4.1, 6.9.4)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mpired import cautions, engines, ops
from mpired.attempts import repeated
from mpired.collectives.plan import Plan, Segment, make_plan
from mpired.collectives.run import run_segments
from mpired.context import Context
from mpired.datatypes import TIMES, Group
from mpired.datatypes.times import as_times
from mpired.errors import CountError, DatatypeError, OpError, UsageError
from mpired.formats import AtHand, InputOptions, RankFile
from mpired.formats.memory import paths
from mpired.formats.rank import choice, ways_out
from mpired.formats.transposed import in_order
from mpired.log import step
from mpired.ops import Op
from mpired.ops.rules import Rules
from mpired.ops.state import valid_of
from mpired.ops.table import MAX, MIN
from mpired.options import EXTREMES, LEFT_OUT, LOCATE, Options, checked, part
from mpired.progress import Pace
from mpired.queries.elements import are_nan, index_of, with_nat
from mpired.ranks import check_use, rank_list, skipped_warnings, unnatural
from mpired.ranks.opening import open_each

# The op on plain elements that each is.
_PLAIN = {**dict(zip(EXTREMES, (MAX, MIN), strict=True)), "max": MAX, "min": MIN}
_MANY = 1 << 15  # elements


@dataclass(frozen=True)
class Location:
    """An element, and where it is."""

    value: Any  # a scalar of NumPy
    rank: int
    file: str  # what messages call its file
    # an index of each dimension of an array, the row of a column, or else the number of the element
    index: tuple[int, ...]
    column: str = ""  # "" of files without columns


class _Best(NamedTuple):
    """The best elements of some, the first one first."""

    nbytes: int
    found: np.ndarray  # the value, and the numbers of the rank, of the element in its buffer, and of the buffer in all

    @classmethod
    def none(cls, form: np.dtype) -> _Best:
        """Return the best of no elements."""
        places = [(name, np.dtype("i8")) for name in _PLACE]
        return cls(0, np.empty(0, [("value", form), *places]))


_PLACE = ["rank", "element", "buffer"]


@dataclass(frozen=True)
class _Search:
    """Looks for extremes in segments. Picklable: it is sent once to each worker."""

    plan: Plan  # which has every buffer by itself
    ranks: tuple[int, ...]  # for each buffer the number of its rank
    number: int  # how many extremes are wanted

    def __call__(self, segment: Segment) -> Iterator[_Best]:
        """Look at a segment, and yield the best elements of its pieces."""
        (rank,), step = self.plan.buffers[segment.buffer], self.plan.block_counts[segment.buffer]
        block = np.empty(min(step, segment.stop - segment.start), rank.datatype.form)
        form = with_nat(rank.datatype)
        best = none = _Best.none(form)
        others: list[_Best] = []
        pace = Pace()
        with closing(rank.open()) as reader:
            for start in range(segment.start, segment.stop, step):
                current = block[: segment.stop - start]
                there = reader.read(start, current)
                valid = valid_of(current, there, rank.datatype, self.plan.op) if self.plan.op.rules.leaves_out else None
                current = current.view(form)
                at = self._candidates(current, best, valid)
                found = np.empty(len(at), none.found.dtype)
                found["value"], found["element"] = current[at], start + at
                found["rank"], found["buffer"] = self.ranks[segment.buffer], segment.buffer
                others.append(_Best(current.nbytes, found))
                due = pace.is_due()
                # Sorting pays only for many.
                if due or sum(len(each.found) for each in others) >= max(self.number, _MANY):
                    best, others = self.best_of((best, *others)), []
                if due:  # the best so far are compared with the rest first
                    yield none._replace(nbytes=best.nbytes)
                    best = best._replace(nbytes=0)
        yield self.best_of((best, *others))

    @np.errstate(all="ignore")  # a NaN may be a signalling one
    def _candidates(self, block: np.ndarray, best: _Best, valid: np.ndarray | None) -> np.ndarray:
        """Return which valid elements of a block may be among the best, in ascending order; `best` are before them."""
        is_max = self.plan.op.name == MAX.name
        nans = are_nan(block)
        if self.number == 1 and valid is None:
            return np.array([(block.argmax if is_max else block.argmin)()])  # a NaN or NaT is the extreme, too
        if len(best.found) < self.number:
            chosen = np.ones(len(block), bool)
        else:  # of equal elements the first one counts
            worst = best.found["value"][-1]
            chosen = block > worst if is_max else block < worst
        chosen = chosen if nans is None else chosen | nans
        return np.flatnonzero(chosen if valid is None else chosen & valid)

    def best_of(self, each: Sequence[_Best]) -> _Best:
        """Return the best of several, the same whatever their order."""
        found = np.concatenate([one.found for one in each])
        values = found["value"]
        # Numbers that stand for the values: smaller is better, and equal values have one.
        _, order = np.unique(values, return_inverse=True)
        order = -order if self.plan.op.name == MAX.name else order
        if (nans := are_nan(values)) is not None:
            order = np.where(nans, -len(values) - 1, order)
        first = np.lexsort((found["buffer"], found["element"], found["rank"], order))[: self.number]
        return _Best(sum(one.nbytes for one in each), found[first])


def _locations(files: Sequence[RankFile], search: _Search, context: Context) -> list[Location]:
    """Look at all elements."""
    buffers = [buffer for (buffer,) in search.plan.buffers]
    datatype = buffers[0].datatype
    is_time = datatype.group in TIMES
    best = _Best.none(with_nat(datatype))
    for found in run_segments(search.plan, search, context):
        best = search.best_of((best, found))
    values, places = best.found["value"], best.found[_PLACE].tolist()
    if not places:
        raise _none_left(search.plan.op.rules, "NaT" if is_time else "NaN")
    if count := sum(map(operator.eq, values, [buffers[buffer].unset for *_, buffer in places])):
        cautions.tell(cautions.unset(count, "the result", "give the variable a `_FillValue`"))
    values = as_times(values, datatype) if is_time else values
    return [
        Location(value, rank, files[rank].source.name, index_of(buffers[buffer], element), buffers[buffer].name)
        for value, (rank, element, buffer) in zip(values, places, strict=True)
    ]


def _none_left(rules: Rules, nan: str) -> CountError:
    """Return the error for ranks all of whose elements are left out."""
    words = {"nan": nan, "nulls": "null", "missing": f"{rules.missing}"}
    chosen = [name for name in words if getattr(rules, name) != getattr(Rules(), name)]
    ways = " and ".join(f"`{name}={getattr(rules, name)!r}`" for name in chosen)
    verb, way_out = ("leaves", "leave it out") if len(chosen) == 1 else ("leave", "leave one out")
    what = " or ".join(words[name] for name in chosen)
    return CountError("the elements", f"are {what}, all of them, and {ways} {verb} no other element; {way_out}")


def _op(op: ops.OpLike) -> Op:
    """Return the op on plain elements that finds the extreme."""
    chosen = ops.predefined(op)
    if chosen is None and isinstance(op, str):
        chosen = ops.resolve(op)
    if chosen is not None and not chosen.user and chosen.name.lower() in _PLAIN:
        return _PLAIN[chosen.name.lower()]
    raise OpError(f"{chosen or op}", "does not find an extreme; give `op='maxloc'` or `op='minloc'`")


def _plan(
    op: Op, words: Sequence[str | AtHand], options: Options, context: Context
) -> Callable[[Context], list[Location]]:
    """Look at the ranks' headers, and return what looks at their elements."""
    if not words:
        raise UsageError("ranks", "there are none; name at least one file")
    if list(words).count("-") > 1:
        raise UsageError("-", "standard input can be one rank only; write the others to files")
    op = ops.with_policies(op, part(LEFT_OUT, options))
    inputs = InputOptions.of(options, context)._replace(nullable=op.rules.nulls != "error")
    with step("opening and checking the ranks"):
        files, used, skipped = open_each(words, inputs, partial(_check, op), options)
    cautions.tell(*skipped_warnings(skipped, len(used) + len(skipped)))
    check_use(inputs, files)
    chosen = options["sort"] != "given" or options["rank_regex"] is not None
    if not chosen and (doubtful := unnatural([file.source.name for file in files])):
        cautions.tell(cautions.order(*doubtful, "numbers of the ranks"))
    in_c_order = partial(in_order, fortran_order=False)
    turned = [file._replace(buffers=tuple(map(in_c_order, file.buffers))) for file in files]
    ranks = tuple(rank for rank, file in enumerate(files) for _ in file.buffers)
    ops.check_rules(op, [files[0].buffers[0].datatype], len(files))
    plan = make_plan(op, turned, context, apart=True)
    return partial(_locations, files, _Search(plan, ranks, options["top"] or 1))


def _check(op: Op, file: RankFile, rank: int, first: tuple[int, RankFile]) -> None:
    """Raise an error unless the elements of a rank can be compared, with those of the first good one too."""
    file.check_complete(op.groups)
    name, own = file.source.name, [buffer.datatype for buffer in file.buffers]
    for buffer in file.buffers:
        where = f"{buffer.name!r}, " if buffer.name else ""
        if buffer.datatype.group not in op.groups:
            what = f"{where}{buffer.datatype.label}, {buffer.datatype.group.title}"
            others = [(each.name, each.datatype.group) for each in file.buffers]
            way_out = ways_out(choice(others, op.groups)) if buffer.name else ""
            if buffer.datatype.group is Group.PAIR:
                way_out = "; `mpired reduce` with maxloc or minloc combines pairs"
            raise OpError(name, f"holds {what}, and an extreme is one of {op.groups.title}{way_out}")
        if not buffer.count:
            raise CountError(name, f"rank {rank} has no elements, and so no extreme; leave it out")
    if len(set(own)) > 1:
        columns = ", ".join(f"{buffer.name}: {buffer.datatype.label}" for buffer in file.buffers)
        reason = f"has several datatypes ({columns}), and no order between them"
        raise DatatypeError(name, f"{reason}; choose with `columns='{file.buffers[0].name}'`")
    other, like = first
    if own[0] != (theirs := like.buffers[0].datatype):
        reason = f"rank {rank} has datatype {own[0].label}, but rank {other} ({like.source.name!r}) has {theirs.label}"
        raise DatatypeError(name, reason)


def locate(
    words: Sequence[str | AtHand], op: ops.OpLike, given: Mapping[str, object], context: Context
) -> list[Location]:
    """Return the extremes of all elements of the ranks that `words` mean, by the options that are given."""
    options, chosen = checked(LOCATE, given), _op(op)
    ranks = rank_list(words, options)
    with engines.connected(options) as engine:
        context = context._replace(engine=engine)
        plan = partial(_plan, chosen, ranks, options)
        return repeated(plan, lambda run, context: run(context), partial(paths, ranks), context)
