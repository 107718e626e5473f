"""Standard error: one line a message, whatever a file is called, and a bar for work that takes over a second."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click
from click.core import ParameterSource

from mpired import __version__
from mpired.errors import (
    CountError,
    HardLinkWarning,
    MpiredError,
    MpiredWarning,
    OrderWarning,
    RanksError,
    SameFileWarning,
    UnusedWarning,
    WorkerError,
    escaped,
    exit_status,
    not_loaded,
    parts,
    without_secrets,
)
from mpired.options import FLAGS, Options

if TYPE_CHECKING:
    from mpired.report import Description

REPORT_KEY = f"{__name__}.report"
"""The key of the options of the report in the context of a command."""
_PRINTED = f"{__name__}.environment"
_SKIPPED = 9
KILLED = 128
"""The exit status is this and the number of the signal, as shells count."""
_PATIENCE = 1.0  # seconds without a bar
_NOT_IF_QUIET = (HardLinkWarning, OrderWarning, SameFileWarning, UnusedWarning)
STATUSES = {
    "0": "done, and on the disk",
    "1": "internal error, please report",
    "2": "wrong usage, or an output that exists",
    "3": "bad data, or a rule of MPI",
    "4": "system error; nothing was written or changed",
    "5": "another command holds a lock",
    "6": "written, but not confirmed by the disk: do not rerun",
    "7": "a user-defined op failed",
    "8": "a worker died, or memory ran out",
    "9": "done without the ranks that --skip-bad left out",
    "129, 130, 143": "ended by SIGHUP, SIGINT or SIGTERM; nothing was changed",
    "141": "broken pipe: the reader of standard output is gone",
}
"""The exit statuses of all commands but `diff`, and their meanings."""


def report() -> Options:
    """Return what the options of the report say, of the command that runs."""
    return cast("Options", click.get_current_context().meta[REPORT_KEY])


def show(text: str) -> None:
    """Write what a command was asked for to standard output."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")
    click.echo(text)


def answer(value: object, lines: Iterable[str]) -> None:
    """Write what a command was asked for: a value as JSON, or its lines; with flags for keywords."""
    if report()["as_json"]:
        import json  # noqa: PLC0415 - here and below only where it is asked for

        show(json.dumps(_with_flags(value), indent=1))
        return
    for line in lines:
        show(in_flags(line))


def _with_flags(value: Any) -> Any:
    """Return a value of JSON with flags for the keywords in its strings."""
    if isinstance(value, dict):
        return {name: _with_flags(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_with_flags, value)]
    return in_flags(value) if isinstance(value, str) else value


def say(text: str) -> None:
    """Write one message to standard error."""
    write(f"mpired: {escaped(in_flags(without_secrets(text)))}")


def in_flags(text: str) -> str:
    """Return a message with the flags of this command line for the keywords in it, which are in backquotes."""
    # A way out by an option that the command does not have is left out.
    text, *others = _CLAUSE.split(text)
    own = None if running is None else {flag for each in running.command.params for flag in each.opts}
    before = ""
    for mark, clause in zip(others[::2], others[1::2], strict=True):
        before = mark if mark == "; " else before or mark  # a clause begins where an alternative is left out
        named = {FLAGS[name] for name, _ in _KEYWORD.findall(clause) if name in FLAGS}
        if own is None or named <= own:  # the command has each option that is named
            text += f"{before}{clause}"
            before = ""
    return _KEYWORD.sub(_as_flag, text)


running: click.Context | None = None
"""The command, which sets it before it reads its words: messages name its own options only."""
_CLAUSE = re.compile(r"(; |, or )")
_KEYWORD = re.compile(r"`([a-z_]+)(?:=([^`]*))?`")


def _as_flag(keyword: re.Match[str]) -> str:
    """Return `--to raw` for `to='raw'`, `--force` for `overwrite=True`, and `--no-commute` for `commute=False`."""
    name, value = keyword.groups()
    if name not in FLAGS:
        return keyword[0]
    if value in {None, "True"}:
        return FLAGS[name]
    if value == "False":
        return f"--no-{FLAGS[name][2:]}"
    word = shlex.quote(value[1:-1]) if value[:1] in {"'", '"'} else value
    return f"{FLAGS[name]} {word}"


_started = time.monotonic()
warned: list[MpiredWarning] = []
"""The warnings of the command that are not printed yet."""


def tell_summary(
    summary: Mapping[str, Any], line: str | None, after: Sequence[type[MpiredWarning]] = (), notes: Sequence[str] = ()
) -> None:
    """Print the summary of a call as JSON, or on a line behind the warnings and notes; those `after` it in order."""
    # It says where the output is: JSON does not go there.
    if report()["as_json"]:
        fields = {**summary, "warnings": _warning_texts()}
        (show if leaves_free(summary["output"]) else write)(json_line(fields))
        tell(None)
    else:
        quiet = report()["quiet"]
        shown = [each for each in warned if not (quiet and isinstance(each, _NOT_IF_QUIET))]
        tell_warnings(each for each in shown if not isinstance(each, tuple(after)))
        for note in notes:
            say(note)
        tell(None if quiet else line)
        for kind in after:
            tell_warnings(each for each in shown if isinstance(each, kind))
    warned.clear()


def tell_warnings(some: Iterable[MpiredWarning]) -> None:
    """Print warnings, each once, though the call may have been repeated."""
    for text in dict.fromkeys(f"{each.label}{each}" for each in some):
        say(text)


def _warning_texts() -> list[str]:
    """Return the messages of the warnings for JSON, each once."""
    return list(dict.fromkeys(in_flags(str(each)) for each in warned))


