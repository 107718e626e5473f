"""Whether two files hold the same, and how they differ; directories and lists are compared file by file.

Blocks are compared as bytes first. Only those that differ are looked at closer, number by number. Elements that are
missing in both files are the same.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpired.attempts import repeated
from mpired.collectives.plan import Plan, Segment, make_plan
from mpired.collectives.run import run_segments
from mpired.context import Context
from mpired.datatypes import TIMES, Datatype, Group, beside, from_dtype
from mpired.datatypes.times import dtype_name, in_unit
from mpired.errors import (
    BufferFileError,
    CountError,
    DatatypeError,
    MpiredError,
    NotReadError,
    UsageError,
    describe,
    escaped,
    number,
)
from mpired.formats import RAW, Array, InputOptions, RankFile, RankObject, open_rank
from mpired.formats.array import REGISTERED, blocks, stored_array
from mpired.formats.cells import TimeChange, units_of
from mpired.formats.decoding import decode_worker
from mpired.formats.rank import ELSEWHERE, lacking
from mpired.formats.recognise import unpacked
from mpired.log import PERIOD, track
from mpired.ops.table import NO_OP
from mpired.options import DIFF, EFFORT, INPUTS, Options, checked, part
from mpired.queries.elements import (
    ComponentPair,
    Tolerance,
    bits,
    common_type,
    differing,
    distance,
    index_of,
    parts,
    place_text,
    plain,
    ulps,
    value_text,
)
from mpired.queries.pictures import DifferenceMap, answered, check_replaces_none, drawing
from mpired.ranks.opening import check_formats, compare, in_one_order, is_of_rank
from mpired.ranks.order import files_within
from mpired.sources.directory import is_one_rank
from mpired.sources.open import check_unchanged, open_source

_Word: TypeAlias = str | RankObject
_Files: TypeAlias = dict[str | int, _Word]  # by their names in a directory, or their numbers in a list
_OF_BYTES = ("examples", "png", "overwrite", *EFFORT, "lock_timeout")  # the options of bytes
# The elements compared closer at a time, so that the temporaries stay in the cache.
_CLOSE_BYTES = 128 << 10
_MOST_OBJECTS = 16 << 10  # of Python in a block


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
    units: str = ""  # those of A and B if they differ; times are compared in that of A, other numbers as they are


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
        """Yield the lines that `mpired diff` prints: of two files the verdict first, of several the counts last."""
        if self.noun == "file":
            yield from (f"{escaped(each.name)}: {next(each.lines())}" for each in self.files if not each.equal)
            only = [(name, self.a) for name in self.only_in_a] + [(name, self.b) for name in self.only_in_b]
            yield from (f"{escaped(name)}: only in {escaped(where)}" for name, where in only)
            verdicts = Counter(each.verdict for each in self.files)
            verdicts["in one alone"] = len(only)
            counts = (f"{verdicts[each]} {each}" for each in _VERDICTS if verdicts[each] or each == _VERDICTS[0])
            yield f"{number(verdicts.total(), 'file')}: {', '.join(counts)}"
            return
        if self.reason or self.obstacle:
            yield f"{self.verdict}: {escaped(self.reason or self.obstacle)}"
            return
        if len(self.buffers) == 1:
            yield f"{self.verdict}: {_figures(self.buffers[0])}"
        else:
            wrong = sum(each.differing > 0 for each in self.buffers)
            rows = f", {self.buffers[0].count} rows" if self.noun == "column" and self.buffers else ""
            yield f"{self.verdict}: {f'{wrong} of ' if wrong else ''}{len(self.buffers)} {self.noun}s{rows}"
            yield from (f"  {escaped(each.name)}: {_figures(each)}" for each in self.buffers)
        for example in self.examples:
            place = escaped(place_text(example.column, example.index, example.field))
            amounts = [(example.difference, "difference {}"), (example.ulp, "{} ulp")]
            apart = "".join(f", {words.format(str(amount))}" for amount, words in amounts if amount is not None)
            yield f"  {place}: {value_text(example.a)} {value_text(example.b)}{apart}"
        shown = len({(each.column, each.index) for each in self.examples})
        more = sum(each.differing for each in self.buffers if not each.reason) - shown
        if self.examples and more:
            yield f"  and {number(more, 'more element')}"


_VERDICTS = ("the same", "different", "in one alone", "not known")


def _figures(each: Compared) -> str:
    """Return the counts of elements and the largest differences in words."""
    if each.reason:
        return f"not compared, {escaped(each.reason)}"
    counts = f"{f'{each.differing} of ' if each.differing else ''}{each.count} x {beside(each.datatype, each.dtype)}"
    counts += f", in {escaped(each.units)}" if each.units else ""
    alone = [(each.missing_in_a, "A"), (each.missing_in_b, "B")]
    if any(count for count, _ in alone):
        counts += ", " + ", ".join(f"{count} missing in {name} alone" for count, name in alone if count)
    known = [(found, unit) for found, unit in ((each.difference, ""), (each.ulp, " ulp")) if found is not None]
    texts = [f"{each.amount!s}{unit} at {escaped(place_text('', each.index, each.field))}" for each, unit in known]
    return f"{counts}, largest difference {', '.join(texts)}" if texts else counts


_Place: TypeAlias = tuple[int, int]
"""A number: that of the element, in the order of comparison, and its own in the element, in that of the type map."""
_Largest: TypeAlias = tuple[_Place, Largest] | None


class _Found(NamedTuple):
    """Differences in some elements of a buffer."""

    buffer: int = 0
    nbytes: int = 0
    differing: int = 0
    missing: tuple[int, int] = (0, 0)  # in A alone, and in B alone
    examples: tuple[tuple[_Place, Example], ...] = ()
    largest: tuple[_Largest, _Largest] = (None, None)  # the difference, and units in the last place
    places: tuple[np.ndarray, ...] = ()  # of elements that differ, if they are drawn
    unread: str = ""  # why the elements of one of the files cannot be read


class _ArrayPair(NamedTuple):
    """Two arrays that are compared."""

    arrays: tuple[Array, ...]  # that of A, and that of B
    datatype: Datatype  # that the elements are compared in

    @property
    def shaped(self) -> Array:
        """The array whose shape indices are in."""
        return next((array for array in self.arrays if array.shape is not None), self.arrays[0])

    @property
    def name(self) -> str:
        """The name of the arrays; "" if they have none."""
        return self.arrays[0].name or self.arrays[1].name

    def described(self, found: _Found) -> Compared:
        """Describe the comparison."""
        names: dict[tuple[str, str | None], None] = {}
        stored = [*map(stored_array, self.arrays)]
        for array in stored:  # numbers that are combined as wider ones have the name that they have in the file
            is_own = array.stored.isbuiltin != REGISTERED
            names[(str(array.datatype), dtype_name(array.datatype)) if is_own else (array.stored.name, None)] = None
        label, dtypes = (" beside ".join(filter(None, each)) for each in zip(*names, strict=True))
        difference, ulp = (each and each[1] for each in found.largest)
        figures = self.arrays[0].count, found.differing, difference, ulp
        units = list(dict.fromkeys(array.unit for array in stored if array.unit))
        named = " beside ".join(map(repr, units)) if len(units) > 1 else ""
        return Compared(self.name, label, dtypes or None, *figures, *found.missing, found.unread, named)


@dataclass(frozen=True)
class _Comparison:
    """Compares segments. Picklable: it is sent once to each worker."""

    plan: Plan
    pairs: tuple[_ArrayPair, ...]
    tolerance: Tolerance
    examples: int  # the most examples
    is_drawn: bool  # whether a picture shows which elements differ

    def __call__(self, segment: Segment) -> Iterator[_Found]:
        """Compare the elements of a segment in blocks, and yield the differences of its pieces."""
        pair, step, start = self.pairs[segment.buffer], self.plan.block_counts[segment.buffer], segment.start
        step = min(step, _MOST_OBJECTS) if pair.datatype.group is Group.VALUE else step
        close = max(1, _CLOSE_BYTES // pair.datatype.itemsize)
        found = none = _Found(segment.buffer)
        due = time.monotonic() + PERIOD
        try:
            for read in zip(*(blocks(array, step, start, segment.stop) for array in pair.arrays), strict=True):
                (a, b), masks = zip(*read, strict=True)
                valid = None
                if any(mask is not None for mask in masks):
                    valid = [np.ones(len(a), np.bool_) if mask is None else mask for mask in masks]
                for at in range(0, len(a), close) if valid is not None or self._may_differ(pair, a, b) else ():
                    piece = slice(at, at + close)
                    some = a[piece], b[piece]
                    part = self._closer(pair, start + at, some, valid and [mask[piece] for mask in valid])
                    found = self.merged(found, part)
                found = found._replace(nbytes=found.nbytes + a.nbytes + b.nbytes)
                start += len(a)
                if (now := time.monotonic()) >= due:
                    yield found
                    found, due = none, now + PERIOD
        except (BufferFileError, DatatypeError) as error:
            found = none._replace(unread=str(error))
        yield found

    def _may_differ(self, pair: _ArrayPair, a: np.ndarray, b: np.ndarray) -> bool:
        """Return whether blocks may differ: by their bits, or by a NaN, which equals no other by its value."""
        one, other = (array.datatype for array in pair.arrays)
        if one != other or a.dtype.hasobject or (bits(a) != bits(b)).any():
            return True
        if self.tolerance.is_bitwise or self.tolerance.nan_equal:
            return False
        numbers = (part.a for part in parts(a, a, one) if not part.is_exact)
        return any(np.isnan(each).any() for each in numbers if each.dtype.kind in "fc")

    def merged(self, one: _Found, other: _Found) -> _Found:
        """Return the differences of both, the same whatever their order."""
        largest = []
        for both in zip(one.largest, other.largest, strict=True):  # of equal ones the first
            found = [each for each in both if each is not None]
            largest.append(min(found, key=lambda each: (-each[1].amount, each[0]), default=None))
        return _Found(
            one.buffer,
            one.nbytes + other.nbytes,
            one.differing + other.differing,
            (one.missing[0] + other.missing[0], one.missing[1] + other.missing[1]),
            tuple(sorted(one.examples + other.examples, key=lambda each: each[0])[: self.examples]),
            (largest[0], largest[1]),
            one.places + other.places,
            one.unread or other.unread,
        )

    @np.errstate(all="ignore")  # numbers may be anything
    def _closer(
        self, pair: _ArrayPair, start: int, some: Sequence[np.ndarray], valid: Sequence[np.ndarray] | None
    ) -> _Found:
        """Return the differences of some elements of A and B, of which the first has the number `start`."""
        datatype, (first, second) = pair.datatype, pair.arrays
        a, b = (
            in_unit(block, array.datatype, datatype)
            if array.datatype != datatype and datatype.group in TIMES
            else block.astype(datatype.form, copy=False)
            for block, array in zip(some, pair.arrays, strict=True)
        )
        for block in (a, b):
            datatype.clear_padding(block)
        found, wrong = _Found(), np.zeros(len(a), np.bool_)
        if valid is not None:  # elements that lack one of both differ, and are compared as zeros
            lacks = [valid[1] & ~valid[0], valid[0] & ~valid[1]]
            wrong, part, examples = lacks[0] | lacks[1], next(parts(a, b, datatype)), []
            for at in np.flatnonzero(wrong)[: self.examples].tolist():
                one, other = (each if mask[at] else None for each, mask in zip(part.pair(at), valid, strict=True))
                example = Example(pair.name, index_of(pair.shaped, start + at), part.name, one, other, None, None)
                examples.append(((start + at, 0), example))
            found = _Found(missing=(int(lacks[0].sum()), int(lacks[1].sum())), examples=tuple(examples))
            for block in (a, b):
                block[~(valid[0] & valid[1])] = np.zeros((), block.dtype)
        narrow = first.stored if first.stored.isbuiltin == REGISTERED and first.stored == second.stored else None
        for which, part in enumerate(parts(a, b, datatype, narrow)):
            differs = differing(part, self.tolerance)
            wrong |= differs
            found = self.merged(found, self._of_part(pair, part, differs, start, which))
        places = start + np.flatnonzero(wrong)
        return found._replace(differing=len(places), places=(places,) if self.is_drawn and len(places) else ())

    def _of_part(self, pair: _ArrayPair, part: ComponentPair, differs: np.ndarray, start: int, which: int) -> _Found:
        """Return examples and the largest differences of a part, which has the number `which` of each element."""
        apart, (units, known) = distance(part.a, part.b), ulps(part.a, part.b, part.narrow)
        examples = []
        for at in np.flatnonzero(differs)[: self.examples].tolist():
            amount = None if np.isnan(apart[at]) else plain(apart[at])
            place, steps = index_of(pair.shaped, start + at), int(units[at]) if known[at] else None
            examples.append(((start + at, which), Example(pair.name, place, part.name, *part.pair(at), amount, steps)))
        if apart.dtype.kind == "f":
            apart[np.isnan(apart)] = 0
        units[~known] = 0
        largest: list[_Largest] = []
        for amounts in (apart, units):
            at = int(amounts.argmax())
            found = Largest(plain(amounts[at]), index_of(pair.shaped, start + at), part.name)
            largest.append(((start + at, which), found) if found.amount > 0 else None)
        return _Found(examples=tuple(examples), largest=(largest[0], largest[1]))


def _compared(
    comparison: _Comparison, result: Difference, png: str | None, file: RankFile, context: Context
) -> tuple[Difference, bytes | None]:
    """Compare all elements of two files, and add them to the result of their headers."""
    pairs, picture = comparison.pairs, None
    found = [_Found() for _ in pairs]
    maps: dict[int, DifferenceMap] = {}  # of the first arrays that differ
    for piece in run_segments(comparison.plan, comparison, context):
        for places in piece.places:
            if piece.buffer not in maps:
                maps[piece.buffer] = DifferenceMap(pairs[piece.buffer].shaped, file)
            maps[piece.buffer].add(places)
            if len(maps) > drawing().MOST_BUFFERS:
                del maps[max(maps)]
        found[piece.buffer] = comparison.merged(found[piece.buffer], piece._replace(places=()))
    buffers = (*map(_ArrayPair.described, pairs, found), *result.buffers)
    examples = tuple(example for each in found for _, example in each.examples)[: comparison.examples]
    equal = not any(each.differing or each.reason for each in buffers)
    result = replace(result, equal=equal, buffers=buffers, examples=examples)
    if png is not None:
        wrong, module = sum(each.differing > 0 for each in buffers), drawing()
        shown = maps or {at: DifferenceMap(pair.shaped, file) for at, pair in enumerate(pairs[: module.MOST_BUFFERS])}
        drawn = [shown[at].drawn(pairs[at].name or "elements") for at in sorted(shown)]
        more = f", {len(drawn)} of {wrong} {result.noun}s that differ" if wrong > len(drawn) else ""
        picture = module.png([f"{result.a} and {result.b}{more}"], drawn)
    return result, picture


def _of_bytes(options: Options) -> Options:
    """Return the options to compare two files by their bytes."""
    return checked(DIFF, {key: options[key] for key in _OF_BYTES} | {"type": "byte", "format": RAW.name})


def _opened(
    words: Sequence[_Word], options: Options, context: Context, *, typed: bool
) -> tuple[list[RankFile], Options]:
    """Open two files; by their bytes, with the options for these, if no format or option describes either."""
    inputs = InputOptions.of(options, context)
    wide = inputs._replace(nullable=True, any_type=True, unpack=True)
    files = [open_rank(word, wide, any_kind=True) for word in words]
    obstacles = [file for file in files if file.obstacle]
    if len(obstacles) == len(files) and not typed:  # streams are read once
        options = _of_bytes(options)
        inputs = InputOptions.of(options, context)
        files = [RAW.inspect(unpacked(file.source, inputs), inputs) for file in files]
    elif obstacles:
        if obstacles[0].format == RAW.name:
            RAW.inspect(obstacles[0].source, wide)  # raises
        raise NotReadError(obstacles[0].source.name, obstacles[0].obstacle, obstacles[0].format)
    check_formats(inputs, {file.format for file in files})
    return files, options


def _diff(
    words: Sequence[_Word], options: Options, context: Context, *, typed: bool
) -> tuple[Difference, bytes | None]:
    """Compare the headers of two files, and their elements if these are alike."""
    (a, b), options = _opened(words, options, context, typed=typed)
    tolerance, png = Tolerance(*(options[name] for name in Tolerance._fields)), options["png"]
    check_replaces_none(png, (a, b), options)
    unread = {each.name: each.reason for file in (b, a) for each in file.others}
    names = [[*(each.name for each in file.buffers), *(each.name for each in file.others)] for file in (a, b)]
    if all(itertools.chain(*names)) and not unread.keys().isdisjoint({*names[0]} ^ {*names[1]}):
        reason = f"B has {number(len(names[1]), b.noun)}, but A ({a.source.name!r}) has {len(names[0])}"
        reason = f"{b.source.name}: {reason}{lacking('this file', names[1], 'A', names[0])}"
        return Difference(equal=False, a=a.source.name, b=b.source.name, reason=reason, noun=a.noun), None
    a, b = (file._replace(buffers=[each for each in file.buffers if each.name not in unread]) for file in (a, b))
    listed = [Compared(name, "", None, 0, 0, None, None, reason=why) for name, why in unread.items()]
    a, b, why = _in_one_unit(a, b.ordered_as(a), tolerance)
    apart = _not_compared(a, b, why, tolerance)
    if len(apart) < len(a.buffers) == len(b.buffers):  # else no other array is left, or the headers differ
        a, b = (
            file._replace(buffers=[each for at, each in enumerate(file.buffers) if at not in apart]) for file in (a, b)
        )
        listed, apart = [*listed, *apart.values()], {}
    result = Difference(not listed, a.source.name, b.source.name, buffers=tuple(listed), noun=a.noun)
    pairs = list(zip(a.buffers, b.buffers, strict=False))
    common = [common_type(one.datatype, other.datatype, tolerance) for one, other in pairs]
    alike = list(b.buffers)
    for at, ((one, other), kind) in enumerate(zip(pairs, common, strict=True)):
        alike[at] = other._replace(datatype=one.datatype) if kind else other
    try:
        compare("B", b._replace(buffers=alike), ("A", a))
    except (CountError, DatatypeError) as error:
        reason = str(error).partition("; ")[0]  # the ways out are those of a reduction
        if apart and len(apart) == len(pairs) and isinstance(error, DatatypeError):
            reason += "".join(apart[0].reason.partition("; ")[1:])
        return replace(result, equal=False, reason=reason, buffers=()), None
    if apart or not a.buffers:
        return replace(result, equal=not (apart or listed), buffers=(*apart.values(), *listed)), None
    (files,) = in_one_order([(a, b)], 0)
    for buffer in files[0].buffers:
        _ = buffer.datatype.form
    plan = make_plan((NO_OP,), files, context)
    compared = tuple(map(_ArrayPair, plan.buffers, filter(None, common)))  # each has a datatype, else they differ
    comparison = _Comparison(plan, compared, tolerance, options["examples"], is_drawn=png is not None)
    a = a._replace(buffers=list(map(context.worker.decoding, a.buffers)))
    answer = _compared(comparison, result, png, a, context)
    if png is not None:
        check_unchanged([source for file in files for source in file.sources])
    return answer


def _in_one_unit(a: RankFile, b: RankFile, tolerance: Tolerance) -> tuple[RankFile, RankFile, dict[int, str]]:
    """Return both files, the times of B in the units of A, and by place the reasons of arrays without such a change."""
    units, why, buffers = [units_of(file) for file in (b, a)], dict[int, str](), (list(a.buffers), list(b.buffers))
    for at, pair in enumerate(zip(a.buffers, b.buffers, strict=False)):
        own = [each.get(array.name, {}) for each, array in zip(units, pair[::-1], strict=True)]
        texts, (one, other) = [each.get("units", "") for each in own], (each.datatype for each in pair)
        are_times = own[0] != own[1] and all(texts) and any(" since " in text for text in texts)
        forms = [each.form for each in (one, other) if each.group not in TIMES and each.form.kind in "iuf"]
        if not are_times or len(forms) < len(pair) or common_type(one, other, tolerance) is None:
            continue
        if (change := TimeChange.between(*own)) is None:
            texts = [" of calendar ".join(map(repr, each.values())) for each in own]
            why[at] = f"B has times in {texts[0]}, but A in {texts[1]}"
        elif change != TimeChange():
            floats = [form for form in forms if form.kind == "f"]  # a datatype that holds fractions
            datatype = from_dtype(np.result_type(*floats or [np.dtype(np.longdouble)]))
            for array, reader, made in zip(pair, (TimeChange(), change), buffers, strict=True):
                if reader is change or array.datatype != datatype:
                    made[at] = array._replace(datatype=datatype, stored=datatype.form, reader=reader, values=array)
    return a._replace(buffers=buffers[0]), b._replace(buffers=buffers[1]), why


def _not_compared(a: RankFile, b: RankFile, why: Mapping[int, str], tolerance: Tolerance) -> dict[int, Compared]:
    """Return by place the arrays of the same name whose elements have no datatype or unit in common."""
    apart = {}
    for at, (one, other) in enumerate(zip(a.buffers, b.buffers, strict=False)):
        reason, are_named_alike = why.get(at, ""), one.name == other.name or not (one.name and other.name)
        if common_type(one.datatype, other.datatype, tolerance) is None:
            reason = f"B has datatype {other.datatype.label}, but A has {one.datatype.label}"
            if common_type(one.datatype, other.datatype, Tolerance(rtol=0.0)):
                reason += "; compare them by value with `rtol`"
        if reason and one.count and are_named_alike:
            found = _Found(differing=one.count, unread=reason)
            apart[at] = _ArrayPair((one, other), one.datatype).described(found)
    return apart


def diff(a: _Word | Sequence[_Word], b: _Word | Sequence[_Word], options: Options, context: Context) -> Difference:
    """Compare two files, or all files of two directories or lists."""
    if isinstance(a, str | RankObject) and isinstance(b, str | RankObject):
        are_folders = [isinstance(word, str) and os.path.isdir(word) and not is_one_rank(word) for word in (a, b)]
        if not all(are_folders):
            if any(are_folders):
                folder, other = (a, b) if are_folders[0] else (b, a)
                if isinstance(other, str):
                    open_source(other, context)  # raises an error if it is missing
                same = os.path.join(str(folder), os.path.basename(_name(other)))
                way_out = f"compare {same!r}" if os.path.exists(same) else "name a file in it"
                raise BufferFileError(str(folder), f"is a directory, and {_name(other)} is a file; {way_out}")
            return _of_two((a, b), options, context, typed=part(INPUTS, options) != part(INPUTS, checked(DIFF, {})))
    elif isinstance(alone := a, str | RankObject) or isinstance(alone := b, str | RankObject):
        raise UsageError(_name(alone), "is a file, and the other is a list; give two lists or files")
    if options["png"] is not None:
        raise UsageError("`png`", "is of two files, and these are several; draw one after another")
    left, right = (
        _Files(files_within(each, str(other), context) if isinstance(each, str) else enumerate(each))  # type: ignore[arg-type]
        for each, other in ((a, b), (b, a))
    )
    pairs = {key: (word, right[key]) for key, word in left.items() if key in right}
    with decode_worker(context) as served:
        found = tuple(_one(key, pairs[key], options, served) for key in track(list(pairs)))
    only_in_a, only_in_b = (
        tuple(_title(key, word) for key, word in files.items() if key not in pairs) for files in (left, right)
    )
    equal = all(each.equal for each in found) and not (only_in_a or only_in_b)
    where = [each if isinstance(each, str) else name for each, name in ((a, "A"), (b, "B"))]
    return Difference(equal, where[0], where[1], noun="file", files=found, only_in_a=only_in_a, only_in_b=only_in_b)


def _name(word: _Word) -> str:
    return word if isinstance(word, str) else word.name


def _title(key: str | int, *words: _Word) -> str:
    """Return the name of a file in its directory, or of one or two in lists."""
    return key if isinstance(key, str) else " and ".join(dict.fromkeys(map(_name, words)))


def _kind(path: str) -> str:
    """Return what a file of a directory is, in words."""
    if os.path.isfile(path) or (os.path.isdir(path) and is_one_rank(path)):
        return "a file"
    return f"a link to {os.readlink(path)!r}" if os.path.islink(path) else "a pipe, socket or device"


def _one(key: str | int, words: Sequence[_Word], options: Options, context: Context) -> Difference:
    """Compare two files of several, of which one that cannot be read does not keep the others from it."""
    a, b = map(_name, words)
    kinds = [_kind(name) if isinstance(key, str) else "a file" for name in (a, b)]
    if kinds != ["a file", "a file"]:
        is_same, is_link = kinds[0] == kinds[1], os.path.islink(a)
        reason = "" if is_same else f"B is {kinds[1]}, but A is {kinds[0]}"
        obstacle = f"{a}: is {kinds[0]}, which is not read" if is_same and not is_link else ""
        return Difference(is_same and is_link, a, b, reason, name=_title(key, *words), obstacle=obstacle)
    try:
        found = _of_two(words, options, context, typed=options["type"] is not None)
    except (MpiredError, OSError) as error:
        if not is_of_rank(error):
            raise
        found = Difference(equal=False, a=a, b=b, obstacle=describe(error))
    return replace(found, name=_title(key, *words))


def _of_two(words: Sequence[_Word], options: Options, context: Context, *, typed: bool) -> Difference:
    """Compare two files; those that are not read completely are the same if their bytes are."""
    found = answered(partial(_diff, words, options, typed=typed), words, options, context)
    paths = [word for word in words if isinstance(word, str) and os.path.exists(word)]
    if found.verdict == "not known" and len(paths) == len(words):
        is_whole = all(map(os.path.isfile, paths)) and not any(ELSEWHERE in each.reason for each in found.buffers)
        by_bytes = partial(_diff, words, _of_bytes(options), typed=True)
        equal = os.path.samefile(*paths) or (is_whole and repeated(by_bytes, words, context)[0].equal)
        return replace(found, equal=equal)
    return found
