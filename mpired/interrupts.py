"""Ctrl-C in a program: it ends a call where nothing is half done, or comes when the call has returned."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # has no types
import _thread
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Later:
    """Interrupts when it is forgotten. That is done by C alone, after which a call returns before a handler runs."""

    __del__ = _thread.interrupt_main


class _Back:
    """Gives ctrl-C its usual handler back when it is forgotten."""

    __del__ = staticmethod(partial(_signal.signal, signal.SIGINT, signal.default_int_handler))


class Held:
    """Holds ctrl-C back while a block runs, in the main thread, if its handler is the usual one."""

    # It is raised by `rest` and `waited`; a second one anywhere, for what calls neither; after `committed` by none. The
    # block gets an object that is deleted right before the function with it returns.

    may_end, at_once, came = True, False, False
    later: _Later | None = None

    def __enter__(self) -> list[_Back]:
        global _held  # noqa: PLW0603 - a property of the process
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            _held = self
            signal.signal(signal.SIGINT, self._keep)
        self.end: list[_Back] = []
        return self.end

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        global _held  # noqa: PLW0603 - as above
        end = self.__dict__.pop("end") if kind is None else []  # a traceback has that of the block
        if _held is self:
            end.append(_Back())
            _held = None
            if self.came and kind is not KeyboardInterrupt:
                self.later = self.later or _Later()

    def _keep(self, *_: object) -> None:
        again, self.came = self.came or self.at_once, True
        if _held is None:
            self.later = self.later or _Later()
        elif again:
            rest()


_held: Held | None = None


def _here() -> Held:
    is_main = threading.current_thread() is threading.main_thread()
    return _held if is_main and _held is not None else Held()


def rest() -> None:
    """Raise `KeyboardInterrupt` if it is held back: nothing is half done here."""
    if _held is None or not _held.came:  # most often
        return
    held = _here()
    if held.came and held.may_end:
        held.may_end = False  # another one does not disturb the unwinding
        raise KeyboardInterrupt


def waited(function: Callable[..., _T], *values: Any) -> _T:
    """Return what a function gives that may take any time, and that ctrl-C may end at any moment."""
    held = _here()
    try:
        held.at_once = True
        rest()
        return function(*values)
    finally:
        held.at_once = False


def committed() -> None:
    """Let ctrl-C wait until the call has returned."""
    _here().may_end = False
