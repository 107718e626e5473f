"""The Datatype row and the groups that ops are defined on."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from mpired.errors import DatatypeError, shortened

if TYPE_CHECKING:  # few elements are derived
    from mpired.datatypes.typemap.memory import InMemory
    from mpired.datatypes.typemap.typemap import Entry, TypeMap


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
    # Made of predefined types: user ops take them, predefined ops do not (6.9.2).
    DERIVED = enum.auto()
    # MPI has none: what columns of times hold, and what columns of durations do.
    TIME = enum.auto()
    DURATION = enum.auto()
    # Text, lists and other values of Python, which are only compared.
    VALUE = enum.auto()

    @property
    def title(self) -> str:
        """The group in words, "C integer" for `C_INTEGER`."""
        names = (str(flag.name).lower().replace("_", " ") for flag in self)
        return ", ".join(_PROPER_NAMES.get(name, name) for name in names)


TIMES = Group.TIME | Group.DURATION
"""The groups of times, which MPI does not have."""
_PROPER_NAMES = {"c integer": "C integer", "fortran integer": "Fortran integer", "pair": "value-index pair"}
# NumPy's form of times, whatever their unit: its ufuncs let NaT propagate.
_WITH_NAT = np.dtype("m8")

DATATYPE_NULL = 0x200
"""The handle of no datatype in the MPI-5.0 ABI; types without a name of their own have no other."""


class Datatype:
    """One MPI datatype: a row of the table of predefined ones, or made from others. Every row exists once."""

    def __init__(  # noqa: PLR0913 - what a row says
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
        self.name: Final = name  # without MPI_, in capitals; of a type without a name the text that means it
        self.group: Final = group
        # The form of an element in native byte order, with padding; None if NumPy has none, or `structure` tells it.
        self.plain: Final = plain
        self.synonyms: Final = synonyms  # other MPI names of the same type
        self.nbytes: Final = nbytes  # of an element of a type that NumPy cannot hold
        self.handle: Final = handle  # of the ABI of MPI-5.0, which user ops in C compare
        self.structure: Final = structure  # the type map that a constructor made
        self.parts: Final = parts  # the types of value and index of a pair
        self.is_named: Final = handle != DATATYPE_NULL  # whether it is a row of the table, with a handle in MPI
        self.is_bool: Final = name in {"C_BOOL", "CXX_BOOL"}  # which other formats hold as a bool too

    def __repr__(self) -> str:
        return f"<datatype {self}>"

    def __str__(self) -> str:
        return f"MPI_{self.name}" if self.is_named else self.name

    def __format__(self, spec: str) -> str:
        """Return the name for a message, which a derived type of 32 KiB must not fill."""
        return format(shortened(str(self)), spec)

    @property
    def label(self) -> str:
        """The name in messages: that of MPI, and beside it that of NumPy."""
        return beside(f"{self}", self.numpy_name)

    @cached_property
    def numpy_name(self) -> str:
        """The NumPy name of the element, such as float64; "" for a type that is not a number."""
        if self.plain is None or self.plain.names is not None or not self.is_named:
            return ""
        return "bool" if self.is_bool else self.plain.name

    @cached_property
    def dtype(self) -> np.dtype | None:
        """The NumPy form of one element in native byte order, padding included; None where there is none."""
        if self.plain is None and self.structure is not None:
            return self.memory.form
        return self.plain

    @cached_property
    def memory(self) -> InMemory:
        """The form of the elements of a derived datatype in arrays."""
        from mpired.datatypes.typemap.memory import InMemory  # noqa: PLC0415 - only for derived datatypes

        return InMemory(self.typemap)

    @cached_property
    def typemap(self) -> TypeMap:
        """The basic types of an element and their displacements: one for a plain type, two for a pair."""
        if self.structure is not None:
            return self.structure
        from mpired.datatypes.typemap.typemap import Run, basic, combined  # noqa: PLC0415 - only for derived datatypes

        if not self.parts:
            return basic(self.name.lower(), self.form)
        disps = [field[1] for field in (self.form.fields or {}).values()]
        return combined([Run(part.typemap, disp) for part, disp in zip(self.parts, disps, strict=True)], is_pair=True)

    @cached_property
    def form(self) -> np.dtype:
        """The NumPy form, for a type that has one."""
        if self.dtype is None and self.structure is not None:
            reason = f"has no NumPy form: {self.memory.obstacle}"
            raise DatatypeError(str(self), reason)
        if self.dtype is None:
            reason = f"is not available: NumPy has no {self.nbytes}-byte {self.group.title} type like it"
            raise DatatypeError(str(self), reason)
        return self.dtype

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of an element's fields in the order of the type map, which need not be that of their places."""
        return in_order(self.form.names or ())

    @cached_property
    def is_spread(self) -> bool:
        """Whether arrays hold the elements packed, because they are not structures one extent apart."""
        return self.plain is None and self.structure is not None and self.memory.is_spread

    @cached_property
    def itemsize(self) -> int:
        """Bytes of one element in an array, which are its extent unless it is spread."""
        return self.form.itemsize

    @property
    def origin(self) -> int:
        """The byte of displacement 0 in the NumPy form; of a derived type it may be outside."""
        return 0 if self.structure is None else self.memory.origin

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
        """Bytes of an element in an array behind its last component."""
        return tail(self.form)

    @cached_property
    def size(self) -> int:
        """Bytes of the components alone, without padding (MPI_Type_size)."""
        if self.structure is not None:
            return self.structure.size
        if self.dtype is None or self.dtype.fields is None:
            return self.extent
        return sum(field[0].itemsize for field in self.dtype.fields.values())

    @cached_property
    def component(self) -> np.dtype:
        """The NumPy form of the real and of the imaginary part of a complex type."""
        return np.empty(0, self.form).real.dtype if self.form.fields is None else self.form[0]

    @cached_property
    def compared(self) -> np.dtype:
        """The NumPy form that elements are compared in: times of any unit in the one whose NaT propagates."""
        return _WITH_NAT if self.group in TIMES and self.itemsize == _WITH_NAT.itemsize else self.form

    @cached_property
    def added(self) -> np.dtype:
        """The NumPy form that elements are added in: complex ones by component."""
        return self.component if self.group is Group.COMPLEX else self.compared

    @cached_property
    def padding(self) -> tuple[slice, ...]:
        """The byte ranges of an element that carry no value."""
        return gaps(self.form)

    @cached_property
    def packed_form(self) -> np.dtype:
        """The NumPy form without padding, the components in the order of the type map."""
        return self._consecutive(lambda entry: entry.form)

    @cached_property
    def external_form(self) -> np.dtype:
        """The NumPy form of an element in external32, which has no padding either (MPI-4.1, 14.5.2)."""
        from mpired.datatypes import external32  # noqa: PLC0415 - as few files are in it

        return self._consecutive(lambda entry: external32.form(entry.name, entry.form))

    def _consecutive(self, form_of: Callable[[Entry], np.dtype]) -> np.dtype:
        if self.structure is None and not self.parts:
            return form_of(self.typemap.entry(0))
        offsets, forms, end = [], [], 0
        entries = self.memory.fields
        for entry in entries:
            offsets.append(end)
            forms.append(form_of(entry))
            end += forms[-1].itemsize
        # The names are in the order of the displacements.
        ascending = sorted(range(len(entries)), key=lambda i: entries[i].disp)
        names, formats = list(self.form.names or ()), [forms[i] for i in ascending]
        positions = [offsets[i] for i in ascending]
        return np.dtype({"names": names, "formats": formats, "offsets": positions, "itemsize": end})

    def clear_padding(self, block: np.ndarray) -> None:
        """Zero the bytes of `block` that carry no value, so that equal values are equal bytes."""
        for gap in self.padding:
            # The longer the words, the fewer copies.
            width = math.gcd(gap.start, gap.stop, self.itemsize, 8)
            words = block.view(f"u{width}").reshape(-1, self.itemsize // width)
            words[:, gap.start // width : gap.stop // width] = 0


_TEXTS = {"strings": "string", "bytes (": "binary"}  # what NumPy's and HDF5's are called, and Arrow's
_values: dict[str, Datatype] = {}
_OBJECT = np.dtype(object)


def value_type(name: str, form: np.dtype | None = None) -> Datatype:
    """Return the datatype of elements of any type by its name, as objects of Python, or to be copied in a form."""
    plain = name.replace("large_", "").replace("_view", "")
    kind = next((kind for start, kind in _TEXTS.items() if name.startswith(start)), plain)
    if form is not None and (form != _OBJECT or form.metadata):
        return Datatype(kind, Group.VALUE, form, handle=DATATYPE_NULL)
    # There is one instance, so that ranks can be compared.
    return _values.setdefault(kind, Datatype(kind, Group.VALUE, _OBJECT, handle=DATATYPE_NULL))


def beside(name: str, numpy_name: str | None) -> str:
    """Return the name of a datatype with NumPy's beside it, if NumPy has one."""
    return f"{name} ({numpy_name})" if numpy_name else name


@functools.lru_cache(maxsize=256)
def tail(form: np.dtype) -> int:
    """Return the bytes of a form behind its last field."""
    fields = () if form.fields is None else form.fields.values()
    return form.itemsize - max((field[1] + field[0].itemsize for field in fields), default=form.itemsize)


@functools.lru_cache(maxsize=256)
def gaps(form: np.dtype) -> tuple[slice, ...]:
    """Return the byte ranges of a form that carry no value."""
    starts = [(0, form)] if form.fields is None else [(field[1], field[0]) for field in form.fields.values()]
    found, end = [], 0
    for start, scalar in sorted(starts, key=lambda item: item[0]):
        found += [slice(end, start)]
        found += [slice(start + gap.start, start + gap.stop) for gap in _inner_padding(scalar)]
        end = start + scalar.itemsize
    found += [slice(end, form.itemsize)]
    return tuple(gap for gap in found if gap.start < gap.stop)


def _inner_padding(scalar: np.dtype) -> list[slice]:
    """Return the gaps of structures within, and the unused bytes of the x87 formats: 10 bytes of value in 16."""
    if scalar.base.names:
        starts = range(0, scalar.itemsize, scalar.base.itemsize)
        return [slice(start + gap.start, start + gap.stop) for start in starts for gap in gaps(scalar.base)]
    if scalar.base.char not in "gG" or np.finfo(np.longdouble).nmant != 63:  # noqa: PLR2004 - bits of an x87 fraction
        return []
    each = np.dtype(np.longdouble).itemsize
    first = 10 if scalar.base.isnative else 0
    return [slice(start + first, start + first + each - 10) for start in range(0, scalar.itemsize, each)]


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of fields in their order: f0, f1, ... are the entries of a type map, wherever they lie."""
    numbered = tuple(f"f{i}" for i in range(len(names)))
    return numbered if set(names) == set(numbered) else tuple(names)
