"""The base of formats with named arrays: every array of numbers is a buffer, with a shape of its own.

Elements that are stored as they are, are read like those of a flat file. A library decodes the others, from start to
end, in rows of chunks. Arrays without measured values, such as coordinates, strings and times, are carried from the
first rank's file into the result, and must be equal in all ranks.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpired.context import NO_LIMITS, Context
from mpired.datatypes import as_numbers, from_dtype, value_type
from mpired.datatypes.pairs import FIELDS
from mpired.errors import BufferFileError, CountError, DatatypeError
from mpired.files import calls, copying
from mpired.files.places import digest as begun_digest
from mpired.formats import rank
from mpired.formats.array import Array
from mpired.formats.convert import byte_order
from mpired.formats.decoding import call_in_worker
from mpired.formats.derived import in_order
from mpired.formats.input_options import InputOptions
from mpired.formats.missing import Missing, of_parts
from mpired.formats.rank import Kept, RankFile, SkippedArray, also, check_pair, chosen, picked
from mpired.formats.streamed import (
    DECODED_NBYTES,
    ColumnFile,
    ColumnReader,
    Values,
    errors_of,
    form_of,
    limited_memory,
    too_large,
)
from mpired.sources.source import Source, local_fd
from mpired.values import listed

_BLOCK_NBYTES = 1 << 20
_ROWS_NBYTES = 4 << 20  # of several rows of chunks that are read at a time
_OBJECT_NBYTES = 256  # of a string or list, as far as blocks depend on it
_SPARE_NBYTES = 128 << 20  # of a library itself, and of what its filters need besides the elements


class Pieces(NamedTuple):
    """Elements stored as they are: `pieces` of `each` elements, `stride` bytes apart."""

    begin: int
    form: np.dtype
    each: int
    pieces: int = 1
    stride: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.pieces * self.each * self.form.itemsize

    @property
    def is_one(self) -> bool:
        """Whether the pieces are adjacent."""
        return self.pieces == 1 or self.stride == self.each * self.form.itemsize

    @property
    def end(self) -> int:
        """The end of the last of them."""
        last = self.begin + (self.pieces - 1) * self.stride + self.each * self.form.itemsize
        return last if self.pieces and self.each else 0

    def ranges(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the offset and the number of adjacent elements, a few at a time, from the element `start` on."""
        step = max(1, _BLOCK_NBYTES // self.form.itemsize)
        position = start
        while self.each and position < self.pieces * self.each:
            piece, index = divmod(position, self.each)
            count = min(step, self.each - index)
            yield self.begin + piece * self.stride + index * self.form.itemsize, count
            position += count


class ArrayHeader(NamedTuple):
    """An array of a file, as its header describes it."""

    name: str  # its name, with the groups that it is in, such as `group/name`
    dtype: np.dtype | None  # the NumPy form of its elements as they are combined; None if they are not numbers
    shape: tuple[int, ...] | None  # its dimensions; None if they are not known, or there are none
    # bytes before the first element of a flat array; None where a library decodes the elements
    offset: int | None = None
    stored: np.dtype | None = None  # the form of an element in the file, if it is not `dtype`
    fortran_order: bool = False  # whether the first index runs fastest
    label: str = ""  # what its elements are, in the words of the format; "" for those of NumPy
    reason: str = ""  # why it is not a buffer, for an error of the file
    hint: str = ""  # what makes it one, if anything does
    carried: bool = False  # whether it is carried into results unless it is chosen
    digest: bytes = b""  # that of `ArrayFile.digest`, if the array is carried and only a worker can read it
    chunk: tuple[int, ...] = ()  # the dimensions of the pieces that a library decodes; () if all is one
    missing: Missing | None = None  # which values mean that an element is missing; None if none does
    dims: tuple[str, ...] = ()  # the names of the dimensions, "" for one without; () if none has any
    unit: str = ""  # the unit of the values, "" if there is none
    attributes: Mapping[str, str] = {}  # strings that describe a coordinate, or name those of an array
    # how it is stored, in a few words, such as "chunks of (1, 721), deflate 4"; "" if there is nothing to say
    storage: str = ""
    # whether the format has one byte order for all, so that results in others do not take it over
    fixed_order: bool = False
    pieces: Pieces | None = None  # where its elements are, if a `PiecesFile` reads them
    packing: Any = None  # a `conventions.Packed`, which unpacks them, and tells the missing ones itself; or None
    keeps: bool = True  # whether results can carry it
    source: Source | None = None  # the file that has its elements; None for that of its header
    # the value of elements that were never written, if nothing declares it; None without one
    unset: float | None = None

    @property
    def count(self) -> int:  # type: ignore[override]  # tuples are not counted
        """Number of elements."""
        return math.prod(self.shape or ())

    @property
    def bounds(self) -> str:
        """The name of the array of its bounds; "" if its attributes name none."""
        name = self.attributes.get("bounds") or self.attributes.get("climatology") or ""
        return name and "".join(self.name.rpartition("/")[:2]) + name

    @property
    def place(self) -> Any:
        """The place that `ArrayFile.blocks` takes."""
        return self.pieces or self.name


ArrayLeaf: TypeAlias = tuple[Any, str, Any]
"""The values of an array: the place and the packing of its header, and between them a field, or "" for all."""


class ArrayFile(ColumnFile):
    """An open file of arrays, whose format gives their elements in blocks. The caller closes it."""

    described: Callable[[InputOptions], list[ArrayHeader]]  # describes all arrays
    # yields the elements of the array at a place from one on as they are in the file, at least an empty block
    blocks: Callable[..., Iterator[np.ndarray]]

    def whole(self, place: Any) -> np.ndarray:
        """Return all elements of an array in one dimension."""
        return np.concatenate(list(self.blocks(place)))

    def rows(self, name: str, array: Any, chunk: Sequence[int], start: int, limit: int) -> Iterator[np.ndarray]:
        """Yield the elements of an array of a library from one on, in blocks of whole rows of chunks."""
        dtype, memory = array.dtype, self._memory
        itemsize = max(1, dtype.itemsize)
        nbytes = math.prod(chunk) * itemsize
        if nbytes > memory:
            raise too_large(self._source.name, f"a chunk of array {name!r}", nbytes, memory)
        if dtype.hasobject:  # whose values are elsewhere in the file
            itemsize = max(itemsize, _OBJECT_NBYTES)
        if not math.prod(array.shape):
            yield np.empty((0, *dtype.shape), dtype.base)
        for skipped, selection, shape in selections(array.shape, chunk, itemsize, start, limit):
            most = memory if dtype.hasobject else max(nbytes, math.prod(shape) * itemsize)
            error = ValueError(f"a chunk of array {name!r} unfolds to more than the {most} bytes of its shape")
            with limited_memory(8 * most + _SPARE_NBYTES, error):
                values = array[selection]
            # Without dimensions the one element may be a list.
            is_one = not array.shape and dtype.hasobject
            values = (np.fromiter([values], object) if is_one else np.asarray(values)).reshape(-1, *dtype.shape)
            if skipped < len(values):
                yield values[skipped:]

    def arrays(self, leaf: ArrayLeaf, start: int, *, nullable: bool) -> Iterator[Values]:
        """Yield the values of a leaf from an element on, truth values as bytes."""
        place, field, packing = leaf
        for block in self.blocks(place, start):
            values = block[field] if field else block
            if packing is not None:
                yield packing.unpacked(values, nullable=nullable)
            else:
                form = as_numbers(values.dtype)
                yield values if form == values.dtype else values.view(form), None

    def digest(self, array: ArrayHeader) -> bytes:
        """Return the digest of an array that is carried: of its values, and of what defines their meaning."""
        form = "" if array.dtype is None else rank.dtype_text(array.dtype.newbyteorder("="))
        meaning: list[object] = [array.shape, array.fortran_order, array.label, form]
        meaning += (array.attributes.get(key) or None for key in ("units", "calendar"))
        if array.packing is not None:
            meaning += [array.packing.scale.item(), array.packing.offset.item()]
        found = begun_digest(repr(meaning).encode())
        for number, block in enumerate(self.blocks(array.place)):
            native = block if block.dtype.isnative else block.astype(block.dtype.newbyteorder("="))
            if not number:
                found.update(f"{native.dtype.name} {rank.dtype_text(native.dtype)}".encode())
            # Text for values with addresses or gaps, however the blocks are cut.
            is_plain = not native.dtype.hasobject and native.dtype.names is None
            found.update(native.tobytes() if is_plain else (repr(self.plain(native))[1:-1] + ", ").encode())
        return found.digest()

    def plain(self, value: Any) -> Any:
        """Return a value with lists in the places of arrays, which are shown as text to their ends."""
        value = value.tolist() if isinstance(value, np.ndarray) else value
        return [*map(self.plain, value)] if isinstance(value, list | tuple) else value


def selections(
    shape: Sequence[int], chunk: Sequence[int], itemsize: int, start: int, limit: int
) -> Iterator[tuple[int, tuple[slice, ...], tuple[int, ...]]]:
    """Yield how many elements of a selection come before `start`, the selection, and its shape, to the end of an array.

    They are of whole rows of chunks, unless these take more than the limit.
    """
    if not math.prod(shape):
        return
    if not shape:
        yield start, (), ()
        return
    sizes = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]  # the elements behind each index
    axis = next((axis for axis, size in enumerate(sizes) if size * itemsize <= limit), len(shape) - 1)
    inner, rows, total = sizes[axis], shape[axis], math.prod(shape[: axis + 1])
    least, length = max(1, chunk[axis]) if chunk else 1, max(1, limit // (inner * itemsize))
    if length >= least:
        length = max(least, min(length, _ROWS_NBYTES // (inner * itemsize))) // least * least
    row = start // inner
    while row < total:
        prefix, index = divmod(row, rows)
        end = min(rows, (index // length + 1) * length)
        outer = (slice(int(each), int(each) + 1) for each in np.unravel_index(prefix, (1, *shape[:axis]))[1:])
        own = (1,) * axis + (end - index, *shape[axis + 1 :])
        yield max(0, start - row * inner), (*outer, slice(index, end)), own
        row = prefix * rows + end


class PiecesFile(ArrayFile):
    """An open file whose elements are stored as they are. The caller closes it."""

    def blocks(self, place: Pieces, start: int = 0) -> Iterator[np.ndarray]:
        """Yield the elements of pieces from one on."""
        for at, count in place.ranges(start):
            block = np.empty(count, place.form)
            if self._bytes.read_into(block.view(np.uint8).data, at) < block.nbytes:
                raise self._source.changed()
            yield block
        if not place.nbytes:
            yield np.empty(0, place.form)


def copy_pieces(source: Source, old: Pieces, fd: int, new: Pieces) -> None:
    """Copy the elements of an array to a place of another file."""
    with closing(PiecesFile(source)) as file:
        put(fd, new, (block for block in file.blocks(old) if len(block)))


def put(fd: int, place: Pieces, blocks: Iterator[np.ndarray]) -> None:
    """Write blocks, which are as long as they are read."""
    for (at, _), block in zip(place.ranges(), blocks, strict=True):
        calls.pwrite_all(fd, block.view(np.uint8).data, at)


class Library(NamedTuple):
    """The library that decodes the arrays of a format which are not stored as they are."""

    opener: Callable[..., ArrayFile]  # opens a file
    errors: tuple[type[Exception], ...] = ()  # exceptions for a damaged file, besides the usual ones
    context: Context | None = None  # of a library that only a worker calls

    def do(self, source: Source, function: Callable[..., Any], *args: Any, inspects: bool = False) -> Any:
        """Call a function with a file, this library and arguments, in a worker if only that calls the library."""
        context, args = self.context, (source, self._replace(context=None), *args)
        return (
            function(*args)
            if context is None
            else call_in_worker(context, source.name, function, *args, inspects=inspects)
        )


def inspect_by(library: Library, source: Source, inputs: InputOptions) -> RankFile:
    """Describe a file by the arrays that a library finds in it."""
    arrays = library.do(source, _described, inputs._replace(context=NO_LIMITS), inspects=True)
    return inspect(source, inputs, arrays, library)


def _described(source: Source, library: Library, inputs: InputOptions) -> list[ArrayHeader]:
    with errors_of(source.name, library.errors), closing(library.opener(source)) as file:
        arrays = file.described(inputs)
        combined, kept = chosen(source, [each.name for each in arrays], inputs)
        for number, each in enumerate(arrays):
            is_kept = each.keeps and each.shape is not None and each.name in kept
            if not each.digest and (is_kept or (each.carried and each.name not in combined)):
                arrays[number] = each._replace(digest=file.digest(each))
        return arrays


def inspect(
    source: Source, inputs: InputOptions, arrays: Sequence[ArrayHeader], library: Library | None = None
) -> RankFile:
    """Describe a file by its arrays; in a format without a library all are flat."""
    has_library, library = library is not None, library or Library(PiecesFile)
    by_name = {array.name: array for array in arrays}
    combined, kept = chosen(source, by_name, inputs)
    some = [each for each in arrays if each.name in kept or (each.carried and each.name not in combined)]
    carried, unkept = _carried(source, inputs, some, library if has_library else None)
    names, others = dict.fromkeys(each.name for each in carried), list[SkippedArray]()
    headers = [by_name[name] for name in combined]
    if not headers:
        rest = [each for each in arrays if each not in some]
        headers = [each for each in rest if _is_taken(each, inputs) and (has_library or each.stored or each.dtype)]
        taken = {each.name for each in headers}
        others = [_other(each) for each in rest if each.name not in taken]
    if inputs.pair:
        buffers = [_pair(source, inputs, headers, library)]
    else:
        buffers = [_buffer(source, inputs, header, library, arrays) for header in headers]
    ignored = picked(source, names, inputs.ignore_coordinates, "coordinate") if inputs.check_coordinates else names
    kept = dict.fromkeys(name for name in kept if name in names)
    same = KeptArrays(source, tuple(carried), library, kept, {*ignored}, inputs.coordinate_rtol)
    found = RankFile(source, buffers, others, tuple(by_name), headers=headers, unkept=unkept)
    return found._replace(kept=same) if carried or unkept else found


def _carried(
    source: Source, inputs: InputOptions, some: Sequence[ArrayHeader], library: Library | None
) -> tuple[list[ArrayHeader], list[SkippedArray]]:
    """Return the arrays that results carry, with their digests, and those that they cannot, which a pattern matches."""
    carried, unkept = list[ArrayHeader](), list[SkippedArray]()
    for array in some:
        if array.digest:
            carried.append(array)
        elif library is not None and array.keeps and array.shape is not None:
            with errors_of(source.name, library.errors), closing(library.opener(array.source or source)) as file:
                carried.append(array._replace(digest=file.digest(array)))
        else:
            other = _other(array)
            reason = other.reason if array.dtype is None else f"{array.name!r} holds {other.label}"
            if array.carried or array.name in inputs.keep:
                raise DatatypeError(source.name, f"{reason}, which `keep` does not carry in this format; leave it out")
            unkept.append(other._replace(reason=reason))
    return carried, unkept


def _is_taken(array: ArrayHeader, inputs: InputOptions) -> bool:
    """Return whether an array is a buffer: one of numbers, or any that can be read."""
    return array.dtype is not None or (inputs.any_type and array.shape is not None and not array.hint)


def _other(array: ArrayHeader) -> SkippedArray:
    """Describe an array that is not a buffer."""
    label = array.label or ("elements of no datatype" if array.dtype is None else rank.element_text(array.dtype))
    if array.packing is not None:
        label = f"packed {rank.element_text(array.packing.form)}"
    reason = array.reason or f"{array.name!r} holds {label}, not numbers"
    is_known = array.shape is not None
    return SkippedArray(
        array.name, label, reason, array.count if is_known else None, array.shape, label, array.hint,
        keeps=array.keeps and is_known, unit=array.unit, storage=array.storage,
    )  # fmt: skip


def _buffer(
    source: Source, inputs: InputOptions, array: ArrayHeader, library: Library, arrays: Sequence[ArrayHeader]
) -> Array:
    """Return an array as a buffer: of numbers, or of objects of Python where elements of any type are wanted."""
    if array.dtype is not None:
        datatype = rank.declared(source, inputs, array.dtype, f"{array.name!r} holds")
        stored = as_numbers(array.stored or array.dtype)
    elif _is_taken(array, inputs):
        datatype = value_type(array.label or "values")
        stored = array.stored or datatype.form
    else:
        numbers = [(each.name, from_dtype(each.dtype).group) for each in arrays if each.dtype is not None]
        ways = rank.hint_text(array.hint, rank.choice(numbers, inputs.taken))
        raise DatatypeError(source.name, f"{_other(array).reason}{ways}")
    shape, missing = array.shape or (), None if array.dtype is None else array.missing
    found = Array(
        array.source or source, datatype, array.count, stored, array.offset or 0, shape, array.fortran_order and
        len(shape) > 1, array.name, array.dims, nulls=0 if missing is None else None, nullable=inputs.nullable,
        missing=missing, unset=array.unset, unit=array.unit, storage=array.storage, fixed_order=array.fixed_order,
    )  # fmt: skip
    if array.offset is not None and (array.dtype is not None or array.stored is not None):
        return found
    leaves: list[ArrayLeaf] = [(array.place, "", array.packing if array.dtype is not None else None)]
    if array.dtype is not None and (fields := array.dtype.names):
        found = found._replace(stored=form_of(datatype, fields).newbyteorder(byte_order(stored)))
        leaves = [(array.place, field, None) for field in fields]
    elif array.packing is not None:
        found = found._replace(packed=array.packing.form.name, missing=None)
    return _decoded(found, library, leaves, array)


def _decoded(array: Array, library: Library, leaves: Sequence[ArrayLeaf], header: ArrayHeader) -> Array:
    """Return a buffer that a library decodes, rows of chunks at a time."""
    grain, shape, chunk = header.count, header.shape, header.chunk
    if shape and chunk:
        first = next((i for i, length in enumerate(chunk) if length > 1), len(chunk) - 1)
        # All of a dimension where rows would not begin at multiples of the chunk.
        length = shape[first] if first and shape[first] % chunk[first] else chunk[first]
        grain = length * math.prod(shape[first + 1 :])
    reader = functools.partial(ColumnReader, opener=library.opener, leaves=tuple(leaves), errors=library.errors)
    return array._replace(isolated=True, memory=DECODED_NBYTES, reader=reader, grain=max(1, grain))


def _pair(source: Source, inputs: InputOptions, parts: Sequence[ArrayHeader], library: Library) -> Array:
    """Return two arrays as a buffer of pairs."""
    forms = []
    for part in parts:
        if part.dtype is None or part.dtype.names:
            reason = f"{part.name!r} is not a plain array of numbers"
            raise DatatypeError(source.name, f"{reason}, as the two of a pair have to be")
        forms.append(part.dtype.newbyteorder("="))
    leaves: list[ArrayLeaf] = [(part.place, "", part.packing) for part in parts]
    if all(part.offset is not None for part in parts):
        library = Library(PiecesFile)
        stored = [as_numbers(part.stored or form) for part, form in zip(parts, forms, strict=True)]
        places = [Pieces(part.offset or 0, form, part.count) for part, form in zip(parts, stored, strict=True)]
        leaves = [(place, "", None) for place in places]
    first, second = parts
    if first.source is not second.source:
        raise DatatypeError(source.name, f"{first.name!r} and {second.name!r} are in two files, and a pair is in one")
    if first.shape != second.shape:
        reason = f"{first.name!r} has shape {first.shape}, and {second.name!r} has {second.shape}"
        raise CountError(source.name, f"{reason}; the two of a pair have the same")
    names = (first.name, second.name)
    dtype = np.dtype(list(zip(FIELDS, forms, strict=True)))
    check_pair(source, names, dtype, "arrays")
    name = ",".join(names)
    datatype = rank.declared(source, inputs, dtype, f"{name!r} holds")
    missing = of_parts(FIELDS, [None if part.packing is not None else part.missing for part in parts])
    pairs = Array(
        first.source or source, datatype, first.count, form_of(datatype, FIELDS), shape=first.shape, name=name,
        parts=names, nulls=0 if missing is None else None, nullable=inputs.nullable, missing=missing,
        fixed_order=True,
    )  # fmt: skip
    return _decoded(pairs, library, leaves, first)


class KeptArrays(NamedTuple):
    """Arrays that results have as a file has them."""

    source: Source  # the file
    carried: tuple[ArrayHeader, ...]  # their headers
    library: Library  # what reads them
    # the names of those that the user asked for; others are left out where the result has no place for them
    chosen: Collection[str] = ()
    ignored: Collection[str] = ()  # the names of those that may differ, and so may their bounds
    rtol: float | None = None  # the relative tolerance in which numbers are the same; None if they have to be equal
    kind: str = "arrays"

    @property
    def names(self) -> list[str]:
        """Their names, in the order of the file."""
        return [array.name for array in self.carried]

    @property
    def others(self) -> list[SkippedArray]:
        """Their descriptions, where a file is only inspected."""
        return [_other(array) for array in self.carried]

    def buffers(self, *, fortran_order: bool) -> list[Array]:
        """Return those that the user asked for as arrays: packed numbers unpacked, strings and others as objects."""
        inputs = InputOptions(nullable=True, any_type=True)
        found = []
        for each in (each for each in self.carried if each.name in self.chosen):
            header = each if each.packing is None else each._replace(dtype=each.packing.scale.dtype)
            is_readable = each.packing is None or not each.packing.wrong
            if is_readable and _is_taken(header, inputs):
                with suppress(DatatypeError):  # of elements that no datatype has
                    array = _buffer(self.source, inputs, header, self.library, ())
                    found.append(in_order(array, fortran_order=fortran_order and len(array.dimensions) > 1))
        return found

    def check_same(self, other: Kept, like: str) -> None:
        """Raise an error unless another file has equal ones; messages call this file `like`."""
        theirs = {array.name: array for array in other.carried} if isinstance(other, KeptArrays) else {}
        free = {*self.ignored, *(self.bounds_of(each) for each in self.carried if each.name in self.ignored)}
        reasons: dict[str, str] = {}
        for array in (each for each in self.carried if each.name not in free):
            found = theirs.get(array.name)
            if found is None:
                reasons[array.name] = f"lacks {array.name!r} of {like} ({self.source.name!r})"
            elif found.shape != array.shape:
                reasons[array.name] = f"{array.name!r} has shape {found.shape}, but {array.shape} in {like}"
            elif found.digest != array.digest and not self._is_close(array, other, found):
                reasons[array.name] = f"{array.name!r} differs from that of {like} ({self.source.name!r})"
        if reasons:
            (_, reason), *more = reasons.items()
            ways = f"let it differ with `ignore_coordinates='{listed(reasons)}'`, or all with"
            rounding = "allow for rounding with `coordinate_rtol`, " if self.rtol is None else ""
            ways = f"{ways} `check_coordinates=False`, {rounding}or combine it"
            reason = f"{reason}{also([name for name, _ in more])}, and results carry it"
            raise BufferFileError(other.source.name, f"{reason}; {ways} by naming it in `columns`")

    def bounds_of(self, array: ArrayHeader) -> str:
        """Return the name of the bounds of a coordinate; "" if there are none."""
        return array.bounds if array.bounds in self.names else ""

    def values(self, array: ArrayHeader) -> tuple[np.ndarray, ...]:
        """Return the values of a coordinate, and of its bounds."""
        names = [array.name, *filter(None, [self.bounds_of(array)])]
        found = self.library.do(self.source, _whole, [each for each in self.carried if each.name in names])
        return tuple(found[name] for name in names)

    def _is_close(self, array: ArrayHeader, other: Any, theirs: ArrayHeader) -> bool:
        """Return whether a coordinate differs by no more than the tolerance; units, calendar and packing are equal."""
        both = array, theirs
        are_numbers = all(each.dtype is not None and each.dtype.kind in "iuf" and each.packing is None for each in both)
        units = {(each.attributes.get("units", ""), each.attributes.get("calendar", "")) for each in both}
        if self.rtol is None or not are_numbers or len(units) > 1:
            return False
        values = other.values(theirs)[0], self.values(array)[0]
        return bool(np.isclose(*values, rtol=self.rtol, atol=0, equal_nan=True).all())

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all values of each, packed ones unpacked, with a mask if some are missing."""
        found: dict[str, np.ndarray] = self.library.do(self.source, _whole, self.carried)
        for each in self.carried:
            values, valid = found[each.name], None
            if each.packing is not None and not each.packing.wrong:
                values, valid = each.packing.unpacked(values, nullable=True)
            elif each.dtype is not None and (each.dtype.kind in "iu" or each.missing is not None):
                values = values.astype(each.dtype.newbyteorder("="), copy=False)  # with or without a sign
                valid = None if each.missing is None else each.missing.present(values)
            found[each.name] = values if valid is None else np.ma.MaskedArray(values, mask=~valid)
        return found


def _whole(source: Source, library: Library, arrays: Sequence[ArrayHeader]) -> dict[str, np.ndarray]:
    """Return all values of some arrays of a file, as bytes if NumPy has not their type."""
    found = {}
    for own, some in itertools.groupby(arrays, lambda each: each.source or source):
        with errors_of(own.name, library.errors), closing(library.opener(own)) as file:
            for each in some:
                found[each.name] = values = file.whole(each.place)
                if len(values) == each.count and each.shape is not None:
                    order: Any = "F" if each.fortran_order else "C"
                    found[each.name] = values.reshape((*each.shape, *values.shape[1:]), order=order)
    return found


def copy_whole(source: Source, fd: int) -> None:
    """Copy the bytes of a window's file to another, in which some are changed then."""
    with closing(source.open()) as file:
        copying.copy_file(local_fd(file), fd)
