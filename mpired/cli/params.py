"""The options that commands share, each written once, and the types of their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mpired.buffers import FORMATS
from mpired.cli import environment
from mpired.cli.messages import say
from mpired.ops import OVERFLOWS

_F = TypeVar("_F", bound=Callable[..., Any])

if TYPE_CHECKING:
    _Number = click.ParamType[Any]
    _Size = click.ParamType[int]
    _Names = click.ParamType[tuple[str, ...]]
    _Counts = click.ParamType[tuple[int, ...]]
else:  # before click 8.4 they say nothing of the values
    _Number = _Size = _Names = _Counts = click.ParamType

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class MemorySize(_Size):
    """Bytes, with K, M, G or T for powers of 1024."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        match = re.fullmatch(r"(\d{1,15})\s*([KMGT]?)(?:i?B)?", str(value), re.IGNORECASE | re.ASCII)
        if match is None:
            self.fail(f"{value!r} is not a size; write 512M or 2G", param, ctx)
        return int(match[1]) * _UNITS[match[2].upper()]


class _Plain(_Number):
    """Numbers in ASCII digits: Python takes those of all scripts, and underscores between them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        if isinstance(value, str) and (not value.isascii() or "_" in value):
            self.fail(f"{value!r} is not a valid {self.name}; write it in the digits 0 to 9", param, ctx)
        return super().convert(value, param, ctx)


class _Integer(_Plain, click.types.IntParamType):
    """An integer."""


class _IntegerRange(_Plain, click.IntRange):
    """An integer in a range."""


class _Real(_Plain, click.types.FloatParamType):
    """A number."""


_NUMBERS = {int: _Integer(), float: _Real()}


class Names(_Names):
    """Names separated by commas."""

    name = "NAME,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the names."""
        names = value if isinstance(value, tuple) else tuple(value.split(","))
        if not all(names):
            self.fail(f"{value!r} has an empty name", param, ctx)
        return names


class Counts(_Counts):
    """Counts separated by commas."""

    name = "N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the counts."""
        if isinstance(value, tuple):
            return value
        if re.fullmatch(r"\d{1,19}(,\d{1,19})*", value, re.ASCII) is None:
            self.fail(f"{value!r} are no counts; write 3,0,5", param, ctx)
        return tuple(map(int, value.split(",")))


class Grouped(click.Command):
    """A command whose `--group-b` takes all words up to the next option, as `--group-b r0.npy r1.npy -o out`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, each of the group as an option of its own."""
        spread: list[str] = []
        inside = False
        for number, word in enumerate(args):
            if word == "--":
                spread += args[number:]
                break
            if word == "--group-b":
                inside = True
                if number + 1 == len(args) or _is_option(args[number + 1]):
                    raise click.BadOptionUsage("--group-b", "--group-b needs the ranks of the group", ctx)
            elif _is_option(word):
                inside = False
                spread.append(word)
            else:
                spread.append(f"--group-b={word}" if inside else word)
        return super().parse_args(ctx, spread)


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def option(*names: str, **settings: Any) -> Callable[[_F], _F]:
    """Return a click option that the environment variable `MPIRED_<OPTION>` can set too."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    settings.setdefault("envvar", "MPIRED_" + long[2:].replace("-", "_").upper())
    if (number := settings.get("type")) in _NUMBERS:
        settings["type"] = _NUMBERS[number]
    return click.option(*names, cls=environment.Option, **settings)


def together(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Return one decorator for several options, in the order of the help."""

    def decorate(function: _F) -> _F:
        for each in reversed(options):
            function = each(function)
        return function

    return decorate


_OVERFLOW = option(
    "--overflow",
    type=click.Choice(OVERFLOWS),
    help="What a sum or product is that its datatype cannot hold: a warning, the default, expected, or an error.",
)

