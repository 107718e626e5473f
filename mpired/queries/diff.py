"""Whether two files hold the same, and how they differ.

Blocks are compared as bytes first. Only those that differ are looked at closer, number by number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpired.attempts import repeated
from mpired.collectives.plan import Plan, Segment, make_plan
from mpired.collectives.run import run_segments
from mpired.context import Context
from mpired.datatypes import Datatype, beside
from mpired.datatypes.times import dtype_name
from mpired.errors import CountError, DatatypeError, UsageError, escaped, number
from mpired.formats import AtHand, InputOptions, RankFile, open_rank
from mpired.formats.memory import paths
from mpired.ops.table import NO_OP
from mpired.options import DIFF, Options, checked
from mpired.progress import Pace
from mpired.queries.elements import index_of
from mpired.queries.measures import ComponentPair, Tolerance, differing, distance, parts, ulps
from mpired.queries.places import place_text
from mpired.ranks import check_use, compare, in_one_order

# The elements compared closer at a time, so that the temporaries stay in the cache.
_CLOSE_BYTES = 128 << 10


class ElementPlace(NamedTuple):
    """A number in a file."""

    element: int  # in the order in which they are compared
    number: int  # which number of the element it is, in the order of the type map
    field: str  # the name of the field, such as `value`; "" of an element without fields


@dataclass(frozen=True)
class Example:
    """Two numbers that differ."""

    column: str  # "" of files without columns
    index: tuple[int, ...]  # an index of each dimension of an array, the row of a column
    field: str  # "" of an element without fields
    a: Any
    b: Any
    difference: Any  # how far they are apart; None if one is NaN
    ulp: int | None  # the same in units in the last place; None for integers, or if one is not finite


@dataclass(frozen=True)
class Largest:
    """The largest difference, and its first place; `index` and `field` are like those of `Example`."""

    amount: Any
    index: tuple[int, ...]
    field: str


@dataclass(frozen=True)
class Compared:
    """The comparison of a column, or of the only array."""

    name: str  # "" of files without columns
    datatype: str
    dtype: str | None  # the name in NumPy, if there is one
    count: int
    differing: int  # how many elements differ
    difference: Largest | None  # the largest one, tolerated ones too
    ulp: Largest | None


@dataclass(frozen=True)
class Difference:
    """The differences of two files."""

    equal: bool
    a: str  # what messages call the files
    b: str
    reason: str = ""  # why their elements were not compared
    buffers: tuple[Compared, ...] = ()
    examples: tuple[Example, ...] = ()  # ordered by column, element and field
    noun: str = "column"  # the word of A's format for an array

    def __str__(self) -> str:
        """Return the lines that `mpired diff` prints."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.reason:
            yield f"different: {escaped(self.reason)}"
            return
        verdict = "the same" if self.equal else "different"
        first = self.buffers[0]
        if len(self.buffers) == 1:
            yield f"{verdict}: {_figures(first)}"
        else:
            wrong = sum(each.differing > 0 for each in self.buffers)
            rows = f", {first.count} rows" if self.noun == "column" else ""
            yield f"{verdict}: {f'{wrong} of ' if wrong else ''}{len(self.buffers)} {self.noun}s{rows}"
            yield from (f"  {escaped(each.name)}: {_figures(each)}" for each in self.buffers)
        for example in self.examples:
            place = escaped(place_text(example.column, example.index, example.field))
            amounts = [(example.difference, "difference {}"), (example.ulp, "{} ulp")]
            apart = "".join(f", {words.format(amount)}" for amount, words in amounts if amount is not None)
            yield f"  {place}: {example.a} {example.b}{apart}"
        more = sum(each.differing for each in self.buffers) - len({(each.column, each.index) for each in self.examples})
        if self.examples and more:
            yield f"  and {number(more, 'more element')}"


def _figures(each: Compared) -> str:
    """Return the counts of elements and the largest differences in words."""
    counts = f"{f'{each.differing} of ' if each.differing else ''}{each.count} x {beside(each.datatype, each.dtype)}"
    known = [(found, unit) for found, unit in ((each.difference, ""), (each.ulp, " ulp")) if found is not None]
    texts = [f"{each.amount}{unit} at {escaped(place_text('', each.index, each.field))}" for each, unit in known]
    return f"{counts}, largest difference {', '.join(texts)}" if texts else counts


