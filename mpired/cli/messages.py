"""Words on standard error: one line a message, whatever a file is called."""

from __future__ import annotations

import click


def escaped(text: str) -> str:
    """Return `text` on one line, with control characters and undecodable bytes as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(text: str) -> None:
    """Write one message to standard error."""
    click.echo(f"mpired: {escaped(text)}", err=True)