OP = together(
    # No environment variable: it may name code to load.
    click.option(
        "--op",
        required=True,
        metavar="OP",
        help="A predefined op, with or without MPI_; FILE.py:FUNCTION; PACKAGE.MODULE:FUNCTION; ./LIB.so:SYMBOL; "
        "or an installed op. `mpired ops` lists them.",
    ),
    option("--commute/--no-commute", default=None, help="Say whether a user-defined op commutes."),
    option("--op-timeout", type=float, metavar="SECONDS", help="The most that one call of a user-defined op may take."),
    _OVERFLOW,
)

TYPES = option("--types", metavar="FILE", help="A TOML file of named datatypes, that TYPE may use.")

BYTE_ORDER = option(
    "--byte-order", type=click.Choice(["little", "big", "native"]), help="Of raw files; default native."
)

RECORDS = together(
    option("--type", required=True, metavar="TYPE", help="The datatype of an element, as 'resized(0,24,double)'."),
    TYPES,
    option("--offset", type=int, default=0, metavar="BYTES", help="Where the first element's displacement 0 is."),
    option("--count", type=int, metavar="N", help="Elements; default all there are."),
    BYTE_ORDER,
    option(
        "--datarep",
        type=click.Choice(["native", "external32"]),
        help="The data representation of the packed elements, if raw; default native.",
    ),
)

INPUTS = together(
    option("--type", metavar="TYPE", help="The MPI datatype or NumPy code of an element; raw files need it."),
    TYPES,
    option(
        "--from",
        "format",
        type=click.Choice([row.name for row in FORMATS.values() if row.readable]),
        help="The format of the inputs, instead of looking at them.",
    ),
    option("--columns", type=Names(), default=(), help="The parquet or arrow columns that are buffers; default all."),
    option("--pair", type=Names(), metavar="VALUE,INDEX", help="Two columns that are one buffer of pairs."),
    option("--offset", type=int, default=0, metavar="BYTES", help="Bytes to skip at the start of raw files."),
    option("--count", type=int, metavar="N", help="Elements to read of raw files; default all."),
    BYTE_ORDER,
    option(
        "--datarep",
        type=click.Choice(["native", "external32"]),
        help="The data representation of raw files, those that are written too; default native.",
    ),
)

FORCE = option(
    "-f",
    "--force",
    "-O",
    "--overwrite",
    "overwrite",
    is_flag=True,
    envvar=["MPIRED_OVERWRITE", "MPIRED_FORCE"],
    help="Replace an existing file.",
)

LOCK_TIMEOUT = option(
    "--lock-timeout",
    type=float,
    metavar="SECONDS",
    help="The most to wait for others that have a file locked that is changed or half changed; default 60, 0 tries "
    "once.",
)

TO = option("--to", type=click.Choice(list(FORMATS)), help="Its format; default by suffix, then as the inputs.")

OUTPUT = together(
    option(
        "-o", "--output", default="-", metavar="PATH", help="The file to write; `-`, the default, is standard output."
    ),
    TO,
    FORCE,
    LOCK_TIMEOUT,
)


def _unless_empty(_context: click.Context, _parameter: click.Parameter, words: tuple[str, ...]) -> Any:
    return words or None


GROUP_B = click.option(
    "--group-b",
    multiple=True,
    callback=_unless_empty,
    metavar="RANK...",
    help="The ranks of a second group, up to the next option: each group gets what the other one reduces.",
)

# Scans are not defined between two groups, which is said where it is asked for.
NO_GROUP_B = click.option("--group-b", multiple=True, callback=_unless_empty, hidden=True)

PATTERN = together(
    option(
        "-o", "--output", metavar="PATTERN", help="The files to write, as 'out_{rank}.npy'; also {rank:05d}, {stem}."
    ),
    option("--in-place", is_flag=True, help="Replace every rank's file by its result (MPI_IN_PLACE)."),
    TO,
    FORCE,
    LOCK_TIMEOUT,
)

EFFORT = together(
    option(
        "-j",
        "--jobs",
        type=_IntegerRange(0),
        default=0,
        metavar="N",
        help="Workers; 0, the default, is all usable cores.",
    ),
    option("--max-memory", type=MemorySize(), help="The most memory for all processes together, as 2G."),
)

