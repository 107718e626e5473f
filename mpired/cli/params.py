"""The rows of `mpired.options` as parameters of click's commands; arguments, help and settings of a command."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import click
from click.shell_completion import CompletionItem

from mpired import installed
from mpired.cli import messages, signals
from mpired.cli.messages import REPORT_KEY, print_message, report
from mpired.context import Context
from mpired.datatypes import DATATYPES
from mpired.datatypes.dtypes import BY_NUMPY_NAME
from mpired.engines import launched, pool, worker
from mpired.errors import UsageError
from mpired.formats import FORMATS, format_names
from mpired.log import collect_steps, no_progress
from mpired.ops import STATISTICS, Use, ops_for
from mpired.options import FLAGS, OPTIONS, REPORT, RUNNING, SECTIONS, Option, checked, keyword
from mpired.ranks import order
from mpired.values import FILE, FLAG, FORMAT, INPUT_FORMAT, LIKE, TYPE, Kind

if TYPE_CHECKING:
    from mpired.ranks.order import RankArgument

_MAX_UNDIVIDED = 6  # options of a help without sections
_MAX_SHORT_FLAG = 4  # characters: -nan may be a value, and -op several options of one letter
_CONTEXT = f"{__name__}.context"
_REPORT_KEYS = (*REPORT, "as_json@print", "rank_numbers")  # in the context of click, not passed to the command
_SENTENCE_END = re.compile(r"\. (?=[A-Z`])")  # not the period of "such as a.b"


class _Value(click.ParamType):  # type: ignore[type-arg]  # before click 8.4 it has no argument
    """A kind of value as a type of click."""

    def __init__(self, kind: Kind) -> None:
        self._kind, self.name = kind, kind.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        kind = self._kind
        if "format" in kind.offers and not (value in FORMATS and (FORMATS[value].readable or kind is FORMAT)):
            return click.Choice(format_names(readable=kind is INPUT_FORMAT)).convert(value, param, ctx)
        try:
            return kind.parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, _ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return names that complete a value, or request paths from the shell."""
        kind, names = self._kind, list[str]()
        is_op_list = kind.use == "REDUCE"
        with contextlib.suppress(Exception):  # a message would spoil the line that the user types
            prefix, comma, _ = incomplete.rpartition(",") if is_op_list else ("", "", incomplete)
            names = [f"{prefix}{comma}{name}" for name in _names(kind) if name not in prefix.split(",")]
            names = [name for name in names if name.startswith(incomplete)]
        # A user-defined op is FILE.py:NAME.
        if not names and (kind.offers in {"file", "dir"} or (is_op_list and not kind.names)):
            return [CompletionItem(incomplete, type="dir" if kind.offers == "dir" else "file")]
        return [CompletionItem(name) for name in names]


def _names(kind: Kind) -> Iterator[str]:
    """Yield the names that a shell offers for a value."""
    if kind.offers == "op":
        yield from kind.names or (op.name.lower() for op in ops_for(Use[kind.use]))
        if kind.use == "REDUCE" and not kind.names:
            yield from (op.name.lower() for op in STATISTICS)
            yield from installed.entry_points("mpired.ops")
    if kind.offers == "datatype":
        yield from (row.name.lower() for row in DATATYPES if row.dtype is not None)
        yield from BY_NUMPY_NAME
    if "format" in kind.offers:
        yield from format_names(readable=kind is INPUT_FORMAT)


DATATYPE = _Value(TYPE)
_ARGUMENTS = {"[TYPE]": DATATYPE, "DIR": _Value(FILE._replace(metavar="DIR", offers="dir"))}
_FILE = _Value(FILE)  # the type of all other arguments


