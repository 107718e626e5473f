"""The elements of a type map in NumPy arrays: structures one extent apart, or packed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mpired.datatypes.typemap.pieces import overlaps
from mpired.datatypes.typemap.transfer import MOST_GAPS
from mpired.datatypes.typemap.typemap import Entry, TypeMap

_MAX_ITEMSIZE = 2**31 - 1
_MAX_FIELDS = 1000
_LARGE = 1 << 20  # bytes
_MAX_STRETCHES = 100_000
"""Stretches that are looked at one by one, for those that are one field when packed and those that overlap."""


@dataclass(frozen=True, eq=False)
class InMemory:
    """The NumPy form of the elements of a type map."""

    typemap: TypeMap  # the map

    @cached_property
    def is_spread(self) -> bool:
        """Whether elements are not structures one extent apart, and are packed in arrays."""
        # They reach into one another, have entries in too many places, or are large and mostly gaps.
        typemap = self.typemap
        many = min(typemap.entries, typemap.stretches) > _MAX_FIELDS
        hollow = typemap.extent > max(_LARGE, MOST_GAPS * typemap.size)
        return many or hollow or typemap.true_extent > typemap.extent or typemap.extent > _MAX_ITEMSIZE

    @property
    def origin(self) -> int:
        """The byte of displacement 0 in an element, which begins there, or else at its first entry."""
        typemap = self.typemap
        return 0 if typemap.true_lb >= 0 and typemap.true_ub <= typemap.extent else -typemap.true_lb

    @cached_property
    def obstacle(self) -> str:
        """The reason why an array cannot hold such elements; "" if it can."""
        if not self.typemap.entries:
            return "it has no entries"
        if self.is_spread and self.typemap.size > _MAX_ITEMSIZE:
            return f"its {self.typemap.size} bytes are more than {_MAX_ITEMSIZE}"
        if not self.fields:
            return f"its {self.typemap.entries} entries of several types would be more than {_MAX_FIELDS} fields"
        overlap = overlaps(self.typemap, 1, _MAX_STRETCHES)
        if overlap is None:
            return "it has too many pieces to tell that none overlap"
        return "its entries overlap" if overlap else ""

    @cached_property
    def form(self) -> np.dtype | None:
        """The NumPy form: fields f0, f1, ... numbered as in the map; None if there is none."""
        if self.obstacle:
            return None
        # NumPy gives its memory only with fields in ascending order; their numbers are those of the map.
        numbered = sorted(enumerate(self.fields), key=lambda item: item[1].disp)
        names, entries = [f"f{i}" for i, _ in numbered], [entry for _, entry in numbered]
        start, itemsize = (0, self.typemap.size) if self.is_spread else (self.origin, self.typemap.extent)
        formats, offsets = [entry.form for entry in entries], [start + entry.disp for entry in entries]
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})

    @cached_property
    def fields(self) -> tuple[Entry, ...]:
        """The entries as fields of a structure: each on its own or, where they are many, those that are alike."""
        # Alike are adjacent entries, in the element or, if it is spread, when it is packed. There are
        # none if they would be too many.
        if self.typemap.entries <= _MAX_FIELDS:
            found = self.typemap.walk()
        else:
            found = self._alike() if self.is_spread else self.typemap.walk(stretches=True)
        fields = tuple(map(_as_field, itertools.islice(found, _MAX_FIELDS + 1)))
        if len(fields) > _MAX_FIELDS:
            return ()
        if not self.is_spread:
            return fields
        disps = itertools.accumulate((entry.form.itemsize for entry in fields), initial=0)
        return tuple(entry._replace(disp=disp) for entry, disp in zip(fields, disps, strict=False))

    def _alike(self) -> Iterator[Entry]:
        """Yield entries of one type that follow one another as one; nothing if they are too many to be looked at."""
        typemap = self.typemap
        types = {of.basic.name: of.basic for of in typemap.inside(lambda _: False) if of.basic}
        if len(types) == 1:
            yield _times(next(iter(types.values())), typemap.entries)
        elif typemap.stretches <= _MAX_STRETCHES:
            for _, group in itertools.groupby(typemap.walk(stretches=True), key=lambda entry: entry.name):
                first, *others = group
                yield _times(first, sum(math.prod(entry.form.shape) for entry in (first, *others)))


def _times(entry: Entry, number: int) -> Entry:
    """Return several adjacent entries as one."""
    return entry._replace(form=np.dtype((entry.form.base, (number,))))


def _as_field(entry: Entry) -> Entry:
    """Return an entry without fields of its own: a complex number of two binary16 is two numbers."""
    base, shape = entry.form.base, entry.form.shape
    if base.fields is None:
        return entry
    return entry._replace(form=np.dtype((base[0], (*shape, len(base.fields)))))
