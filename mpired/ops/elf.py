"""What a shared library needs of others, read from its file: it is not loaded for that."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_IDENT = b"\x7fELF\x02"  # 64 bits
_ORDERS = {1: "<", 2: ">"}
_DYNAMIC, _DYNSYM = 6, 11
_NEEDED, _UNDEFINED = 1, 0
_SECTION, _SYMBOL, _ENTRY = "IIQQQQIIQQ", "IBBHQQ", "qQ"
_MOST = 64 << 20  # bytes of a table


class Imports(NamedTuple):
    """The libraries that a library is linked with, and the symbols that it has from others."""

    libraries: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()


def imports(path: str) -> Imports:
    """Return what a shared library needs; nothing if its file does not tell."""
    try:
        with open(path, "rb") as file:
            return _Tables(file.read(_MOST)).imports()
    except (OSError, ValueError, LookupError, struct.error):
        return Imports()


class _Tables:
    """The tables of a library: the sections, the dynamic entries and the dynamic symbols."""

    def __init__(self, content: bytes) -> None:
        if not content.startswith(_IDENT):
            raise ValueError("not a library of 64 bits")
        self._content = content
        self._order = _ORDERS[content[5]]
        (start,) = self._unpacked("Q", 0x28)
        size, count = self._unpacked("HH", 0x3A)
        self._sections = [self._unpacked(_SECTION, start + number * size) for number in range(count)]

    def _unpacked(self, form: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from(self._order + form, self._content, at)

    def imports(self) -> Imports:
        """Return the names of what is needed."""
        entries, symbols = self._each(_DYNAMIC, _ENTRY), self._each(_DYNSYM, _SYMBOL)
        return Imports(
            tuple(self._text(strings + row[1]) for row, strings in entries if row[0] == _NEEDED),
            tuple(self._text(strings + row[0]) for row, strings in symbols if row[0] and row[3] == _UNDEFINED),
        )

    def _each(self, kind: int, form: str) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield the rows of a table, each with the place of its texts."""
        width = struct.calcsize(self._order + form)
        for _, this, _, _, start, nbytes, link, *_ in self._sections:
            if this == kind:
                for at in range(start, start + nbytes, width):
                    yield self._unpacked(form, at), self._sections[link][4]

    def _text(self, at: int) -> str:
        return self._content[at : self._content.index(b"\0", at)].decode()
