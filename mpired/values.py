"""Kinds of values of options, one row each: a parser for the command line, and a check for Python."""

from __future__ import annotations

import csv
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from mpired import mpi4py_objects
from mpired.errors import RangeError, UsageError

_NUMBER = r"\s*[-+]?((\d+(\.\d*)?|\.\d+)(e[-+]?\d+)?|inf|nan)\s*"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MOST_RANKS = 1 << 22
_ENGINES = ("local", "mpi", "dask")
LIKE = "like"
"""The text of `--create` for the count and shape of the first origin."""


class Kind(NamedTuple):
    """A kind of values. Both functions raise `ValueError` or `TypeError` for a wrong value."""

    metavar: str  # name in help
    static: str = "str"  # type of a value in Python
    check: Callable[[Any], Any] = lambda value: value  # checks and converts a value that is not None
    parse: Callable[[str], Any] = str  # parses a string of the command line or the environment, before `check`
    offers: str = ""  # completions of a shell: "file", "dir", or the name of a table
    note: tuple[str, str] | None = None  # note at the end of the help: metavar and text
    words: tuple[str, ...] = ()  # allowed values, if they are words
    use: str = ""  # of an op: the family of calls, "REDUCE", "ACCUMULATE" or "FETCH"
    names: tuple[str, ...] = ()  # of an op: allowed names; () for all


def listed(names: Iterable[str]) -> str:
    """Return names as a text that `_names` parses."""
    quoted = ((name, name.replace('"', '""')) for name in names)
    return ",".join(f'"{text}"' if not name or "," in name or name[0] == '"' else name for name, text in quoted)


def _match(pattern: str, text: str, refusal: str) -> re.Match[str]:
    """Return the match of a whole text. Python accepts other digits than ASCII, and underscores."""
    if (match := re.fullmatch(pattern, text, re.ASCII | re.IGNORECASE)) is None:
        raise ValueError(f"{text!r} {refusal}")
    return match


def _tuple(values: Any, check: Callable[[Any], Any], noun: str) -> tuple[Any, ...]:
    if isinstance(values, str | bytes):
        raise TypeError(f"{values!r} is one text; give a {noun} for each rank")
    return tuple(map(check, values))


def _instance(value: Any, types: Any, refusal: str) -> Any:
    if not isinstance(value, types):
        raise TypeError(f"{value!r} {refusal}")
    return value


_text = partial(_instance, types=str, refusal="is not a text")


def _datatype(value: Any) -> str:
    """Return the text of a datatype, which may be an object of `mpired.datatypes`, NumPy or mpi4py."""
    if type(value).__module__.startswith("mpired.datatypes."):
        return str(value)
    numpy: Any = sys.modules.get("numpy")
    if numpy and (isinstance(value, numpy.dtype) or (isinstance(value, type) and issubclass(value, numpy.generic))):
        dtype = numpy.dtype(value)
        return str(dtype.name if dtype.isnative else dtype.str)
    return mpi4py_objects.DatatypeText(value) if mpi4py_objects.is_datatype(value) else _text(value)


def _path(value: Any) -> str:
    refusal = "is not the path of a file; give one, such as 'out.npy'"
    return os.fsdecode(_instance(value, str | os.PathLike, refusal))


def _two_paths(value: Any) -> tuple[str, ...]:
    paths = value.split(",") if isinstance(value, str) else value
    if not isinstance(paths, Sequence) or len(paths) != 2 or not all(paths):  # noqa: PLR2004 - two
        raise ValueError("needs the paths of two files, such as values.npy,indices.npy")
    return tuple(map(_path, paths))


def _word(words: Sequence[str], value: Any) -> Any:
    if value not in words:
        raise ValueError(f"{value!r} is none of {', '.join(words)}")
    return str(value)


def _engine(value: Any) -> Any:
    """Return the name of an engine, or an object that runs tasks, such as an executor or a client of Dask."""
    runs_tasks = any(callable(getattr(value, name, None)) for name in ("submit", "everywhere"))
    return value if runs_tasks else _word(_ENGINES, value)


def _integer(value: Any, low: int | None = None, below: int | None = None) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{value!r} is not an integer") from None
    if below is not None and not (low or 0) <= number < below:
        raise ValueError(f"{number} is not between {low or 0} and 2**{below.bit_length() - 1} - 1")
    if low is not None and number < low:
        raise ValueError(f"{number} is {f'below {low}' if low else 'negative'}; give {low} or more")
    return number


_count = partial(_integer, low=0, below=2**63)


def _parsed_size(text: str) -> int:
    refusal = "is not a size in bytes; write 4096, 512M or 2G, where K is 1024"
    digits, unit = _match(r"\s*([-+]?\d{1,4300})\s*([KMGT]?)(?:i?B)?\s*", text, refusal).groups()
    return int(digits) * _UNITS[unit.upper()]


