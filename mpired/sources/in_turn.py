"""What is looked at in turn, the next ones meanwhile: each look waits for another process, or another machine."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from mpired.errors import MpiredError

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class Look(Protocol[_T_co]):
    """A look that has begun."""

    def result(self) -> _T_co:
        """Return what it found, or raise what came of it."""


class Done(Generic[_T]):
    """A look that ends before another begins."""

    def __init__(self, look: Callable[[str], _T], name: str) -> None:
        self._found: list[_T] = []
        try:
            self._found.append(look(name))
        except (MpiredError, OSError) as error:
            self._error = error

    def result(self) -> _T:
        """Return what it found, or raise what came of it."""
        if not self._found:
            raise self._error
        return self._found[0]


class InTurn(Generic[_T]):
    """Names that are looked at in their order, some of them ahead.

    Parameters
    ----------
    names
        The names.
    begin
        Begins to look at one.
    window
        How many are asked for at once; 0 if none is until `behind` is called.
    """

    def __init__(self, names: Iterable[str], begin: Callable[[str], Look[_T]], window: int = 0) -> None:
        self._names = iter(names)
        self._begin = begin
        self._window = window
        self._asked: deque[tuple[str, Look[_T]]] = deque()

    def taken(self, name: str) -> _T | None:
        """Return what was found, or raise what came of it; None if this name was not asked for."""
        self._ask(self._window)
        while self._asked and self._asked[0][0] != name and any(name == other for other, _ in self._asked):
            self._asked.popleft()  # it was left out
        if not self._asked or self._asked[0][0] != name:
            return None
        _, found = self._asked.popleft()
        self._ask(self._window)
        return found.result()

    def behind(self, name: str, count: int) -> list[Look[_T]]:
        """Return the looks at so many names behind one that was taken."""
        if not self._window and not self._asked:
            for other in self._names:
                if other == name:
                    break
        self._ask(count)
        return [found for _, found in itertools.islice(self._asked, count)]

    def _ask(self, count: int) -> None:
        while len(self._asked) < count and (name := next(self._names, None)) is not None:
            self._asked.append((name, self._begin(name)))
