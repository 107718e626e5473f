"""Signals that ask the process to end, held back while something must not be left half done."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # has no types
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Hold SIGINT, SIGTERM and SIGHUP back while the block runs; they come at its end."""
    # A mask is of one thread. A signal to another thread, such as those of Arrow, ends the process or calls the handler
    # in the main thread all the same, so handlers and default actions are held back too, unless the block itself sets
    # the signals to be ignored.
    came: list[int] = []

    def keep(number: int, _frame: object) -> None:
        came.append(number)

    before: dict[int, Any] = {}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTIONS)
        if threading.current_thread() is threading.main_thread():  # no other runs handlers
            for number in _INTERRUPTIONS:
                before[number] = signal.getsignal(number)
                if before[number] not in {signal.SIG_IGN, None}:
                    signal.signal(number, keep)
        yield
    finally:
        try:
            _put_back(before, keep)
        finally:
            # That of `signal` is a function of Python, at whose beginning a handler may raise an exception.
            _signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each in dict.fromkeys(came):
            signal.raise_signal(each)


def _put_back(before: dict[int, Any], keep: Callable[[int, object], None]) -> None:
    """Put all handlers back, though one that is back may raise an exception at any moment."""
    raised: BaseException | None = None
    while before:
        try:
            for number, handler in list(before.items()):
                if signal.getsignal(number) is keep:
                    signal.signal(number, handler)
                del before[number]
        except BaseException as error:  # noqa: BLE001 - raised again when all are back
            raised = error
    if raised is not None:
        raise raised
