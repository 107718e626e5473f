"""The rows of `mpired.options` as parameters of click's commands."""

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
from mpired.cli.messages import REPORT_KEY, report, say
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

_FEW = 6
_SHORT_FLAG = 4  # characters: -nan may be a value, and -op several options of a letter
_CONTEXT = f"{__name__}.context"
_KEPT = (*REPORT, "as_json@print", "rank_numbers")  # options that the context keeps, and commands do not get
_SENTENCE_END = re.compile(r"\. (?=[A-Z`])")  # so not the period of "such as a.b"


class _Value(click.ParamType):  # type: ignore[type-arg]  # before click 8.4 it has no argument
    """The values of an option."""

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
        """Return the names for a value, else a wish for files."""
        kind, names = self._kind, list[str]()
        with contextlib.suppress(Exception):  # a shell has no place for a message in the middle of a line
            written, comma, _ = incomplete.rpartition(",") if kind.use == "REDUCE" else ("", "", incomplete)  # of ops
            names = [f"{written}{comma}{name}" for name in _names(kind) if name not in written.split(",")]
            names = [name for name in names if name.startswith(incomplete)]
        may_be_function = kind.use == "REDUCE" and not kind.names
        if not names and (kind.offers in {"file", "dir"} or may_be_function):
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
_FILE = _Value(FILE)  # or another kind that the command gives an argument


class RowOption(click.Option):
    """A row of the table as an option, which the environment may set too."""

    def __init__(self, key: str) -> None:
        self.key, self.row = key, (row := OPTIONS[key])
        is_flag = row.kind is FLAG
        super().__init__(
            [keyword(key), *(row.flags or "").split()],
            type=None if is_flag else click.Choice(row.kind.words) if row.kind.words else _Value(row.kind),
            is_flag=is_flag or None,  # False would let some stand alone
            envvar=row.variables or None,
            help=row.help,
            required=row.required,
            multiple=row.multiple or bool(row.once),
            callback=self._given if row.multiple or row.once else None,
            **({} if row.required else {"default": row.default}),  # None would be one
        )

    def _given(self, ctx: click.Context, _option: click.Parameter, found: tuple[Any, ...]) -> Any:
        """Return the values, or the one if it may be given once; else the default."""
        if self.row.once and len(found) > 1:
            raise click.BadOptionUsage(self.opts[-1], f"{self.opts[-1]}: can be given once; {self.row.once}", ctx)
        return (found[0] if self.row.once else found) if found else self.row.default


