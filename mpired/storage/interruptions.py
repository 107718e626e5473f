"""Signals that ask the process to end, held back while something must not be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def blocked() -> Iterator[None]:
    """Hold SIGINT, SIGTERM and SIGHUP back while the block runs; they come at its end.

    A mask is of one thread. What comes to another, as those of Arrow, Python tells the main thread all the same, so
    the handlers are held back too, unless the block says that the signals are to be ignored from then on.
    """
    came: list[int] = []

    def keep(number: int, _frame: object) -> None:
        came.append(number)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTIONS)
    handlers = {}
    try:
        if threading.current_thread() is threading.main_thread():  # no other runs handlers
            for number in _INTERRUPTIONS:
                if callable(handler := signal.getsignal(number)):
                    handlers[number] = handler
                    signal.signal(number, keep)
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is keep:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for each in came:
            signal.raise_signal(each)
