"""What a rank is: a file with one buffer, or with one a column."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from mpired.context import STREAMED_BASE_NBYTES, STREAMED_LEAST_NBYTES, Context
from mpired.datatypes import Datatype, Group, agrees, from_dtype
from mpired.errors import BufferFileError, DatatypeError, MpiredError, UsageError, escaped, merged
from mpired.formats.declared import ORDERS, Declared
from mpired.formats.flat import UNKNOWN_COUNT, FlatBuffer
from mpired.formats.missing import null_error
from mpired.formats.model import BufferModel, Kept, Model, Other
from mpired.formats.names import also
from mpired.sources.source import Source
from mpired.values import listed

if TYPE_CHECKING:
    from mpired.formats.indexed import IndexedBuffer
    from mpired.formats.spread import SpreadBuffer
    from mpired.formats.streamed import ColumnBuffer
    from mpired.formats.transposed import TransposedBuffer

NO_DATATYPE = ", which no MPI datatype has; convert them to numbers"
Values: TypeAlias = tuple[np.ndarray, np.ndarray | None]
"""Values of a column, and which of them are there, with anything in the places of the others; None if all are."""


class Reader(Protocol):
    """An open buffer."""

    def read(self, start: int, block: np.ndarray) -> np.ndarray | None:
        """Fill `block` with native elements from `start` on, and return which are there, no nulls; None if all are."""

    def close(self) -> None:
        """Close the file."""


RankBuffer: TypeAlias = "FlatBuffer | ColumnBuffer | SpreadBuffer | TransposedBuffer | IndexedBuffer"
"""One buffer of one rank. Small and picklable: it opens its file when asked to.

It is `isolated` if a library decodes it, which a damaged file may end together with the process."""


def blocks(buffer: RankBuffer, count: int) -> Iterator[np.ndarray]:
    """Yield all elements of a buffer, at most `count` at a time, in the datatype's native form."""
    with closing(buffer.open()) as reader:
        for start in range(0, buffer.count, count):
            block = np.empty(min(count, buffer.count - start), buffer.datatype.form)
            reader.read(start, block)
            yield block


def in_order(buffer: RankBuffer, *, fortran_order: bool) -> RankBuffer:
    """Return a buffer whose elements come in that order; only an array of several dimensions has another."""
    if buffer.shape is None or buffer.fortran_order == fortran_order or not isinstance(buffer, FlatBuffer):
        return buffer
    if buffer.count == 0 or sum(dim > 1 for dim in buffer.shape) < 2:  # noqa: PLR2004 - dimensions
        return buffer._replace(fortran_order=fortran_order)
    from mpired.formats.transposed import TransposedBuffer  # noqa: PLC0415 - most arrays are read as they lie

    return TransposedBuffer(buffer._replace(source=buffer.source.kept()))


def what_is_read(buffer: RankBuffer) -> RankBuffer:
    """Return the buffer that lies in the file: that of the values, where these become pairs."""
    read: RankBuffer = getattr(buffer, "values", buffer)  # an `IndexedBuffer` alone has one within
    return read


def unset(buffer: RankBuffer) -> float | None:
    """Return the value of elements that were never written, if nothing declares it; None without one."""
    return getattr(what_is_read(buffer), "unset", None)


def is_open(ranks: Sequence[RankBuffer]) -> bool:
    """Tell whether the count of ranks shows only at their end."""
    return what_is_read(ranks[0]).count == UNKNOWN_COUNT


def with_reading(buffer: RankBuffer, change: Callable[[RankBuffer], RankBuffer]) -> RankBuffer:
    """Return a buffer with a change to the one that lies in the file."""
    read = change(what_is_read(buffer))
    return changed(buffer, values=read) if hasattr(buffer, "values") else read


def changed(buffer: RankBuffer, **values: Any) -> RankBuffer:
    """Return a buffer with other values of some of its fields."""
    own: Any = buffer
    if hasattr(buffer, "_replace"):
        return cast("RankBuffer", own._replace(**values))
    from dataclasses import replace  # noqa: PLC0415 - the flat ones are tuples

    return cast("RankBuffer", replace(own, **values))


def within_memory(buffer: RankBuffer, nbytes: int) -> RankBuffer:
    """Return a buffer with the most bytes that it may decode at once, if it is one that decodes."""
    return with_reading(buffer, lambda read: changed(read, memory=nbytes) if hasattr(read, "memory") else read)


