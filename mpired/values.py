"""What the values of options are: the text on the command line, and what Python's callers give, checked alike."""

from __future__ import annotations

import math
import operator
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from mpired import mpi4py_objects

_NUMBER = r"[-+]?((\d+(\.\d*)?|\.\d+)(e[-+]?\d+)?|inf|nan)"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class RefusedError(Exception):
    """Raised with the reason why a value is none of its kind."""


# Plain classes: every command makes them at its start, and dataclasses take ten times as long.
class Kind:
    """A kind of values, with its name in help. Both methods raise `RefusedError`."""

    metavar = ""
    static = "str"  # the type of a value in Python

    def __init__(self, metavar: str = "") -> None:
        self.metavar = metavar or self.metavar

    def parse(self, text: str) -> Any:
        """Return the value that a text of the command line or of the environment means, still to be checked."""
        return text

    def check(self, value: Any) -> Any:
        """Return the value that a caller in Python means; None never comes here."""
        return value


class Anything(Kind):
    """What is checked where it is used; on the command line a text."""

    metavar = "TEXT"


class OpName(Anything):
    """The name of an op, or the place of one; `use` is the family of calls: "REDUCE", "ACCUMULATE" or "FETCH".

    `names` are the only ones, if there are any.
    """

    metavar = "OP"

    def __init__(self, use: str, names: Sequence[str] = ()) -> None:
        super().__init__()
        self.use = use
        self.names = names


class Text(Kind):
    """A text."""

    static = "str"
    metavar = "TEXT"

    def check(self, value: Any) -> str:
        """Return the text."""
        if not isinstance(value, str):
            raise RefusedError(f"{value!r} is not a text")
        return value


class TypeText(Text):
    """The text of a datatype; in Python also one of `mpired.datatypes`, of NumPy or of mpi4py."""

    static = "DatatypeLike"
    metavar = "TYPE"

    def check(self, value: Any) -> str:
        """Return the text."""
        if type(value).__module__.startswith("mpired.datatypes."):
            return str(value)
        numpy: Any = sys.modules.get("numpy")
        if numpy and (isinstance(value, numpy.dtype) or (isinstance(value, type) and issubclass(value, numpy.generic))):
            dtype = numpy.dtype(value)
            return str(dtype.name if dtype.isnative else dtype.str)
        if not mpi4py_objects.is_datatype(value):
            return super().check(value)
        try:
            return mpi4py_objects.Decoded(value)
        except mpi4py_objects.NotExactError as error:
            raise RefusedError(str(error)) from None


class FormatName(Text):
    """The name of a format, or of one that can be read; checked where the table of formats is."""

    metavar = "FORMAT"

    def __init__(self, *, readable: bool = False) -> None:
        super().__init__()
        self.readable = readable


class Path(Kind):
    """The path of a file."""

    static = "PathLike"
    metavar = "FILE"

    def check(self, value: Any) -> str:
        """Return the path as a text."""
        if not isinstance(value, str | os.PathLike):
            raise RefusedError(f"{value!r} is not the path of a file; give one, such as 'out.npy'")
        return os.fsdecode(value)


class TwoPaths(Kind):
    """The paths of two files, in a text separated by a comma."""

    static = "tuple[PathLike, PathLike]"

    def parse(self, text: str) -> tuple[str, ...]:
        """Return the paths."""
        return tuple(text.split(","))

    def check(self, value: Any) -> tuple[str, str]:
        """Return the paths as texts."""
        paths = self.parse(value) if isinstance(value, str) else value
        if not isinstance(paths, Sequence) or len(paths) != 2 or not all(paths):  # noqa: PLR2004 - two
            raise RefusedError("needs the paths of two files, such as values.npy,indices.npy")
        first, second = map(Path().check, paths)
        return first, second


class Flag(Kind):
    """A thing that is so or not; on the command line a flag."""

    static = "bool"

    def check(self, value: Any) -> bool:
        """Return the value as a truth value."""
        if not isinstance(value, bool):
            raise RefusedError(f"{value!r} is neither true nor false")
        return value


