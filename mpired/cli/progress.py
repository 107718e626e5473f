"""Bars on standard error for work that takes over a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import click

_PATIENCE = 1.0  # seconds without a bar
_STEPS = 1000
_T = TypeVar("_T")


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


_is_counting = False


def count(things: Sequence[_T], what: str, /) -> Iterator[_T]:
    """Pass things on, and show a bar with how many are done after a while, unless there is another one."""
    global _is_counting  # noqa: PLW0603 - a property of the terminal
    if _is_counting:
        yield from things
        return
    _is_counting = True
    started, done = time.monotonic(), 0
    steps = max(1, len(things) // _STEPS)  # each is a line that the terminal gets
    shown = click.progressbar(length=len(things), label=what, show_pos=True, file=sys.stderr, update_min_steps=steps)
    try:
        for number, thing in enumerate(things, 1):
            yield thing
            if time.monotonic() - started > _PATIENCE:
                shown.update(number - done)
                done = number
    finally:
        _is_counting = False
        if shown.pos:
            shown.render_finish()