_Amount: TypeAlias = tuple[Any, ElementPlace]
"""A difference, and where it is."""


class _Found(NamedTuple):
    """Differences in some elements of a buffer."""

    buffer: int
    nbytes: int = 0
    differing: int = 0
    examples: tuple[tuple[ElementPlace, Any, Any, Any, int | None], ...] = ()
    difference: _Amount | None = None
    ulp: _Amount | None = None


def _larger(one: _Amount | None, other: _Amount | None) -> _Amount | None:
    """Return the larger difference; of equal ones the first."""
    found = [each for each in (one, other) if each is not None]
    return min(found, key=lambda each: (-each[0], each[1]), default=None)


@dataclass(frozen=True)
class _Comparison:
    """Compares segments of two ranks. Picklable: it is sent once to each worker."""

    plan: Plan
    tolerance: Tolerance
    examples: int  # the most examples

    def __call__(self, segment: Segment) -> Iterator[_Found]:
        """Compare the elements of a segment, and yield the differences of its pieces."""
        ranks, step = self.plan.buffers[segment.buffer], self.plan.block_counts[segment.buffer]
        datatype = ranks[0].datatype
        found, pace = _Found(segment.buffer), Pace()
        with ExitStack() as stack:
            readers = [stack.enter_context(closing(rank.open())) for rank in ranks]
            octets = [bytearray(), bytearray()]
            for start in range(segment.start, segment.stop, step):
                nbytes = min(step, segment.stop - start) * datatype.itemsize
                if len(octets[0]) != nbytes:
                    octets = [bytearray(nbytes), bytearray(nbytes)]
                    blocks = [np.frombuffer(each, datatype.form) for each in octets]
                for reader, block in zip(readers, blocks, strict=True):
                    reader.read(start, block)
                same = octets[0] == octets[1]  # as memcmp(3) does
                found = found._replace(nbytes=found.nbytes + 2 * nbytes)
                if not same or self._may_differ(blocks, datatype):
                    found = self.merged(found, self._looked_closer(segment.buffer, start, blocks, datatype))
                if pace.is_due():
                    yield found
                    found = _Found(segment.buffer)
        yield found

    def _may_differ(self, blocks: Sequence[np.ndarray], datatype: Datatype) -> bool:
        """Return whether blocks of the same bytes may differ: by a NaN, which equals no other by its value."""
        if self.tolerance.is_bitwise or self.tolerance.nan_equal:
            return False
        numbers = (part for part in parts(blocks[0], blocks[1], datatype) if part.has_nan and not part.is_exact)
        return any(np.isnan(part.values[0]).any() for part in numbers)

    def merged(self, one: _Found, other: _Found) -> _Found:
        """Return what two looks at a buffer have found, the same whatever their order."""
        return _Found(
            one.buffer,
            one.nbytes + other.nbytes,
            one.differing + other.differing,
            tuple(sorted(one.examples + other.examples, key=lambda each: each[0])[: self.examples]),
            _larger(one.difference, other.difference),
            _larger(one.ulp, other.ulp),
        )

    @np.errstate(all="ignore")  # numbers may be anything
    def _looked_closer(self, buffer: int, start: int, blocks: Sequence[np.ndarray], datatype: Datatype) -> _Found:
        """Return what differs in two blocks, of which the first element has the number `start`."""
        total = _Found(buffer)
        for block in blocks:
            datatype.clear_padding(block)
        step = max(1, _CLOSE_BYTES // datatype.itemsize)
        for at in range(0, len(blocks[0]), step):
            a, b = (block[at : at + step] for block in blocks)
            wrong = np.zeros(len(a), bool)
            first, found = 0, _Found(buffer)
            for part in parts(a, b, datatype):
                differs = differing(part, self.tolerance)
                wrong |= differs.any(1)
                found = self.merged(found, self._of_part(part, differs, buffer, start + at, first))
                first += differs.shape[1]
            total = self.merged(total, found._replace(differing=int(np.count_nonzero(wrong))))
        return total

    def _of_part(self, part: ComponentPair, differs: np.ndarray, buffer: int, start: int, first: int) -> _Found:
        """Return examples and the largest differences of a part, whose first number has the number `first`."""
        a, b = part.values
        apart, (units, known) = distance(a, b), ulps(part.a, part.b)
        width = a.shape[1]

        def place(at: int) -> ElementPlace:
            element, number = divmod(at, width)
            return ElementPlace(start + element, first + number, part.label(number))

        def largest(amounts: np.ndarray) -> _Amount | None:
            at = int(amounts.argmax())
            amount = amounts.reshape(-1)[at]
            return (_plain(amount), place(at)) if amount > 0 else None

        examples = []
        for at in np.flatnonzero(differs)[: self.examples].tolist():
            element, number = divmod(at, width)
            distant, steps = apart[element, number], int(units[element, number]) if known[element, number] else None
            amount = None if np.isnan(distant) else _plain(distant)
            examples.append((place(at), *part.pair(element, number), amount, steps))
        if apart.dtype.kind == "f":
            apart[np.isnan(apart)] = 0
        units[~known] = 0
        return _Found(buffer, 0, 0, tuple(examples), largest(apart), largest(units))


def _plain(number: Any) -> Any:
    """Return a number of NumPy as one of Python, unless that has none like it."""
    return number if isinstance(number, np.longdouble) else number.item()


def _compare_all(files: tuple[RankFile, RankFile], comparison: _Comparison, context: Context) -> Difference:
    """Compare all elements."""
    plan = comparison.plan
    found = [_Found(buffer) for buffer in range(len(plan.buffers))]
    for part in run_segments(plan, comparison, context):
        found[part.buffer] = comparison.merged(found[part.buffer], part)
    buffers: list[Compared] = []
    examples: list[Example] = []
    for ranks, each in zip(plan.buffers, found, strict=True):
        name, datatype = ranks[0].name or ranks[1].name, ranks[0].datatype
        shaped = next((rank for rank in ranks if rank.shape is not None), ranks[0])
        largest = [
            amount and Largest(amount[0], index_of(shaped, amount[1].element), amount[1].field)
            for amount in (each.difference, each.ulp)
        ]
        names = name, str(datatype), dtype_name(datatype)
        buffers.append(Compared(*names, ranks[0].count, each.differing, *largest))
        examples += [Example(name, index_of(shaped, at.element), at.field, *rest) for at, *rest in each.examples]
    equal = not any(each.differing for each in buffers)
    a, b = (file.source.name for file in files)
    return Difference(equal, a, b, "", tuple(buffers), tuple(examples[: comparison.examples]), files[0].noun)


def plan_diff(words: Sequence[str | AtHand], options: Options, context: Context) -> Callable[[Context], Difference]:
    """Look at two files, and return what compares them, whose headers are compared here."""
    tolerance = Tolerance(options["ulp"], options["rtol"], options["atol"], options["nan_equal"])
    if list(words).count("-") > 1:
        raise UsageError("-", "standard input can be one of the files only; write the other to a file")
    inputs = InputOptions.of(options, context)
    a, b = files = open_rank(words[0], inputs), open_rank(words[1], inputs)
    for file in files:
        file.check_complete()
    check_use(inputs, files)
    try:
        compare("B", b, ("A", a))
    except (CountError, DatatypeError) as error:
        reason = str(error).partition("; ")[0]  # the ways out are those of a reduction
        different = Difference(equal=False, a=a.source.name, b=b.source.name, reason=reason)
        return lambda _: different
    ((a, b),) = in_one_order([files], 0)
    for buffer in a.buffers:
        _ = buffer.datatype.form
    plan = make_plan((NO_OP,), (a, b), context)
    return partial(_compare_all, (a, b), _Comparison(plan, tolerance, options["examples"]))


def diff(words: Sequence[str | AtHand], given: Mapping[str, object], context: Context) -> Difference:
    """Compare two files, which `words` mean, by the options that are given."""
    options = checked(DIFF, given)
    plan = partial(plan_diff, words, options)
    found: Difference = repeated(plan, lambda run, context: run(context), partial(paths, words), context)
    return found
