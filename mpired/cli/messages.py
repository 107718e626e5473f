"""Words on standard error: one line a message, whatever a file is called."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence

import click

from mpired.errors import escaped


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
    """Say what was finished for a dead process, with --quiet too: a repetition of its command would count twice."""
    say(f"{paths[0]}: {words}")


def waits(name: str, words: str) -> None:
    """Say that a lock takes long, and who has it."""
    say(f"{name}: {words}")


def write(line: str) -> None:
    """Write a line to standard error; if that cannot take it, nobody is there to be told."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)
