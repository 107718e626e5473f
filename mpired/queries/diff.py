"""Whether two files hold the same, and how they differ.

Blocks are compared as bytes first. Only those that differ are looked at closer, number by number. Elements that are
missing in both files are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpired.attempts import carry_out
from mpired.collectives.plan import Plan, Segment, make_plan
from mpired.collectives.run import run_segments
from mpired.context import Context
from mpired.datatypes import Datatype, Group, beside
from mpired.datatypes.times import dtype_name
from mpired.errors import BufferFileError, ConversionError, CountError, DatatypeError, UsageError, escaped, number
from mpired.files.lock import NOTHING_HELD, Held
from mpired.formats import Array, AtHand, InputOptions, RankFile, Source, open_rank
from mpired.formats.array import blocks
from mpired.formats.decoding import Decoder
from mpired.formats.memory import paths
from mpired.ops.table import NO_OP
from mpired.options import DIFF, Options, checked
from mpired.progress import Pace
from mpired.queries.differing import map_of
from mpired.queries.elements import index_of
from mpired.queries.figures import Shown
from mpired.queries.measures import (
    ComponentPair,
    Tolerance,
    common_type,
    differing,
    distance,
    in_common,
    narrow_form,
    parts,
    value_text,
)
from mpired.queries.places import place_text
from mpired.queries.show import check_picture, check_replaces_none, drawing, save
from mpired.ranks import check_use, compare, in_one_order
from mpired.sources.open import check_unchanged

# The elements compared closer at a time, so that the temporaries stay in the cache.
_CLOSE_BYTES = 128 << 10
_MOST_OBJECTS = 16 << 10  # of Python in a block


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
    missing_in_a: int = 0  # how many elements are missing in A alone
    missing_in_b: int = 0
    reason: str = ""  # why its elements were not compared


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
    name: str = ""  # of a file of two directories or lists
    obstacle: str = ""  # why it is not known whether this file differs
    files: tuple[Difference, ...] = ()  # those of two directories or lists
    only_in_a: tuple[str, ...] = ()  # the names of files
    only_in_b: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The result in words: "the same", "different" or "not known"."""
        if self.equal:
            return "the same"
        found = self.reason, self.only_in_a, self.only_in_b, *(each.differing for each in self.buffers)
        are_known = any(found) or any(each.verdict == "different" for each in self.files)
        return "different" if are_known else "not known"

    def __str__(self) -> str:
        """Return the lines that `mpired diff` prints."""
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the lines that `mpired diff` prints, the verdict first."""
        if self.noun == "file":
            yield from self._lines_of_files()
            return
        if self.reason or self.obstacle:
            yield f"{self.verdict}: {escaped(self.reason or self.obstacle)}"
            return
        verdict = self.verdict
        if len(self.buffers) == 1:
            yield f"{verdict}: {_figures(self.buffers[0])}"
        else:
            wrong = sum(each.differing > 0 for each in self.buffers)
            rows = f", {self.buffers[0].count} rows" if self.noun == "column" and self.buffers else ""
            yield f"{verdict}: {f'{wrong} of ' if wrong else ''}{len(self.buffers)} {self.noun}s{rows}"
            yield from (f"  {escaped(each.name)}: {_figures(each)}" for each in self.buffers)
        for example in self.examples:
            place = escaped(place_text(example.column, example.index, example.field))
            amounts = [(example.difference, "difference {}"), (example.ulp, "{} ulp")]
            apart = "".join(f", {words.format(amount)}" for amount, words in amounts if amount is not None)
            yield f"  {place}: {value_text(example.a)} {value_text(example.b)}{apart}"
        more = sum(each.differing for each in self.buffers) - len({(each.column, each.index) for each in self.examples})
        if self.examples and more:
            yield f"  and {number(more, 'more element')}"

    def _lines_of_files(self) -> Iterator[str]:
        for each in self.files:
            if not each.equal:
                yield f"{escaped(each.name)}: {next(each.lines())}"
        only = [(name, self.a) for name in self.only_in_a] + [(name, self.b) for name in self.only_in_b]
        yield from (f"{escaped(name)}: only in {escaped(where)}" for name, where in only)
        verdicts = Counter(each.verdict for each in self.files)
        verdicts["in one alone"] = len(only)
        counts = (f"{verdicts[each]} {each}" for each in _VERDICTS if verdicts[each] or each == _VERDICTS[0])
        yield f"{number(verdicts.total(), 'file')}: {', '.join(counts)}"


_VERDICTS = ("the same", "different", "in one alone", "not known")


def _figures(each: Compared) -> str:
    """Return the counts of elements and the largest differences in words."""
    if each.reason:
        return f"not compared, {escaped(each.reason)}"
    counts = f"{f'{each.differing} of ' if each.differing else ''}{each.count} x {beside(each.datatype, each.dtype)}"
    alone = [(each.missing_in_a, "A"), (each.missing_in_b, "B")]
    if any(count for count, _ in alone):
        counts += ", " + ", ".join(f"{count} missing in {name} alone" for count, name in alone if count)
    known = [(found, unit) for found, unit in ((each.difference, ""), (each.ulp, " ulp")) if found is not None]
    texts = [f"{each.amount}{unit} at {escaped(place_text('', each.index, each.field))}" for each, unit in known]
    return f"{counts}, largest difference {', '.join(texts)}" if texts else counts


Valid: TypeAlias = Sequence[np.ndarray] | None
"""The masks of valid elements of A and of B; None if all are."""
_Amount: TypeAlias = tuple[Any, ElementPlace]
"""A difference, and where it is."""


class _Found(NamedTuple):
    """Differences in some elements of a buffer."""

    buffer: int
    nbytes: int = 0
    differing: int = 0
    missing: tuple[int, int] = (0, 0)  # in A alone, and in B alone
    examples: tuple[tuple[ElementPlace, Any, Any, Any, int | None], ...] = ()
    difference: _Amount | None = None
    ulp: _Amount | None = None
    unread: str = ""  # why the elements of neither file can be read


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
    datatypes: tuple[Datatype, ...]  # those that the elements of each buffer are compared in

    def __call__(self, segment: Segment) -> Iterator[_Found]:
        """Compare the elements of a segment, and yield the differences of its pieces."""
        try:
            yield from self._compared(segment)
        except (BufferFileError, DatatypeError) as error:
            if not all(map(_fails, self.plan.buffers[segment.buffer])):
                raise
            yield _Found(segment.buffer, unread=error.reason)

    def _compared(self, segment: Segment) -> Iterator[_Found]:
        ranks, step = self.plan.buffers[segment.buffer], self.plan.block_counts[segment.buffer]
        datatypes, found, pace = [rank.datatype for rank in ranks], _Found(segment.buffer), Pace()
        are_bytes = datatypes[0] == datatypes[1] and not datatypes[0].form.hasobject
        if datatypes[0].group is Group.VALUE:
            step = min(step, _MOST_OBJECTS)
        rooms: list[tuple[bytearray, np.ndarray]] = []
        with ExitStack() as stack:
            readers = [stack.enter_context(closing(rank.open())) for rank in ranks]
            for start in range(segment.start, segment.stop, step):
                count = min(step, segment.stop - start)
                if not rooms or len(rooms[0][1]) != count:
                    rooms = [_room(datatype.form, count) for datatype in datatypes]
                blocks = [block for _, block in rooms]
                valid = _valid(
                    [reader.read(start, block) for reader, block in zip(readers, blocks, strict=True)], count
                )
                same = are_bytes and rooms[0][0] == rooms[1][0]  # as memcmp(3) does
                found = found._replace(nbytes=found.nbytes + sum(block.nbytes for block in blocks))
                if not same or valid is not None or self._may_differ(blocks, datatypes[0]):
                    found = self.merged(found, self._looked_closer(segment.buffer, start, blocks, valid))
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
            (one.missing[0] + other.missing[0], one.missing[1] + other.missing[1]),
            tuple(sorted(one.examples + other.examples, key=lambda each: each[0])[: self.examples]),
            _larger(one.difference, other.difference),
            _larger(one.ulp, other.ulp),
            one.unread or other.unread,
        )

    @np.errstate(all="ignore")  # numbers may be anything
    def _looked_closer(self, buffer: int, start: int, blocks: Sequence[np.ndarray], valid: Valid) -> _Found:
        """Return what differs in two blocks, of which the first element has the number `start`."""
        pair = self._in_common(buffer, blocks)
        total, datatype = self._missing(buffer, start, pair, valid), self.datatypes[buffer]
        step = max(1, _CLOSE_BYTES // datatype.itemsize)
        for at in range(0, len(pair[0]), step):
            a, b = (block[at : at + step] for block in pair)
            wrong = np.zeros(len(a), bool)
            first, found = 0, _Found(buffer)
            for part in parts(a, b, datatype, self._narrow(buffer)):
                differs = differing(part, self.tolerance)
                wrong |= differs.any(1)
                found = self.merged(found, self._of_part(part, differs, buffer, start + at, first))
                first += differs.shape[1]
            total = self.merged(total, found._replace(differing=int(np.count_nonzero(wrong))))
        return total

    def _in_common(self, buffer: int, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the elements of two blocks in one datatype, without anything in their padding."""
        common, pair = self.datatypes[buffer], []
        for rank, block in zip(self.plan.buffers[buffer], blocks, strict=True):
            try:
                pair.append(in_common(block, rank.datatype, common))
            except OverflowError as error:
                raise ConversionError(rank.source.name, f"{error}, in which they are compared") from None
            common.clear_padding(pair[-1])
        return pair

    @np.errstate(all="ignore")
    def apart(self, buffer: int, blocks: Sequence[np.ndarray], masks: Sequence[np.ndarray | None]) -> np.ndarray:
        """Return how far the elements of B are from those of A, see `Apart`."""
        pair, valid = self._in_common(buffer, blocks), _valid(masks, len(blocks[0]))
        self._missing(buffer, 0, pair, valid)
        found = np.zeros(len(pair[0])) if valid is None else np.where(valid[0] != valid[1], np.nan, 0.0)
        for part in parts(pair[0], pair[1], self.datatypes[buffer], self._narrow(buffer)):
            a, b = part.values
            far = distance(a, b).astype(np.float64)
            if a.dtype.kind not in "cO":
                far = np.where(a > b, -far, far)
            far = np.where(differing(part, self.tolerance), np.where(far == 0, np.nan, far), 0.0)
            for column in far.T:
                found = np.where(np.abs(column) <= np.abs(found), found, column + found * 0)
        return found

    def _narrow(self, buffer: int) -> np.dtype | None:
        a, b = (rank.datatype for rank in self.plan.buffers[buffer])
        return None if a == b else narrow_form(a.form, b.form)

    def _missing(self, buffer: int, start: int, pair: Sequence[np.ndarray], valid: Valid) -> _Found:
        """Count elements that are missing in one block alone, and give both one value where either has none."""
        if valid is None:
            return _Found(buffer)
        lacks = [valid[1] & ~valid[0], valid[0] & ~valid[1]]
        part, examples = next(parts(pair[0], pair[1], self.datatypes[buffer])), []
        for at in np.flatnonzero(lacks[0] | lacks[1])[: self.examples].tolist():
            a, b = (each if mask[at] else None for each, mask in zip(part.pair(at, 0), valid, strict=True))
            examples.append((ElementPlace(start + at, 0, part.label(0)), a, b, None, None))
        for block in pair:
            block[~(valid[0] & valid[1])] = np.zeros((), block.dtype)
        counts = int(np.count_nonzero(lacks[0])), int(np.count_nonzero(lacks[1]))
        return _Found(buffer, 0, sum(counts), counts, tuple(examples))

    def _of_part(self, part: ComponentPair, differs: np.ndarray, buffer: int, start: int, first: int) -> _Found:
        """Return examples and the largest differences of a part, whose first number has the number `first`."""
        a, b = part.values
        apart, (units, known) = distance(a, b), part.steps()
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
        return _Found(buffer, 0, 0, (0, 0), tuple(examples), largest(apart), largest(units))


