"""The base of formats with named arrays: each array of numbers is a buffer with a shape of its own.

Elements that a file stores unencoded are read like those of a flat file. A library decodes the others from start to
end, in rows of chunks. Arrays without measured values, such as coordinates, strings and times, are kept from the
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
from mpired.datatypes import from_dtype, numeric_form, value_type
from mpired.datatypes.predefined import FIELDS
from mpired.errors import BufferFileError, CountError, DatatypeError
from mpired.files import calls, copying
from mpired.files.places import digest
from mpired.formats import rank
from mpired.formats.array import Array
from mpired.formats.convert import byte_order
from mpired.formats.decoding import call_in_worker
from mpired.formats.derived import in_order
from mpired.formats.input_options import InputOptions
from mpired.formats.missing import Missing, join_rules
from mpired.formats.rank import (
    KeptContent,
    RankFile,
    SkippedArray,
    and_others,
    check_pair,
    hint_text,
    select_arrays,
    select_names,
)
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
_ROWS_NBYTES = 4 << 20  # of a selection with several rows of chunks
_OBJECT_NBYTES = 256  # estimated for a string or list, whose values are elsewhere in the file
_SPARE_NBYTES = 128 << 20  # for a library itself and its filters


class Pieces(NamedTuple):
    """Unencoded elements of a file: `npieces` runs of `length` elements, `stride` bytes apart."""

    begin: int  # bytes before the first element
    form: np.dtype  # of an element
    length: int
    npieces: int = 1
    stride: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.npieces * self.length * self.form.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the pieces are adjacent."""
        return self.npieces == 1 or self.stride == self.length * self.form.itemsize

    @property
    def end(self) -> int:
        """Bytes before the end of the last element; 0 without elements."""
        last = self.begin + (self.npieces - 1) * self.stride + self.length * self.form.itemsize
        return last if self.nbytes else 0

    def ranges(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield offset and count of adjacent elements from the element `start` on, at most a block at a time."""
        step = max(1, _BLOCK_NBYTES // self.form.itemsize)
        while start < self.npieces * self.length:
            piece, index = divmod(start, self.length)
            count = min(step, self.length - index)
            yield self.begin + piece * self.stride + index * self.form.itemsize, count
            start += count


class ArrayHeader(NamedTuple):
    """An array of a file, as its header describes it."""

    name: str  # with its groups, such as `group/name`
    dtype: np.dtype | None  # of the elements as they are combined; None if they are not numbers
    shape: tuple[int, ...] | None  # None if it is unknown, or if the array has no elements by its type
    offset: int | None = None  # bytes before the first element of a flat array; None if a library decodes it
    stored: np.dtype | None = None  # the form of an element in the file, if it is not `dtype`
    fortran_order: bool = False  # whether the first index runs fastest
    label: str = ""  # the kind of the elements in the words of the format; "" for a type of NumPy
    reason: str = ""  # why the array cannot be combined, for an error of the file
    hint: str = ""  # an option or package that makes it combinable; "" without one
    is_auxiliary: bool = False  # results keep the array unless the user chooses to combine it
    digest: bytes = b""  # the result of `ArrayFile.digest` for a kept array; b"" before it is computed
    chunk: tuple[int, ...] = ()  # the shape of a chunk, which a library decodes as a whole; () without chunks
    missing: Missing | None = None  # the values of missing elements; None without such values
    dims: tuple[str, ...] = ()  # the names of the dimensions, "" for a dimension without one; () without names
    unit: str = ""  # the unit of the values; "" without one
    attributes: Mapping[str, str] = {}  # strings that describe a coordinate, or name the coordinates of an array
    storage: str = ""  # a short description of the storage, such as "chunks of (1, 721), deflate 4"; or ""
    fixed_order: bool = False  # whether all files of the format have this byte order, which other formats do not keep
    pieces: Pieces | None = None  # the positions of the elements, if a `PiecesFile` reads them
    packing: Any = None  # a `conventions.Packed`, which unpacks elements and finds missing elements itself; or None
    keeps: bool = True  # results can keep the array
    source: Source | None = None  # the file with the elements; None for the file of the header
    unset: float | None = None  # the value of elements that were never written, if no attribute declares it; or None

    @property
    def count(self) -> int:  # type: ignore[override]  # tuples are not counted
        """Number of elements."""
        return math.prod(self.shape or ())

    @property
    def bounds(self) -> str:
        """The name of the array with the bounds of this coordinate; "" if its attributes name none."""
        name = self.attributes.get("bounds") or self.attributes.get("climatology") or ""
        return name and "".join(self.name.rpartition("/")[:2]) + name

    @property
    def location(self) -> Any:
        """The argument of `ArrayFile.blocks`."""
        return self.pieces or self.name


ArrayLeaf: TypeAlias = tuple[Any, str, Any]
"""Values of an array: its location, the field of its structures or "", and its packing or None."""


class ArrayFile(ColumnFile):
    """An open file of arrays. The subclass of a format yields their elements in blocks; the caller closes the file."""

    described: Callable[[InputOptions], list[ArrayHeader]]  # returns the headers of all arrays
    # yields the elements at a location from an index on, in blocks of one dimension; one empty block if there are none
    blocks: Callable[..., Iterator[np.ndarray]]

    def whole(self, location: Any) -> np.ndarray:
        """Return all elements of an array in one dimension."""
        return np.concatenate(list(self.blocks(location)))

    def rows(self, name: str, array: Any, chunk: Sequence[int], start: int, limit: int) -> Iterator[np.ndarray]:
        """Yield the elements of a library's array from `start` on, a block for each of its `selections`."""
        dtype, memory = array.dtype, self._memory
        itemsize = max(1, dtype.itemsize)
        chunk_nbytes = math.prod(chunk) * itemsize
        if chunk_nbytes > memory:
            raise too_large(self._source.name, f"a chunk of array {name!r}", chunk_nbytes, memory)
        if dtype.hasobject:
            itemsize = max(itemsize, _OBJECT_NBYTES)
        if not math.prod(array.shape):
            yield np.empty((0, *dtype.shape), dtype.base)
        for nskipped, selection, shape in selections(array.shape, chunk, itemsize, start, limit):
            max_nbytes = memory if dtype.hasobject else max(chunk_nbytes, math.prod(shape) * itemsize)
            error = ValueError(f"a chunk of array {name!r} unfolds to more than the {max_nbytes} bytes of its shape")
            with limited_memory(8 * max_nbytes + _SPARE_NBYTES, error):
                values = array[selection]
            if dtype.hasobject and not array.shape:  # the only element may be a list
                values = np.fromiter([values], object)
            values = np.asarray(values).reshape(-1, *dtype.shape)
            if nskipped < len(values):
                yield values[nskipped:]

    def arrays(self, leaf: ArrayLeaf, start: int) -> Iterator[Values]:
        """Yield the values of a leaf from the element `start` on, truth values as bytes."""
        location, field, packing = leaf
        for block in self.blocks(location, start):
            values = block[field] if field else block
            if packing is not None:
                yield packing.unpack(values)
            else:
                form = numeric_form(values.dtype)
                yield values if form == values.dtype else values.view(form), None

    def digest(self, array: ArrayHeader) -> bytes:
        """Return the digest of a kept array: of its values, and of the attributes that define their meaning."""
        form = "" if array.dtype is None else rank.dtype_text(array.dtype.newbyteorder("="))
        meaning: list[object] = [array.shape, array.fortran_order, array.label, form]
        meaning += (array.attributes.get(key) or None for key in ("units", "calendar"))
        if array.packing is not None:
            meaning += [array.packing.scale.item(), array.packing.offset.item()]
        hasher = digest(repr(meaning).encode())
        for number, block in enumerate(self.blocks(array.location)):
            native = block if block.dtype.isnative else block.astype(block.dtype.newbyteorder("="))
            if not number:
                hasher.update(f"{native.dtype.name} {rank.dtype_text(native.dtype)}".encode())
            # Equal elements with addresses or gaps may differ in memory; their text does not depend on the blocks.
            is_plain = not native.dtype.hasobject and native.dtype.names is None
            hasher.update(native.tobytes() if is_plain else (repr(self.plain(native))[1:-1] + ", ").encode())
        return hasher.digest()

    def plain(self, value: Any) -> Any:
        """Return a value with lists in place of arrays, whose text NumPy would shorten."""
        value = value.tolist() if isinstance(value, np.ndarray) else value
        return [*map(self.plain, value)] if isinstance(value, list | tuple) else value


def selections(
    shape: Sequence[int], chunk: Sequence[int], itemsize: int, start: int, limit: int
) -> Iterator[tuple[int, tuple[slice, ...], tuple[int, ...]]]:
    """Yield selections that cover an array from an element on: its elements before `start`, its slices, its shape.

    A selection has whole rows of chunks, unless a row takes more than `limit` bytes.
    """
    if not math.prod(shape):
        return
    if not shape:
        yield start, (), ()
        return
    sizes = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]  # elements per index of each axis
    axis = next((axis for axis, size in enumerate(sizes) if size * itemsize <= limit), len(shape) - 1)
    size, nrows, total = sizes[axis], shape[axis], math.prod(shape[: axis + 1])
    height, length = max(1, chunk[axis]) if chunk else 1, max(1, limit // (size * itemsize))
    if length >= height:
        length = max(height, min(length, _ROWS_NBYTES // (size * itemsize))) // height * height
    row = start // size
    while row < total:
        prefix, first = divmod(row, nrows)
        stop = min(nrows, (first // length + 1) * length)
        outer = (slice(int(index), int(index) + 1) for index in np.unravel_index(prefix, (1, *shape[:axis]))[1:])
        yield max(0, start - row * size), (*outer, slice(first, stop)), (1,) * axis + (stop - first, *shape[axis + 1 :])
        row = prefix * nrows + stop


class PiecesFile(ArrayFile):
    """An open file of unencoded elements. The caller closes it."""

    def blocks(self, location: Pieces, start: int = 0) -> Iterator[np.ndarray]:
        """Yield the elements of pieces from `start` on."""
        for offset, count in location.ranges(start):
            block = np.empty(count, location.form)
            if self._bytes.read_into(block.view(np.uint8).data, offset) < block.nbytes:
                raise self._source.changed()
            yield block
        if not location.nbytes:
            yield np.empty(0, location.form)


def copy_pieces(source: Source, old: Pieces, fd: int, new: Pieces) -> None:
    """Copy the elements of an array to their positions in another file."""
    with closing(PiecesFile(source)) as file:
        write_pieces(fd, new, (block for block in file.blocks(old) if len(block)))


def write_pieces(fd: int, pieces: Pieces, blocks: Iterator[np.ndarray]) -> None:
    """Write a block to each range of `pieces.ranges()`."""
    for (offset, _), block in zip(pieces.ranges(), blocks, strict=True):
        calls.pwrite_all(fd, block.view(np.uint8).data, offset)


class Library(NamedTuple):
    """The library that decodes the arrays of a format, or `PiecesFile` in its place if they are not encoded."""

    opener: Callable[..., ArrayFile]  # opens a file
    errors: tuple[type[Exception], ...] = ()  # exceptions for a damaged file, besides the usual ones
    context: Context | None = None  # the context with the worker, if only a worker may call the library

    def call(self, source: Source, function: Callable[..., Any], *args: Any, inspects: bool = False) -> Any:
        """Call `function(source, library, *args)`, in a worker if only a worker may call the library."""
        context, args = self.context, (source, self._replace(context=None), *args)
        if context is None:
            return function(*args)
        return call_in_worker(context, source.name, function, *args, inspects=inspects)


def inspect_by(library: Library, source: Source, inputs: InputOptions) -> RankFile:
    """Describe a file by the arrays that a library finds in it."""
    arrays = library.call(source, _read_headers, inputs._replace(context=NO_LIMITS), inspects=True)
    return inspect(source, inputs, arrays, library)


def _read_headers(source: Source, library: Library, inputs: InputOptions) -> list[ArrayHeader]:
    """Return the headers of all arrays, with digests of the arrays that results keep."""
    with errors_of(source.name, library.errors), closing(library.opener(source)) as file:
        arrays = file.described(inputs)
        combined, chosen = select_arrays(source, [array.name for array in arrays], inputs)
        for number, array in enumerate(arrays):
            is_kept = array.keeps and array.shape is not None and array.name in chosen
            if not array.digest and (is_kept or (array.is_auxiliary and array.name not in combined)):
                arrays[number] = array._replace(digest=file.digest(array))
        return arrays


def inspect(
    source: Source, inputs: InputOptions, arrays: Sequence[ArrayHeader], library: Library | None = None
) -> RankFile:
    """Describe a file by its arrays, which are all flat without a library."""
    has_library, library = library is not None, library or Library(PiecesFile)
    by_name = {array.name: array for array in arrays}
    combined, chosen = select_arrays(source, by_name, inputs)
    auxiliary = [
        array for array in arrays if array.name in chosen or (array.is_auxiliary and array.name not in combined)
    ]
    kept, not_kept = _with_digests(source, inputs, auxiliary, library if has_library else None)
    names, headers, skipped = [array.name for array in kept], [by_name[name] for name in combined], list[SkippedArray]()
    for array in () if combined else (array for array in arrays if array not in auxiliary):
        if _is_buffer(array, inputs) and (has_library or array.stored or array.dtype):
            headers.append(array)
        else:
            skipped.append(_skipped(array))
    if inputs.pair:
        buffers = [_pair(source, inputs, headers, library)]
    else:
        buffers = [_buffer(source, inputs, header, library, arrays) for header in headers]
    patterns = inputs.ignore_coordinates if inputs.check_coordinates else names
    ignored = select_names(source, names, patterns, "coordinate")
    chosen_names = [name for name in chosen if name in names]
    kept_arrays = KeptArrays(source, tuple(kept), library, chosen_names, ignored, inputs.coordinate_rtol)
    return RankFile(
        source, buffers, skipped, tuple(by_name), headers=headers, not_kept=not_kept,
        kept=kept_arrays if kept or not_kept else None,
    )  # fmt: skip


def _with_digests(
    source: Source, inputs: InputOptions, arrays: Sequence[ArrayHeader], library: Library | None
) -> tuple[list[ArrayHeader], list[SkippedArray]]:
    """Return the kept arrays with their digests, and those that only match a pattern and cannot be kept."""
    kept, not_kept = list[ArrayHeader](), list[SkippedArray]()
    for array in arrays:
        if array.digest:
            kept.append(array)
        elif library is not None and array.keeps and array.shape is not None:
            with errors_of(source.name, library.errors), closing(library.opener(array.source or source)) as file:
                kept.append(array._replace(digest=file.digest(array)))
        else:
            skipped = _skipped(array)
            reason = skipped.reason if array.dtype is None else f"{array.name!r} holds {skipped.label}"
            if array.is_auxiliary or array.name in inputs.keep:
                raise DatatypeError(source.name, f"{reason}, which `keep` does not carry in this format; leave it out")
            not_kept.append(skipped._replace(reason=reason))
    return kept, not_kept


def _is_buffer(array: ArrayHeader, inputs: InputOptions) -> bool:
    """Return whether an array is a buffer: its elements are numbers, or elements of any type are read."""
    return array.dtype is not None or (inputs.any_type and array.shape is not None and not array.hint)


def _skipped(array: ArrayHeader) -> SkippedArray:
    """Describe an array that is not a buffer."""
    label = array.label or ("elements of no datatype" if array.dtype is None else rank.element_text(array.dtype))
    if array.packing is not None:
        label = f"packed {rank.element_text(array.packing.form)}"
    reason = array.reason or f"{array.name!r} holds {label}, not numbers"
    has_shape = array.shape is not None
    return SkippedArray(
        array.name, label, reason, array.count if has_shape else None, array.shape, label, array.hint,
        keeps=array.keeps and has_shape, unit=array.unit, storage=array.storage,
    )  # fmt: skip


def _buffer(
    source: Source, inputs: InputOptions, array: ArrayHeader, library: Library, arrays: Sequence[ArrayHeader]
) -> Array:
    """Return an array as a buffer of numbers, or of Python objects if elements of any type are read."""
    if array.dtype is not None:
        datatype = rank.declared_datatype(source, inputs, array.dtype, f"{array.name!r} holds")
        stored = numeric_form(array.stored or array.dtype)
    elif _is_buffer(array, inputs):
        datatype = value_type(array.label or "values")
        stored = array.stored or datatype.form
    else:
        numbers = [(header.name, from_dtype(header.dtype).group) for header in arrays if header.dtype is not None]
        hint = rank.hint_text(array.hint, rank.columns_hint(numbers, inputs.op_groups))
        raise DatatypeError(source.name, f"{_skipped(array).reason}{hint}")
    shape, missing = array.shape or (), None if array.dtype is None else array.missing
    buffer = Array(
        array.source or source, datatype, array.count, stored, array.offset or 0, shape, array.fortran_order and
        len(shape) > 1, array.name, array.dims, nulls=0 if missing is None else None, nullable=inputs.nullable,
        missing=missing, unset=array.unset, unit=array.unit, storage=array.storage, fixed_order=array.fixed_order,
    )  # fmt: skip
    if array.offset is not None and (array.dtype is not None or array.stored is not None):
        return buffer
    leaves: list[ArrayLeaf] = [(array.location, "", array.packing if array.dtype is not None else None)]
    if array.dtype is not None and (fields := array.dtype.names):
        buffer = buffer._replace(stored=form_of(datatype, fields).newbyteorder(byte_order(stored)))
        leaves = [(array.location, field, None) for field in fields]
    elif array.packing is not None:
        buffer = buffer._replace(packed=array.packing.form.name, missing=None)
    return _decoded(buffer, library, leaves, array)


def _decoded(array: Array, library: Library, leaves: Sequence[ArrayLeaf], header: ArrayHeader) -> Array:
    """Return a buffer that a library decodes in rows of chunks."""
    grain, shape, chunk = header.count, header.shape, header.chunk
    if shape and chunk:
        axis = next((axis for axis, length in enumerate(chunk) if length > 1), len(chunk) - 1)
        # If chunks do not divide an axis, only its whole rows begin at multiples of a chunk.
        length = shape[axis] if axis and shape[axis] % chunk[axis] else chunk[axis]
        grain = length * math.prod(shape[axis + 1 :])
    reader = functools.partial(ColumnReader, opener=library.opener, leaves=tuple(leaves), errors=library.errors)
    return array._replace(isolated=True, memory=DECODED_NBYTES, reader=reader, grain=max(1, grain))


def _pair(source: Source, inputs: InputOptions, parts: Sequence[ArrayHeader], library: Library) -> Array:
    """Return an array of values and an array of indices as a buffer of pairs."""
    forms = []
    for part in parts:
        if part.dtype is None or part.dtype.names:
            reason = f"{part.name!r} is not a plain array of numbers"
            raise DatatypeError(source.name, f"{reason}, as the two of a pair have to be")
        forms.append(part.dtype.newbyteorder("="))
    leaves: list[ArrayLeaf] = [(part.location, "", part.packing) for part in parts]
    if all(part.offset is not None for part in parts):
        library = Library(PiecesFile)
        stored = [numeric_form(part.stored or form) for part, form in zip(parts, forms, strict=True)]
        leaves = [
            (Pieces(part.offset or 0, form, part.count), "", None) for part, form in zip(parts, stored, strict=True)
        ]
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
    datatype = rank.declared_datatype(source, inputs, dtype, f"{name!r} holds")
    missing = join_rules(FIELDS, [None if part.packing is not None else part.missing for part in parts])
    pairs = Array(
        first.source or source, datatype, first.count, form_of(datatype, FIELDS), shape=first.shape, name=name,
        parts=names, nulls=0 if missing is None else None, nullable=inputs.nullable, missing=missing,
        fixed_order=True,
    )  # fmt: skip
    return _decoded(pairs, library, leaves, first)


class KeptArrays(NamedTuple):
    """Arrays that results keep unchanged from a file."""

    source: Source  # the file
    headers: tuple[ArrayHeader, ...]
    library: Library
    chosen: Collection[str] = ()  # names of arrays that `keep` selects; only the others may be dropped for a format
    ignored: Collection[str] = ()  # names of arrays that may differ between ranks, as may their bounds
    rtol: float | None = None  # the relative tolerance of numbers; None if they must be equal
    kind: str = "arrays"  # the value of `Format.keeps` of formats that can hold them

    @property
    def names(self) -> list[str]:
        """The names of the arrays, in the order of the file."""
        return [array.name for array in self.headers]

    @property
    def others(self) -> list[SkippedArray]:
        """Descriptions of the arrays for a file that is only inspected."""
        return [_skipped(array) for array in self.headers]

    def buffers(self, *, fortran_order: bool) -> list[Array]:
        """Return the chosen arrays as buffers: packed numbers unpacked, strings and other elements as objects."""
        inputs = InputOptions(nullable=True, any_type=True)
        buffers = []
        for header in (array for array in self.headers if array.name in self.chosen):
            if header.packing is not None:
                if header.packing.bad_attribute:
                    continue
                header = header._replace(dtype=header.packing.scale.dtype)  # noqa: PLW2901 - the unpacked form
            if _is_buffer(header, inputs):
                with suppress(DatatypeError):  # no datatype has such elements
                    array = _buffer(self.source, inputs, header, self.library, ())
                    buffers.append(in_order(array, fortran_order=fortran_order and len(array.dimensions) > 1))
        return buffers

    def check_same(self, other: KeptContent, label: str, *, are_combined: bool = True) -> None:
        """Raise an error unless another file has equal arrays; messages call this file `label`."""
        by_name = {array.name: array for array in other.headers} if isinstance(other, KeptArrays) else {}
        ignored = {*self.ignored, *(self.bounds_of(array) for array in self.headers if array.name in self.ignored)}
        reasons, unequal = dict[str, str](), list[tuple[ArrayHeader, ArrayHeader]]()
        for array in (array for array in self.headers if array.name not in ignored):
            counterpart = by_name.get(array.name)
            if counterpart is None:
                reasons[array.name] = f"lacks {array.name!r} of {label} ({self.source.name!r})"
            elif counterpart.shape != array.shape:
                reasons[array.name] = f"{array.name!r} has shape {counterpart.shape}, but {array.shape} in {label}"
            elif counterpart.digest != array.digest and not self._is_close(array, other, counterpart):
                reasons[array.name] = f"{array.name!r} differs from that of {label} ({self.source.name!r})"
                unequal.append((array, counterpart))
        if reasons:
            (_, reason), *more = reasons.items()
            are_values = len(unequal) == len(reasons)  # all are in both files, with the same shape
            may_round = are_values and all(itertools.starmap(_may_round, unequal))
            are_numbers = are_values and all(header.dtype is not None for pair in unequal for header in pair)
            reason += and_others([name for name, _ in more]) + (", and results carry it" if are_combined else "")
            hint = hint_text(
                f"let it differ with `ignore_coordinates='{listed(reasons)}'`", "all with `check_coordinates=False`",
                "allow for rounding with `coordinate_rtol`" if self.rtol is None and may_round else "",
                "combine it by naming it in `columns`" if are_combined and are_numbers else "",
            )  # fmt: skip
            raise BufferFileError(other.source.name, f"{reason}{hint}")

    def bounds_of(self, array: ArrayHeader) -> str:
        """Return the name of the bounds of a coordinate; "" if the file has none."""
        return array.bounds if array.bounds in self.names else ""

    def values(self, array: ArrayHeader) -> tuple[np.ndarray, ...]:
        """Return the values of a coordinate, and of its bounds if it has bounds."""
        names = [array.name, *filter(None, [self.bounds_of(array)])]
        headers = [header for header in self.headers if header.name in names]
        values = self.library.call(self.source, _read_arrays, headers)
        return tuple(values[name] for name in names)

    def _is_close(self, array: ArrayHeader, other: KeptArrays, counterpart: ArrayHeader) -> bool:
        """Return whether two coordinates with equal units and calendar differ within the tolerance."""
        if self.rtol is None or not _may_round(array, counterpart):
            return False
        values = other.values(counterpart)[0], self.values(array)[0]
        return bool(np.isclose(*values, rtol=self.rtol, atol=0, equal_nan=True).all())

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the values of all arrays, packed values unpacked, with a mask if elements are missing."""
        arrays: dict[str, np.ndarray] = self.library.call(self.source, _read_arrays, self.headers)
        for header in self.headers:
            values, valid = arrays[header.name], None
            if header.packing is not None and not header.packing.bad_attribute:
                values, valid = header.packing.unpack(values)
            elif header.dtype is not None and (header.dtype.kind in "iu" or header.missing is not None):
                values = values.astype(header.dtype.newbyteorder("="), copy=False)  # sign of `_Unsigned`
                valid = None if header.missing is None else header.missing.valid_mask(values)
            arrays[header.name] = values if valid is None else np.ma.MaskedArray(values, mask=~valid)
        return arrays


def _may_round(array: ArrayHeader, counterpart: ArrayHeader) -> bool:
    """Return whether two coordinates are real numbers with equal units and calendar."""
    for header in array, counterpart:
        if header.dtype is None or header.dtype.kind not in "iuf" or header.packing is not None:
            return False
    return all(array.attributes.get(key, "") == counterpart.attributes.get(key, "") for key in ("units", "calendar"))


def _read_arrays(source: Source, library: Library, headers: Sequence[ArrayHeader]) -> dict[str, np.ndarray]:
    """Return all values of arrays of a file by name, as bytes if NumPy has no type for them."""
    arrays = {}
    for data_source, group in itertools.groupby(headers, lambda header: header.source or source):
        with errors_of(data_source.name, library.errors), closing(library.opener(data_source)) as file:
            for header in group:
                arrays[header.name] = values = file.whole(header.location)
                if len(values) == header.count and header.shape is not None:
                    order: Any = "F" if header.fortran_order else "C"
                    arrays[header.name] = values.reshape((*header.shape, *values.shape[1:]), order=order)
    return arrays


def copy_whole(source: Source, fd: int) -> None:
    """Copy the bytes of a window's file into a new file, which the caller then changes."""
    with closing(source.open()) as file:
        copying.copy_file(local_fd(file), fd)
