"""Signals that ask the process to end: ctrl-C in a program ends a call where nothing is half done, or comes later.

All of them are held back while something must not be left half done.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # has no types
import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T")
_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Later:
    """Interrupts when it is forgotten. That is done by C alone, after which a call returns before a handler runs."""

    __del__ = _thread.interrupt_main


class _Back:
    """Gives ctrl-C its usual handler back when it is forgotten."""

    __del__ = staticmethod(partial(_signal.signal, signal.SIGINT, signal.default_int_handler))


class HoldInterrupt:
    """Holds ctrl-C back while a block runs, in the main thread, if its handler is the usual one."""

    # `raise_pending` and `interruptible` raise the first ctrl-C. A second one is raised at once, for code that calls
    # neither. After `committed` none is raised. The block gets an object that is deleted right before the function with
    # it returns.

    may_end, at_once, came = True, False, False
    later: _Later | None = None

    def __enter__(self) -> list[_Back]:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            _held[threading.get_ident()] = self
            signal.signal(signal.SIGINT, self._keep)
        self.end: list[_Back] = []
        return self.end

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end = self.__dict__.pop("end") if kind is None else []  # a traceback has that of the block
        if self in _held.values():
            end.append(_Back())
            _held.clear()
            if self.came and kind is not KeyboardInterrupt:
                self.later = self.later or _Later()

    def _keep(self, *_: object) -> None:
        again, self.came = self.came or self.at_once, True
        if not _held:
            self.later = self.later or _Later()
        elif again:
            raise_pending()


_held: dict[int, HoldInterrupt] = {}  # the call of the main thread, by the thread; empty if ctrl-C is not held back


def raise_pending() -> None:
    """Raise `KeyboardInterrupt` if it is held back: nothing is half done here."""
    held = _held.get(threading.get_ident())
    if held is not None and held.came and held.may_end:
        held.may_end = False  # another one does not disturb the unwinding
        raise KeyboardInterrupt


def interruptible(function: Callable[..., _T], *values: Any) -> _T:
    """Return what a function gives that may take any time, and that ctrl-C may end at any moment."""
    held = _held.get(threading.get_ident()) or HoldInterrupt()
    try:
        held.at_once = True
        raise_pending()
        return function(*values)
    finally:
        held.at_once = False


def committed() -> None:
    """Let ctrl-C wait until the call has returned."""
    if (held := _held.get(threading.get_ident())) is not None:
        held.may_end = False


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
