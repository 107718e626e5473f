"""The rows of `mpired.options` as parameters of click's commands."""

from __future__ import annotations

import inspect
import itertools
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from mpired.buffers import FORMATS, format_names
from mpired.cli import environment
from mpired.cli.messages import EXIT_STATUS, REPORT, say
from mpired.ops import OPS, Use
from mpired.options import RUNNING, SECTIONS, Option, Quiet, Report, rows
from mpired.values import Creation, Flag, FormatName, Kind, OpName, Path, RefusedError, Size, Text, Word

_F = TypeVar("_F", bound=Callable[..., Any])

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    _Values = click.ParamType[Any]
else:  # before click 8.4 it says nothing of the values
    _Values = click.ParamType

_FEW = 6
_UNITS = " K, M, G and T are powers of 1024."


class _Value(_Values):
    """The values of an option."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.name = kind.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value that a text means."""
        try:
            return self._kind.parse(value) if isinstance(value, str) else value
        except RefusedError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Return what a shell offers for a value that is begun."""
        from mpired.cli.offers import Begun, offered  # noqa: PLC0415 - for shells only

        return offered(Begun(self._kind, ctx.obj or (), incomplete))


FILE = _Value(Path())
"""An argument that is a file, or what else the command says."""
TYPE = _Value(Text("TYPE"))
"""The text of a datatype."""
DIRECTORY = _Value(Path("DIR"))
"""A directory."""


class _Formats(click.Choice[str]):
    """The names of formats. Those of installed packages are looked for only if a name is not one of mpired's own."""

    def __init__(self, kind: FormatName) -> None:
        super().__init__([row.name for row in FORMATS.values() if row.readable or not kind.readable])
        self._readable = kind.readable

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of a format."""
        if value not in self.choices:
            self._find_installed()
        return super().convert(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Return what the help shows for a value: all names."""
        self._find_installed()
        return super().get_metavar(param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Return the names that a shell offers."""
        self._find_installed()
        return super().shell_complete(ctx, param, incomplete)

    def _find_installed(self) -> None:
        self.choices = tuple(format_names(readable=self._readable))


class Command(click.Command):
    """A command whose help has an example on top, the options by what they are needed for, and exit statuses last."""

    def __init__(self, **settings: Any) -> None:
        first, *others = inspect.cleandoc(settings.pop("help") or "").split("\n\n")
        ordered = sorted(others, key=lambda paragraph: not paragraph.startswith("\b"))
        super().__init__(**settings, help="\n\n".join([first, *ordered]), epilog=EXIT_STATUS)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, in sections if there are many."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for option in options:
            if (record := option.get_help_record(ctx)) is not None:
                row = getattr(option, "row", None)
                sections[row.section if row and len(options) > _FEW else RUNNING].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title if len(options) > _FEW else "Options"):
                    formatter.write_dl(records)


class Grouped(Command):
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
                if (number + 1 == len(args) or _is_option(args[number + 1])) and not ctx.resilient_parsing:
                    raise click.BadOptionUsage("--group-b", "--group-b needs the ranks of the group", ctx)
            elif _is_option(word):
                inside = False
                spread.append(word)
            else:
                spread.append(f"--group-b={word}" if inside else word)
        return super().parse_args(ctx, spread)


class Creating(Command):
    """A command whose `--create` may stand alone, and takes the next word only if that is a count or a shape."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, `--create` alone as `--create=like`."""
        end = args.index("--") if "--" in args else len(args)
        spread = [
            f"--create={Creation.LIKE}" if word == "--create" and not _is_shape(after) else word
            for word, after in itertools.pairwise([*args[:end], ""])
        ]
        return super().parse_args(ctx, spread + args[end:])


def _is_shape(word: str) -> bool:
    """Tell whether a word behind `--create` is a count or a shape.

    Raises
    ------
    click.UsageError
        If it may be meant as one and is none, or is the name of a file too.
    """
    if not any(each.isdigit() for each in word) or any(each.isalpha() and each not in "xXeE" for each in word):
        return False
    try:
        Creation().parse(word)
    except RefusedError as error:
        if "/" in word or os.path.lexists(word) or _is_option(word):
            return False
        raise click.BadOptionUsage("create", f"--create: {error}; a TARGET of that name is ./{word}") from None
    if os.path.lexists(word):
        reason = f"{word} is a count and also a file; write --create={word}, or ./{word} for the file"
        raise click.BadOptionUsage("create", f"--create: {reason}")
    return True


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def options(*known: type) -> Callable[[_F], _F]:
    """Give a command the options of some groups, in the order of the help."""

    def decorate(function: _F) -> _F:
        table = [(name, row, group) for group in known for name, row in rows(group).items()]
        for name, row, group in reversed(table):
            function = _parameter(name, row, is_report=group in {Quiet, Report})(function)
        return function

    return decorate


def _parameter(name: str, row: Option, *, is_report: bool) -> Callable[[_F], _F]:
    """Return an option of click, which the environment may set too; what concerns the report is kept for `report`."""
    settings: dict[str, Any] = {
        "cls": environment.Option,
        "default": row.default,
        "envvar": row.variables or None,
        "help": f"{row.help}{_ops_named(row.kind)}{_UNITS if isinstance(row.kind, Size) else ''}",
        "hidden": row.hidden,
        "row": row,
        "required": row.required,
        "multiple": row.multiple,
        "expose_value": not is_report,
        "callback": _kept if is_report else _none_if_empty if row.multiple else None,
    }
    if row.required:
        del settings["default"]  # None would be one
    if isinstance(row.kind, Flag):
        settings["is_flag"] = True
    else:
        settings["type"] = _type(row.kind)
        settings["metavar"] = row.kind.metavar if isinstance(settings["type"], _Value) else None
    return click.option(name, *row.flags.split(), **settings)


def _ops_named(kind: Kind) -> str:
    """Return the names of the ops that an option takes."""
    if not isinstance(kind, OpName):
        return ""
    uses = Use.REDUCE if kind.reduces else Use.ACCUMULATE | Use.FETCH
    return f" Predefined: {', '.join(op.name.lower() for op in OPS if op.uses & uses)}."


def _type(kind: Kind) -> _Values:
    match kind:
        case Word():
            return click.Choice(kind.words)
        case FormatName():
            return _Formats(kind)
    return _Value(kind)


def _none_if_empty(_context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> Any:
    return words or parameter.default


def _kept(context: click.Context, parameter: click.Parameter, value: object) -> None:
    context.meta.setdefault(REPORT, {})[parameter.name] = value


def report() -> Report:
    """Return what the options of the report say, of the command that runs."""
    return cast("Report", click.get_current_context().meta[REPORT])


def values(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return words that may be negative numbers; what else begins with a hyphen is an option that there is not."""
    for word in words:
        if re.fullmatch(r"--.*|-[a-z]+", word, re.IGNORECASE) and word.lower() not in {"-inf", "-infinity", "-nan"}:
            raise click.NoSuchOption(word, ctx=click.get_current_context())
    return words


def is_written(name: str) -> bool:
    """Tell whether an option stands on the command line, and is not from the environment."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def tell(line: str | None) -> None:
    """Say what was done, if anything, and which options the environment set: they are never silent."""
    if parts := [*([] if line is None else [line]), *environment.told()]:
        say("; ".join(parts))