class RowOption(click.Option):
    """A row of `OPTIONS` as an option of click."""

    def __init__(self, key: str) -> None:
        self.key, self.row = key, (row := OPTIONS[key])
        is_flag = row.kind is FLAG
        super().__init__(
            [keyword(key), *(row.flags or "").split()],
            type=None if is_flag else click.Choice(row.kind.words) if row.kind.words else _Value(row.kind),
            is_flag=is_flag or None,  # False would make the value of some options optional
            envvar=row.variables or None,
            help=row.help,
            required=row.required,
            multiple=row.multiple or bool(row.once),
            callback=self._convert_values if row.multiple or row.once else None,
            **({} if row.required else {"default": row.default}),  # None would be a default
        )

    def _convert_values(self, ctx: click.Context, _option: click.Parameter, values: tuple[Any, ...]) -> Any:
        """Return the only value if the row has `once`, else all values; the default if there are none."""
        if self.row.once and len(values) > 1:
            raise click.BadOptionUsage(self.opts[-1], f"{self.opts[-1]}: can be given once; {self.row.once}", ctx)
        return (values[0] if self.row.once else values) if values else self.row.default


class Command(click.Command):
    """A command with a short and a long help, both with the examples before the options."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return ["--help"]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters; the last two are `-h` and `--help`."""
        *params, long_help = super().get_params(ctx)
        short_help = click.Option(
            ["-h", "short_help"], is_flag=True, is_eager=True, expose_value=False,
            callback=self._show_short_help, help="Show the options that most jobs need.",
        )  # fmt: skip
        return [*params, short_help, long_help]

    def _show_short_help(self, ctx: click.Context, _option: click.Parameter, value: bool) -> None:  # noqa: FBT001
        """Print the examples and the common options, with the first sentence of the help of each."""
        if not value or ctx.resilient_parsing:
            return
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        first, *others = inspect.cleandoc(self.help or "").split("\n\n")
        examples = [paragraph for paragraph in others if paragraph.startswith("\b")]
        click.Command(None, help="\n\n".join([first, *examples])).format_help_text(ctx, formatter)
        options = [option for option in self.params if isinstance(option, RowOption)]
        options.sort(key=lambda option: SECTIONS.index(option.row.section))
        records = []
        for option in options:
            if option.row.common:
                letters = [flag for flag in option.opts if not flag.startswith("--")][:1]  # without synonyms
                metavar = "" if option.is_flag else f" {option.make_metavar(ctx)}"
                sentence = _SENTENCE_END.split(option.row.help)[0].removesuffix(".")
                records.append((f"{', '.join([*letters, option.row.long_flags[0]])}{metavar}".rstrip(), sentence))
        with formatter.section("Options"):
            formatter.write_dl([*records, ("--help", "Show the whole help")], col_max=22)
        if hidden := len(options) - len(records):
            formatter.write_paragraph()
            formatter.write(f"`{ctx.command_path} --help` has {hidden} more options.\n")
        click.echo(formatter.getvalue().rstrip())
        ctx.exit()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments; refuse or rewrite those that click would misunderstand."""
        end = args.index("--") if "--" in args else len(args)
        arguments, names = args[:end], [param.name for param in self.params]
        if not ctx.resilient_parsing:  # not while a shell requests completions
            messages.running = ctx
            for argument in arguments:
                # Click reads -output as -o utput.
                if len(argument) > _MAX_SHORT_FLAG and f"-{argument}" in FLAGS.values():
                    raise UsageError(argument, f"is an option with one dash; write -{argument}")
        if "group_b" in names:
            arguments = [*_repeat_group_b(arguments, ctx)]
        # The value of `--create` is optional: the next argument, if it is a count or a shape.
        for index, (argument, following) in enumerate(itertools.pairwise([*arguments, ""])):
            if argument == "--create" and "create" in names and not _is_shape(following, ctx):
                arguments[index] = f"--create={LIKE}"
        return super().parse_args(ctx, [*arguments, *args[end:]])

    def invoke(self, ctx: click.Context) -> Any:
        """Check the options, and run the command with its settings."""
        pool.adopt_orphans()
        worker.keep_freed_memory()
        argv = ("mpired", *(ctx.obj or ()))
        keys = [param.key for param in self.params if isinstance(param, RowOption)]
        report_options = {keyword(key): ctx.params.pop(keyword(key)) for key in keys if key in _REPORT_KEYS}
        ctx.meta[REPORT_KEY] = report_options
        ctx.params |= checked(tuple(key for key in keys if key not in _REPORT_KEYS), ctx.params)
        has_bar = os.isatty(2) and not (report_options.get("quiet") or ctx.params.get("quiet"))
        ctx.meta[_CONTEXT] = Context.of(
            ctx.params,
            dry_run=report_options.get("dry_run", False),
            progress=messages.progress_bar if has_bar else no_progress,
            on_commit=signals.commit,
            argv=argv,
            record={"argv": list(argv)} if ctx.params.get("provenance") else {},
        )
        if "quiet" in report_options and ctx.params.get("engine") != "mpi" and (count := launched()) > 1:
            hint = "One command for all: `engine='mpi'`" if "engine" in ctx.params else "Start it once"
            print_message(f"warning: started {count} times by a launcher; each process does the whole command. {hint}")
        with collect_steps(print_message if report_options.get("verbose") else None):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the long help, in sections if there are many."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        rows: list[Option | None] = [getattr(option, "row", None) for option in options]
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in (*SECTIONS, "Options")}
        for option, row in zip(options, rows, strict=True):
            if (record := option.get_help_record(ctx)) is not None:
                flags, text = record
                if row and "format" in row.kind.offers:
                    text += f" One of {', '.join(format_names(readable=row.kind is INPUT_FORMAT))}."
                title = "Options" if len(options) <= _MAX_UNDIVIDED else row.section if row else RUNNING
                sections[title].append((flags, text))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if notes := {row.kind.note for row in rows if row and row.kind.note}:
            with formatter.section("Values"):
                formatter.write_dl(sorted(notes, reverse=True))


def _repeat_group_b(arguments: list[str], ctx: click.Context) -> Iterator[str]:
    """Yield arguments with `--group-b=RANK` for each rank between `--group-b` and the next option."""
    in_group = False
    for argument, following in itertools.pairwise([*arguments, "--"]):
        begins, is_last = argument == "--group-b", following.startswith("-") and following != "-"
        if begins and is_last and not ctx.resilient_parsing:
            raise click.BadOptionUsage("--group-b", "--group-b needs the ranks of the group", ctx)
        if not begins:
            yield f"--group-b={argument}" if in_group else argument
        in_group = (begins or in_group) and not is_last


def _is_shape(text: str, ctx: click.Context) -> bool:
    """Return whether the argument after `--create` is its value; refuse a misspelled value and the name of a file."""
    is_number = any(char.isdigit() for char in text) and not any(char.isalpha() and char not in "xXeE" for char in text)
    is_value = re.fullmatch(r"\d{1,19}(,\d{1,19})*", text, re.ASCII)
    exists = os.path.lexists(text)
    if not is_value and (exists or not (is_number or text == LIKE) or "/" in text or text.startswith("-")):
        return False
    if (exists or not is_value) and not ctx.resilient_parsing:
        reason = "is also a file" if exists else "is not a count or shape, such as 100 or 3,4"
        raise click.BadOptionUsage("create", f"--create: {text} {reason}; write --create={text}, or ./{text}", ctx)
    return True


def command(
    *keys: str,
    required: bool = False,  # whether an argument with several values needs at least one
    settings: Mapping[str, Any] = {},  # of click
    **arguments: str,  # metavars: "X" is one file, "[X]" at most one, "X..." and "X Y" are several
) -> Callable[[Callable[..., None]], Callable[[], click.Command]]:
    """Make a function a command with the options `keys` and these arguments, when the command is first used."""

    def decorate(function: Callable[..., None]) -> Callable[[], click.Command]:
        @functools.cache
        def make() -> click.Command:
            params: list[click.Parameter] = [*map(RowOption, keys)]
            for name, metavar in arguments.items():
                several = "..." in metavar or " " in metavar
                is_needed = required or not (several or metavar.startswith("["))
                kind, nargs = _ARGUMENTS.get(metavar, _FILE), -1 if several else 1
                params.append(click.Argument([name], nargs=nargs, required=is_needed, metavar=metavar, type=kind))
            return click.command(cls=Command, params=params, **settings)(function)

        return make

    return decorate


def context() -> Context:
    """Return the settings of the running command."""
    return cast("Context", click.get_current_context().meta[_CONTEXT])


def expand(*groups: Sequence[str]) -> list[list[RankArgument]]:
    """Expand the arguments of each group into ranks, with the `--ranks` of the running command."""
    return order.expand(groups, report().get("rank_numbers"))


def is_written(name: str) -> bool:
    """Return whether the value of an option is from the command line, not from the environment or a default."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
