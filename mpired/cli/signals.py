"""Signals: before the commit they end the command, and nothing has changed; after it they come too late."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Raised when a signal asks the command to end; not an `Exception`, so that only `main` catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_came: list[int] = []
_interruption: Interrupted | None = None


def begin(came: list[int]) -> None:
    """Note where those signals are, or will be, that come before there are handlers."""
    global _came  # noqa: PLW0603 - a property of the process
    _came = came


def install() -> None:
    """Turn SIGINT, SIGTERM and SIGHUP into exceptions, so that the work is unwound; an ignored one stays ignored."""
    # Not before the command is loaded: Python takes an exception within an import for another error, or loses it. A
    # signal that has come before is one now.
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    if _came:
        _interrupt(_came.pop(), None)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    global _interruption  # noqa: PLW0603 - a property of the process
    ignore()  # a second ctrl-C does not disturb the unwinding
    _interruption = Interrupted(number)
    raise _interruption


@contextlib.contextmanager
def kept_apart() -> Iterator[None]:
    """Let an error that was made of an interruption, as by an import of a library, be the interruption again."""
    try:
        yield
    except Exception:
        if _interruption is not None:
            raise _interruption from None
        raise


def ignore() -> None:
    """Let no signal end the command any more."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


_left = "no result was written"


def leaves(words: str) -> None:
    """Let these words describe the files after an interruption, instead of "no result was written"."""
    global _left  # noqa: PLW0603 - a property of the process
    _left = words


def message() -> str:
    """Return the message after ctrl-C, with the state of the files."""
    return f"interrupted; {_left}"


_committed = False


def commit() -> None:
    """Note that the result is in place: no signal ends the command any more, and no error says that nothing is."""
    global _committed  # noqa: PLW0603 - a property of the process
    _committed = True
    ignore()


def is_committed() -> bool:
    """Return whether the result is in place."""
    return _committed


def die_of(number: int) -> NoReturn:
    """End this process by the signal, so that a shell sees the true cause (128 + number)."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # reached only where the signal is blocked
