"""Words on standard error: one line a message, whatever a file is called."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import click

from mpired.errors import OverflowWarning, escaped
from mpired.options import flags


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
    """Write one message to standard error; keywords in it, in backquotes, are the flags of this command line."""
    write(f"mpired: {escaped(in_flags(text))}")


def in_flags(text: str) -> str:
    """Return a text whose keywords, in backquotes, are the flags of this command line."""
    return _KEYWORD.sub(_as_flag, text)


_KEYWORD = re.compile(r"`([a-z_]+)(?:=([^`]*))?`")


def _as_flag(keyword: re.Match[str]) -> str:
    """Return `--to raw` for `to='raw'`, and `--force` for `overwrite=True`."""
    name, value = keyword.groups()
    if name not in flags():
        return keyword[0]
    quoted = value is not None and value[:1] in {"'", '"'}
    return flags()[name] if value in {None, "True"} else f"{flags()[name]} {value[1:-1] if quoted else value}"


def finished(paths: Sequence[str], words: str) -> None:
    """Say which interrupted update was finished, with --quiet too: a repetition of its command would count twice."""
    say(f"{paths[0]}: {words}")


def waits(name: str, words: str) -> None:
    """Say that a lock takes long, and who has it."""
    say(f"{name}: {words}")


@contextlib.contextmanager
def overflow_heard() -> Iterator[list[OverflowWarning]]:
    """Collect the warnings of overflow while the block runs; all others are shown as ever."""
    heard: list[OverflowWarning] = []

    def show(message: Warning | str, *rest: Any, **others: Any) -> None:
        if isinstance(message, OverflowWarning):
            heard.append(message)
        else:
            shown(message, *rest, **others)

    with warnings.catch_warnings():
        warnings.simplefilter("always", OverflowWarning)
        shown, warnings.showwarning = warnings.showwarning, show
        yield heard


def tell_overflow(heard: Sequence[OverflowWarning]) -> None:
    """Say where sums or products have overflowed."""
    for warning in heard:
        say(f"warning: {warning}")


def write(line: str) -> None:
    """Write a line to standard error; if that cannot take it, there is no other place for it."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)
