"""A bar on standard error for work that takes over a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator

import click

_PATIENCE = 1.0  # seconds without a bar


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
