"""A datatype with its sizes and its NumPy form, and the groups of datatypes that ops are defined on."""

from __future__ import annotations

import enum
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from mpired.datatypes import external32
from mpired.errors import DatatypeError, shortened

if TYPE_CHECKING:  # few elements are derived
    from mpired.datatypes.typemap import Entry, TypeMap


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
    # The standard has no class for printable characters and PACKED. No reduction takes them (6.9.3), but
    # MPI_REPLACE takes any predefined type (12.3.4).
    CHARACTER = enum.auto()
    # Datatypes made of predefined ones. User-defined ops take them, predefined ops do not (6.9.2).
    DERIVED = enum.auto()
    # Times and durations, which MPI does not have.
    TIME = enum.auto()
    DURATION = enum.auto()
    # Strings, lists and other Python objects, which are only compared and copied.
    VALUE = enum.auto()

    @property
    def title(self) -> str:
        """The name of the group in messages, such as "C integer" for `C_INTEGER`."""
        names = (str(flag.name).lower().replace("_", " ") for flag in self)
        return ", ".join(_PROPER_NAMES.get(name, name) for name in names)


TIMES = Group.TIME | Group.DURATION
"""The groups of times, which MPI does not have."""
_PROPER_NAMES = {"c integer": "C integer", "fortran integer": "Fortran integer", "pair": "value-index pair"}
# The ufuncs of NumPy let NaT propagate in this form, whatever the unit of the times.
_WITH_NAT = np.dtype("m8")

DATATYPE_NULL = 0x200
"""The handle MPI_DATATYPE_NULL of the MPI-5.0 ABI, which stands for a datatype without a name in MPI."""


