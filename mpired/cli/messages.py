"""Words on standard error: one line a message, whatever a file is called."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import click

from mpired.errors import OverflowWarning, escaped


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
    write(f"mpired: {escaped(text)}")


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
