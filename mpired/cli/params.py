"""The rows of `mpired.options` as parameters of click's commands."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from mpired.buffers import FORMATS, format_names
from mpired.cli import environment, progress, signals
from mpired.cli.messages import REPORT_KEY, json_line, know_flags, say, show, tell_cautions, warning_texts
from mpired.context import Context
from mpired.engines import launched
from mpired.errors import escaped
from mpired.log import collect_steps
from mpired.ops import STATISTICS, Use, ops_for
from mpired.options import OPTIONS, RUNNING, SECTIONS, Group, Option, Options, keyword
from mpired.values import Creation, Flag, FormatName, Kind, Names, OpName, Path, RefusedError, Size, TypeText, Word

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from mpired.errors import MpiredWarning
    from mpired.ranks import RankWord
    from mpired.report import Description

    _Values = click.ParamType[Any]
else:  # before click 8.4 it says nothing of the values
    _Values = click.ParamType

_FEW = 6
_SKIPPED = 9
_NUMBERED = f"{__name__}.numbered"
_CONTEXT = f"{__name__}.context"
WORKER = f"{__name__}.worker"
# Where the context keeps what commands do not pass on.
_KEPT = {**dict.fromkeys(("quiet", "dry_run", "as_json", "verbose"), REPORT_KEY), "rank_numbers": _NUMBERED}
_NOTES = {
    Size: ("SIZE", "K, KB and KiB are all 1024 bytes; M, G and T are likewise powers of 1024."),
    Names: ("NAME", "Quote a name with a comma: '\"a,b\",c'."),
}


def _first_sentence(text: str) -> str:
    """Return a text up to its first period before a capital letter, so not that of "such as a.b"."""
    return re.split(r"\. (?=[A-Z`])", text, maxsplit=1)[0].removesuffix(".")


def _short_term(row: Option) -> str:
    """Return the flags of an option without synonyms, and its values."""
    letters = [flag for flag in (row.flags or "").split() if not flag.startswith("--")][:1]
    values = f"[{'|'.join(row.kind.words)}]" if isinstance(row.kind, Word) else row.kind.metavar
    return f"{', '.join([*letters, row.long_flags[0]])} {values or ''}".rstrip()


def _show_short_help(ctx: click.Context, _option: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if value and not ctx.resilient_parsing:
        click.echo(cast("Command", ctx.command).short_help_text(ctx))
        ctx.exit()


_SHORT_HELP: Mapping[str, Any] = {
    "is_flag": True,
    "is_eager": True,
    "expose_value": False,
    "callback": _show_short_help,
    "help": "Show the options that most jobs need.",
}


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
        from mpired.cli.offers import offered  # noqa: PLC0415 - for shells only

        return offered(self._kind, ctx.obj or (), incomplete)


FILE = _Value(Path())
"""An argument that is a file, or what else the command says."""
TYPE = _Value(TypeText())
"""The text of a datatype."""
_ARGUMENTS = {"[TYPE]": TYPE, "DIR": _Value(Path("DIR"))}


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

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - click's
        """Return what the help shows for a value: they are too many for a line."""
        return "FORMAT"

    def note(self) -> str:
        """Return what the help says besides: all names."""
        self._find_installed()
        return f"One of {', '.join(self.choices)}."

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Return the names that a shell offers."""
        self._find_installed()
        return super().shell_complete(ctx, param, incomplete)

    def _find_installed(self) -> None:
        self.choices = tuple(format_names(readable=self._readable))