class Datatype:
    """A datatype: predefined by MPI or made of other datatypes."""

    # Each predefined or derived datatype is one instance, so that ranks are compared by identity.

    def __init__(  # noqa: PLR0913 - the fields of a row
        self,
        name: str,
        group: Group,
        plain: np.dtype | None,
        synonyms: tuple[str, ...] = (),
        *,
        nbytes: int = 0,
        handle: int = 0,
        structure: TypeMap | None = None,
        parts: tuple[Datatype, ...] = (),
    ) -> None:
        self.name: Final = name  # the MPI name in capitals without MPI_, or the text that `parse` reads
        self.group: Final = group
        # the NumPy form of an element in native byte order, with padding; None if `structure` defines it, or if NumPy
        # has no such type
        self.plain: Final = plain
        self.synonyms: Final = synonyms  # other MPI names of the datatype
        self.nbytes: Final = nbytes  # bytes of an element that NumPy cannot hold
        self.handle: Final = handle  # the handle in the ABI of MPI-5.0, which user-defined ops in C compare
        self.structure: Final = structure  # the type map of a derived datatype
        self.parts: Final = parts  # the datatypes of value and index, for a pair
        self.is_named: Final = handle != DATATYPE_NULL  # whether the datatype has a name and a handle in MPI
        self.is_bool: Final = name in {"C_BOOL", "CXX_BOOL"}  # whether the elements are bools in other formats

    def __repr__(self) -> str:
        return f"<datatype {self}>"

    def __str__(self) -> str:
        return f"MPI_{self.name}" if self.is_named else self.name

    def __format__(self, spec: str) -> str:
        """Return the name, shortened for messages: the name of a derived datatype has up to 32 KiB."""
        return format(shortened(str(self)), spec)

    @property
    def label(self) -> str:
        """The MPI name with the NumPy name, such as `MPI_DOUBLE (float64)`."""
        return beside(f"{self}", self.numpy_name)

    @cached_property
    def numpy_name(self) -> str:
        """The NumPy name of the datatype, such as float64; "" if the elements are not numbers."""
        if self.plain is None or self.plain.names is not None or not self.is_named:
            return ""
        return "bool" if self.is_bool else self.plain.name

    @cached_property
    def dtype(self) -> np.dtype | None:
        """The NumPy form of an element in native byte order with padding; None if NumPy has none."""
        if self.plain is None and self.structure is not None:
            return self.structure.memory.form
        return self.plain

    @cached_property
    def typemap(self) -> TypeMap:
        """The basic types of an element with their displacements: one for a number, two for a pair."""
        if self.structure is not None:
            return self.structure
        from mpired.datatypes.typemap import Run, basic, combined  # noqa: PLC0415 - only for derived datatypes

        if not self.parts:
            return basic(self.name.lower(), self.form)
        disps = [field[1] for field in (self.form.fields or {}).values()]
        return combined([Run(part.typemap, disp) for part, disp in zip(self.parts, disps, strict=True)], is_pair=True)

    @cached_property
    def form(self) -> np.dtype:
        """The NumPy form of an element; a datatype without one is a `DatatypeError`."""
        if self.dtype is not None:
            return self.dtype
        reason = f"is not available: NumPy has no {self.nbytes}-byte {self.group.title} type like it"
        if self.structure is not None:
            reason = f"has no NumPy form: {self.structure.memory.obstacle}"
        raise DatatypeError(str(self), reason)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields in the order of the type map, which may differ from their order in memory."""
        return in_order(self.form.names or ())

    @cached_property
    def is_spread(self) -> bool:
        """Whether arrays hold the elements packed, because NumPy cannot hold them as structures one extent apart."""
        return self.plain is None and self.structure is not None and self.structure.memory.is_spread

    @cached_property
    def itemsize(self) -> int:
        """Bytes of an element in an array: the extent, or the size if the datatype is spread."""
        return self.form.itemsize

    @property
    def origin(self) -> int:
        """The byte of the NumPy form that has displacement 0; for a derived datatype it may be outside the form."""
        return 0 if self.structure is None else self.structure.memory.origin

    @cached_property
    def extent(self) -> int:
        """Bytes from one element to the next, padding included (MPI_Type_get_extent)."""
        if self.structure is not None:
            return self.structure.extent
        return self.nbytes if self.dtype is None else self.dtype.itemsize

    @property
    def true_extent(self) -> int:
        """Bytes from the first byte of a component to the end of the last (MPI_Type_get_true_extent)."""
        return self.typemap.true_extent

    @cached_property
    def tail(self) -> int:
        """Bytes of padding at the end of an element in an array."""
        return tail(self.form)

    @cached_property
    def size(self) -> int:
        """Bytes of the components, without padding (MPI_Type_size)."""
        if self.structure is not None:
            return self.structure.size
        if self.dtype is None or self.dtype.fields is None:
            return self.extent
        return sum(field[0].itemsize for field in self.dtype.fields.values())

    @cached_property
    def component(self) -> np.dtype:
        """The NumPy form of the real part, and of the imaginary part, of a complex datatype."""
        return np.empty(0, self.form).real.dtype if self.form.fields is None else self.form[0]

    @cached_property
    def compared(self) -> np.dtype:
        """The NumPy form in which elements are compared; for times a form in which NaT propagates."""
        return _WITH_NAT if self.group in TIMES and self.itemsize == _WITH_NAT.itemsize else self.form

    @cached_property
    def added(self) -> np.dtype:
        """The NumPy form in which elements are added; for complex numbers that of a component."""
        return self.component if self.group is Group.COMPLEX else self.compared

    @cached_property
    def padding(self) -> tuple[slice, ...]:
        """The byte ranges of an element that are padding."""
        return gaps(self.form)

    @cached_property
    def packed_form(self) -> np.dtype:
        """The NumPy form of the components without padding, in the order of the type map."""
        return self._consecutive(lambda entry: entry.form)

    @cached_property
    def external_form(self) -> np.dtype:
        """The NumPy form of an element in external32, without padding (MPI-4.1, 14.5.2)."""
        return self._consecutive(lambda entry: external32.form(entry.name, entry.form))

    def _consecutive(self, form_of: Callable[[Entry], np.dtype]) -> np.dtype:
        if self.structure is None and not self.parts:
            return form_of(self.typemap.entry(0))
        entries = self.typemap.memory.fields
        forms = [form_of(entry) for entry in entries]
        *offsets, nbytes = itertools.accumulate((form.itemsize for form in forms), initial=0)
        # The names of the form are in the order of the displacements.
        ascending = sorted(range(len(entries)), key=lambda i: entries[i].disp)
        names, formats = list(self.form.names or ()), [forms[i] for i in ascending]
        positions = [offsets[i] for i in ascending]
        return np.dtype({"names": names, "formats": formats, "offsets": positions, "itemsize": nbytes})

    def clear_padding(self, block: np.ndarray) -> None:
        """Zero the padding of the elements of `block`, so that equal values have equal bytes."""
        for gap in self.padding:
            # Wide integers need fewer copies than bytes.
            width = math.gcd(gap.start, gap.stop, self.itemsize, 8)
            integers = block.view(f"u{width}").reshape(-1, self.itemsize // width)
            integers[:, gap.start // width : gap.stop // width] = 0


# Arrow's names of the types that NumPy and HDF5 name by these prefixes.
_ARROW_NAMES = {"strings": "string", "bytes (": "binary"}
_values: dict[str, Datatype] = {}
_OBJECT = np.dtype(object)


def value_type(name: str, form: np.dtype | None = None) -> Datatype:
    """Return the datatype of values that are only compared and copied: Python objects, or elements of a NumPy form."""
    arrow_name = name.replace("large_", "").replace("_view", "")
    kind = next((kind for prefix, kind in _ARROW_NAMES.items() if name.startswith(prefix)), arrow_name)
    if form is not None and (form != _OBJECT or form.metadata):
        return Datatype(kind, Group.VALUE, form, handle=DATATYPE_NULL)
    # Ranks are compared by the identity of their datatypes.
    return _values.setdefault(kind, Datatype(kind, Group.VALUE, _OBJECT, handle=DATATYPE_NULL))


def beside(name: str, numpy_name: str | None) -> str:
    """Return the name of a datatype, followed by its NumPy name in parentheses unless that is None or empty."""
    return f"{name} ({numpy_name})" if numpy_name else name


@functools.lru_cache(maxsize=256)
def tail(form: np.dtype) -> int:
    """Return the number of bytes after the last field of a form."""
    fields = () if form.fields is None else form.fields.values()
    return form.itemsize - max((field[1] + field[0].itemsize for field in fields), default=form.itemsize)


@functools.lru_cache(maxsize=256)
def gaps(form: np.dtype) -> tuple[slice, ...]:
    """Return the byte ranges of a form that are padding."""
    components = [(0, form)] if form.fields is None else [(field[1], field[0]) for field in form.fields.values()]
    ranges, end = [], 0
    for offset, component in sorted(components, key=lambda item: item[0]):
        ranges += [slice(end, offset)]
        ranges += [slice(offset + gap.start, offset + gap.stop) for gap in _inner_padding(component)]
        end = offset + component.itemsize
    ranges += [slice(end, form.itemsize)]
    return tuple(gap for gap in ranges if gap.start < gap.stop)


def _inner_padding(component: np.dtype) -> list[slice]:
    """Return the padding inside a component: gaps of nested structures, and 6 of the 16 bytes of an x87 number."""
    itemsize, padding = component.base.itemsize, gaps(component.base) if component.base.names else ()
    if component.base.char in "gG" and np.finfo(np.longdouble).nmant == 63:  # noqa: PLR2004 - bits of an x87 fraction
        itemsize = np.dtype(np.longdouble).itemsize
        padding = (slice(10, itemsize) if component.base.isnative else slice(0, itemsize - 10),)
    starts = range(0, component.itemsize, itemsize) if padding else ()
    return [slice(start + gap.start, start + gap.stop) for start in starts for gap in padding]


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of fields; f0, f1, ... are the entries of a type map, and are sorted by their numbers."""
    numbered = tuple(f"f{i}" for i in range(len(names)))
    return numbered if set(names) == set(numbered) else tuple(names)
