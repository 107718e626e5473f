"""Signals of the command: before the commit they end it without a change, after the commit they are ignored."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Raised with the number of a signal that ends the command; not an `Exception`, so that only `main` catches it."""


class _State:
    """The state of this process with regard to signals."""

    early: Sequence[int] = ()  # signals before `install`; `__main__` appends them
    interruption: Interrupted | None = None
    outcome = "no result was written"  # the state of the files after an interruption, for the message
    is_committed = False  # whether the result is in place


state = _State()


def install() -> None:
    """Raise `Interrupted` at SIGINT, SIGTERM and SIGHUP, except ignored ones, and for an early signal at once."""
    # Called after the imports: an exception within an import is lost, or becomes an ImportError.
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    early, state.early = state.early, ()
    if early:
        _interrupt(early[-1], None)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    ignore()  # a second ctrl-C must not disturb the cleanup
    state.interruption = Interrupted(number)
    raise state.interruption


def ignore() -> None:
    """Ignore the signals that would end the command."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


def commit() -> None:
    """Record that the result is in place: from now on signals are ignored, and errors have the status of a result."""
    state.is_committed = True
    ignore()
