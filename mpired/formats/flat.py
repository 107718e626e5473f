"""Buffers whose elements lie one after another in a file: raw and npy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from mpired.formats.missing import Missing
from mpired.datatypes import Datatype, counterparts
from mpired.errors import BufferFileError, ConversionError, CountError, MpiredError
from mpired.files import calls
from mpired.progress import counted
from mpired.sources.source import Source

Order: TypeAlias = Literal["<", ">", "="]  # a byte order as NumPy writes it


UNKNOWN_COUNT = 1 << 63  # the count of a buffer whose end shows when it is read: one more than any file can declare


class FlatBuffer(NamedTuple):
    """One rank's buffer as a run of elements in a file."""

    source: Source  # the file
    datatype: Datatype  # what an element is
    # number of elements, or `UNKNOWN_COUNT`
    count: int  # type: ignore[assignment]  # tuples are not counted
    stored: np.dtype  # the NumPy form of an element as it lies in the file: its byte order, and a pair packed or padded
    offset: int = 0  # bytes before the first element
    shape: tuple[int, ...] | None = None  # the shape that the file declares, None where it declares none
    fortran_order: bool = False  # whether the first index of `shape` runs fastest
    name: str = ""  # the column's name, for results of formats with columns
    datarep: str | None = None  # "native" or "external32", of a raw file; None where the format leaves no choice
    to_end: bool = False  # whether a source that is read forward has to end behind the last element
    like: tuple[str, str] | None = None  # what this rank and another one are called, if the count is of the other one
    # where a byte for each element begins that is 0 if the element is null; None if there are none
    validity: int | None = None
    missing: Missing | None = None  # which values mean that an element is missing; None if none does
    unit: str = ""  # the unit of the values, as the file names it; "" if it does not
    storage: str = ""  # how the file stores them, in a few words; "" if there is nothing to say
    # whether the format has one byte order for all, so that results in others do not take it over
    fixed_order: bool = False
    # what each dimension is called along which elements are added, as "record dimension 'time'"; "" for one of a fixed
    # length; () if all are
    unlimited: tuple[str, ...] = ()
    # the value of elements that were never written, if nothing declares it; None without one
    unset: float | None = None
    # of a window, whose elements are all there: which values mean to readers of its file that one is missing
    marked: Missing | None = None

    @property
    def isolated(self) -> bool:
        """False: no library decodes it."""
        return False

    @property
    def columns(self) -> tuple[str, ...]:
        """The column's name, if it has one."""
        return (self.name,) if self.name else ()

    @property
    def shortened(self) -> str | None:
        """What the elements are in the file, if they are of a type that is combined as a wider one; None for others."""
        return self.stored.name if self.stored.isbuiltin == _REGISTERED else None

    @property
    def nulls(self) -> int | None:
        """How many elements are missing: none, or None if that is not known."""
        return 0 if self.missing is None else None

    @property
    def byte_order(self) -> Order:
        """The byte order of the stored elements: "<", ">" or, for single bytes and where there is no choice, "="."""
        if self.fixed_order:
            return "="
        return ">" if self.datarep == "external32" else byte_order(self.stored)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names that the file gives the fields of an element, in its order."""
        return self.stored.names or ()

    @property
    def form(self) -> np.dtype | None:
        """The native form of a structure with the names and gaps of a file that says them; None for other elements."""
        return self.stored.newbyteorder("=") if self.fields and self.datarep is None else None

    @property
    def nbytes(self) -> int:
        """The bytes that a type map can address: those of the elements, or a whole raw file."""
        elements, rest = self.count * self.stored.itemsize, max(self.source.nbytes - self.offset, 0)
        return elements if self.shape is not None else rest if self.to_end else min(elements, rest)

    @property
    def end(self) -> int:
        """Bytes from the start of the file to the end of the last element."""
        return self.offset + self.count * self.stored.itemsize

    def short(self, nbytes: int) -> MpiredError:
        """Return the error for a source that has so many bytes of elements, as its end tells: too few."""
        if self.shape is not None:
            return BufferFileError(self.source.name, f"{self._expected}, found {nbytes}; it is cut off")
        count, rest = divmod(nbytes, self.stored.itemsize)
        if self.like is None or rest > self.datatype.tail:
            reason = f"has {count} elements of {self.datatype.label}, fewer than `count={self.count}`"
            return self.uneven(nbytes) if rest else CountError(self.source.name, reason)
        return CountError(self.source.name, f"{self.like[0]} has count {count}, but {self.like[1]} has {self.count}")

    def uneven(self, nbytes: int) -> CountError:
        """Return the error for a source whose bytes of elements are no whole number of them."""
        what = f"the bytes of an element of {self.datatype.label}"
        return CountError(self.source.name, f"{nbytes} bytes is not a multiple of {self.stored.itemsize}, {what}")

    def long(self) -> MpiredError:
        """Return the error for a source that goes on behind the last element."""
        if self.shape is not None:
            return BufferFileError(self.source.name, f"{self._expected}, found more")
        this, other = self.like or ("it", "another rank")
        return CountError(self.source.name, f"{this} has more than {self.count} elements, but {other} has {self.count}")

    @property
    def _expected(self) -> str:
        return f"expected {self.count * self.stored.itemsize} data bytes for the shape {self.shape}"

    def open(self) -> FlatReader:
        """Open the file for reading by element ranges."""
        return FlatReader(self)


class FlatLayout(NamedTuple):
    """How a result lies in a flat file."""

    stored: np.dtype  # the NumPy form of an element as it is to lie in the file
    head: bytes = b""  # the bytes before the first element
    # a buffer whose file gives the bytes before and after the result instead, for replacing it in place
    around: FlatBuffer | None = None
    before: FlatBuffer | None = None  # a buffer whose file gives the bytes before the result instead
    # returns the head, as long as it is, when the number of elements is known; None if that does not show in it
    head_of: Callable[[int], bytes] | None = None

    @property
    def offset(self) -> int:
        """Bytes before the first element."""
        like = self.around or self.before
        return len(self.head) if like is None else like.offset


class ArrayLayout(NamedTuple):
    """How results lie as arrays of a file, each in one piece. It is an encoder, too, for results that lie elsewhere."""

    # writes all but the elements to an open file, and returns for each result the bytes before its first element
    lay: Callable[[int], Sequence[int]]
    stored: tuple[np.dtype, ...]  # the NumPy form of the elements of each as they are to lie in the file
    # completes the file when the elements are there; None if it is complete
    finish: Callable[[int], None] | None = None
    # which values of each mean to readers of the file that an element is missing; None if none does
    missing: tuple[Missing | None, ...] = ()
    # the arrays of an existing file that the results take the place of, where these lie; () in a new file
    there: tuple[FlatBuffer, ...] = ()

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Where results take the place of arrays of an existing file: offset and number of bytes, ascending."""
        return sorted((each.offset, each.count * each.stored.itemsize) for each in self.there if each.count)

    @classmethod
    def in_place_of(cls, arrays: Sequence[FlatBuffer]) -> ArrayLayout:
        """Return how results lie that take the place of arrays of a file."""
        places = [each.offset for each in arrays]
        return cls(lambda _: places, tuple(each.stored for each in arrays), there=tuple(arrays))

    def __call__(self, results: Sequence[FlatBuffer], fd: int) -> None:
        """Write results to an open file."""
        places = self.lay(fd)
        for result, stored, at in zip(results, self.stored, places, strict=True):
            write_elements(result, stored, fd, at)
        if self.finish is not None:
            self.finish(fd)


