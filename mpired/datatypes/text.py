"""Datatypes as text: names of MPI, names and codes of NumPy, constructors such as `pair(double,int64_t)`.

It is a recursive descent parser; an error shows the place in the text. A text may be hostile, so its length, its
numbers, its lists and its depth have limits.

A TOML file defines a record layout once for many commands:

    cell = "resized(0,24,struct([1,1],[8,0],[double,int]))"
    row = "contiguous(100,cell)"

A line has a name and the text of a datatype. Definitions may use each other, in any order.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeAlias

import numpy as np

from mpired.datatypes.datatype import Datatype
from mpired.datatypes.derived import CONSTRUCTORS, MAX_DEPTH, MAX_LENGTH, Constructor
from mpired.datatypes.dtypes import BY_NAME, BY_NUMPY_NAME, from_dtype
from mpired.datatypes.predefined import canonical
from mpired.errors import DatatypeError, DefinitionError, UnknownDatatypeError, shortened
from mpired.mpi4py_objects import DatatypeText

Parsed: TypeAlias = tuple[Datatype, str | None]
"""A datatype, and its byte order or None if the text has none."""

_MAX_ITEMS = 10_000
_LIMIT = 2**63
# A name may have spaces as in C: long double.
_TOKEN = re.compile(r"\s*([<>=|]?[A-Za-z_0-9?]+(?:\s+[A-Za-z_][A-Za-z_0-9]*)*|[-+][0-9]+|[(),\[\]]|$)")
_NAME = re.compile(r"[<>=|A-Za-z_0-9?]")
_OPENING = re.compile(r"\s*\(")
_NUMBER = re.compile(r"[-+]?\d{1,19}", re.ASCII)
# No text matches this in two ways, so that an error at the end of a list costs no backtracking. Possessive quantifiers
# would be clearer, but match groups wrongly in some releases of Python 3.11.
_NUMBERS = re.compile(r"\[(\s*[-+]?\d{1,19}\s*(?:,\s*[-+]?\d{1,19}\s*)*|\s*)\]", re.ASCII)
_SHOWN = 24  # characters that a message shows on both sides of an error
_KEYWORDS: dict[str, dict[str, str]] = {
    "order": {"c": "C", "f": "F", "fortran": "F"},
    "distribution": {"block": "block", "cyclic": "cyclic", "none": "none"},
    "darg": {"dflt": "dflt", "dflt_darg": "dflt"},
}
_PREFIXES = ("mpi_", "order_", "distribute_")
_NUMPY_CODE = re.compile(r"([<>=|])?([biufc]\d{1,2}|\?)", re.ASCII)
_MAX_NAME = 40
_BYTE_ORDERS = {"<": "little", ">": "big", "=": "native"}


def parse(text: str, defined: Mapping[str, Parsed] | None = None) -> tuple[Datatype, str | None]:
    """Parse the text of a datatype, as in the option `type`.

    Returns
    -------
    Datatype and byte order
        The byte order is "little", "big" or "native" for a NumPy code that has one, else None.

    Examples
    --------
    >>> datatype, byte_order = parse("double_int")
    >>> str(datatype), datatype.size, datatype.extent, byte_order
    ('MPI_DOUBLE_INT', 12, 16, None)
    >>> str(parse(">f8")[0]), parse(">f8")[1]
    ('MPI_DOUBLE', 'big')
    >>> str(parse("pair(double,int)")[0]), str(parse("pair(float, uint8_t)")[0])
    ('MPI_DOUBLE_INT', 'pair(float,uint8_t)')
    """
    datatype, order = _read(text, defined)
    if isinstance(text, DatatypeText) and (datatype.size, datatype.extent) != (text.size, text.extent):
        sizes = [f"{form.size} bytes and extent {form.extent}" for form in (text, datatype)]
        reason = f"has {sizes[0]} in this MPI, and {sizes[1]} in mpired; give a type that says its size"
        raise DatatypeError(text, reason)
    return datatype, order


def _has_meaning(name: str) -> bool:
    """Return whether a name has a meaning without a definition: a datatype, or a keyword such as `block`."""
    plain = canonical(name)
    is_keyword = any(_without_prefix(name) in keywords for keywords in _KEYWORDS.values())
    is_type = plain in BY_NAME or name in BY_NUMPY_NAME or plain.lower() in CONSTRUCTORS
    return is_type or is_keyword or plain == "DATATYPE_NULL" or _NUMPY_CODE.fullmatch(name) is not None


def _read(text: str, defined: Mapping[str, Parsed] | None) -> Parsed:
    """Return the datatype of a text, without the checks of mpi4py's datatypes."""
    return _lookup(text, defined) or _Parser(text, defined).parse()


