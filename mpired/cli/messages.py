"""Words on standard error: one line a message, whatever a file is called."""

from __future__ import annotations

import contextlib

import click

from mpired.errors import escaped


def say(text: str) -> None:
    """Write one message to standard error."""
    write(f"mpired: {escaped(text)}")


def write(line: str) -> None:
    """Write a line to standard error; if that cannot take it, nobody is there to be told."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)