def within_budget(buffer: RankBuffer, context: Context) -> RankBuffer:
    """Return a buffer that decodes no more at once than the user's limit of memory leaves for it."""
    if not buffer.isolated or (spare := context.spare_memory(STREAMED_LEAST_NBYTES)) is None:
        return buffer
    context.check_memory(STREAMED_BASE_NBYTES)
    return within_memory(buffer, spare)


class RankFile(NamedTuple):
    """A rank: its file, and its buffers in order."""

    source: Source
    buffers: Sequence[RankBuffer]
    others: Sequence[Other] = ()  # what else is in the file, unless columns were chosen
    ncolumns: int = 0
    format: str = ""  # filled in by its row
    obstacle: str = ""  # why a file that is only looked at has no buffers
    kept: Kept | None = None
    dims: Mapping[str, tuple[str, ...]] = {}  # of arrays whose dimensions have names
    noun: str = "array"  # the format's word for one

    @classmethod
    def not_read(cls, source: Source, what: str, obstacle: str) -> RankFile:
        """Return what can be said of a file that is looked at only: what it is, and why it has no buffers."""
        return cls(source, (), format=what, obstacle=obstacle)

    def __repr__(self) -> str:
        """Say what `mpired info` says, on one line."""
        what = [(each.name, f"{each.count} x {each.datatype.label}") for each in self.buffers]
        what += [(each.name, f"{each.type}, no buffer") for each in self.others]
        texts = (f"{name}: {text}" if name else text for name, text in what)
        return f"<{self.format} file {self.source.name!r}: {', '.join(texts) or 'no buffer'}>"

    @property
    def model(self) -> Model:
        """What a result is like that is to be like this file."""
        buffers = []
        for each in self.buffers:
            model = BufferModel(each.datatype, each.count, each.name, each.columns, each.shape, each.fortran_order)
            read = what_is_read(each).columns
            buffers.append(model._replace(form=each.form, byte_order=each.byte_order, datarep=each.datarep, read=read))
        return Model(self.format, tuple(buffers), self.source, self.kept)

    def ordered_as(self, other: RankFile) -> RankFile:
        """Return it with its buffers in the order of another file's, if they have the same names."""
        names, own = [each.name for each in other.buffers], {each.name: each for each in self.buffers}
        if names == list(own) or own.keys() != set(names):
            return self
        return self._replace(buffers=[own[name] for name in names])

    def check_complete(self, taken: Group | None = None, *, keeps: bool = False) -> None:
        """Raise an error if not every column is a buffer; the parameters are those of `obstacles`."""
        if errors := self.obstacles(taken, keeps=keeps):
            raise merged(errors)

    def check_some(self, taken: Group | None = None) -> None:
        """Raise an error if no column is a buffer, or one has nulls."""
        if errors := self._lacking() if self.buffers else self.obstacles(taken):
            raise merged(errors)

    def obstacles(self, taken: Group | None = None, *, keeps: bool = False) -> list[MpiredError]:
        """Return an error for each reason why a column is not a buffer: to leave one out is the user's decision."""
        # Columns are offered whose datatypes are `taken` by the op, or the others, if the result `keeps` them.
        alike: dict[str, list[Other]] = {}
        for other in self.others:
            alike.setdefault(other.reason.replace(repr(other.name), "", 1), []).append(other)
        errors = self._lacking()
        for first, *more in alike.values():
            ways = [max((each.way_out for each in (first, *more)), key=len)]
            if self.ncolumns:
                groups = [(each.name, each.datatype.group) for each in self.buffers]
                groups += [(each.name, each.group) for each in self.others if each.group is not None and not each.nulls]
                ways.append(choice(groups, taken))
            names = [each.name for each in self.others]
            if keeps and ways[-1] and len(set(names)) == len(names) and all(each.keeps for each in self.others):
                ways.append(f"carry what all ranks have in common with `keep='{listed(names)}'`")
            reason = f"{first.reason}{also([each.name for each in more])}{ways_out(*ways)}"
            errors.append(DatatypeError(self.source.name, reason))
        if not self.buffers and not self.others:
            errors.append(BufferFileError(self.source.name, "holds no array or column"))
        return errors

    def doubts(self) -> list[MpiredError]:
        """Return an error for columns that may have missing values, which only reading them shows."""
        names = [each.name for each in self.buffers if getattr(each, "nulls", 0) is None and not _takes_nulls(each)]
        if not names:
            return []
        reason = f"{names[0]!r} may have missing values{also(names[1:])}; skip them with `nulls='ignore'`"
        return [DatatypeError(self.source.name, reason)]

    def _lacking(self) -> list[MpiredError]:
        """Return an error for the columns that have nulls, if these are not taken."""
        lacking = [each for each in self.buffers if getattr(each, "nulls", None) and not _takes_nulls(each)]
        if not lacking:
            return []
        first, *others = lacking
        more = also([",".join(each.columns) for each in others])
        return [null_error(self.source, first.columns, getattr(first, "nulls", 0), more=more)]

    def only_buffer(self) -> RankBuffer:
        """Return the one buffer, where only one can be used."""
        self.check_some()
        if len(self.buffers) > 1:
            names = ", ".join(buffer.name for buffer in self.buffers)
            reason = f"holds {len(self.buffers)} {self.noun}s ({names}), and one is needed; choose one with `columns`"
            raise UsageError(self.source.name, reason)
        return self.buffers[0]