def _room(form: np.dtype, count: int) -> tuple[bytearray, np.ndarray]:
    """Return a block for elements, and its bytes; b"" of objects of Python."""
    if form.hasobject:
        return bytearray(), np.empty(count, form)
    octets = bytearray(count * form.itemsize)
    return octets, np.frombuffer(octets, form)


def _valid(masks: Sequence[np.ndarray | None], count: int) -> Valid:
    """Return which elements are valid in each block; None if all are."""
    if all(mask is None for mask in masks):
        return None
    return [np.ones(count, np.bool_) if mask is None else mask for mask in masks]


def _fails(rank: Array) -> bool:
    """Return whether an array cannot be read."""
    try:
        for _ in blocks(rank, _MOST_OBJECTS):
            pass
    except (BufferFileError, DatatypeError):
        return True
    return False


def _plain(number: Any) -> Any:
    """Return a number of NumPy as one of Python, unless that has none like it."""
    return number if isinstance(number, np.longdouble) else number.item()


@dataclass(frozen=True)
class _PlannedDiff:
    """A comparison that has passed all checks."""

    files: tuple[RankFile, RankFile]
    comparison: _Comparison | None  # None if there are no elements to compare
    result: Difference  # without the elements
    png: str | None  # where a picture goes
    tell: Callable[[Difference], None]

    @property
    def sources(self) -> list[Source]:
        """The files."""
        return [source for file in self.files for source in file.sources]

    @property
    def paths(self) -> list[str]:
        """The path of the picture."""
        return [] if self.png is None else [self.png]

    def run(self, context: Context, *, overwrite: bool = False, held: Held = NOTHING_HELD) -> None:
        """Compare all elements, tell the result, and commit the picture."""
        result, comparison = self.result, self.comparison
        if comparison is not None:
            found = [_Found(buffer) for buffer in range(len(comparison.plan.buffers))]
            for part in run_segments(comparison.plan, comparison, context):
                found[part.buffer] = comparison.merged(found[part.buffer], part)
            described = list(map(_described, comparison.plan.buffers, found))
            buffers = (*(each for each, _ in described), *result.buffers)
            examples = tuple(example for _, some in described for example in some)[: comparison.examples]
            equal = not any(each.differing or each.reason for each in buffers)
            result = replace(result, equal=equal, buffers=buffers, examples=examples)
            if self.png is not None:
                picture = _picture(comparison, result)
                check_unchanged(self.sources)
                save(self.png, picture, context, overwrite=overwrite, held=held)
        self.tell(result)


