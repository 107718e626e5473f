"""Text to datatype: names of MPI in any case with or without `MPI_`, NumPy's names and codes, types made of types.

Texts such as `pair(double,int64_t)` are read by descent, with one error, which shows the place. A text comes from
anywhere, so its length, its numbers, its lists and its depth have limits.
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
from mpired.datatypes.derived import CONSTRUCTORS, MAX_DEPTH, MAX_LENGTH
from mpired.datatypes.dtypes import BY_NAME, BY_NUMPY_NAME, from_dtype
from mpired.datatypes.named import canonical
from mpired.errors import DatatypeError, UnknownDatatypeError, shortened
from mpired.mpi4py_objects import DatatypeText

Read: TypeAlias = tuple[Datatype, str | None]
"""The type that a string describes, and its byte order if the string has one."""


_MAX_ITEMS = 10_000
_LIMIT = 2**63
# A name may be written as in C, with spaces: long double.
_TOKEN = re.compile(r"\s*([<>=|]?[A-Za-z_0-9?]+(?:\s+[A-Za-z_][A-Za-z_0-9]*)*|[-+][0-9]+|[(),\[\]]|$)")
_NAME = re.compile(r"[<>=|A-Za-z_0-9?]")
_OPENING = re.compile(r"\s*\(")
_NUMBER = re.compile(r"[-+]?\d{1,19}", re.ASCII)
# Nothing in it can be matched in two ways, so a list that goes wrong at its end takes little time. Quantifiers that
# say so, possessive ones, match groups wrongly in some releases of Python 3.11.
_NUMBERS = re.compile(r"\[(\s*[-+]?\d{1,19}\s*(?:,\s*[-+]?\d{1,19}\s*)*|\s*)\]", re.ASCII)
_AROUND = 24
_WORDS: dict[str, dict[str, str]] = {
    "order": {"c": "C", "f": "F", "fortran": "F"},
    "distribution": {"block": "block", "cyclic": "cyclic", "none": "none"},
    "darg": {"dflt": "dflt", "dflt_darg": "dflt"},
}
_PREFIXES = ("mpi_", "order_", "distribute_")
_NUMPY_CODE = re.compile(r"([<>=|])?([biufc]\d{1,2}|\?)", re.ASCII)
_LONGEST_NAME = 40
_BYTE_ORDERS = {"<": "little", ">": "big", "=": "native"}


def parse(text: str, defined: Mapping[str, Read] | None = None) -> tuple[Datatype, str | None]:
    """Read the text of `--type`.

    Returns
    -------
    Datatype and byte order
        The byte order, "little", "big" or "native", is None unless a NumPy code says it.

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
    datatype, order = read(text, defined)
    if isinstance(text, DatatypeText) and (datatype.size, datatype.extent) != (text.size, text.extent):
        there, here = (f"{each.size} bytes and extent {each.extent}" for each in (text, datatype))
        raise DatatypeError(text, f"has {there} in this MPI, and {here} in mpired; give a type that says its size")
    return datatype, order


def is_taken(name: str) -> bool:
    """Return whether a name means something without a definition: a type, or an argument such as `block`."""
    plain = canonical(name)
    argument = any(_plain_word(name) in known for known in _WORDS.values())
    meaning = plain in BY_NAME or name in BY_NUMPY_NAME or plain.lower() in CONSTRUCTORS or argument
    return meaning or plain == "DATATYPE_NULL" or _NUMPY_CODE.fullmatch(name) is not None


def read(text: str, defined: Mapping[str, Read] | None) -> Read:
    """Return what a text means, which may be part of another."""
    return _named(text, defined) or _Parser(text, defined).whole()


def _named(text: str, defined: Mapping[str, Read] | None) -> Read | None:
    """Return the datatype that a name or a NumPy code means, and its byte order; None if it means none."""
    datatype = BY_NAME.get(canonical(text)) or BY_NUMPY_NAME.get(text.strip())
    if datatype is not None:
        _ = datatype.form
        return datatype, None
    if code := _NUMPY_CODE.fullmatch(text.strip()):
        try:
            return from_dtype(np.dtype(code[2])), _BYTE_ORDERS.get(code[1] or "")
        except TypeError:  # NumPy has no such code, or mpired no such type
            return None
    return None if defined is None else defined.get(text.strip())


def words(text: str) -> Iterator[str]:
    """Yield the words without arguments in a text, as far as the reader gets: to a character that means nothing."""
    end = 0
    while end < MAX_LENGTH and (match := _TOKEN.match(text, end)) and match[1]:
        end = match.end()
        if not _OPENING.match(text, end):
            yield match[1]


def _plain_word(word: str) -> str:
    return functools.reduce(str.removeprefix, _PREFIXES, word.lower())


