"""Named datatypes from a file, so that a record layout is written once: TOML, a name and a text a line.

    cell = "resized(0,24,struct([1,1],[8,0],[double,int]))"
    row = "contiguous(100,cell)"

The names can be used in each other, in any order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from mpired.datatypes.datatype import Datatype
from mpired.errors import DatatypeError, DefinitionError

Found: TypeAlias = tuple[Datatype, str | None]

_MAX_BYTES = 1 << 20
_MAX_CHAIN = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*", re.ASCII)


class Definitions(Mapping[str, Found]):
    """The definitions of one file, by their names in capitals, each with its byte order.

    Parameters
    ----------
    path
        The file.
    is_taken
        Tells whether a name means something already.
    read
        Reads a text, with these definitions.

    Raises
    ------
    DefinitionError
        If the file or an entry is wrong; the message names both, and shows the place.
    OSError
        If the file cannot be read.
    """

    def __init__(self, path: str, is_taken: Callable[[str], bool], read: Callable[[str, Definitions], Found]) -> None:
        self._path = path
        self._read = read
        self._found: dict[str, Found] = {}
        self._open: list[str] = []
        self._texts: dict[str, tuple[str, str]] = {}
        for name, text in _entries(path).items():
            key = name.upper()
            if not _NAME.fullmatch(name):
                raise self._error(name, "a name is letters, digits and _, and starts with no digit")
            if is_taken(name) or key in self._texts:
                raise self._error(name, "this name is taken")
            if not isinstance(text, str):
                raise self._error(name, "a definition is a text in quotes")
            self._texts[key] = name, text
        for name in self:
            _ = self[name]

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._texts.values())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.upper() in self._texts

    def text(self, name: str) -> str:
        """Return a definition as it is written."""
        return self._texts[name.upper()][1]

    def __getitem__(self, name: str) -> Found:
        key = name.upper()
        if key not in self._found:
            written, text = self._texts[key]
            if key in self._open or len(self._open) >= _MAX_CHAIN:
                chain = " -> ".join([self._texts[each][0] for each in self._open[-4:]] + [written])
                raise self._error(written, f"is defined by itself, or by too long a chain: {chain}")
            self._open.append(key)
            try:
                self._found[key] = self._read(text, self)
            except DefinitionError:
                raise
            except DatatypeError as error:
                raise self._error(f"{written}: {error.subject}", error.reason) from None
            except RecursionError:
                raise self._error(written, "is nested too deep, together with what it is made of") from None
            finally:
                self._open.pop()
        return self._found[key]

    def _error(self, subject: str, reason: str) -> DefinitionError:
        return DefinitionError(f"{self._path}: {subject}", reason)


def _entries(path: str) -> dict[str, object]:
    import tomllib  # noqa: PLC0415 - with it come dates, which nobody needs without a file of types

    try:
        with open(path, "rb") as file:
            octets = file.read(_MAX_BYTES + 1)
    except OSError as error:
        error.filename = path
        raise
    if len(octets) > _MAX_BYTES:
        raise DefinitionError(path, f"is larger than {_MAX_BYTES} bytes")
    try:
        return tomllib.loads(octets.decode())
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and TOMLDecodeError are ValueErrors
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise DefinitionError(path, f"is not TOML ({reason})") from None
