"""A bar on standard error for work that takes over a second."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator

import click

from mpired.progress import Progress, unwatched

_PATIENCE = 1.0  # seconds without a bar


def chosen(*, quiet: bool) -> Progress:
    """Return what watches the work: a bar on a terminal, unless that is to be quiet."""
    return bar if os.isatty(2) and not quiet else unwatched


def bar(done: Iterable[int], total: int) -> Iterator[int]:
    """Pass the bytes on as they are done, out of `total`, and show a bar with rate and time left."""
    started, read = time.monotonic(), 0
    shown = click.progressbar(length=total, file=sys.stderr)
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
