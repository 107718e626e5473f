"""Output of commands: messages on standard error, answers on standard output, JSON, and a progress bar.

A message is one line, whatever characters are in the names of files. Errors name options by their keywords in
backquotes; here these become the flags of the command.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
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
"""The key of the report options in the context of a command."""
_PRINTED = f"{__name__}.environment"
_SKIPPED = 9
KILLED = 128
"""The exit status after a signal is the sum of this and its number, like that of shells."""
_PATIENCE = 1.0  # seconds before a progress bar appears
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
    """Return the report options of the running command, such as `quiet` and `as_json`."""
    return cast("Options", click.get_current_context().meta[REPORT_KEY])


def print_output(text: str) -> None:
    """Print a string on standard output."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")
    click.echo(text)


def print_answer(value: object, lines: Iterable[str]) -> None:
    """Print the answer of a command on standard output: a value as JSON, or lines; with flags for keywords."""
    if report()["as_json"]:
        print_output(json.dumps(_json_with_flags(value), indent=1))
        return
    for line in lines:
        print_output(with_flags(line))


def _json_with_flags(value: Any) -> Any:
    """Return a value of JSON with flags for the keywords in its strings."""
    if isinstance(value, dict):
        return {name: _json_with_flags(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_json_with_flags, value)]
    return with_flags(value) if isinstance(value, str) else value


def print_message(text: str) -> None:
    """Print a message on standard error, on one line."""
    write(f"mpired: {escaped(with_flags(without_secrets(text)))}")


def with_flags(text: str) -> str:
    """Replace the keywords in backquotes by flags, and omit hints with options that the running command lacks."""
    text, *hints = _CLAUSE.split(text)
    flags = None if running is None else {flag for option in running.command.params for flag in option.opts}
    separator = ""
    for mark, hint in zip(hints[::2], hints[1::2], strict=True):
        # An alternative that follows an omitted one begins the clause.
        separator = mark if mark == "; " else separator or mark
        needed = {FLAGS[name] for name, _ in _KEYWORD.findall(hint) if name in FLAGS}
        if flags is None or needed <= flags:
            text += f"{separator}{hint}"
            separator = ""
    return _KEYWORD.sub(_flag_of, text)


running: click.Context | None = None
"""The context of the running command, set before its arguments are parsed: messages name only its options."""
_CLAUSE = re.compile(r"(; |, or )")
_KEYWORD = re.compile(r"`([a-z_]+)(?:=([^`]*))?`")


def _flag_of(keyword: re.Match[str]) -> str:
    """Return `--to raw` for `to='raw'`, `--force` for `overwrite=True`, and `--no-commute` for `commute=False`."""
    name, value = keyword.groups()
    if name not in FLAGS:
        return keyword[0]
    if value in {None, "True"}:
        return FLAGS[name]
    if value == "False":
        return f"--no-{FLAGS[name][2:]}"
    argument = shlex.quote(value[1:-1]) if value[:1] in {"'", '"'} else value
    return f"{FLAGS[name]} {argument}"


_START = time.monotonic()
pending_warnings: list[MpiredWarning] = []
"""The warnings of the running command that are not printed yet."""


def print_summary(
    summary: Mapping[str, Any],
    line: str | None,
    after: Sequence[type[MpiredWarning]] = (),  # classes of warnings that follow the summary, in this order
    notes: Sequence[str] = (),
) -> None:
    """Print the summary of a call as JSON, or as a line after its warnings and notes."""
    if report()["as_json"]:
        fields = {**summary, "warnings": _warning_messages()}
        (print_output if is_stdout_free(summary["output"]) else write)(json_line(fields))
        print_line(None)
    else:
        quiet = report()["quiet"]
        warnings = [warning for warning in pending_warnings if not (quiet and isinstance(warning, _NOT_IF_QUIET))]
        print_warnings(warning for warning in warnings if not isinstance(warning, tuple(after)))
        for note in notes:
            print_message(note)
        print_line(None if quiet else line)
        for kind in after:
            print_warnings(warning for warning in warnings if isinstance(warning, kind))
    pending_warnings.clear()


def print_warnings(warnings: Iterable[MpiredWarning]) -> None:
    """Print warnings, without the repetitions of a second attempt."""
    for text in dict.fromkeys(f"{warning.label}{warning}" for warning in warnings):
        print_message(text)


def _warning_messages() -> list[str]:
    """Return the messages of the pending warnings for JSON, without repetitions."""
    return list(dict.fromkeys(with_flags(str(warning)) for warning in pending_warnings))


def json_line(fields: Mapping[str, Any]) -> str:
    """Return a line of JSON with the version, the seconds since the start, and these fields."""
    line = json.dumps({"version": __version__, "seconds": round(time.monotonic() - _START, 3), **fields})
    return without_secrets(line)


def print_line(line: str | None) -> None:
    """Print the line of a summary, if any, and always the options that the environment set."""
    if text := "; ".join(filter(None, [line, environment_options()])):
        print_message(text)