class Command(click.Command):
    """A command with help in two lengths, each with the examples before the options."""

    def __init__(self, **settings: Any) -> None:
        first, *others = inspect.cleandoc(settings.pop("help") or "").split("\n\n")
        ordered = sorted(others, key=lambda paragraph: not paragraph.startswith("\b"))
        super().__init__(**settings, help="\n\n".join([first, *ordered]))

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Return the flag that shows the whole help."""
        del ctx
        return ["--help"]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with the two options for help last."""
        *own, whole = super().get_params(ctx)
        return [*own, click.Option(["-h", "short_help"], **_SHORT_HELP), whole]

    def short_help_text(self, ctx: click.Context) -> str:
        """Return the examples and the common options, each by the first sentence of its help."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        first, *others = (self.help or "").split("\n\n")
        examples = [paragraph for paragraph in others if paragraph.startswith("\b")]
        click.Command(None, help="\n\n".join([first, *examples])).format_help_text(ctx, formatter)
        rows = [each.row for each in self.params if isinstance(each, environment.Option) and each.row]
        common = [row for row in rows if row.common]
        with formatter.section("Options"):
            common.sort(key=lambda row: SECTIONS.index(row.section))
            terms = [(_short_term(row), _first_sentence(row.help)) for row in common]
            formatter.write_dl([*terms, ("--help", "Show the whole help")], col_max=22)
        if more := sum(not row.common and not row.hidden for row in rows):
            formatter.write_paragraph()
            formatter.write(f"`{ctx.command_path} --help` has {more} more options.\n")
        return formatter.getvalue().rstrip()

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, whose messages name its own options only."""
        know_flags(flag for each in self.params for flag in each.opts)
        report, argv = ctx.meta.get(REPORT_KEY, {}), ("mpired", *(ctx.obj or ()))
        quiet = report.get("quiet", False)
        ctx.meta[_CONTEXT] = Context.of(
            ctx.params,
            dry_run=report.get("dry_run", False),
            progress=progress.chosen(quiet=quiet),
            on_commit=signals.commit,
            argv=argv,
            record={"argv": list(argv)} if ctx.params.get("provenance") else {},
            worker=ctx.meta.get(WORKER),
        )
        if REPORT_KEY in ctx.meta and ctx.params.get("engine") != "mpi" and (count := launched()) > 1:
            way_out = "One command for all: `engine='mpi'`" if "engine" in ctx.params else "Start it once"
            say(f"warning: started {count} times by a launcher; each process does the whole command. {way_out}")
        with contextlib.ExitStack() as stack:
            stack.enter_context(progress.shown(quiet=quiet))
            steps = stack.enter_context(collect_steps()) if report.get("verbose") else None
            result = super().invoke(ctx)
        for line in steps.lines() if steps else ():
            say(line)
        return result

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, in sections if there are many."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        sections: dict[str, list[tuple[str, str]]] = {section: [] for section in SECTIONS}
        for option in options:
            if (record := option.get_help_record(ctx)) is not None:
                row = getattr(option, "row", None)
                sections[row.section if row and len(options) > _FEW else RUNNING].append(record)
        for section, records in sections.items():
            if records:
                with formatter.section(section if len(options) > _FEW else "Options"):
                    formatter.write_dl(records)
        kinds = {type(option.row.kind) for option in options if isinstance(option, environment.Option) and option.row}
        if notes := [note for kind, note in _NOTES.items() if kind in kinds]:
            with formatter.section("Values"):
                formatter.write_dl(notes)


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
            f"--create={Creation.LIKE}" if word == "--create" and not _is_shape(after, ctx) else word
            for word, after in itertools.pairwise([*args[:end], ""])
        ]
        return super().parse_args(ctx, spread + args[end:])


def _is_shape(word: str, ctx: click.Context) -> bool:
    """Tell whether a word behind `--create` is a count or a shape."""
    if word == Creation.LIKE and not os.path.lexists(word):
        ways = f"write --create alone, or --create={word}, to make the target like the first origin"
        return _slip(f"{ways}; a TARGET of that name is ./{word}", ctx)
    if not any(each.isdigit() for each in word) or any(each.isalpha() and each not in "xXeE" for each in word):
        return False
    try:
        Creation().parse(word)
    except RefusedError as error:
        if "/" in word or os.path.lexists(word) or _is_option(word):
            return False
        return _slip(f"{error}; a TARGET of that name is ./{word}", ctx)
    if os.path.lexists(word):
        return _slip(f"{word} is a count and also a file; write --create={word}, or ./{word} for the file", ctx)
    return True


def _slip(reason: str, ctx: click.Context) -> bool:
    """Refuse a word behind `--create`; for who makes sense of the other words it is a value, which is none."""
    if not ctx.resilient_parsing:
        raise click.BadOptionUsage("create", f"--create: {reason}", ctx)
    return True


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def command(
    *keys: str | Group,
    cls: type[Command] = Command,
    required: bool = False,  # whether several files are at least one
    settings: Mapping[str, Any] = {},  # of click
    **arguments: str,  # by their names what the help shows: "X" a file, "[X]" one or none, "X..." and "X Y" several
) -> Callable[[Callable[..., None]], Callable[[], click.Command]]:
    """Make a command of a function when it is asked for, with the options of keys and groups, in their order."""

    def decorate(function: Callable[..., None]) -> Callable[[], click.Command]:
        @functools.cache
        def make() -> click.Command:
            made: Any = function
            for name, metavar in reversed(arguments.items()):
                several = "..." in metavar or " " in metavar
                is_needed = required or not (several or metavar.startswith("["))
                nargs, kind = -1 if several else 1, _ARGUMENTS.get(metavar, FILE)
                made = click.argument(name, nargs=nargs, required=is_needed, metavar=metavar, type=kind)(made)
            for key in reversed([key for group in keys for key in ([group] if isinstance(group, str) else group)]):
                made = _parameter(keyword(key), OPTIONS[key], _KEPT.get(key))(made)
            return click.command(cls=cls, **settings)(made)

        return make

    return decorate


