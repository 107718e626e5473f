"""Words on standard error: one line a message, whatever a file is called."""

from __future__ import annotations

import click

from mpired.errors import escaped


def say(text: str) -> None:
    """Write one message to standard error."""
    click.echo(f"mpired: {escaped(text)}", err=True)