def _picture(comparison: _Comparison, result: Difference) -> bytes:
    """Return a picture of where the buffers differ, the first ones that do, or all if none does."""
    maps, module, compared = [], drawing(), list(enumerate(result.buffers[: len(comparison.plan.buffers)]))
    wrong = [number for number, each in compared if each.differing]
    with closing(Decoder()) as decoder:
        for number in (wrong or [number for number, each in compared if not each.reason])[: module.MOST_BUFFERS]:
            ranks, apart = comparison.plan.buffers[number], partial(comparison.apart, number)
            maps.append(map_of(result.buffers[number].name, ranks, apart, decoder))
    more = f", {len(maps)} of {len(wrong)} {result.noun}s that differ" if len(wrong) > len(maps) else ""
    shown = Shown("", "", tuple(figures for figures, *_ in maps))
    title = [f"{result.a} and {result.b}{more}"]
    picture: bytes = module.png(title, shown, [(label, plane) for _, label, plane in maps])
    return picture


def _described(ranks: Sequence[Array], each: _Found) -> tuple[Compared, list[Example]]:
    """Describe the comparison of a buffer, with examples."""
    name, shaped = ranks[0].name or ranks[1].name, next((rank for rank in ranks if rank.shape is not None), ranks[0])
    difference, ulp = (
        amount and Largest(amount[0], index_of(shaped, amount[1].element), amount[1].field)
        for amount in (each.difference, each.ulp)
    )
    datatypes = dict.fromkeys(rank.datatype for rank in ranks)
    datatype, dtypes = " beside ".join(map(str, datatypes)), " beside ".join(filter(None, map(dtype_name, datatypes)))
    figures = ranks[0].count, each.differing, difference, ulp
    compared = Compared(name, datatype, dtypes or None, *figures, *each.missing, each.unread)
    return compared, [Example(name, index_of(shaped, at.element), at.field, *rest) for at, *rest in each.examples]