def _takes_nulls(buffer: RankBuffer) -> bool:
    return getattr(buffer, "nullable", False) or getattr(getattr(buffer, "missing", None), "nullable", False)


def choice(columns: Sequence[tuple[str, Group]], taken: Group | None) -> str:
    """Return the way out where a column cannot be combined: those that can, by their names and groups; "" for none."""
    names = [name for name, group in columns if taken is None or group in taken]
    if not names and taken is not None and Group.PAIR in taken:
        return "make pairs of two columns with `pair='VALUE,INDEX'`"
    return f"choose with `columns='{listed(names)}'`" if names else ""


def ways_out(*ways: str) -> str:
    """Return the end of a message that says what can be done, perhaps nothing."""
    there = list(filter(None, ways))
    return f"; {', or '.join(there)}" if there else ""


def element_text(dtype: np.dtype) -> str:
    """Return what messages call elements of a dtype: MPI's name and NumPy's, or their form if no datatype has it."""
    with contextlib.suppress(DatatypeError):
        return from_dtype(dtype).label
    return dtype_text(dtype)


def dtype_text(dtype: np.dtype, byte_order: str | None = None) -> str:
    """Return a short text for a dtype, perhaps in another byte order: `<f8`, or `(<f8, <i4)` for a structure."""
    if byte_order is not None:
        dtype = dtype.newbyteorder(ORDERS[byte_order])
    if dtype.names is None:
        return dtype.str
    fields = [dtype[name] for name in dtype.names]
    return f"({', '.join(each.base.str + ''.join(f'[{n}]' for n in each.shape) for each in fields)})"


def datatype_of(dtype: np.dtype, source: Source, what: str) -> Datatype:
    """Return the datatype of elements of a dtype, which messages call `what`."""
    try:
        return from_dtype(dtype)
    except DatatypeError:
        raise DatatypeError(source.name, f"{what}{NO_DATATYPE}") from None


def check_declared(source: Source, declared: Declared, datatype: Datatype, dtype: np.dtype, what: str) -> None:
    """Raise `DatatypeError` if elements of a dtype are not of the datatype, or not in the byte order of its type."""
    if not agrees(datatype, dtype):
        raise declared.refused(source, datatype, f"{what} {element_text(dtype)}")
    if declared.type_order and dtype.newbyteorder(ORDERS[declared.type_order]) != dtype:
        what = f"{what} {element_text(dtype)} as {dtype_text(dtype)}"
        raise DatatypeError(source.name, f"{what}, which is not {declared.type_order}-endian")


def turned(dims: Sequence[str], others: Sequence[str]) -> str | None:
    """Say how the dimensions of two arrays stand in another order, by those names that are not made up for a reader."""
    pairs = zip(dims, others, strict=True) if len(dims) == len(others) else ()
    if not any(mine != other and mine in others and not mine.startswith("phony_dim_") for mine, other in pairs if mine):
        return None
    return f"dimensions ({', '.join(dims)}), not ({', '.join(others)}); write all in one order"


def reordered(fields: Sequence[str], others: Sequence[str], datatype: Datatype) -> str | None:
    """Say how the fields of two structures stand in another order, unless the datatype knows them by their names."""
    if list(fields) == list(others) or set(fields) != set(others) or set(fields) == set(datatype.form.names or ()):
        return None
    return f"fields {', '.join(map(escaped, fields))}, not {', '.join(map(escaped, others))}; save all in one order"
