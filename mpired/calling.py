"""How mpired was called, for files that have a line of history for each program that made them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

from mpired.errors import without_secrets

_words: ContextVar[Sequence[str]] = ContextVar("_words", default=())


@contextlib.contextmanager
def by(words: Sequence[str]) -> Iterator[None]:
    """Let the history of results that are written in the block name a command line."""
    token = _words.set(words)
    try:
        yield
    finally:
        _words.reset(token)


def history(before: str) -> str:
    """Return the history of a result: a line with the time and the command, and what there was before.

    The time is that of SOURCE_DATE_EPOCH, if it is set, so that a result can be made again bit for bit.
    """
    import shlex  # noqa: PLC0415 - few formats have a history

    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    when = time.gmtime(int(epoch)) if epoch.isdecimal() else time.localtime()
    words = [*map(without_secrets, _words.get())]
    line = f"{time.asctime(when)}: {shlex.join(words) if words else 'mpired, called from Python'}"
    return f"{line}\n{before}" if before else line