# Predefined ops only, so that no variable of the environment could load code; still what is done is said in words.
RMA_OP = together(
    click.option("--op", required=True, metavar="OP", help="A predefined op, with or without MPI_, or `replace`."),
    _OVERFLOW,
)

_WINDOW_HELP = "The window of a rank, in rank order; may be given several times. There is no TARGET then."

WINDOW = together(
    option(
        "--window",
        "windows",
        multiple=True,
        envvar=None,
        metavar="FILE",
        help=_WINDOW_HELP,
    ),
    option("--target-rank", type=int, metavar="R", help="Which of several windows is meant."),
    option("--target-disp", type=int, metavar="N", help="Where in the window, in units of --disp-unit; default 0."),
    option("--disp-unit", type=int, metavar="BYTES", help="What displacements count; default an element."),
    option("--target-count", type=int, metavar="N", help="Elements of the target; default as many as the origin has."),
    option("--target-type", metavar="TYPE", help="Their datatype, as `vector(3,1,2,double)`: where they lie."),
    option("--at", metavar="INDEX", help="A box of an npy target, as `3,0:5`."),
    option("--map", metavar="FILE", help="A file of integers: where each element of the origin goes."),
)

ELEMENT = together(
    option("--window", "windows", multiple=True, envvar=None, metavar="FILE", help=_WINDOW_HELP),
    option("--target-rank", type=int, metavar="R", help="Which of several windows is meant."),
    option("--target-disp", type=int, metavar="N", help="Where in the window, in units of --disp-unit; default 0."),
    option("--disp-unit", type=int, metavar="BYTES", help="What displacements count; default an element."),
    option("--at", metavar="INDEX", help="The index of the element of an npy target, as `3,0`."),
    option("--type", metavar="TYPE", help="The MPI datatype or NumPy code of an element; raw files need it."),
    option("--columns", type=Names(), default=(), help="The column of a parquet or arrow target with several."),
    option("--byte-order", type=click.Choice(["little", "big", "native"]), help="Of a raw file; default native."),
)

CREATE = option(
    "--create",
    metavar="COUNT|SHAPE",
    help="Make a missing target, as 100 or 3,4, filled with the identity of the op.",
)

ORIGIN = together(
    option("--origin-disp", type=int, default=0, metavar="N", help="Elements of the origin to leave out before."),
    option("--origin-count", type=int, metavar="N", help="Elements of the origin to use; default all."),
    option("--origin-type", metavar="TYPE", help="Their datatype, as for the target."),
)

TRANSACTION = together(
    option(
        "--commit",
        type=click.Choice(["auto", "rename", "journal"]),
        default="auto",
        help="How the target changes: a new file in its place, or in place behind a journal; auto chooses.",
    ),
    option(
        "--durability",
        type=click.Choice(["full", "process", "none"]),
        default="full",
        help="full, the default, survives a loss of power; process and none sync nothing, and survive kill -9.",
    ),
    LOCK_TIMEOUT,
)

QUIET = option("-q", "--quiet", is_flag=True, help="No summary on standard error.")

REPORT = together(
    QUIET,
    option("-v", "--verbose", is_flag=True, help="Also say how the work was done."),
    option("--json", "as_json", is_flag=True, help="The summary as JSON."),
)


def values(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return words that may be negative numbers; what else begins with a hyphen is an option that there is not."""
    for word in words:
        if re.fullmatch(r"--.*|-[a-z]+", word, re.IGNORECASE) and word.lower() not in {"-inf", "-infinity", "-nan"}:
            raise click.NoSuchOption(word, ctx=click.get_current_context())
    return words


def report_of(options: dict[str, Any]) -> dict[str, bool]:
    """Take what `REPORT` says out of all options."""
    return {name: options.pop(name) for name in ("quiet", "verbose", "as_json")}


JSON = option("--json", "as_json", is_flag=True, help="As JSON.")


def is_written(name: str) -> bool:
    """Tell whether an option stands on the command line, and is not from the environment."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def tell(line: str | None) -> None:
    """Say what was done, if anything, and which options the environment set: they are never silent."""
    if parts := [*([] if line is None else [line]), *environment.told()]:
        say("; ".join(parts))
