"""Words on standard error: one line a message, whatever a file is called."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TextIO

import click

from mpired import __version__
from mpired.errors import MpiredError, MpiredWarning, RanksError, escaped, exit_status, parts
from mpired.options import flags

if TYPE_CHECKING:
    from mpired.report import Summary, Updated


EXIT_STATUS = """\b
Exit status: 0 done and durable, 1 a bug, 2 usage, 3 bad data or an MPI rule,
4 a system error before the result was in place, 5 others keep a file locked,
6 in place but not confirmed by the disk, do not repeat,
7 a user-defined op failed, 8 a worker died or memory ran out,
130/143/129 ended by a signal, 141 the reader is gone.
"""

REPORT = f"{__name__}.report"
"""Where the context of a command keeps what the options of the report say."""


def buffer_streams() -> None:
    """Let the standard streams write all that they are given.

    With PYTHONUNBUFFERED, or `python -u`, Python writes each text by one write(2), and loses what that does not take.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if (buffered := _buffered(stream)) is not stream:
            setattr(sys, name, buffered)
            setattr(sys, f"__{name}__", buffered)


def _buffered(stream: TextIO | None) -> TextIO | None:
    raw = getattr(stream, "buffer", None)
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(raw, io.RawIOBase):
        return stream
    encoding, errors = stream.encoding, stream.errors
    stream.detach()  # else its end would close the descriptor
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=True)


def show(text: str) -> None:
    """Write what a command was asked for to standard output.

    Raises
    ------
    OSError
        If that is closed or full.
    """
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")
    click.echo(text)


def say(text: str) -> None:
    """Write one message to standard error."""
    write(f"mpired: {escaped(in_flags(text))}")


def in_flags(text: str) -> str:
    """Return a message with the flags of this command line for the keywords in it, which are in backquotes."""
    return _KEYWORD.sub(_as_flag, text)


_KEYWORD = re.compile(r"`([a-z_]+)(?:=([^`]*))?`")


def _as_flag(keyword: re.Match[str]) -> str:
    """Return `--to raw` for `to='raw'`, and `--force` for `overwrite=True`."""
    name, value = keyword.groups()
    if name not in flags():
        return keyword[0]
    quoted = value is not None and value[:1] in {"'", '"'}
    return flags()[name] if value in {None, "True"} else f"{flags()[name]} {value[1:-1] if quoted else value}"


_started = time.monotonic()
_is_free = False


def free_standard_output(output: str | None = None) -> None:
    """Note that the result goes to a file, not to `-` or what may be a stream: JSON goes to standard output then."""
    global _is_free  # noqa: PLW0603 - a property of the process
    _is_free = output != "-" and not (output or "").startswith(("/dev/", "/proc/"))


def tell_json(summary: Summary | Updated, inputs: Iterable[object], cautions: Iterable[MpiredWarning]) -> None:
    """Write a summary with the inputs and the warnings as one line of JSON."""
    warnings = list(dict.fromkeys(in_flags(str(each)) for each in cautions))
    _write_json({**summary._asdict(), "inputs": [str(each) for each in inputs], "warnings": warnings})


def _write_json(told: Mapping[str, object]) -> None:
    """Write a line of JSON to standard output if that is free, else to standard error."""
    seconds = round(time.monotonic() - _started, 3)
    line = json.dumps({"version": __version__, "seconds": seconds, **told})
    (show if _is_free else write)(line)


class Failure(NamedTuple):
    """Why a command fails: what its message says, and its JSON; `ranks` are failures of their own."""

    error: str
    mpi_class: str
    exit_status: int
    subject: str
    reason: str
    ranks: Sequence[dict[str, object]] = ()

    @classmethod
    def of(cls, error: MpiredError | OSError) -> Failure:
        """Return what is to be said of an error."""
        mpi_class = error.mpi_class if isinstance(error, MpiredError) else "MPI_ERR_IO"
        ranks = [cls.of(each)._asdict() for each in error.errors] if isinstance(error, RanksError) else ()
        subject, reason = parts(error)
        return cls(type(error).__name__, mpi_class, exit_status(error), in_flags(subject), in_flags(reason), ranks)


def tell_failure(failure: Failure, more: Sequence[str], *, as_json: bool) -> None:
    """Say why the command fails: in words, as JSON if that is asked for, both if they have places of their own."""
    if as_json:
        with contextlib.suppress(OSError):
            _write_json(failure._asdict())
    if _is_free or not as_json:
        subject = f"{failure.subject}: " if failure.subject else ""
        say("; ".join([f"{subject}{failure.reason}", *more]))


def finished(paths: Sequence[str], words: str) -> None:
    """Say which interrupted update was finished, with --quiet too: a repetition of its command would count twice."""
    say(f"{paths[0]}: {words}")


def waits(name: str, words: str) -> None:
    """Say that a lock takes long, and who has it."""
    say(f"{name}: {words}")


def tell_cautions(cautions: Iterable[MpiredWarning]) -> None:
    """Say what a call has warned of, each once, though it may have been repeated."""
    for text in dict.fromkeys(f"{each.label}{each}" for each in cautions):
        say(text)


def write(line: str) -> None:
    """Write a line to standard error; if that cannot take it, there is no other place for it."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)