def _lookup(text: str, defined: Mapping[str, Parsed] | None) -> Parsed | None:
    """Return the datatype of a name or a NumPy code; None if the text is neither."""
    datatype = BY_NAME.get(canonical(text)) or BY_NUMPY_NAME.get(text.strip())
    if datatype is not None:
        _ = datatype.form  # raises an error if NumPy has none
        return datatype, None
    if code := _NUMPY_CODE.fullmatch(text.strip()):
        try:
            return from_dtype(np.dtype(code[2])), _BYTE_ORDERS.get(code[1] or "")
        except TypeError:  # NumPy does not have the code, or mpired the type
            return None
    return None if defined is None else defined.get(text.strip())


def _names_in(text: str) -> Iterator[str]:
    """Yield the tokens of a text that have no arguments, up to the first character that is not of a token."""
    end = 0
    while end < MAX_LENGTH and (match := _TOKEN.match(text, end)) and match[1]:
        end = match.end()
        if not _OPENING.match(text, end):
            yield match[1]


def _without_prefix(keyword: str) -> str:
    return functools.reduce(str.removeprefix, _PREFIXES, keyword.lower())


class _Parser:
    """The parser of one text. Each method reads from the current token and ends at the token after."""

    def __init__(self, text: str, defined: Mapping[str, Parsed] | None) -> None:
        self._text = text
        self._defined = defined  # the definitions of a file
        self._order: str | None = None  # the byte order of the NumPy codes so far
        self._start = self._end = self._depth = 0  # the characters of the current token, and the open parentheses
        self._current = ""  # the current token

    def parse(self) -> Parsed:
        """Return the datatype of the whole text."""
        if len(self._text) > MAX_LENGTH:
            raise UnknownDatatypeError(f"{self._text[:_SHOWN]}...", f"is longer than {MAX_LENGTH} characters")
        self._advance()
        datatype = self._type()
        if self._current:
            self._fail("expected the end of the text")
        if self._defined is not None:  # a definition may be deeper than the text that names it
            depths = itertools.accumulate((char == "(") - (char == ")") for char in datatype.name)
            if max(depths) > MAX_DEPTH:
                self._fail(f"types are nested deeper than {MAX_DEPTH} levels", 0)
        return datatype, self._order

    def _advance(self) -> None:
        """Read the next token."""
        match = _TOKEN.match(self._text, self._end)
        if match is None:
            self._start = len(self._text) - len(self._text[self._end :].lstrip())
            self._fail("this character has no meaning here")
        self._start, self._end = match.span(1)
        self._current = match[1]

    def _fail(self, reason: str, index: int | None = None, hint: str = "") -> NoReturn:
        """Raise an error with a caret before a character, which is by default the start of the token."""
        index = self._start if index is None else index
        before, after = self._text[max(index - _SHOWN, 0) : index], self._text[index : index + _SHOWN]
        left, right = "..." if index > _SHOWN else "", "..." if index + _SHOWN < len(self._text) else ""
        place = f"{left}{before}^{after}{right}"
        raise UnknownDatatypeError(place, f"{shortened(reason)}, at the caret (character {index + 1}){hint}")

    def _expect(self, token: str, description: str) -> None:
        if self._current != token:
            self._fail(f"expected {description}")
        self._advance()

    def _type(self) -> Datatype:
        """Read a datatype."""
        name, index = self._current, self._start
        if not _NAME.match(name):
            self._fail("expected a datatype")
        row = CONSTRUCTORS.get(name.lower().removeprefix("mpi_"))
        self._advance()
        if self._current == "(":
            if row is None:
                self._fail(f"the words that take arguments are {', '.join(CONSTRUCTORS)}; this is none", index)
            return self._construct(row, index)
        try:
            parsed = _lookup(name, self._defined)
        except DatatypeError as error:
            self._fail(f"{error.subject} {error.reason}", index)
        if parsed is None and row is not None:
            self._fail(f"{row.name} has {len(row.kinds)} arguments, in parentheses", index)
        if parsed is None and name == self._text.strip():
            raise UnknownDatatypeError(f"unknown datatype {shortened(name)!r}", _hint(name))
        if parsed is None:
            self._fail("unknown datatype", index, f"; {_hint(name)}")
        datatype, order = parsed
        if order is not None and self._order not in (None, order):
            self._fail("all parts have one byte order, and this one contradicts", index)
        self._order = order or self._order
        return datatype

    def _construct(self, row: Constructor, index: int) -> Datatype:
        """Read the arguments of a constructor, whose name is at `index`, and make the datatype."""
        if self._depth == MAX_DEPTH:
            self._fail(f"types are nested deeper than {MAX_DEPTH} levels", index)
        self._depth += 1
        self._advance()
        arguments: list[Any] = []
        for i, kind in enumerate(row.kinds):
            if i:
                self._expect(",", f"a comma; {row.name} has {len(row.kinds)} arguments")
            arguments.append(self._argument(kind))
        self._expect(")", f"a closing parenthesis; {row.name} has {len(row.kinds)} arguments")
        self._depth -= 1
        try:
            return row.make(*arguments)
        except DatatypeError as error:
            self._fail(f"{error.subject}: {error.reason}", index)

    def _argument(self, kind: str) -> Any:
        """Read an argument of a kind; a plural is a list."""
        if kind == "type":
            return self._type()
        if kind in {"counts", "numbers"}:
            return self._numbers(kind[:-1])
        if kind.endswith("s"):
            return tuple(self._argument(kind[:-1]) for _ in self._items())
        if kind not in _KEYWORDS:
            return self._number(kind)
        values, keyword = _KEYWORDS[kind], _without_prefix(self._current)
        if keyword in values:
            self._advance()
            return values[keyword]
        if kind != "darg":
            self._fail(f"expected one of {', '.join(values)}")
        return self._number("count")

    def _items(self) -> Iterator[None]:
        """Read the brackets and commas of a list; the caller reads an item after each yield."""
        self._expect("[", "a list in brackets")
        count = 0
        while self._current != "]":
            if count:
                self._expect(",", "a comma or a closing bracket")
            if count >= _MAX_ITEMS:
                self._fail(f"more than {_MAX_ITEMS} items")
            yield
            count += 1
        self._advance()

    def _numbers(self, kind: str) -> tuple[int, ...]:
        """Read a list of numbers."""
        match = _NUMBERS.match(self._text, self._start)
        if match is None:
            self._fail("expected a list of whole numbers in brackets")
        if match[1].count(",") >= _MAX_ITEMS:
            self._fail(f"more than {_MAX_ITEMS} items")
        numbers = tuple(map(int, match[1].split(","))) if match[1].strip() else ()
        if any(not (0 if kind == "count" else -_LIMIT) <= number < _LIMIT for number in numbers):
            self._fail(f"expected whole numbers below 2**63{', none of them negative' if kind == 'count' else ''}")
        self._end = match.end()
        self._advance()
        return numbers

    def _number(self, kind: str) -> int:
        """Read a number, which may be negative unless its kind is count."""
        number = int(self._current) if _NUMBER.fullmatch(self._current) else _LIMIT
        if not -_LIMIT <= number < _LIMIT:
            self._fail("expected a whole number below 2**63")
        if number < 0 and kind == "count":
            self._fail("a count cannot be negative")
        self._advance()
        return number