class Word(Kind):
    """One of a few words."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__()
        self.words = words

    def check(self, value: Any) -> str:
        """Return the word."""
        if value not in self.words:
            raise RefusedError(f"{value!r} is none of {', '.join(self.words)}")
        return str(value)


class EngineName(Word):
    """The name of an engine; in Python also what takes tasks, as an executor or a client of Dask."""

    static = "EngineLike"

    def check(self, value: Any) -> Any:
        """Return the name, or what takes tasks."""
        takes = any(callable(getattr(value, name, None)) for name in ("submit", "everywhere"))
        return value if takes else super().check(value)


class Integer(Kind):
    """An integer, in ASCII digits: Python takes those of all scripts, and underscores between them."""

    static = "int"
    metavar = "N"

    def __init__(self, metavar: str = "", *, least: int | None = None, below: int | None = None) -> None:
        super().__init__(metavar)
        self.least = least
        self.below = below

    def parse(self, text: str) -> int:
        """Return the number."""
        if re.fullmatch(r"\s*[-+]?\d{1,4300}\s*", text, re.ASCII) is None:
            raise RefusedError(f"{text!r} is not an integer; write one such as 12")
        return int(text)

    def check(self, value: Any) -> int:
        """Return the number."""
        try:
            number = operator.index(value)
        except TypeError:
            raise RefusedError(f"{value!r} is not an integer") from None
        if self.below is not None and not (self.least or 0) <= number < self.below:
            raise RefusedError(f"{number} is not between {self.least or 0} and 2**{self.below.bit_length() - 1} - 1")
        if self.least is not None and number < self.least:
            what = f"below {self.least}" if self.least else "negative"
            raise RefusedError(f"{number} is {what}; give {self.least} or more")
        return number


class Seconds(Kind):
    """A time, above 0, or from 0 on if it may be none."""

    static = "float"
    metavar = "SECONDS"

    def __init__(self, *, zero: bool) -> None:
        super().__init__()
        self.zero = zero

    def parse(self, text: str) -> float:
        """Return the time."""
        if re.fullmatch(_NUMBER, text.strip(), re.ASCII | re.IGNORECASE) is None:
            raise RefusedError(f"{text!r} is not a number; write one such as 2.5")
        return float(text)

    def check(self, value: Any) -> float:
        """Return the time."""
        if not isinstance(value, int | float) or not (value > 0 or (self.zero and value == 0)) or value == math.inf:
            raise RefusedError(f"{value!r} is not a time; give seconds{', 0 to try once' if self.zero else ' above 0'}")
        return value


class Number(Kind):
    """A number."""

    static = "float"
    metavar = "NUMBER"

    def parse(self, text: str) -> float | int:
        """Return the number, an integer if it is written as one."""
        if re.fullmatch(r"[-+]?\d{1,400}", text.strip(), re.ASCII):
            return int(text)
        if re.fullmatch(_NUMBER, text.strip(), re.ASCII | re.IGNORECASE) is None:
            raise RefusedError(f"{text!r} is not a number; write one such as 2.5")
        return float(text)

    def check(self, value: Any) -> float | int:
        """Return the number, an integer if it is one, that of NumPy too."""
        if isinstance(value, bool) or not hasattr(value, "__float__"):
            raise RefusedError(f"{value!r} is not a number")
        try:
            return operator.index(value)
        except TypeError:
            return float(value)


class Numbers(Kind):
    """Numbers, in a text separated by commas."""

    static = "Sequence[float]"
    metavar = "NUMBER,..."

    def parse(self, text: str) -> tuple[float | int, ...]:
        """Return the numbers."""
        return tuple(Number().parse(each) for each in text.split(","))

    def check(self, value: Any) -> tuple[float, ...]:
        """Return them as finite floats."""
        if isinstance(value, str | bytes):
            raise RefusedError(f"{value!r} is one text; give a number for each rank")
        numbers = tuple(float(Number().check(each)) for each in value)
        if not all(map(math.isfinite, numbers)):
            raise RefusedError("has a number that is not finite; give finite numbers")
        return numbers


class Amount(Number):
    """How much numbers may differ: a number from 0 on."""

    metavar = "X"

    def check(self, value: Any) -> float:
        """Return the number as a float."""
        amount = float(super().check(value))
        if not 0 <= amount < math.inf:
            what = "negative" if amount < 0 else "not finite"
            raise RefusedError(f"{value!r} is {what}; give 0 or more, such as 1e-9")
        return amount


class Size(Integer):
    """Bytes; on the command line with K, M, G or T for powers of 1024, of which B and iB behind change nothing."""

    metavar = "SIZE"

    def parse(self, text: str) -> int:
        """Return the number of bytes."""
        match = re.fullmatch(r"\s*([-+]?\d{1,4300})\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE | re.ASCII)
        if match is None:
            raise RefusedError(f"{text!r} is not a size in bytes; write 4096, 512M or 2G, where K is 1024")
        return int(match[1]) * _UNITS[match[2].upper()]


class Names(Kind):
    """Names, in a text separated by commas; one in double quotes may have commas, and quotes that are doubled (CSV)."""

    static = "str | Sequence[str]"
    metavar = "NAME,..."

    def parse(self, text: str) -> tuple[str, ...]:
        """Return the names."""
        import csv  # noqa: PLC0415 - of few commands

        try:
            names = next(csv.reader([text], strict=True)) if '"' in text else text.split(",")
        except csv.Error:
            raise RefusedError(f"{text!r} has a quote that does not end; write '\"a,b\",c' for a,b and c") from None
        if not all(names):
            raise RefusedError(f"{text!r} has an empty name")
        return tuple(names)

    def check(self, value: Any) -> tuple[str, ...]:
        """Return the names; a text is as on the command line."""
        if isinstance(value, str):
            return self.parse(value)
        if not all(isinstance(name, str) for name in value):
            raise RefusedError(f"{value!r} are not names")
        return tuple(value)


def number(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def listed(names: Iterable[str]) -> str:
    """Return names as a text that `Names` reads."""
    return ",".join(_quoted(name) for name in names)


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"' if "," in name or name.startswith('"') else name


class Counts(Kind):
    """Counts of elements, in a text separated by commas."""

    static = "Sequence[int]"
    metavar = "N,..."

    def parse(self, text: str) -> tuple[int, ...]:
        """Return the counts."""
        if re.fullmatch(r"\d{1,19}(,\d{1,19})*", text, re.ASCII) is None:
            raise RefusedError(f"{text!r} are not counts; write 3,0,5")
        return tuple(map(int, text.split(",")))

    def check(self, value: Any) -> tuple[int, ...]:
        """Return the counts."""
        if isinstance(value, str | bytes):
            raise RefusedError(f"{value!r} is one text; give a count for each rank")
        return tuple(Integer(least=0, below=2**63).check(count) for count in value)


class RankNumbers(Kind):
    """Numbers of ranks, in a text single ones and ranges, separated by commas."""

    static = "str | Sequence[int]"
    metavar = "N-M,..."
    _MOST = 1 << 22

    def parse(self, text: str) -> tuple[int, ...]:
        """Return the numbers in the order given."""
        numbers: list[int] = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*(\d{1,18})(?:-(\d{1,18}))?\s*", part, re.ASCII)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
            if last < first:
                raise RefusedError(f"{text!r} are not numbers of ranks; write 0-511, or 0-10,20")
            if len(numbers) + last - first >= self._MOST:
                raise RefusedError(f"{text!r} are more than {self._MOST} ranks")
            numbers += range(first, last + 1)
        return tuple(numbers)

    def check(self, value: Any) -> tuple[int, ...]:
        """Return the numbers; a text is as on the command line."""
        if isinstance(value, str):
            return self.parse(value)
        if not isinstance(value, Iterable):
            raise RefusedError(f"{value!r} are not numbers of ranks; give a string such as '0-511', or a range")
        return tuple(Integer(least=0, below=2**63).check(number) for number in value)


class Regex(Text):
    """A regular expression whose first group is what is looked for."""

    metavar = "REGEX"

    def check(self, value: Any) -> str:
        """Return the text, if it is one."""
        text = super().check(value)
        try:
            groups = re.compile(text).groups
        except re.error as error:
            raise RefusedError(f"{text!r} is not a regular expression ({error})") from None
        if not groups:
            raise RefusedError(f"{text!r} has no group; put the digits in parentheses, e.g. 'out\\.(\\d+)'")
        return text


class Creation(Kind):
    """How many elements a new file has: a count, a shape, or True for those of an origin."""

    static = "bool | str | int | Sequence[int]"
    metavar = "[COUNT|SHAPE]"
    LIKE = "like"

    def parse(self, text: str) -> Any:
        """Return the shape, or the word for True."""
        if text == self.LIKE:
            return True
        if re.fullmatch(r"\d{1,18}(,\d{1,18})*", text, re.ASCII) is None:
            raise RefusedError(f"{text!r} is not a count or shape; write 100, or 3,4, or nothing")
        return tuple(map(int, text.split(",")))

    def check(self, value: Any) -> bool | tuple[int, ...] | None:
        """Return the shape, or True; None for False."""
        if isinstance(value, str):
            value = self.parse(value)
        if isinstance(value, bool):
            return value or None
        try:
            shape = tuple(map(operator.index, value if isinstance(value, Sequence) else [value]))
        except TypeError:
            raise RefusedError(f"{value!r} is not a count or shape") from None
        if any(dim < 0 for dim in shape) or math.prod(shape) >= 2**60:
            raise RefusedError(f"{value} is not a count or shape")
        return shape


class Ranks(Kind):
    """The files of ranks; on the command line an option for each. In Python they may be other ranks, too."""

    static = "Several[Rank]"
    metavar = "RANK..."

    def check(self, value: Any) -> tuple[Any, ...]:
        """Return the ranks, paths as text."""
        if isinstance(value, str | bytes | os.PathLike):
            raise RefusedError("is one path; give a list of paths, one a rank")
        return tuple(os.fspath(rank) if isinstance(rank, os.PathLike) else rank for rank in value)