def environment_options() -> str:
    """Return a description of the options that the environment set, "" if there are none or it was printed before."""
    if running is None or running.meta.get(_PRINTED):
        return ""
    running.meta[_PRINTED] = True
    settings = []
    for option in running.command.params:
        if running.get_parameter_source(option.name or "") is ParameterSource.ENVIRONMENT:
            flag = f"--{(option.name or '').replace('_', '-')}"
            variable = next(name for name in option.envvar or () if os.environ.get(name))
            settings.append(f"{flag if flag in option.opts else max(option.opts, key=len)} ({variable})")
    return f"from the environment: {', '.join(settings)}" if settings else ""


def print_plan(plan: Description, inputs: Sequence[object], noun: str = "rank") -> None:
    """Print the plan of a dry run on standard output and its warnings on standard error; `noun` is that of an input."""
    if report()["as_json"]:
        fields = {**plan._asdict(), "written": [file._asdict() for file in plan.written]}
        strings = {"inputs": [*map(str, inputs)], "warnings": _warning_messages()}
        print_output(json_line({"dry_run": True, **fields, **strings}))
    else:
        print_output("\n".join(map(escaped, plan.lines(noun))))
        print_warnings(() if report()["quiet"] else pending_warnings)
    pending_warnings.clear()
    print_line(None)


def exit_if_skipped(skipped: Iterable[object]) -> None:
    """End the command with the status for skipped ranks, if there are any."""
    if list(skipped):
        click.get_current_context().exit(_SKIPPED)


def _output_mode(cli: click.Group, arguments: Sequence[str]) -> tuple[bool, bool, bool]:
    """Return whether a command line asks for JSON and for `--quiet`, and whether it leaves standard output free."""
    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    # An unknown command, or one that cannot be imported: the mode follows from the arguments alone.
    with contextlib.suppress(Exception):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None  # noqa: S101 - caught here
        own_arguments = list(arguments[arguments.index(name) + 1 :])
        context = command.make_context(name, own_arguments, resilient_parsing=True, ignore_unknown_options=True)
        options = context.params
        # Commands without a summary print their answer on standard output.
        has_summary = any(getattr(option, "key", "") == "as_json" for option in command.params)
        output = options.get("into") or options.get("output", options.get("fetch", options.get("directory")))
        is_free = has_summary and is_stdout_free(None if output == "-" and options.get("in_place") else output)
        return bool(options.get("as_json")), bool(options.get("quiet")), is_free
    return "--json" in itertools.takewhile("--".__ne__, arguments), False, False


def is_stdout_free(output: str | None) -> bool:
    """Return whether a result goes neither to standard output nor to a device, which may be the same."""
    if output is None or output.startswith("/dev/shm/"):  # noqa: S108 - no name of ours
        return True
    return output != "-" and not output.startswith(("/dev/", "/proc/"))


class Failure(NamedTuple):
    """The failure of a command, for its message and its JSON."""

    error: str  # the class
    mpi_class: str
    exit_status: int
    subject: str
    reason: str
    ranks: Sequence[dict[str, object]] = ()  # the failures of single ranks

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Describe an error; an internal error is raised again."""
        if not isinstance(error, MpiredError | OSError):
            reason, status = not_loaded(error)
            return cls(type(error).__name__, WorkerError.mpi_class, status, "", with_flags(reason))
        mpi_class = error.mpi_class if isinstance(error, MpiredError) else "MPI_ERR_IO"
        errors = error.errors if isinstance(error, (RanksError, CountError)) else ()
        ranks = [cls.of(rank_error)._asdict() for rank_error in errors]
        subject, reason = parts(error)
        return cls(type(error).__name__, mpi_class, exit_status(error), with_flags(subject), with_flags(reason), ranks)


def print_failure(failure: Failure, cli: click.Group, arguments: Sequence[str], hints: Sequence[str] = ()) -> None:
    """Print the failure of a command as a message, as JSON, or as both where standard output is free."""
    as_json, quiet, is_free = _output_mode(cli, arguments)
    if as_json:
        fields = failure._asdict() | {"warnings": _warning_messages()}
        with contextlib.suppress(OSError):
            (print_output if is_free else write)(json_line(fields))
    # SIGTERM and SIGHUP come from programs, or from a terminal that is closed: they have no message.
    has_message = failure.exit_status < KILLED or (failure.exit_status == KILLED + signal.SIGINT and not quiet)
    if has_message and (is_free or not as_json):
        text = f"{failure.subject}: {failure.reason}" if failure.subject else failure.reason
        for hint in filter(None, hints):
            text += f" {hint[0].upper()}{hint[1:]}" if text.endswith("?") else f"; {hint}"
        print_message(text)


def write(line: str) -> None:
    """Write a line to standard error, if that is possible."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


def progress_bar(done: Iterable[int], total: int) -> Iterator[int]:
    """Yield the byte counts of `done`, and show a bar with rate and time left; `total` is 0 if it is unknown."""
    start, read = time.monotonic(), 0
    # Without a length the bar shows activity, but no time left.
    bar = click.progressbar(filter(None, list[int]()), length=total or None, file=sys.stderr)
    try:
        for nbytes in done:
            read += nbytes
            seconds = time.monotonic() - start
            if seconds > _PATIENCE:
                bar.label = f"{read / seconds / 1e9:.1f} GB/s"
                bar.update(read - bar.pos)
            yield nbytes
    finally:
        if bar.pos:
            bar.render_finish()  # shows the cursor again, after ctrl-C too