def _parsed_number(text: str) -> float | int:
    """Parse a number; digits without a point or exponent are an integer."""
    _match(_NUMBER, text, "is not a number; write one such as 2.5")
    return int(text) if re.fullmatch(r"\s*[-+]?\d{1,308}\s*", text) else float(text)


def _number(value: Any) -> float | int:
    """Return a number of Python or NumPy as int or float."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise ValueError(f"{value!r} is not a number")
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


def _seconds(value: Any, *, zero: bool) -> float:
    if not isinstance(value, int | float) or not (value > 0 or (zero and value == 0)) or value == math.inf:
        raise ValueError(f"{value!r} is not a time; give seconds{', 0 to try once' if zero else ' above 0'}")
    return value


def _amount(value: Any) -> float:
    amount = float(_number(value))
    if not 0 <= amount < math.inf:
        problem = "negative" if amount < 0 else "not finite"
        raise ValueError(f"{value!r} is {problem}; give 0 or more, such as 1e-9")
    return amount


def _numbers(value: Any) -> tuple[float, ...]:
    numbers = tuple(map(float, _tuple(value, _number, "number")))
    if not numbers:
        raise ValueError("has no number; give one for each rank")
    if not all(map(math.isfinite, numbers)):
        raise ValueError("has a number that is not finite; give finite numbers")
    return numbers


def _names(value: Any) -> tuple[str, ...]:
    """Return names from a sequence or a text with commas, where a name may be quoted (CSV)."""
    if not isinstance(value, str):
        if not all(isinstance(name, str) for name in value):
            raise ValueError(f"{value!r} are not names")
        return tuple(value)
    try:
        names = next(csv.reader([value], strict=True)) if '"' in value else value.split(",")
    except csv.Error:
        raise ValueError(f"{value!r} has a quote that does not end; write '\"a,b\",c' for a,b and c") from None
    if not all(names) and '""' not in value:
        raise ValueError(f"{value!r} has an empty name; write '\"\"' for one")
    return tuple(names)


def _some_names(value: Any) -> tuple[str, ...]:
    if not (names := _names(value)):
        raise ValueError(f"{value!r} has no name; leave it out for all")
    return names


def _parsed_counts(text: str, refusal: str = "are not counts; write 3,0,5") -> tuple[int, ...]:
    _match(r"\d{1,19}(,\d{1,19})*", text, refusal)
    return tuple(map(int, text.split(",")))


def _rank_numbers(value: Any) -> tuple[int, ...]:
    """Return the numbers of ranks from a sequence or a text such as 0-10,20."""
    if not isinstance(value, str):
        refusal = "are not numbers of ranks; give a string such as '0-511', or a range"
        return tuple(map(_count, _instance(value, Iterable, refusal)))
    numbers: list[int] = []
    for part in value.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first:
            raise ValueError(f"{value!r} are not numbers of ranks; write 0-511, or 0-10,20")
        if len(numbers) + last - first >= _MOST_RANKS:
            raise ValueError(f"{value!r} are more than {_MOST_RANKS} ranks")
        numbers += range(first, last + 1)
    return tuple(numbers)


def _regex(value: Any) -> str:
    try:
        groups = re.compile(_text(value)).groups
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression ({error})") from None
    if not groups:
        raise ValueError(f"{value!r} has no group; put the digits in parentheses, e.g. 'out\\.(\\d+)'")
    return str(value)


def _creation(value: Any) -> bool | tuple[int, ...] | None:
    """Return a shape, True for the shape of the first origin, or None for no creation."""
    if isinstance(value, str):
        refusal = "is not a count or shape; write 100, or 3,4, or nothing"
        value = value == LIKE or _parsed_counts(value, refusal)
    if isinstance(value, bool):
        return value or None
    try:
        shape = tuple(map(operator.index, value if isinstance(value, Sequence) else [value]))
    except TypeError:
        raise ValueError(f"{value!r} is not a count or shape") from None
    if any(dim < 0 for dim in shape) or math.prod(shape) >= 2**60:
        raise ValueError(f"{value} is not a count or shape")
    return shape


def _index(value: Any) -> str:
    """Return the text of an index, such as 3,0:5; in Python it may be an int, a slice, `...` or a tuple of these."""
    if isinstance(value, str):
        return value
    items = []
    for item in value if isinstance(value, tuple) else [value]:
        if item is ...:
            items.append("...")
            continue
        steps = [] if getattr(item, "step", None) is None else [item.step]
        bounds = [item.start, item.stop, *steps] if isinstance(item, slice) else [item]
        items.append(":".join("" if bound is None else str(_integer(bound)) for bound in bounds))
    return ",".join(items)


def _ranks(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str | bytes | os.PathLike):
        raise TypeError("is one path; give a list of paths, one a rank")
    return tuple(os.fspath(rank) if isinstance(rank, os.PathLike) else rank for rank in value)


FLAG = Kind("", "bool", partial(_instance, types=bool, refusal="is neither true nor false"))
TEXT = Kind("TEXT", check=_text)
FILE = Kind("FILE", "PathLike", _path, offers="file")
PATH = FILE._replace(metavar="PATH")
INDEX = Kind("INDEX", "Index", _index)
TYPE = Kind("TYPE", "DatatypeLike", _datatype, offers="datatype")
FORMAT = Kind("FORMAT", check=_text, offers="format")  # `formats.recognise` checks the name
INPUT_FORMAT = Kind("FORMAT", check=_text, offers="input format")
ENGINE_NAME = Kind("", "EngineLike", _engine, words=_ENGINES)
TWO_PATHS = Kind("VALUES,INDICES", "tuple[PathLike, PathLike]", _two_paths)
NUMBER = Kind("VALUE", "float", _number, _parsed_number)
AMOUNT = Kind("X", "float", _amount, _parsed_number)
NUMBERS = Kind("NUMBER,...", "Sequence[float]", _numbers, lambda text: tuple(map(_parsed_number, text.split(","))))
COUNTS = Kind("N,...", "Sequence[int]", partial(_tuple, check=_count, noun="count"), _parsed_counts)
RANK_NUMBERS = Kind("N-M,...", "str | Sequence[int]", _rank_numbers, _rank_numbers)
REGEX = Kind("REGEX", check=_regex)
CREATION = Kind("[COUNT|SHAPE]", "bool | str | int | Sequence[int]", _creation, _creation, "file")
_COMMA = ("NAME", "Quote a name with a comma: '\"a,b\",c'.")
NAMES = Kind("NAME,...", "str | Sequence[str]", _names, _names, "column", _COMMA)
SOME_NAMES = NAMES._replace(check=_some_names)
RANKS = Kind("RANK...", "Several[Rank]", _ranks, offers="file")  # on the command line an option is repeated


def words(*allowed: str) -> Kind:
    """Return the kind of these words."""
    return Kind("", check=partial(_word, allowed), words=allowed)


def integers(metavar: str = "N", *, low: int | None = None, below: int | None = None) -> Kind:
    """Return the kind of integers from `low` to `below - 1`."""
    pattern, refusal = r"\s*[-+]?\d{1,4300}\s*", "is not an integer; write one such as 12"
    check = partial(_integer, low=low, below=below)
    return Kind(metavar, "int", check, lambda text: int(_match(pattern, text, refusal)[0]))


def sizes(*, low: int, below: int | None = None) -> Kind:
    """Return the kind of sizes in bytes; on the command line a unit may end with B or iB."""
    note = ("SIZE", "K, KB and KiB are all 1024 bytes; M, G and T are likewise powers of 1024.")
    return Kind("SIZE", "int", partial(_integer, low=low, below=below), _parsed_size, note=note)


def times(*, zero: bool) -> Kind:
    """Return the kind of times in seconds, above 0 or also 0."""
    return Kind("SECONDS", "float", partial(_seconds, zero=zero), lambda text: float(_parsed_number(text)))


_INDEX = r"[-+]?\d{1,19}"
_PART = rf"(?P<position>{_INDEX})|({_INDEX})?\s*:\s*({_INDEX})?\s*(?::\s*({_INDEX})?)?"


def parsed_index(name: str, text: str, shape: tuple[int, ...]) -> list[int | slice]:
    """Parse an index in NumPy's notation, the value of the option `name`, for an array with this shape."""
    subject, parts = f"`{name}={text!r}`", [part.strip() for part in text.split(",")]
    if len(parts) > 1 and not parts[-1]:  # a tuple may end with a comma
        parts.pop()
    count = len(parts) - parts.count("...")
    if count > len(shape) or len(parts) > count + 1:
        raise UsageError(subject, f"has {len(parts)} indices, but the elements have shape {shape}")
    ellipsis = parts.index("...") if "..." in parts else len(parts)
    parts[ellipsis : ellipsis + 1] = [":"] * (len(shape) - count)
    index: list[int | slice] = []
    for axis, (part, dim) in enumerate(zip(parts, shape, strict=True)):
        match = re.fullmatch(_PART, part, re.ASCII)
        bounds = [None if bound is None else int(bound) for bound in match.groups()[1:]] if match else []
        if match is None or bounds[2] == 0:
            raise UsageError(subject, f"{part!r} is not an index; write a number, START:STOP or START:STOP:STEP")
        if match["position"] is None:
            index.append(slice(*bounds))
        elif -dim <= (position := int(match["position"])) < dim:
            index.append(position % dim)
        else:
            raise RangeError(subject, f"index {position} is out of bounds for axis {axis} with {dim} elements")
    return index
