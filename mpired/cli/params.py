"""The rows of `mpired.options` as parameters of click's commands."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from mpired.cli import environment, progress, signals
from mpired.cli.messages import REPORT_KEY, json_line, know_flags, say, show, tell_cautions, warning_texts
from mpired.context import Context
from mpired.engines import launched
from mpired.errors import escaped
from mpired.formats import FORMATS, format_names
from mpired.log import collect_steps
from mpired.ops import STATISTICS, Use, ops_for
from mpired.options import OPTIONS, REPORT, RUNNING, SECTIONS, Group, Option, Options, keyword
from mpired.values import CREATION, FLAG, FORMAT, INPUT_FORMAT, LIKE, TYPE, Kind, paths

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from mpired.errors import MpiredWarning
    from mpired.ranks import RankWord
    from mpired.report import Description

_FEW = 6
_SKIPPED = 9
_CONTEXT = f"{__name__}.context"
WORKER = f"{__name__}.worker"
_KEPT = [OPTIONS[key] for key in (*REPORT, "rank_numbers")]  # what the context keeps, and commands do not get


_SENTENCE_END = re.compile(r"\. (?=[A-Z`])")  # so not the period of "such as a.b"


def _short_term(option: environment.Option, ctx: click.Context) -> str:
    """Return the flags of an option without synonyms, and its values."""
    letters = [flag for flag in option.opts if not flag.startswith("--")][:1]
    long_flag = next(flag for flag in option.opts if flag.startswith("--"))
    return f"{', '.join([*letters, long_flag])} {'' if option.is_flag else option.make_metavar(ctx)}".rstrip()


def _show_short_help(ctx: click.Context, _option: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if value and not ctx.resilient_parsing:
        click.echo(cast("Command", ctx.command).short_help_text(ctx))
        ctx.exit()


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

    def shell_complete(self, ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        from mpired.cli.offers import offered  # noqa: PLC0415 - for shells only

        return offered(self._kind, ctx.obj or (), incomplete)


DATATYPE = _Value(TYPE)
_ARGUMENTS = {"[TYPE]": DATATYPE, "DIR": _Value(paths("DIR", "dir"))}
_FILE = _Value(paths())  # or what else the command says of an argument


class Command(click.Command):
    """A command with help in two lengths, each with the examples before the options."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return ["--help"]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with the two options for help last."""
        *own, whole = super().get_params(ctx)
        shown: Mapping[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False}
        text = "Show the options that most jobs need."
        return [*own, click.Option(["-h", "short_help"], callback=_show_short_help, help=text, **shown), whole]

    def short_help_text(self, ctx: click.Context) -> str:
        """Return the examples and the common options, each by the first sentence of its help."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        first, *others = inspect.cleandoc(self.help or "").split("\n\n")
        examples = [paragraph for paragraph in others if paragraph.startswith("\b")]
        click.Command(None, help="\n\n".join([first, *examples])).format_help_text(ctx, formatter)
        rows = [(each, each.row) for each in self.params if isinstance(each, environment.Option) and each.row]
        rows.sort(key=lambda each: SECTIONS.index(each[1].section))
        with formatter.section("Options"):
            terms = [
                (_short_term(each, ctx), _SENTENCE_END.split(row.help)[0].removesuffix("."))
                for each, row in rows
                if row.common
            ]
            formatter.write_dl([*terms, ("--help", "Show the whole help")], col_max=22)
        if more := sum(not row.common and not row.hidden for _, row in rows):
            formatter.write_paragraph()
            formatter.write(f"`{ctx.command_path} --help` has {more} more options.\n")
        return formatter.getvalue().rstrip()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, and keep the options of the report apart."""
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, [*self.spelled(args[:end], ctx), *args[end:]])
        kept = [each.name or "" for each in self.params if _row(each) in _KEPT]
        ctx.meta[REPORT_KEY] = {name: ctx.params.pop(name, None) for name in kept}
        return rest

    def spelled(self, words: list[str], ctx: click.Context) -> Iterable[str]:  # noqa: ARG002 - of some commands
        """Return the words before `--` as click reads them."""
        return words

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, whose messages name its own options only."""
        know_flags(flag for each in self.params for flag in each.opts)
        report, argv = ctx.meta[REPORT_KEY], ("mpired", *(ctx.obj or ()))
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
        if "quiet" in report and ctx.params.get("engine") != "mpi" and (count := launched()) > 1:
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
                row, (flags, text) = _row(option), record
                if row and "format" in row.kind.offers:
                    text += f" One of {', '.join(format_names(readable=row.kind is INPUT_FORMAT))}."
                sections[row.section if row and len(options) > _FEW else RUNNING].append((flags, text))
        for section, records in sections.items():
            if records:
                with formatter.section(section if len(options) > _FEW else "Options"):
                    formatter.write_dl(records)
        if notes := {row.kind.note for row in map(_row, options) if row and row.kind.note}:
            with formatter.section("Values"):
                formatter.write_dl(sorted(notes, reverse=True))


class Grouped(Command):
    """A command whose `--group-b` takes all words up to the next option, as `--group-b r0.npy r1.npy -o out`."""

    def spelled(self, words: list[str], ctx: click.Context) -> Iterator[str]:
        """Yield each word of the group as an option of its own."""
        inside = False
        for word, after in itertools.pairwise([*words, "--"]):
            begins = word == "--group-b"
            if begins and _is_option(after) and not ctx.resilient_parsing:
                raise click.BadOptionUsage("--group-b", "--group-b needs the ranks of the group", ctx)
            inside = begins or (inside and not _is_option(word))
            if not begins:
                yield f"--group-b={word}" if inside else word


class Creating(Command):
    """A command whose `--create` may stand alone, and takes the next word only if that is a count or a shape."""

    def spelled(self, words: list[str], ctx: click.Context) -> Iterator[str]:
        """Yield `--create` alone as `--create=like`."""
        for word, after in itertools.pairwise([*words, ""]):
            yield f"--create={LIKE}" if word == "--create" and not _is_shape(after, ctx) else word


def _is_shape(word: str, ctx: click.Context) -> bool:
    """Tell whether a word behind `--create` is a count or a shape."""
    if word == LIKE and not os.path.lexists(word):
        ways = f"write --create alone, or --create={word}, to make the target like the first origin"
        return _slip(f"{ways}; a TARGET of that name is ./{word}", ctx)
    if not any(each.isdigit() for each in word) or any(each.isalpha() and each not in "xXeE" for each in word):
        return False
    try:
        CREATION.parse(word)
    except ValueError as error:
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
            every = [key for group in keys for key in ([group] if isinstance(group, str) else group)]
            params = [_argument(*each, required=required) for each in arguments.items()]
            return click.command(cls=cls, params=[*map(_option, every), *params], **settings)(function)

        return make

    return decorate


def _argument(name: str, metavar: str, *, required: bool) -> click.Parameter:
    several = "..." in metavar or " " in metavar
    is_needed = required or not (several or metavar.startswith("["))
    kind = _ARGUMENTS.get(metavar, _FILE)
    return click.Argument([name], nargs=-1 if several else 1, required=is_needed, metavar=metavar, type=kind)


def _option(key: str) -> click.Parameter:
    """Return a row as an option of click, which the environment may set too."""
    row = OPTIONS[key]
    option = environment.Option(
        [keyword(key), *(row.flags or "").split()],
        type=None if row.kind is FLAG else click.Choice(row.kind.words) if row.kind.words else _Value(row.kind),
        is_flag=row.kind is FLAG or None,  # False would let some stand alone
        envvar=row.variables or None,
        help=f"{row.help}{_ops_named(row.kind)}",
        hidden=row.hidden,
        required=row.required,
        multiple=row.multiple or bool(row.once),
        callback=functools.partial(_given, row) if row.multiple or row.once else None,
        **({} if row.required else {"default": row.default}),  # None would be one
    )
    option.row = row
    return option


def _ops_named(kind: Kind) -> str:
    """Return the names of the ops that an option takes."""
    if not kind.use or kind.names:
        return ""
    tables = {"Predefined": ops_for(Use[kind.use]), "Statistics": STATISTICS if kind.use == "REDUCE" else ()}
    return "".join(f" {title}: {', '.join(op.name.lower() for op in ops)}." for title, ops in tables.items() if ops)


def _given(row: Option, ctx: click.Context, option: click.Parameter, found: tuple[Any, ...]) -> Any:
    """Return the values of an option, or the one if it may be given once; else its default."""
    if row.once and len(found) > 1:
        raise click.BadOptionUsage(option.opts[-1], f"{option.opts[-1]}: can be given once; {row.once}", ctx)
    return (found[0] if row.once else found) if found else row.default


def _row(option: click.Parameter) -> Option | None:
    """Return the row that an option is made of."""
    return getattr(option, "row", None)


def report() -> Options:
    """Return what the options of the report say, of the command that runs."""
    return cast("Options", click.get_current_context().meta[REPORT_KEY])


def context() -> Context:
    """Return the settings of the command that runs."""
    return cast("Context", click.get_current_context().meta[_CONTEXT])


def meant(*groups: Sequence[str]) -> list[list[RankWord]]:
    """Return the ranks that the words for each group mean, in the command that runs."""
    from mpired.ranks import lists  # noqa: PLC0415 - of few commands

    return lists.meant(groups, report()["rank_numbers"])


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