def _parameter(name: str, row: Option, place: str | None) -> Callable[[Any], Any]:
    """Return an option of click, which the environment may set too; the context may keep it at a place of its own."""
    settings: dict[str, Any] = {
        "cls": environment.Option,
        "default": row.default,
        "envvar": row.variables or None,
        "help": f"{row.help}{_ops_named(row.kind)}",
        "hidden": row.hidden,
        "row": row,
        "required": row.required,
        "multiple": row.multiple or bool(row.once),
        "expose_value": place is None,
        "callback": functools.partial(_kept, place) if place else _none_if_empty if row.multiple else None,
    }
    if row.required:
        del settings["default"]  # None would be one
    if isinstance(row.kind, Flag):
        settings["is_flag"] = True
    elif isinstance(row.kind, Word | FormatName):
        settings["type"] = click.Choice(row.kind.words) if isinstance(row.kind, Word) else _Formats(row.kind)
    else:
        settings |= {"type": _Value(row.kind), "metavar": row.kind.metavar}
    return click.option(name, *(row.flags or "").split(), **settings)


def _ops_named(kind: Kind) -> str:
    """Return the names of the ops that an option takes."""
    if not isinstance(kind, OpName) or kind.names:
        return ""
    tables = {"Predefined": ops_for(Use[kind.use]), "Statistics": STATISTICS if kind.use == "REDUCE" else ()}
    return "".join(f" {title}: {', '.join(op.name.lower() for op in ops)}." for title, ops in tables.items() if ops)


def _none_if_empty(_context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> Any:
    return words or parameter.default


def _kept(place: str, context: click.Context, parameter: click.Parameter, value: object) -> None:
    context.meta.setdefault(place, {})[parameter.name] = value


def report() -> Options:
    """Return what the options of the report say, of the command that runs."""
    return cast("Options", click.get_current_context().meta[REPORT_KEY])


def context() -> Context:
    """Return the settings of the command that runs."""
    return cast("Context", click.get_current_context().meta[_CONTEXT])


def meant(*groups: Sequence[str]) -> list[list[RankWord]]:
    """Return the ranks that the words for each group mean, in the command that runs."""
    from mpired.ranks import lists  # noqa: PLC0415 - of few commands

    return lists.meant(groups, click.get_current_context().meta[_NUMBERED]["rank_numbers"])


def end_without(skipped: Iterable[object]) -> None:
    """End the command with the status for ranks that were left out, if there are any."""
    if list(skipped):
        click.get_current_context().exit(_SKIPPED)


def values(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return words that may be negative numbers; what else begins with a hyphen is an option that there is not."""
    for word in words:
        if re.fullmatch(r"--.*|-[a-z]+", word, re.IGNORECASE) and word.lower() not in {"-inf", "-infinity", "-nan"}:
            raise click.NoSuchOption(word, ctx=click.get_current_context())
    return words


def tell_plan(
    found: Description, inputs: Sequence[object], heard: Sequence[MpiredWarning], ranks: str = "rank"
) -> None:
    """Write to standard output what a call would do, and to standard error what it would warn of."""
    if report().get("as_json") or click.get_current_context().params.get("as_json"):  # of the summary, or printed
        texts = {"inputs": [str(each) for each in inputs], "warnings": warning_texts(heard)}
        show(json_line({**found.details(), **texts}))
    else:
        show("\n".join(map(escaped, found.lines(ranks))))
        tell_cautions(() if report()["quiet"] else heard)
    tell(None)


def is_written(name: str) -> bool:
    """Tell whether an option stands on the command line, and is not from the environment."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def tell(line: str | None) -> None:
    """Say what was done, if anything, and which options the environment set: they are never silent."""
    if parts := [*([] if line is None else [line]), *environment.told()]:
        say("; ".join(parts))
