"""Comparison of two files: equality, and the differences; directories and lists are compared file by file.

Blocks are compared as bytes first, and number by number only if these differ. Elements that are missing in both files
are equal.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpired.attempts import retry
from mpired.collectives.plan import Plan, Segment, make_plan
from mpired.collectives.run import run_segments
from mpired.context import Context
from mpired.datatypes import TIMES, Datatype, Group, beside, from_dtype
from mpired.datatypes.dtypes import convert_unit, dtype_name
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
from mpired.formats.array import blocks, stored_array
from mpired.formats.cells import TimeChange, units_of
from mpired.formats.convert import OF_A_PACKAGE
from mpired.formats.decoding import decode_worker
from mpired.formats.rank import ELSEWHERE, missing_arrays_text
from mpired.formats.recognise import decompressed
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
from mpired.queries.pictures import DifferenceMap, answer_query, check_replaces_none, drawing
from mpired.ranks.opening import HINTS, check_alike, check_formats, in_one_order, is_of_rank
from mpired.ranks.order import files_beside, files_within
from mpired.sources.directory import is_one_rank
from mpired.sources.open import check_unchanged, open_source

_File: TypeAlias = str | RankObject
_Files: TypeAlias = dict[str | int, _File]  # by path in a directory, or number in a list
_BYTE_OPTIONS = ("examples", "png", "overwrite", *EFFORT, "lock_timeout")  # of a comparison of bytes
_ITSELF = "."  # the name of a store or checkpoint beside the other files in its directory
_NUMBERS_NBYTES = 128 << 10  # compared number by number at a time, so that the temporaries stay in the cache
_MAX_OBJECTS = 16 << 10  # objects of Python in a block


@dataclass(frozen=True)
class Example:
    """Two elements, or components, that differ."""

    column: str  # "" in files without columns
    index: tuple[int, ...]  # an index of each dimension of an array, the row of a column
    field: str  # "" of an element without fields
    a: Any
    b: Any
    difference: Any  # the absolute difference; `None` if one number is NaN
    ulp: int | None  # the difference in units in the last place; `None` for integers and if a number is not finite


@dataclass(frozen=True)
class Largest:
    """The largest difference and its first place; `index` and `field` are like those of `Example`."""

    amount: Any
    index: tuple[int, ...]
    field: str


@dataclass(frozen=True)
class ArrayDifference:
    """The comparison of a column, or of the only array."""

    name: str  # "" in files without columns
    datatype: str
    dtype: str | None  # NumPy's name of the datatype; `None` if it has none
    count: int
    differing: int  # elements that differ
    difference: Largest | None  # of all elements, also of those within the tolerance
    ulp: Largest | None
    missing_in_a: int = 0  # elements that are missing in A only
    missing_in_b: int = 0
    reason: str = ""  # the obstacle to a comparison of elements
    units: str = ""  # of A and B if they differ; times of B are converted to the unit of A, other numbers are not


@dataclass(frozen=True)
class Difference:
    """The differences of two files."""

    equal: bool
    a: str  # the name of A in messages
    b: str
    reason: str = ""  # a difference of the headers, so that elements were not compared
    buffers: tuple[ArrayDifference, ...] = ()
    examples: tuple[Example, ...] = ()  # ordered by column, element and field
    noun: str = "column"  # for an array, in the format of A
    name: str = ""  # of a file of directories or lists
    obstacle: str = ""  # an error, so that the verdict is "not known"
    files: tuple[Difference, ...] = ()  # of directories or lists
    only_in_a: tuple[str, ...] = ()  # names of files
    only_in_b: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The result in words: "the same", "different" or "not known"."""
        if self.equal:
            return "the same"
        differences = self.reason, self.only_in_a, self.only_in_b, *(buffer.differing for buffer in self.buffers)
        is_different = any(differences) or any(file.verdict == "different" for file in self.files)
        return "different" if is_different else "not known"

    def __str__(self) -> str:
        """Return the lines that `mpired diff` prints."""
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the lines that `mpired diff` prints."""
        if self.noun == "file":
            for file in self.files:
                lines = () if file.equal else file.lines()
                shown = lines if file.name == _ITSELF else itertools.islice(lines, 1)
                yield from (line if line[0] == " " else f"{escaped(file.name)}: {line}" for line in shown)
            only = [(name, self.a) for name in self.only_in_a] + [(name, self.b) for name in self.only_in_b]
            yield from (f"{escaped(name)}: only in {escaped(folder)}" for name, folder in only)
            counts = Counter(file.verdict for file in self.files)
            counts["in one alone"] = len(only)
            phrases = [
                f"{counts[verdict]} {verdict}" for verdict in _VERDICTS if counts[verdict] or verdict == "the same"
            ]
            yield f"{number(counts.total(), 'file')}: {', '.join(phrases)}"
            return
        if self.reason or self.obstacle:
            yield f"{self.verdict}: {escaped(self.reason or self.obstacle)}"
            return
        if len(self.buffers) == 1:
            yield f"{self.verdict}: {_describe(self.buffers[0])}"
        else:
            ndiffering = sum(buffer.differing > 0 for buffer in self.buffers)
            rows = f", {self.buffers[0].count} rows" if self.noun == "column" and self.buffers else ""
            yield f"{self.verdict}: {f'{ndiffering} of ' if ndiffering else ''}{len(self.buffers)} {self.noun}s{rows}"
            yield from (f"  {escaped(buffer.name)}: {_describe(buffer)}" for buffer in self.buffers)
        for example in self.examples:
            place = escaped(place_text(example.column, example.index, example.field))
            difference = "" if example.difference is None else f", difference {example.difference!s}"
            steps = "" if example.ulp is None else f", {example.ulp} ulp"
            yield f"  {place}: {value_text(example.a)} {value_text(example.b)}{difference}{steps}"
        nshown = len({(example.column, example.index) for example in self.examples})
        more = sum(buffer.differing for buffer in self.buffers if not buffer.reason) - nshown
        if self.examples and more:
            yield f"  and {number(more, 'more element')}"


_VERDICTS = ("the same", "different", "in one alone", "not known")


def _describe(buffer: ArrayDifference) -> str:
    """Return the counts of elements and the largest differences of a buffer, for printing."""
    if buffer.reason:
        return f"not compared, {escaped(buffer.reason)}"
    share = f"{buffer.differing} of " if buffer.differing else ""
    phrases = [f"{share}{buffer.count} x {beside(buffer.datatype, buffer.dtype)}"]
    phrases += [f"in {escaped(buffer.units)}"] if buffer.units else []
    phrases += [f"{buffer.missing_in_a} missing in A alone"] if buffer.missing_in_a else []
    phrases += [f"{buffer.missing_in_b} missing in B alone"] if buffer.missing_in_b else []
    label = "largest difference "
    for largest, unit in ((buffer.difference, ""), (buffer.ulp, " ulp")):
        if largest is not None:
            phrases.append(
                f"{label}{largest.amount!s}{unit} at {escaped(place_text('', largest.index, largest.field))}"
            )
            label = ""
    return ", ".join(phrases)


_Place: TypeAlias = tuple[int, int]
"""The positions of an element, in the order of comparison, and of a component, in the order of the type map."""
_Largest: TypeAlias = tuple[_Place, Largest] | None


class _Differences(NamedTuple):
    """Differences in a piece of a buffer."""

    buffer: int = 0
    nbytes: int = 0  # compared, of both files
    differing: int = 0  # elements
    missing: tuple[int, int] = (0, 0)  # elements that are missing in A only, and in B only
    examples: tuple[tuple[_Place, Example], ...] = ()
    largest: tuple[_Largest, _Largest] = (None, None)  # the absolute difference, and units in the last place
    positions: tuple[np.ndarray, ...] = ()  # of elements that differ, for a picture
    unread: str = ""  # the error of a file whose elements cannot be read


class _ArrayPair(NamedTuple):
    """Two arrays that are compared."""

    arrays: tuple[Array, ...]  # of A, and of B
    datatype: Datatype  # of the comparison

    @property
    def shaped(self) -> Array:
        """The array whose shape the indices refer to."""
        return next((array for array in self.arrays if array.shape is not None), self.arrays[0])

    @property
    def name(self) -> str:
        """The name of the arrays; "" if they have none."""
        return self.arrays[0].name or self.arrays[1].name

    def describe(self, differences: _Differences) -> ArrayDifference:
        """Return the result of the comparison."""
        names: dict[tuple[str, str | None], None] = {}
        stored = [*map(stored_array, self.arrays)]
        for array in stored:
            # A dtype that is combined as a wider one, such as bfloat16, has its name in the file.
            is_widened = array.stored.isbuiltin == OF_A_PACKAGE
            names[(array.stored.name, None) if is_widened else (str(array.datatype), dtype_name(array.datatype))] = None
        label, dtypes = (" beside ".join(filter(None, column)) for column in zip(*names, strict=True))
        difference, ulp = (largest and largest[1] for largest in differences.largest)
        figures = self.arrays[0].count, differences.differing, difference, ulp
        units = list(dict.fromkeys(array.unit for array in stored if array.unit))
        both_units = " beside ".join(map(repr, units)) if len(units) > 1 else ""
        missing, unread = differences.missing, differences.unread
        return ArrayDifference(self.name, label, dtypes or None, *figures, *missing, unread, both_units)


@dataclass(frozen=True)
class _Comparison:
    """Compares segments. Picklable: each worker gets it once."""

    plan: Plan
    pairs: tuple[_ArrayPair, ...]
    tolerance: Tolerance
    nexamples: int
    is_drawn: bool  # whether a picture shows the elements that differ

    def __call__(self, segment: Segment) -> Iterator[_Differences]:
        """Compare the elements of a segment in blocks, and yield the differences of its pieces."""
        pair, step, start = self.pairs[segment.buffer], self.plan.block_counts[segment.buffer], segment.start
        step = min(step, _MAX_OBJECTS) if pair.datatype.group is Group.VALUE else step
        piece_count = max(1, _NUMBERS_NBYTES // pair.datatype.itemsize)
        differences = none = _Differences(segment.buffer)
        due = time.monotonic() + PERIOD
        try:
            for both in zip(*(blocks(array, step, start, segment.stop) for array in pair.arrays), strict=True):
                (a, b), masks = zip(*both, strict=True)
                valid = None
                if any(mask is not None for mask in masks):
                    valid = [np.ones(len(a), np.bool_) if mask is None else mask for mask in masks]
                for first in range(0, len(a), piece_count) if valid or self._may_differ(pair, a, b) else ():
                    piece = slice(first, first + piece_count)
                    pieces, piece_valid = (a[piece], b[piece]), valid and [mask[piece] for mask in valid]
                    differences = self.merge(differences, self._compare(pair, start + first, pieces, piece_valid))
                differences = differences._replace(nbytes=differences.nbytes + a.nbytes + b.nbytes)
                start += len(a)
                if (now := time.monotonic()) >= due:
                    yield differences
                    differences, due = none, now + PERIOD
        except (BufferFileError, DatatypeError) as error:
            differences = none._replace(unread=str(error))
        yield differences

    def _may_differ(self, pair: _ArrayPair, a: np.ndarray, b: np.ndarray) -> bool:
        """Return whether blocks have different bits, or NaNs that differ from themselves."""
        type_a, type_b = (array.datatype for array in pair.arrays)
        if type_a != type_b or a.dtype.hasobject or (bits(a) != bits(b)).any():
            return True
        if self.tolerance.is_bitwise or self.tolerance.nan_equal:
            return False
        components = (part.a for part in parts(a, a, type_a) if not part.is_exact)
        return any(np.isnan(numbers).any() for numbers in components if numbers.dtype.kind in "fc")

    def merge(self, left: _Differences, right: _Differences) -> _Differences:
        """Return the differences of two pieces, independent of their order."""
        largest = []
        for both in zip(left.largest, right.largest, strict=True):
            candidates = [candidate for candidate in both if candidate is not None]
            largest.append(min(candidates, key=lambda item: (-item[1].amount, item[0]), default=None))
        return _Differences(
            left.buffer,
            left.nbytes + right.nbytes,
            left.differing + right.differing,
            (left.missing[0] + right.missing[0], left.missing[1] + right.missing[1]),
            tuple(sorted(left.examples + right.examples, key=lambda item: item[0])[: self.nexamples]),
            (largest[0], largest[1]),
            left.positions + right.positions,
            left.unread or right.unread,
        )

    @np.errstate(all="ignore")  # of any numbers
    def _compare(
        self, pair: _ArrayPair, start: int, pieces: Sequence[np.ndarray], valid: Sequence[np.ndarray] | None
    ) -> _Differences:
        """Return the differences of pieces of A and B, from element `start` on."""
        datatype, (first, second) = pair.datatype, pair.arrays
        a, b = (
            convert_unit(block, array.datatype, datatype)
            if array.datatype != datatype and datatype.group in TIMES
            else block.astype(datatype.form, copy=False)
            for block, array in zip(pieces, pair.arrays, strict=True)
        )
        for block in (a, b):
            datatype.clear_padding(block)
        differences, mask = _Differences(), np.zeros(len(a), np.bool_)  # mask of elements that differ
        if valid is not None:
            # Elements that are missing in only one file differ; later they are zeros in both.
            missing = [valid[1] & ~valid[0], valid[0] & ~valid[1]]
            mask, part, examples = missing[0] | missing[1], next(parts(a, b, datatype)), []
            for i in np.flatnonzero(mask)[: self.nexamples].tolist():
                index, (in_a, in_b) = index_of(pair.shaped, start + i), part.pair(i)
                values = in_a if valid[0][i] else None, in_b if valid[1][i] else None
                examples.append(((start + i, 0), Example(pair.name, index, part.name, *values, None, None)))
            counts = int(missing[0].sum()), int(missing[1].sum())
            differences = _Differences(missing=counts, examples=tuple(examples))
            for block in (a, b):
                block[~(valid[0] & valid[1])] = np.zeros((), block.dtype)
        narrow = first.stored if first.stored.isbuiltin == OF_A_PACKAGE and first.stored == second.stored else None
        for component, part in enumerate(parts(a, b, datatype, narrow)):
            differs = differing(part, self.tolerance)
            mask |= differs
            differences = self.merge(differences, self._compare_component(pair, part, differs, start, component))
        positions = start + np.flatnonzero(mask)
        drawn = (positions,) if self.is_drawn and len(positions) else ()
        return differences._replace(differing=len(positions), positions=drawn)

    def _compare_component(
        self, pair: _ArrayPair, part: ComponentPair, differs: np.ndarray, start: int, component: int
    ) -> _Differences:
        """Return examples and the largest differences of a component; `differs` is the mask of its differences."""
        amounts, (steps, has_steps) = distance(part.a, part.b), ulps(part.a, part.b, part.narrow)
        examples = []
        for i in np.flatnonzero(differs)[: self.nexamples].tolist():
            index, values = index_of(pair.shaped, start + i), part.pair(i)
            amount, ulp = None if np.isnan(amounts[i]) else plain(amounts[i]), int(steps[i]) if has_steps[i] else None
            examples.append(((start + i, component), Example(pair.name, index, part.name, *values, amount, ulp)))
        if amounts.dtype.kind == "f":
            amounts[np.isnan(amounts)] = 0
        steps[~has_steps] = 0
        largest: list[_Largest] = []
        for numbers in (amounts, steps):
            i = int(numbers.argmax())
            candidate = Largest(plain(numbers[i]), index_of(pair.shaped, start + i), part.name)
            largest.append(((start + i, component), candidate) if candidate.amount > 0 else None)
        return _Differences(examples=tuple(examples), largest=(largest[0], largest[1]))


def _compare_elements(
    comparison: _Comparison, result: Difference, png: str | None, file: RankFile, context: Context
) -> tuple[Difference, bytes | None]:
    """Compare the elements of two files, and return `result` with their differences, and a picture for `png`."""
    pairs, picture = comparison.pairs, None
    totals = [_Differences() for _ in pairs]
    maps: dict[int, DifferenceMap] = {}  # of the first arrays that differ
    with run_segments(comparison.plan, comparison, context) as pieces:
        for piece in track(pieces):
            for positions in piece.positions:
                if piece.buffer not in maps:
                    maps[piece.buffer] = DifferenceMap(pairs[piece.buffer].shaped, file)
                maps[piece.buffer].add(positions)
                if len(maps) > drawing().MAX_BUFFERS:
                    del maps[max(maps)]
            totals[piece.buffer] = comparison.merge(totals[piece.buffer], piece._replace(positions=()))
    buffers = (*map(_ArrayPair.describe, pairs, totals), *result.buffers)
    examples = tuple(example for total in totals for _, example in total.examples)[: comparison.nexamples]
    equal = not any(buffer.differing or buffer.reason for buffer in buffers)
    result = replace(result, equal=equal, buffers=buffers, examples=examples)
    if png is not None:
        ndiffering, module = sum(buffer.differing > 0 for buffer in buffers), drawing()
        maps = maps or {i: DifferenceMap(pair.shaped, file) for i, pair in enumerate(pairs[: module.MAX_BUFFERS])}
        panels = [maps[i].panel(pairs[i].name or "elements") for i in sorted(maps)]
        more = f", {len(panels)} of {ndiffering} {result.noun}s that differ" if ndiffering > len(panels) else ""
        picture = module.png([f"{result.a} and {result.b}{more}"], panels)
    return result, picture


def _byte_options(options: Options) -> Options:
    """Return the options to compare two files by their bytes."""
    return checked(DIFF, {key: options[key] for key in _BYTE_OPTIONS} | {"type": "byte", "format": RAW.name})


def _open_pair(
    pair: Sequence[_File], options: Options, context: Context, *, typed: bool
) -> tuple[list[RankFile], Options]:
    """Open two files; as bytes, with the options for bytes, if no format or option describes their elements."""
    inputs = InputOptions.of(options, context)
    lenient = inputs._replace(nullable=True, any_type=True, unpack=True)
    files = [open_rank(file, lenient, any_kind=True) for file in pair]
    obstacles = [file for file in files if file.obstacle]
    if len(obstacles) == len(files) and not typed:
        options = _byte_options(options)
        inputs = InputOptions.of(options, context)
        files = [RAW.inspect(decompressed(file.source, inputs), inputs) for file in files]
    elif obstacles:
        if obstacles[0].format == RAW:
            RAW.inspect(obstacles[0].source, lenient)  # raises
        raise NotReadError(obstacles[0].source.name, obstacles[0].obstacle, obstacles[0].format.name)
    check_formats(inputs, {file.format for file in files})
    return files, options


def _compare_files(
    pair: Sequence[_File], options: Options, context: Context, *, typed: bool
) -> tuple[Difference, bytes | None]:
    """Compare the headers of two files, and their elements if the headers allow that."""
    (a, b), options = _open_pair(pair, options, context, typed=typed)
    tolerance, png = Tolerance(*(options[name] for name in Tolerance._fields)), options["png"]
    check_replaces_none(png, (a, b), options)
    unread = {array.name: array.reason for file in (b, a) for array in file.others}
    names = [[*(array.name for array in file.buffers), *(array.name for array in file.others)] for file in (a, b)]
    if all(itertools.chain(*names)) and not unread.keys().isdisjoint({*names[0]} ^ {*names[1]}):
        reason = f"B has {number(len(names[1]), b.format.noun)}, but A ({a.source.name!r}) has {len(names[0])}"
        reason = f"{b.source.name}: {reason}{missing_arrays_text('this file', names[1], 'A', names[0])}"
        return Difference(equal=False, a=a.source.name, b=b.source.name, reason=reason, noun=a.format.noun), None
    a, b = (file._replace(buffers=[array for array in file.buffers if array.name not in unread]) for file in (a, b))
    listed = [ArrayDifference(name, "", None, 0, 0, None, None, reason=reason) for name, reason in unread.items()]
    a, b, reasons = _in_one_unit(a, b.in_order_of(a), tolerance)
    incomparable = _incomparable(a, b, reasons, tolerance)
    if len(incomparable) < len(a.buffers) == len(b.buffers):  # the others are compared
        a, b = (
            file._replace(buffers=[array for i, array in enumerate(file.buffers) if i not in incomparable])
            for file in (a, b)
        )
        listed, incomparable = [*listed, *incomparable.values()], {}
    result = Difference(not listed, a.source.name, b.source.name, buffers=tuple(listed), noun=a.format.noun)
    arrays = list(zip(a.buffers, b.buffers, strict=False))
    datatypes = [common_type(left.datatype, right.datatype, tolerance) for left, right in arrays]
    labels, hints = ("B", f"A ({a.source.name!r})"), dict.fromkeys(HINTS, "")  # which are for reductions
    try:
        check_alike(b, a.buffers, labels, hints, lambda i: None if datatypes[i] else "")
    except (CountError, DatatypeError) as error:
        reason = str(error)
        if incomparable and len(incomparable) == len(arrays) and isinstance(error, DatatypeError):
            reason += "".join(incomparable[0].reason.partition("; ")[1:])
        return replace(result, equal=False, reason=reason, buffers=()), None
    if incomparable or not a.buffers:
        return replace(result, equal=not (incomparable or listed), buffers=(*incomparable.values(), *listed)), None
    (files,) = in_one_order([(a, b)], 0)
    for buffer in files[0].buffers:
        _ = buffer.datatype.form
    plan = make_plan((NO_OP,), files, context)
    pairs = tuple(map(_ArrayPair, plan.buffers, filter(None, datatypes)))
    comparison = _Comparison(plan, pairs, tolerance, options["examples"], is_drawn=png is not None)
    a = a._replace(buffers=list(map(context.worker.decoding, a.buffers)))
    answer = _compare_elements(comparison, result, png, a, context)
    if png is not None:
        check_unchanged([source for file in files for source in file.sources])
    return answer


def _in_one_unit(a: RankFile, b: RankFile, tolerance: Tolerance) -> tuple[RankFile, RankFile, dict[int, str]]:
    """Return both files with the times of B in the units of A, and the reason for each array without a conversion."""
    units_in_b, units_in_a = units_of(b), units_of(a)
    reasons, buffers = dict[int, str](), (list(a.buffers), list(b.buffers))
    for i, (left, right) in enumerate(zip(a.buffers, b.buffers, strict=False)):
        attributes = [units_in_b.get(right.name, {}), units_in_a.get(left.name, {})]
        units, datatypes = [names.get("units", "") for names in attributes], (left.datatype, right.datatype)
        are_times = attributes[0] != attributes[1] and all(units) and any(" since " in unit for unit in units)
        forms = [row.form for row in datatypes if row.group not in TIMES and row.form.kind in "iuf"]
        if not are_times or len(forms) < len(datatypes) or common_type(*datatypes, tolerance) is None:
            continue
        if (change := TimeChange.between(*attributes)) is None:
            descriptions = [" of calendar ".join(map(repr, names.values())) for names in attributes]
            reasons[i] = f"B has times in {descriptions[0]}, but A in {descriptions[1]}"
        elif change != TimeChange():
            floats = [form for form in forms if form.kind == "f"]  # converted times may have fractions
            datatype = from_dtype(np.result_type(*floats or [np.dtype(np.longdouble)]))
            for array, reader, arrays in zip((left, right), (TimeChange(), change), buffers, strict=True):
                if reader is change or array.datatype != datatype:
                    arrays[i] = array._replace(datatype=datatype, stored=datatype.form, reader=reader, values=array)
    return a._replace(buffers=buffers[0]), b._replace(buffers=buffers[1]), reasons


def _incomparable(
    a: RankFile, b: RankFile, reasons: Mapping[int, str], tolerance: Tolerance
) -> dict[int, ArrayDifference]:
    """Return the arrays without a common datatype or unit, by position; `reasons` are those for the units."""
    incomparable = {}
    for i, (left, right) in enumerate(zip(a.buffers, b.buffers, strict=False)):
        reason, have_one_name = reasons.get(i, ""), left.name == right.name or not (left.name and right.name)
        if common_type(left.datatype, right.datatype, tolerance) is None:
            reason = f"B has datatype {right.datatype.label}, but A has {left.datatype.label}"
            if common_type(left.datatype, right.datatype, Tolerance(rtol=0.0)):
                reason += "; compare them by value with `rtol`"
        if reason and left.count and have_one_name:
            differences = _Differences(differing=left.count, unread=reason)
            incomparable[i] = _ArrayPair((left, right), left.datatype).describe(differences)
    return incomparable


def diff(a: _File | Sequence[_File], b: _File | Sequence[_File], options: Options, context: Context) -> Difference:
    """Compare two files, or all files of two directories or lists."""
    if isinstance(a, str | RankObject) and isinstance(b, str | RankObject):
        are_folders = [isinstance(file, str) and os.path.isdir(file) and not is_one_rank(file) for file in (a, b)]
        if not all(are_folders):
            if any(are_folders):
                folder, other = (a, b) if are_folders[0] else (b, a)
                if isinstance(other, str):
                    open_source(other, context)  # raises an error if it is missing
                same = os.path.join(str(folder), os.path.basename(_name(other)))
                hint = f"compare {same!r}" if os.path.exists(same) else "name a file in it"
                raise BufferFileError(str(folder), f"is a directory, and {_name(other)} is a file; {hint}")
            itself = _diff_pair(
                (a, b), options, context, typed=part(INPUTS, options) != part(INPUTS, checked(DIFF, {}))
            )
            if not all(isinstance(file, str) and os.path.isdir(file) for file in (a, b)):
                return itself
            others = _diff_members(a, b, files_beside, {**options, "png": None}, context)
            return itself if others.equal else replace(others, files=(replace(itself, name=_ITSELF), *others.files))
    elif isinstance(single := a, str | RankObject) or isinstance(single := b, str | RankObject):
        raise UsageError(_name(single), "is a file, and the other is a list; give two lists or files")
    if options["png"] is not None:
        raise UsageError("`png`", "is of two files, and these are several; draw one after another")
    return _diff_members(a, b, files_within, options, context)


def _diff_members(
    a: _File | Sequence[_File],
    b: _File | Sequence[_File],
    files_of: Callable[[str, str, Context], Iterator[tuple[str, str]]],
    options: Options,
    context: Context,
) -> Difference:
    """Compare the files of two lists, or those that `files_of` yields for each of two directories."""
    left, right = (
        _Files(files_of(own, str(other), context) if isinstance(own, str) else enumerate(own))  # type: ignore[arg-type]
        for own, other in ((a, b), (b, a))
    )
    pairs = {key: (file, right[key]) for key, file in left.items() if key in right}
    with decode_worker(context) as inner:
        differences = tuple(_diff_member(key, pairs[key], options, inner) for key in track(list(pairs)))
    only_in_a, only_in_b = (
        tuple(_title(key, file) for key, file in files.items() if key not in pairs) for files in (left, right)
    )
    equal = all(difference.equal for difference in differences) and not (only_in_a or only_in_b)
    name_a, name_b = a if isinstance(a, str) else "A", b if isinstance(b, str) else "B"
    return Difference(equal, name_a, name_b, noun="file", files=differences, only_in_a=only_in_a, only_in_b=only_in_b)


def _name(file: _File) -> str:
    return file if isinstance(file, str) else file.name


def _title(key: str | int, *pair: _File) -> str:
    """Return the path of a file in its directory, or the names of a file, or a pair of them, in lists."""
    return key if isinstance(key, str) else " and ".join(dict.fromkeys(map(_name, pair)))


def _kind(path: str) -> str:
    """Return the kind of a file in a directory, for messages."""
    if os.path.isfile(path) or (os.path.isdir(path) and is_one_rank(path)):
        return "a file"
    return f"a link to {os.readlink(path)!r}" if os.path.islink(path) else "a pipe, socket or device"


def _diff_member(key: str | int, pair: Sequence[_File], options: Options, context: Context) -> Difference:
    """Compare two files of directories or lists; an error of a file is part of the result."""
    a, b = map(_name, pair)
    kinds = [_kind(name) if isinstance(key, str) else "a file" for name in (a, b)]
    if kinds != ["a file", "a file"]:
        is_same, is_link = kinds[0] == kinds[1], os.path.islink(a)
        reason = "" if is_same else f"B is {kinds[1]}, but A is {kinds[0]}"
        obstacle = f"{a}: is {kinds[0]}, which is not read" if is_same and not is_link else ""
        return Difference(is_same and is_link, a, b, reason, name=_title(key, *pair), obstacle=obstacle)
    try:
        difference = _diff_pair(pair, options, context, typed=options["type"] is not None)
    except (MpiredError, OSError) as error:
        if not is_of_rank(error):
            raise
        difference = Difference(equal=False, a=a, b=b, obstacle=describe(error))
    return replace(difference, name=_title(key, *pair))


def _diff_pair(pair: Sequence[_File], options: Options, context: Context, *, typed: bool) -> Difference:
    """Compare two files; files with arrays that cannot be read are equal if their bytes are."""
    difference = answer_query(partial(_compare_files, pair, options, typed=typed), pair, options, context)
    paths = [file for file in pair if isinstance(file, str) and os.path.exists(file)]
    if difference.verdict == "not known" and len(paths) == len(pair):
        has_all_bytes = not any(ELSEWHERE in buffer.reason for buffer in difference.buffers)
        by_bytes = partial(_compare_files, pair, _byte_options(options), typed=True)
        are_files = all(map(os.path.isfile, paths)) and has_all_bytes
        equal = os.path.samefile(*paths) or (are_files and retry(by_bytes, pair, context)[0].equal)
        return replace(difference, equal=equal)
    return difference