def plan_diff(
    words: Sequence[str | AtHand], options: Options, tell: Callable[[Difference], None], context: Context
) -> _PlannedDiff:
    """Look at two files, whose headers are compared here, and return what compares their elements."""
    tolerance = Tolerance(options["ulp"], options["rtol"], options["atol"], options["nan_equal"])
    check_picture(options["png"])
    if list(words).count("-") > 1:
        raise UsageError("-", "standard input can be one of the files only; write the other to a file")
    inputs = InputOptions.of(options, context)
    a, b = (open_rank(word, inputs._replace(nullable=True, any_type=True, unpack=True)) for word in words)
    check_use(inputs, a, b)
    check_replaces_none(options["png"], (a, b), options)
    unread = {each.name: each.reason for file in (b, a) for each in file.others}
    a, b = (file._replace(buffers=[each for each in file.buffers if each.name not in unread]) for file in (a, b))
    b = b.ordered_as(a)
    pairs = list(zip(a.buffers, b.buffers, strict=False))
    common = [common_type(one.datatype, other.datatype, tolerance) for one, other in pairs]
    alike = [
        other._replace(datatype=one.datatype) if kind else other
        for (one, other), kind in zip(pairs, common, strict=True)
    ]
    listed = tuple(Compared(name, "", None, 0, 0, None, None, reason=why) for name, why in unread.items())
    result = Difference(not listed, a.source.name, b.source.name, buffers=listed, noun=a.noun)
    planned = partial(_PlannedDiff, (a, b), png=options["png"], tell=tell)
    try:
        _compare_names(a, b)
        compare("B", b._replace(buffers=[*alike, *b.buffers[len(alike) :]]), ("A", a))
    except (CountError, DatatypeError) as error:
        reason = str(error).partition("; ")[0]  # the ways out are those of a reduction
        return planned(None, replace(result, equal=False, reason=reason, buffers=()))
    if not a.buffers:
        return planned(None, result)
    ((a, b),) = in_one_order([(a, b)], 0)
    for buffer in a.buffers:
        _ = buffer.datatype.form
    datatypes = tuple(kind or one.datatype for kind, one in zip(common, a.buffers, strict=True))
    return planned(_Comparison(make_plan((NO_OP,), (a, b), context), tolerance, options["examples"], datatypes), result)


def _compare_names(a: RankFile, b: RankFile) -> None:
    """Raise `CountError` if an array that cannot be read is in one file only."""
    for file, other in ((a, b), (b, a)):
        names = {*(each.name for each in other.buffers), *(each.name for each in other.others)}
        for name in (each.name for each in file.others if each.name not in names):
            raise CountError(other.source.name, f"has no {name!r}, which {file.source.name!r} has")


def diff(words: Sequence[str | AtHand], given: Mapping[str, object], context: Context) -> Difference:
    """Compare two files, which `words` mean, by the options that are given."""
    options, found = checked(DIFF, given), list[Difference]()
    plan = partial(plan_diff, words, options, found.append)
    carry_out(plan, partial(paths, words), context, overwrite=options["overwrite"])
    return found[-1]