def _hint(name: str) -> str:
    """Return a suggestion for the name of an unknown datatype."""
    if re.match(r"bf(loat)?16|f(loat)?8", name.strip(), re.IGNORECASE):
        return "mpired reads it only from safetensors and HDF5 files, which need no type; convert others to float32"
    names = [*map(str.lower, BY_NAME), *BY_NUMPY_NAME]
    close = difflib.get_close_matches(canonical(name[:_MAX_NAME]).lower(), names, n=3)
    return f"did you mean {' or '.join(close)}?" if close else "`mpired types` lists them all"


_MAX_BYTES = 128 << 10  # of a file of definitions
_MAX_DOTS = 100  # in a line: the time of the TOML parser grows with their square
_SHOWN_NAMES = 4  # that a message shows at each end of a long cycle of definitions
_DEFINED_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*", re.ASCII)


class Definitions(Mapping[str, Parsed]):
    """The definitions of a file: datatype and byte order by name, in any case."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._parsed: dict[str, Parsed] = {}  # by the name in capitals
        self._texts: dict[str, tuple[str, str]] = {}  # name and text as written, by the name in capitals
        for name, text in _entries(path).items():
            key = name.upper()
            if not _DEFINED_NAME.fullmatch(name):
                raise self._error(name or "''", "a name is letters, digits and _, and starts with no digit")
            if _has_meaning(name) or key in self._texts:
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
            if len(names) > 2 * _SHOWN_NAMES:
                names[_SHOWN_NAMES:-_SHOWN_NAMES] = ["..."]
            raise self._error(name, f"is defined by itself: {' -> '.join(names)}")
        if len(outer) == MAX_DEPTH:
            raise self._error(name, f"is nested deeper than {MAX_DEPTH} levels, in {self._texts[outer[0]][0]}")
        for used in map(str.upper, _names_in(text)):
            if used in self._texts:
                self._resolve(used, (*outer, key))
        try:
            self._parsed[key] = _read(text, self)
        except DatatypeError as error:
            raise self._error(f"{name}: {error.subject}", error.reason) from None

    def _error(self, subject: str, reason: str) -> DefinitionError:
        return DefinitionError(f"{self._path}: {subject}", reason)


def _entries(path: str) -> dict[str, object]:
    import tomllib  # noqa: PLC0415 - few commands have a file of definitions

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
