"""Named datatypes from a TOML file, which defines a record layout once for many commands.

    cell = "resized(0,24,struct([1,1],[8,0],[double,int]))"
    row = "contiguous(100,cell)"

A line has a name and the text of a datatype. Definitions may use each other, in any order.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping

from mpired.datatypes.derived import MAX_DEPTH
from mpired.datatypes.text.parse import Parsed, has_meaning, names_in, read
from mpired.errors import DatatypeError, DefinitionError

_MAX_BYTES = 128 << 10
_MAX_DOTS = 100  # in a line: the time of the TOML parser grows with their square
_SHOWN = 4  # names that a message shows at each end of a long cycle of definitions
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*", re.ASCII)


class Definitions(Mapping[str, Parsed]):
    """The definitions of a file: datatype and byte order by name, in any case."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._parsed: dict[str, Parsed] = {}  # by the name in capitals
        self._texts: dict[str, tuple[str, str]] = {}  # name and text as written, by the name in capitals
        for name, text in _entries(path).items():
            key = name.upper()
            if not _NAME.fullmatch(name):
                raise self._error(name or "''", "a name is letters, digits and _, and starts with no digit")
            if has_meaning(name) or key in self._texts:
                raise self._error(name, "this name is taken")
            if not isinstance(text, str):
                raise self._error(name, "a definition is a text in quotes")
            self._texts[key] = name, text
        for key in self._texts:
            self._resolve(key)

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._texts.values())

    def text(self, name: str) -> str:
        """Return the text of a definition."""
        return self._texts[name.upper()][1]

    def __getitem__(self, name: str) -> Parsed:
        return self._parsed[name.upper()]

    def _resolve(self, key: str, outer: tuple[str, ...] = ()) -> None:
        """Parse a definition after the definitions that it uses; `outer` are the definitions that use it."""
        if key in self._parsed:
            return
        name, text = self._texts[key]
        if key in outer:
            names = [self._texts[other][0] for other in (*outer[outer.index(key) :], key)]
            if len(names) > 2 * _SHOWN:
                names[_SHOWN:-_SHOWN] = ["..."]
            raise self._error(name, f"is defined by itself: {' -> '.join(names)}")
        if len(outer) == MAX_DEPTH:
            raise self._error(name, f"is nested deeper than {MAX_DEPTH} levels, in {self._texts[outer[0]][0]}")
        for used in map(str.upper, names_in(text)):
            if used in self._texts:
                self._resolve(used, (*outer, key))
        try:
            self._parsed[key] = read(text, self)
        except DatatypeError as error:
            raise self._error(f"{name}: {error.subject}", error.reason) from None

    def _error(self, subject: str, reason: str) -> DefinitionError:
        return DefinitionError(f"{self._path}: {subject}", reason)


def _entries(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            octets = file.read(_MAX_BYTES + 1)
    except OSError as error:
        error.filename = path
        raise
    if len(octets) > _MAX_BYTES:
        raise DefinitionError(path, f"is larger than {_MAX_BYTES} bytes")
    if any(line.count(b".") > _MAX_DOTS for line in octets.splitlines() if not line.lstrip().startswith(b"#")):
        raise DefinitionError(path, f"has more than {_MAX_DOTS} dots in a line; a definition is a name and a text")
    try:
        return tomllib.loads(octets.decode())
    except ValueError as error:
        raise DefinitionError(path, f"is not TOML ({error})") from None
    except RecursionError:
        raise DefinitionError(path, "is not TOML (nested too deep)") from None
