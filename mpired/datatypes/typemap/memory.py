"""The NumPy form of the elements of a type map: structures one extent apart, or packed structures."""

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
_MAX_STRETCHES = 100_000  # visited one by one, to join stretches into fields and to find overlaps


@dataclass(frozen=True, eq=False)
class MemoryForm:
    """The NumPy form of the elements of a type map."""

    typemap: TypeMap

    @cached_property
    def is_spread(self) -> bool:
        """Whether arrays hold the elements packed, not as structures one extent apart."""
        # Such elements overlap the next element, have too many stretches, or are large and mostly gaps.
        typemap = self.typemap
        many = min(typemap.entries, typemap.stretches) > _MAX_FIELDS
        hollow = typemap.extent > max(_LARGE, MOST_GAPS * typemap.size)
        return many or hollow or typemap.true_extent > typemap.extent or typemap.extent > _MAX_ITEMSIZE

    @property
    def origin(self) -> int:
        """The byte of an element with displacement 0, which may be outside the element."""
        typemap = self.typemap
        return 0 if typemap.true_lb >= 0 and typemap.true_ub <= typemap.extent else -typemap.true_lb

    @cached_property
    def obstacle(self) -> str:
        """The reason why an array cannot hold the elements; "" if it can."""
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
        """The structure with the fields f0, f1, ..., numbered in the order of the map; None if there is an obstacle."""
        if self.obstacle:
            return None
        # NumPy exports buffers only of structures with fields in ascending order; the names keep the order of the map.
        numbered = sorted(enumerate(self.fields), key=lambda item: item[1].disp)
        names, entries = [f"f{i}" for i, _ in numbered], [entry for _, entry in numbered]
        start, itemsize = (0, self.typemap.size) if self.is_spread else (self.origin, self.typemap.extent)
        formats, offsets = [entry.form for entry in entries], [start + entry.disp for entry in entries]
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize})

    @cached_property
    def fields(self) -> tuple[Entry, ...]:
        """The fields of the structure: the entries, joined if there are many; empty if they are still too many."""
        # Entries of one type are joined if they are adjacent, for a spread element when packed.
        if self.typemap.entries <= _MAX_FIELDS:
            entries = self.typemap.walk()
        else:
            entries = self._packed_entries() if self.is_spread else self.typemap.walk(stretches=True)
        fields = tuple(map(_as_field, itertools.islice(entries, _MAX_FIELDS + 1)))
        if len(fields) > _MAX_FIELDS:
            return ()
        if not self.is_spread:
            return fields
        disps = itertools.accumulate((entry.form.itemsize for entry in fields), initial=0)
        return tuple(entry._replace(disp=disp) for entry, disp in zip(fields, disps, strict=False))

    def _packed_entries(self) -> Iterator[Entry]:
        """Yield the packed entries, joined where they have one type; nothing if the map has too many stretches."""
        typemap = self.typemap
        types = {inner.basic.name: inner.basic for inner in typemap.inside(lambda _: False) if inner.basic}
        if len(types) == 1:
            yield _repeated(next(iter(types.values())), typemap.entries)
        elif typemap.stretches <= _MAX_STRETCHES:
            for _, group in itertools.groupby(typemap.walk(stretches=True), key=lambda entry: entry.name):
                entries = list(group)
                yield _repeated(entries[0], sum(math.prod(entry.form.shape) for entry in entries))


def _repeated(entry: Entry, count: int) -> Entry:
    """Return an entry for `count` adjacent entries."""
    return entry._replace(form=np.dtype((entry.form.base, (count,))))


def _as_field(entry: Entry) -> Entry:
    """Return an entry whose form has no fields: for a complex number of two binary16 an array of two numbers."""
    base, shape = entry.form.base, entry.form.shape
    if base.fields is None:
        return entry
    return entry._replace(form=np.dtype((base[0], (*shape, len(base.fields)))))
