"""Interrupts of a call: ctrl-C in a program, and signals that wait until files are in a consistent state.

`HoldInterrupt` holds ctrl-C back during a call of the Python API. The call raises `KeyboardInterrupt` where nothing is
half done, or the interrupt comes after the call. `defer_signals` holds SIGINT, SIGTERM and SIGHUP back for a block.
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
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _InterruptLater:
    """Interrupts the main thread when it is deleted."""

    # The deletion runs only C code, so the call returns before a handler runs.
    __del__ = _thread.interrupt_main


class _RestoreHandler:
    """Restores Python's handler of ctrl-C when it is deleted."""

    __del__ = staticmethod(partial(_signal.signal, signal.SIGINT, signal.default_int_handler))


class HoldInterrupt:
    """Holds ctrl-C back while the block runs, in the main thread, if its handler is Python's."""

    # `raise_pending` and `interruptible` raise the first ctrl-C. The second ctrl-C is raised at once, because the code
    # may call neither function. After `committed` ctrl-C waits for the end of the call. The block gets a list, which
    # the caller deletes immediately before it returns: the deletion restores the handler.

    can_raise = True  # False when the results are committed, or ctrl-C was raised
    is_interruptible = False  # whether a function of `interruptible` runs
    has_come = False  # whether ctrl-C is pending, or was raised
    later: _InterruptLater | None = None  # if ctrl-C comes after the call

    def __enter__(self) -> list[_RestoreHandler]:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            _calls[threading.get_ident()] = self
            signal.signal(signal.SIGINT, self._keep)
        self.end: list[_RestoreHandler] = []
        return self.end

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end = self.__dict__.pop("end") if kind is None else []  # after an error the traceback keeps the list
        if self in _calls.values():
            end.append(_RestoreHandler())
            _calls.clear()
            if self.has_come and kind is not KeyboardInterrupt:
                self.later = self.later or _InterruptLater()

    def _keep(self, *_: object) -> None:
        """Handle ctrl-C."""
        is_urgent, self.has_come = self.has_come or self.is_interruptible, True
        if not _calls:
            self.later = self.later or _InterruptLater()
        elif is_urgent:
            raise_pending()


_calls: dict[int, HoldInterrupt] = {}  # the call of the main thread, by the thread; empty if ctrl-C is not held back


def raise_pending() -> None:
    """Raise `KeyboardInterrupt` if ctrl-C is pending; nothing may be half done."""
    call = _calls.get(threading.get_ident())
    if call is not None and call.has_come and call.can_raise:
        call.can_raise = False  # so that the next ctrl-C does not disturb the unwinding
        raise KeyboardInterrupt


def interruptible(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function that may wait, and that ctrl-C may end at any moment."""
    call = _calls.get(threading.get_ident()) or HoldInterrupt()
    try:
        call.is_interruptible = True
        raise_pending()
        return function(*arguments)
    finally:
        call.is_interruptible = False


def committed() -> None:
    """Hold ctrl-C back until the call has returned."""
    if (call := _calls.get(threading.get_ident())) is not None:
        call.can_raise = False


@contextmanager
def defer_signals() -> Iterator[None]:
    """Deliver SIGINT, SIGTERM and SIGHUP after the block."""
    # The signal mask covers one thread. A signal to another thread, such as a thread of Arrow, still ends the process
    # or calls the handler in the main thread. So the handlers are replaced too, except for ignored signals.
    signals: list[int] = []

    def keep(number: int, _frame: object) -> None:
        signals.append(number)

    handlers: dict[int, Any] = {}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        if threading.current_thread() is threading.main_thread():  # other threads cannot set handlers
            for number in _SIGNALS:
                handlers[number] = signal.getsignal(number)
                if handlers[number] not in {signal.SIG_IGN, None}:
                    signal.signal(number, keep)
        yield
    finally:
        try:
            _restore_handlers(handlers, keep)
        finally:
            # `signal.pthread_sigmask` is a Python function, and a handler may raise an exception at its start.
            _signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for signum in dict.fromkeys(signals):
            signal.raise_signal(signum)


def _restore_handlers(handlers: dict[int, Any], keep: Callable[[int, object], None]) -> None:
    """Restore all handlers, although a restored handler may raise an exception at any moment."""
    exception: BaseException | None = None
    while handlers:
        try:
            for number, handler in list(handlers.items()):
                if signal.getsignal(number) is keep:  # the block may have set another handler
                    signal.signal(number, handler)
                del handlers[number]
        except BaseException as error:  # noqa: BLE001 - raised again when all handlers are restored
            exception = error
    if exception is not None:
        raise exception