class MarkingLayout(NamedTuple):
    """How results are encoded as arrays with values that mean that an element is missing."""

    encode: Callable[[Sequence[FlatBuffer], int], None]  # writes results to an open file
    missing: tuple[Missing | None, ...]  # as of `ArrayLayout`

    def __call__(self, results: Sequence[FlatBuffer], fd: int) -> None:
        """Write results to an open file."""
        self.encode(results, fd)


_BLOCK_NBYTES = 1 << 20
_REGISTERED = 2  # of a dtype that another library has made


def encoded(
    buffer: FlatBuffer, stored: np.dtype, counts: Sequence[int] = (), fill: float | np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield all elements of a buffer in another form, in blocks of these counts, with a value for missing elements."""
    step, start = max(1, _BLOCK_NBYTES // stored.itemsize), 0
    counts = counts or [min(step, buffer.count - start) for start in range(0, buffer.count, step)]
    with closing(buffer.open()) as reader:
        for count in counted(counts, "encoding results"):
            block = np.empty(count, buffer.datatype.form)
            there = reader.read(start, block)
            if there is not None and not there.all():
                if fill is None:
                    raise ValueError(f"array {buffer.name!r} needs a fill value for missing elements")
                block[~there] = fill
            yield as_in(stored, block, buffer.datatype, buffer.name, start)
            start += count


def write_elements(buffer: FlatBuffer, stored: np.dtype, fd: int, start: int) -> None:
    """Write all elements of a buffer in another form to a place of an open file."""
    for block in encoded(buffer, stored):
        calls.pwrite_all(fd, block.view(np.uint8).data, start)
        start += block.nbytes


class FlatReader:
    """Reads element ranges of a `FlatBuffer`. The caller closes it."""

    def __init__(self, buffer: FlatBuffer) -> None:
        self._buffer = buffer
        self.file = buffer.source.open()
        self._itemsize = buffer.stored.itemsize
        self._direct = lies_as(buffer.stored, buffer.datatype)

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with the elements from `start` on, in native byte order, and return which are there."""
        stored = block if self._direct else np.empty(len(block), self._buffer.stored)
        self._fill(start, stored.view(np.uint8))
        if not self._direct:
            convert(stored, block, self._buffer.source.name, start)
        if self._buffer.missing is not None:
            return self._buffer.missing.there(block, self._buffer.source, self._buffer.columns)
        if self._buffer.validity is None:
            return None
        there = np.zeros(len(block), np.bool_)
        with calls.blaming(self._buffer.source.name):
            self.file.read_into(there.view(np.uint8).data, self._buffer.validity + start)
        return there

    def _position(self, start: int) -> int:
        return self._buffer.offset + start * self._itemsize

    def _fill(self, start: int, octets: np.ndarray) -> None:
        buffer = self._buffer
        try:  # cheaper than a context: it is done for each block of each rank
            got = self.file.read_into(octets.data, self._position(start))
        except OSError as error:
            error.filename = buffer.source.name
            raise
        missing = len(octets) - got
        if missing:
            if buffer.source.is_forward and missing > buffer.datatype.tail:
                raise buffer.short(start * self._itemsize + got)
            # A raw file may end with the last element's last component, before its padding (MPI-4.1, 5.1.6).
            padded = self._itemsize == buffer.datatype.extent
            if not padded or missing > buffer.datatype.tail:
                raise buffer.source.changed()
            octets[got:] = 0

    def there(self, start: int, count: int) -> int:
        """Return how many of some elements there are before the end of a source that is read forward."""
        buffer, position = self._buffer, self._position(start)
        with calls.blaming(buffer.source.name):
            if start == 0 and position and not self.file.ahead(1, position - 1):
                raise CountError(buffer.source.name, "has fewer bytes than `offset` skips")
            nbytes = self.file.ahead(count * self._itemsize, position)
        found, rest = divmod(nbytes + buffer.datatype.tail if nbytes else 0, self._itemsize)
        if nbytes < count * self._itemsize and rest > buffer.datatype.tail:
            raise buffer.uneven(start * self._itemsize + nbytes)
        return min(found, count)

    def check_end(self) -> None:
        """Raise an error if a source that is read forward goes on behind the last element, and is to end there."""
        if self._buffer.to_end and self.file.ahead(1, self._position(self._buffer.count)):
            raise self._buffer.long()

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def byte_order(stored: np.dtype) -> Order:
    """Return the byte order of elements of the form `stored`: "<", ">" or, for single bytes, "="."""
    fields = [stored] if stored.names is None else [stored[name] for name in stored.names]
    orders: dict[str, Order] = {"<": "<", ">": ">"}
    return next((orders[field.base.str[0]] for field in fields if field.base.str[0] in orders), "=")


def lies_as(stored: np.dtype, datatype: Datatype) -> bool:
    """Tell whether elements of the form `stored` have the very bytes of the datatype in memory."""
    form = datatype.form
    if stored == form:
        return True
    if stored.names is None or form.names is None:
        return _layout(stored) == _layout(form)
    names, others = zip(*counterparts(stored.names, form.names), strict=True)
    return _layout(stored, names) == _layout(form, others)


def _layout(dtype: np.dtype, names: Sequence[str] = ()) -> tuple[int, list[tuple[int, str]]]:
    places = {} if dtype.fields is None else {name: (dtype.fields[name][1], dtype[name]) for name in dtype.names or ()}
    fields = [places[name] for name in names or places] or [(0, dtype)]
    return dtype.itemsize, [(offset, f"{field.shape}{field.base.str}") for offset, field in fields]


def convert(source: np.ndarray, target: np.ndarray, file: str, start: int) -> None:
    """Copy elements into another form of the same datatype: byte order, padding, names of fields, external32."""
    from mpired.datatypes import external32  # noqa: PLC0415 - most elements lie as they are

    parts = [(source, target)]
    if source.dtype.names is not None and target.dtype.names is not None:
        names = counterparts(source.dtype.names, target.dtype.names)
        parts = [(source[old], target[new]) for old, new in names]
    for old, new in parts:
        try:
            external32.convert(old, new)
        except external32.Misfit as misfit:
            raise ConversionError(file, f"element {start + misfit.position}: {misfit.reason}") from None


def as_in(
    form: np.dtype, elements: np.ndarray, datatype: Datatype, file: str = "an element", start: int = 0
) -> np.ndarray:
    """Return native elements as they are in a file, or the other way round; a view if that is the same."""
    stored = elements.dtype if form == datatype.form else form
    return elements.view(form) if lies_as(stored, datatype) else in_form(elements, form, file, start)


def in_form(elements: np.ndarray, form: np.dtype, file: str = "an element", start: int = 0) -> np.ndarray:
    """Return a copy of elements in another form of the same datatype."""
    changed = np.zeros(len(elements), form)
    convert(elements, changed, file, start)
    return changed