class Command(click.Command):
    """A command with help in two lengths, each with the examples before the options."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return ["--help"]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with the two options for help last."""
        *own, whole = super().get_params(ctx)
        shown: Mapping[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
        text = "Show the options that most jobs need."
        return [*own, click.Option(["-h", "short_help"], callback=self._show_short_help, help=text, **shown), whole]

    def _show_short_help(self, ctx: click.Context, _option: click.Parameter, value: bool) -> None:  # noqa: FBT001
        """Show the examples and the common options, each by the first sentence of its help."""
        if not value or ctx.resilient_parsing:
            return
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        first, *others = inspect.cleandoc(self.help or "").split("\n\n")
        examples = [paragraph for paragraph in others if paragraph.startswith("\b")]
        click.Command(None, help="\n\n".join([first, *examples])).format_help_text(ctx, formatter)
        options = [each for each in self.params if isinstance(each, RowOption)]
        options.sort(key=lambda each: SECTIONS.index(each.row.section))
        records = []
        for each in options:
            if each.row.common:
                letters = [flag for flag in each.opts if not flag.startswith("--")][:1]  # without synonyms
                values = "" if each.is_flag else f" {each.make_metavar(ctx)}"
                first = _SENTENCE_END.split(each.row.help)[0].removesuffix(".")
                records.append((f"{', '.join([*letters, each.row.long_flags[0]])}{values}".rstrip(), first))
        with formatter.section("Options"):
            formatter.write_dl([*records, ("--help", "Show the whole help")], col_max=22)
        if more := sum(not each.row.common for each in options):
            formatter.write_paragraph()
            formatter.write(f"`{ctx.command_path} --help` has {more} more options.\n")
        click.echo(formatter.getvalue().rstrip())
        ctx.exit()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; some are rewritten, or refused, that click would take in another way."""
        if not ctx.resilient_parsing:
            messages.running = ctx  # not while a shell asks for completions
        end, names = args.index("--") if "--" in args else len(args), [each.name for each in self.params]
        words = args[:end]
        for word in () if ctx.resilient_parsing else words:
            if len(word) > _SHORT_FLAG and f"-{word}" in FLAGS.values():  # click would take -output for -o utput
                raise UsageError(word, f"is an option with one dash; write -{word}")
        if "group_b" in names:
            words = [*_each_in_group_b(words, ctx)]
        # `--create` may stand alone, and takes the next word only if that is a count or a shape.
        for number, (word, after) in enumerate(itertools.pairwise([*words, ""])) if "create" in names else ():
            if word == "--create" and not _is_shape(after, ctx):
                words[number] = f"--create={LIKE}"
        return super().parse_args(ctx, [*words, *args[end:]])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with its settings and its options, which are checked here."""
        pool.adopt_orphans()
        worker.keep_freed_memory()
        argv, keys = ("mpired", *(ctx.obj or ())), [each.key for each in self.params if isinstance(each, RowOption)]
        asked = {keyword(key): ctx.params.pop(keyword(key)) for key in keys if key in _KEPT}
        ctx.meta[REPORT_KEY] = asked
        ctx.params |= checked(tuple(key for key in keys if key not in _KEPT), ctx.params)
        has_bars = os.isatty(2) and not (asked.get("quiet") or ctx.params.get("quiet"))
        ctx.meta[_CONTEXT] = Context.of(
            ctx.params,
            dry_run=asked.get("dry_run", False),
            progress=messages.bar if has_bars else no_progress,
            on_commit=signals.commit,
            argv=argv,
            record={"argv": list(argv)} if ctx.params.get("provenance") else {},
        )
        if "quiet" in asked and ctx.params.get("engine") != "mpi" and (count := launched()) > 1:
            hint = "One command for all: `engine='mpi'`" if "engine" in ctx.params else "Start it once"
            say(f"warning: started {count} times by a launcher; each process does the whole command. {hint}")
        with collect_steps(say if asked.get("verbose") else None):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, in sections if there are many."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        rows: list[Option | None] = [getattr(each, "row", None) for each in options]
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in (*SECTIONS, "Options")}
        for option, row in zip(options, rows, strict=True):
            if (record := option.get_help_record(ctx)) is not None:
                flags, text = record
                if row and "format" in row.kind.offers:
                    text += f" One of {', '.join(format_names(readable=row.kind is INPUT_FORMAT))}."
                title = "Options" if len(options) <= _FEW else row.section if row else RUNNING
                sections[title].append((flags, text))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if notes := {row.kind.note for row in rows if row and row.kind.note}:
            with formatter.section("Values"):
                formatter.write_dl(sorted(notes, reverse=True))


def _each_in_group_b(words: list[str], ctx: click.Context) -> Iterator[str]:
    """Yield words with an option for each rank: `--group-b r0.npy r1.npy -o out` takes all up to the next option."""
    inside = False
    for word, after in itertools.pairwise([*words, "--"]):
        begins, is_last = word == "--group-b", after.startswith("-") and after != "-"
        if begins and is_last and not ctx.resilient_parsing:
            raise click.BadOptionUsage("--group-b", "--group-b needs the ranks of the group", ctx)
        if not begins:
            yield f"--group-b={word}" if inside else word
        inside = (begins or inside) and not is_last


def _is_shape(word: str, ctx: click.Context) -> bool:
    """Return whether a word behind `--create` is a count or a shape; refuse a slip, and one that is a file too."""
    is_number = any(each.isdigit() for each in word) and not any(each.isalpha() and each not in "xXeE" for each in word)
    is_value = re.fullmatch(r"\d{1,19}(,\d{1,19})*", word, re.ASCII)
    exists = os.path.lexists(word)
    if not is_value and (exists or not (is_number or word == LIKE) or "/" in word or word.startswith("-")):
        return False
    if (exists or not is_value) and not ctx.resilient_parsing:
        slip = "is also a file" if exists else "is not a count or shape, such as 100 or 3,4"
        raise click.BadOptionUsage("create", f"--create: {word} {slip}; write --create={word}, or ./{word}", ctx)
    return True


def command(
    *keys: str,
    required: bool = False,  # whether several files are at least one
    settings: Mapping[str, Any] = {},  # of click
    **arguments: str,  # by their names what the help shows: "X" a file, "[X]" one or none, "X..." and "X Y" several
) -> Callable[[Callable[..., None]], Callable[[], click.Command]]:
    """Make a command of a function when it is asked for, with the options of these keys, in their order."""

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
    """Return the settings of the command that runs."""
    return cast("Context", click.get_current_context().meta[_CONTEXT])


def expand(*groups: Sequence[str]) -> list[list[RankArgument]]:
    """Return the ranks that the words for each group mean, in the command that runs."""
    return order.expand(groups, report().get("rank_numbers"))


def is_written(name: str) -> bool:
    """Return whether an option is on the command line, not from the environment."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
