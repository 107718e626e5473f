"""Signals: before the commit they end the command, and nothing has changed; after it they come too late."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Raised with the number of a signal that ends the command; not an `Exception`, so that only `main` catches it."""


class _State:
    """The state of this process after signals."""

    came: Sequence[int] = ()  # those that came, or will come, before there are handlers
    interruption: Interrupted | None = None
    left = "no result was written"  # what an interruption has left of the files, in words
    is_committed = False  # whether the result is in place


state = _State()


def install() -> None:
    """Turn SIGINT, SIGTERM and SIGHUP into exceptions, so that the work is unwound; an ignored one stays ignored."""
    # Not before the command is loaded: Python takes an exception within an import for another error, or loses it. A
    # signal that has come before is one now.
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    came, state.came = state.came, ()
    if came:
        _interrupt(came[-1], None)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    ignore()  # a second ctrl-C does not disturb the unwinding
    state.interruption = Interrupted(number)
    raise state.interruption


def ignore() -> None:
    """Let no signal end the command any more."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


def commit() -> None:
    """Note that the result is in place: no signal ends the command any more, and no error says that nothing is."""
    state.is_committed = True
    ignore()