def json_line(fields: Mapping[str, Any]) -> str:
    """Return a line of JSON, with what every line says."""
    import json  # noqa: PLC0415

    line = json.dumps({"version": __version__, "seconds": round(time.monotonic() - _started, 3), **fields})
    return without_secrets(line)


def tell(line: str | None) -> None:
    """Print the summary, if any, and the options that the environment set: they are never silent."""
    if text := "; ".join(filter(None, [line, from_environment()])):
        say(text)


def from_environment() -> str:
    """Return which options the environment set, unless that was printed before."""
    if running is None or running.meta.get(_PRINTED):
        return ""
    running.meta[_PRINTED] = True
    given = []
    for option in running.command.params:
        if running.get_parameter_source(option.name or "") is ParameterSource.ENVIRONMENT:
            own = f"--{(option.name or '').replace('_', '-')}"
            variable = next(name for name in option.envvar or () if os.environ.get(name))
            given.append(f"{own if own in option.opts else max(option.opts, key=len)} ({variable})")
    return f"from the environment: {', '.join(given)}" if given else ""


def tell_plan(found: Description, inputs: Sequence[object], ranks: str = "rank") -> None:
    """Print the description of a dry run on standard output, and its warnings on standard error."""
    if report()["as_json"]:
        written = [each._asdict() for each in found.written]
        texts = {"inputs": [str(each) for each in inputs], "warnings": _warning_texts()}
        show(json_line({"dry_run": True, **found._asdict(), "written": written, **texts}))
    else:
        show("\n".join(map(escaped, found.lines(ranks))))
        tell_warnings(() if report()["quiet"] else warned)
    warned.clear()
    tell(None)


def end_without(skipped: Iterable[object]) -> None:
    """End the command with the status for ranks that were left out, if there are any."""
    if list(skipped):
        click.get_current_context().exit(_SKIPPED)


def _wanted(cli: click.Group, words: Sequence[str]) -> tuple[bool, bool, bool]:
    """Return whether a command line asks for JSON, for no summary, and leaves standard output free."""
    # Words that make no sense are left out.
    name = next((word for word in words if not word.startswith("-")), "")
    # Of a command that there is not, or that cannot be loaded, nothing is known but its words.
    with contextlib.suppress(Exception):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None  # noqa: S101 - caught here
        rest = list(words[words.index(name) + 1 :])
        context = command.make_context(name, rest, resilient_parsing=True, ignore_unknown_options=True)
        options = context.params
        # Others print something of their own on standard output.
        has_summary = any(getattr(each, "key", "") == "as_json" for each in command.params)
        place = options.get("into") or options.get("output", options.get("fetch", options.get("directory")))
        is_free = has_summary and leaves_free(None if place == "-" and options.get("in_place") else place)
        return bool(options.get("as_json")), bool(options.get("quiet")), is_free
    return "--json" in itertools.takewhile("--".__ne__, words), False, False


def leaves_free(output: str | None) -> bool:
    """Return whether a result goes neither to standard output nor to what may be that under a name."""
    if output is None or output.startswith("/dev/shm/"):  # noqa: S108 - no name of ours
        return True
    return output != "-" and not output.startswith(("/dev/", "/proc/"))


class Failure(NamedTuple):
    """The failure of a command, for its message and its JSON; `ranks` are failures of single ranks."""

    error: str
    mpi_class: str
    exit_status: int
    subject: str
    reason: str
    ranks: Sequence[dict[str, object]] = ()

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Return the message of an error; one that is a bug is raised again."""
        if not isinstance(error, MpiredError | OSError):
            reason, status = not_loaded(error)
            return cls(type(error).__name__, WorkerError.mpi_class, status, "", in_flags(reason))
        mpi_class = error.mpi_class if isinstance(error, MpiredError) else "MPI_ERR_IO"
        bad = error.errors if isinstance(error, (RanksError, CountError)) else ()
        ranks = [cls.of(each)._asdict() for each in bad]
        subject, reason = parts(error)
        return cls(type(error).__name__, mpi_class, exit_status(error), in_flags(subject), in_flags(reason), ranks)


def tell_failure(failure: Failure, cli: click.Group, words: Sequence[str], more: Sequence[str] = ()) -> None:
    """Say why the command fails: in words, as JSON if that is asked for, both if they have places of their own."""
    as_json, quiet, is_free = _wanted(cli, words)
    if as_json:
        fields = failure._asdict() | {"warnings": _warning_texts()}
        with contextlib.suppress(OSError):
            (show if is_free else write)(json_line(fields))
    # Other signals than that of ctrl-C come from programs, or from a terminal that is closed: in JSON only.
    in_words = failure.exit_status < KILLED or (failure.exit_status == KILLED + signal.SIGINT and not quiet)
    if in_words and (is_free or not as_json):
        text = f"{failure.subject}: {failure.reason}" if failure.subject else failure.reason
        for each in filter(None, more):
            text += f" {each[0].upper()}{each[1:]}" if text.endswith("?") else f"; {each}"
        say(text)


def write(line: str) -> None:
    """Write a line to standard error; if that cannot take it, there is no other place for it."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


def bar(done: Iterable[int], total: int) -> Iterator[int]:
    """Pass the bytes on as they are done, out of `total`, 0 if unknown, and show a bar with rate and time left."""
    started, read = time.monotonic(), 0
    # Streams without a count have no total, of which a share could be shown: the bar only moves.
    shown = click.progressbar(filter(None, list[int]()), length=total or None, file=sys.stderr)
    try:
        for nbytes in done:
            read += nbytes
            seconds = time.monotonic() - started
            if seconds > _PATIENCE:
                shown.label = f"{read / seconds / 1e9:.1f} GB/s"
                shown.update(read - shown.pos)
            yield nbytes
    finally:
        if shown.pos:
            shown.render_finish()  # with which the cursor comes back, after ctrl-C too
