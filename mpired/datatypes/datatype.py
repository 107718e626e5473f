"""The Datatype row and the groups that ops are defined on."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mpired.errors import DatatypeError


class Group(enum.Flag):
    """The classes of predefined datatypes (MPI-4.1, 6.9.2)."""

    C_INTEGER = enum.auto()
    FORTRAN_INTEGER = enum.auto()
    FLOATING_POINT = enum.auto()
    LOGICAL = enum.auto()
    COMPLEX = enum.auto()
    BYTE = enum.auto()
    MULTI_LANGUAGE = enum.auto()
    PAIR = enum.auto()
    # Printable characters and PACKED are in no class of the standard: no reduction takes them
    # (6.9.3), but MPI_REPLACE takes any predefined type (12.3.4), so they need a name.
    CHARACTER = enum.auto()
    # Structures of predefined types: user ops take them, predefined ops do not (6.9.2).
    DERIVED = enum.auto()

    @property
    def title(self) -> str:
        """The group in words, "C integer" for `C_INTEGER`."""
        names = (str(flag.name).lower().replace("_", " ") for flag in self)
        return ", ".join(_PROPER_NAMES.get(name, name) for name in names)


_PROPER_NAMES = {"c integer": "C integer", "fortran integer": "Fortran integer", "pair": "value-index pair"}


@dataclass(frozen=True, eq=False)  # every row exists once
class Datatype:
    """One predefined MPI datatype: a row of the table.

    Parameters
    ----------
    name
        The MPI name without its prefix, in capitals.
    group
        The one class that it is in.
    dtype
        The NumPy form of one element in native byte order, padding included; None for a type
        that NumPy cannot hold.
    synonyms
        Other MPI names of the same type.
    nbytes
        Bytes of one element, needed only where `dtype` is None.
    handle
        The value of the handle in the MPI-5.0 ABI, which user ops in C compare; MPI_DATATYPE_NULL for derived types.
    """

    name: str
    group: Group
    dtype: np.dtype | None
    synonyms: tuple[str, ...] = ()
    nbytes: int = 0
    handle: int = 0

    def __str__(self) -> str:
        return self.name if self.group is Group.DERIVED else f"MPI_{self.name}"

    def __reduce__(self) -> tuple[Callable[..., Datatype], tuple[str | np.dtype | None]]:
        from mpired.datatypes import grammar  # noqa: PLC0415 - the table is made of these rows

        return (grammar.derived, (self.dtype,)) if self.group is Group.DERIVED else (grammar.get, (self.name,))

    @property
    def form(self) -> np.dtype:
        """The NumPy form, for a type that has one.

        Raises
        ------
        DatatypeError
            If NumPy cannot hold the type.
        """
        if self.dtype is None:
            reason = f"is not available: NumPy has no {self.nbytes}-byte {self.group.title} type like it"
            raise DatatypeError(str(self), reason)
        return self.dtype

    @property
    def is_bool(self) -> bool:
        """Whether it is the bool of C or C++, which other formats hold as a bool too."""
        return self.name in {"C_BOOL", "CXX_BOOL"}

    @cached_property
    def extent(self) -> int:
        """Bytes from one element to the next, padding included (MPI_Type_get_extent)."""
        return self.nbytes if self.dtype is None else self.dtype.itemsize

    @cached_property
    def true_extent(self) -> int:
        """Bytes from the start of an element to the end of its last component."""
        return self._ends[-1]

    @cached_property
    def size(self) -> int:
        """Bytes of the components alone, without padding (MPI_Type_size)."""
        if self.dtype is None or self.dtype.fields is None:
            return self.extent
        return sum(field[0].itemsize for field in self.dtype.fields.values())

    @cached_property
    def component(self) -> np.dtype:
        """The NumPy form of the real and of the imaginary part of a complex type."""
        return np.empty(0, self.form).real.dtype if self.form.fields is None else self.form[0]

    @cached_property
    def _ends(self) -> list[int]:
        if self.dtype is None or self.dtype.fields is None:
            return [self.extent]
        return sorted(field[1] + field[0].itemsize for field in self.dtype.fields.values())

    @cached_property
    def padding(self) -> tuple[slice, ...]:
        """The byte ranges of an element that carry no value."""
        starts_ends = (
            [(0, self.form)] if self.form.fields is None else [(f[1], f[0]) for f in self.form.fields.values()]
        )
        gaps, end = [], 0
        for start, scalar in sorted(starts_ends, key=lambda item: item[0]):
            gaps += [slice(end, start)]
            gaps += [slice(start + gap.start, start + gap.stop) for gap in _scalar_padding(scalar)]
            end = start + scalar.itemsize
        gaps += [slice(end, self.extent)]
        return tuple(gap for gap in gaps if gap.start < gap.stop)

    def clear_padding(self, block: np.ndarray) -> None:
        """Zero the bytes of `block` that carry no value, so that equal values are equal bytes."""
        if self.padding:
            octets = block.view(np.uint8).reshape(-1, self.extent)
            for gap in self.padding:
                octets[:, gap] = 0


def _scalar_padding(scalar: np.dtype) -> list[slice]:
    """Return the unused bytes of the x87 formats: 10 bytes of value in 16 of storage."""
    if scalar.char not in "gG" or np.finfo(np.longdouble).nmant != 63:  # noqa: PLR2004 - bits of an x87 fraction
        return []
    each = np.dtype(np.longdouble).itemsize
    return [slice(start + 10, start + each) for start in range(0, scalar.itemsize, each)]