class _Parser:
    """Reads one text, with the definitions of a file."""

    def __init__(self, text: str, defined: Mapping[str, Read] | None) -> None:
        self._text = text
        self._defined = defined
        self._order: str | None = None
        self._at = self._end = self._depth = 0
        self._word = ""

    def whole(self) -> Read:
        """Return what the whole text means."""
        if len(self._text) > MAX_LENGTH:
            raise UnknownDatatypeError(f"{self._text[:_AROUND]}...", f"is longer than {MAX_LENGTH} characters")
        self._advance()
        made = self._type()
        if self._word:
            self._fail("expected the end of the text")
        if self._defined is not None:  # without definitions the text shows how deep it is
            depths = itertools.accumulate((char == "(") - (char == ")") for char in made.name)
            if max(depths) > MAX_DEPTH:
                self._fail(f"types are nested deeper than {MAX_DEPTH} levels", 0)
        return made, self._order

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._end)
        if match is None:
            self._at = self._end + len(self._text[self._end :]) - len(self._text[self._end :].lstrip())
            self._fail("this character has no meaning here")
        self._at, self._end = match.span(1)
        self._word = match[1]

    def _fail(self, reason: str, at: int | None = None, hint: str = "") -> NoReturn:
        at = self._at if at is None else at
        before, after = self._text[max(at - _AROUND, 0) : at], self._text[at : at + _AROUND]
        left, right = "..." if at > _AROUND else "", "..." if at + _AROUND < len(self._text) else ""
        place = f"{left}{before}^{after}{right}"
        raise UnknownDatatypeError(place, f"{shortened(reason)}, at the caret (character {at + 1}){hint}")

    def _take(self, token: str, what: str) -> None:
        if self._word != token:
            self._fail(f"expected {what}")
        self._advance()

    def _type(self) -> Datatype:
        word, at = self._word, self._at
        if not _NAME.match(word):
            self._fail("expected a datatype")
        self._advance()
        if self._word == "(":
            return self._constructed(word, at)
        try:
            found = _named(word, self._defined)
        except DatatypeError as error:
            self._fail(f"{error.subject} {error.reason}", at)
        if found is None and (row := CONSTRUCTORS.get(word.lower().removeprefix("mpi_"))):
            self._fail(f"{row.name} has {len(row.sorts)} arguments, in parentheses", at)
        if found is None and word == self._text.strip():
            raise UnknownDatatypeError(f"unknown datatype {shortened(word)!r}", _hint(word))
        if found is None:
            self._fail("unknown datatype", at, f"; {_hint(word)}")
        made, order = found
        if order is not None and self._order not in (None, order):
            self._fail("all parts have one byte order, and this one contradicts", at)
        self._order = order or self._order
        return made

    def _constructed(self, word: str, at: int) -> Datatype:
        row = CONSTRUCTORS.get(word.lower().removeprefix("mpi_"))
        if row is None:
            self._fail(f"the words that take arguments are {', '.join(CONSTRUCTORS)}; this is none", at)
        if self._depth == MAX_DEPTH:
            self._fail(f"types are nested deeper than {MAX_DEPTH} levels", at)
        self._depth += 1
        self._advance()
        arguments: list[Any] = []
        for i, sort in enumerate(row.sorts):
            if i:
                self._take(",", f"a comma; {row.name} has {len(row.sorts)} arguments")
            if sort == "type":
                arguments.append(self._type())
            elif sort == "types":
                arguments.append(tuple(self._type() for _ in self._items()))
            else:
                arguments.append(self._argument(sort))
        self._take(")", f"a closing parenthesis; {row.name} has {len(row.sorts)} arguments")
        self._depth -= 1
        try:
            return row.make(*arguments)
        except DatatypeError as error:
            self._fail(f"{error.subject}: {error.reason}", at)

    def _argument(self, sort: str) -> Any:
        """Read an argument that is not a type."""
        if sort in {"counts", "numbers"}:
            return self._numbers(sort[:-1])
        if sort.endswith("s"):
            return tuple(self._argument(sort[:-1]) for _ in self._items())
        if sort not in _WORDS:
            return self._number(sort)
        known, word = _WORDS[sort], _plain_word(self._word)
        if word in known:
            self._advance()
            return known[word]
        if sort != "darg":
            self._fail(f"expected one of {', '.join(known)}")
        return self._number("count")

    def _items(self) -> Iterator[None]:
        """Read a list, except its items: the caller reads one at each step."""
        self._take("[", "a list in brackets")
        count = 0
        while self._word != "]":
            if count:
                self._take(",", "a comma or a closing bracket")
            if count >= _MAX_ITEMS:
                self._fail(f"more than {_MAX_ITEMS} items")
            yield
            count += 1
        self._advance()

    def _numbers(self, sort: str) -> tuple[int, ...]:
        """Read a list of numbers at once."""
        match = _NUMBERS.match(self._text, self._at)
        if match is None:
            self._fail("expected a list of whole numbers in brackets")
        if match[1].count(",") >= _MAX_ITEMS:
            self._fail(f"more than {_MAX_ITEMS} items")
        numbers = tuple(map(int, match[1].split(","))) if match[1].strip() else ()
        if any(not (0 if sort == "count" else -_LIMIT) <= number < _LIMIT for number in numbers):
            self._fail(f"expected whole numbers below 2**63{', none of them negative' if sort == 'count' else ''}")
        self._end = match.end()
        self._advance()
        return numbers

    def _number(self, sort: str) -> int:
        number = int(self._word) if _NUMBER.fullmatch(self._word) else _LIMIT
        if not -_LIMIT <= number < _LIMIT:
            self._fail("expected a whole number below 2**63")
        if number < 0 and sort == "count":
            self._fail("a count cannot be negative")
        self._advance()
        return number


def _hint(word: str) -> str:
    """Return what may help who wrote a word that means nothing."""
    if re.match(r"bf(loat)?16|f(loat)?8", word.strip(), re.IGNORECASE):
        where = "mpired reads it only from safetensors and HDF5 files, which need no type"
        return f"{where}; convert others to float32"
    known = [*map(str.lower, BY_NAME), *BY_NUMPY_NAME]
    close = difflib.get_close_matches(canonical(word[:_LONGEST_NAME]).lower(), known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else "`mpired types` lists them all"
