"""Words on standard error: one line a message, whatever a file is called."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

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


def write(line: str) -> None:
    """Write a line to standard error; if that cannot take it, nobody is there to be told."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)
