"""What is looked at in turn, of which the next are asked for meanwhile: each look waits for another machine."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

_T = TypeVar("_T")


class InTurn(Generic[_T]):
    """Names that are looked at in their order, some of them ahead.

    Parameters
    ----------
    names
        The names.
    begin
        Begins to look at one.
    window
        How many are asked for at once.
    """

    def __init__(self, names: Iterable[str], begin: Callable[[str], Future[_T]], window: int) -> None:
        self._names = iter(names)
        self._begin = begin
        self._window = window
        self._asked: deque[tuple[str, Future[_T]]] = deque()

    def taken(self, name: str) -> _T | None:
        """Return what was found, or raise what came of it; None if this name was not asked for."""
        self._ask()
        while self._asked and self._asked[0][0] != name and any(name == other for other, _ in self._asked):
            self._asked.popleft()  # it was left out
        if not self._asked or self._asked[0][0] != name:
            return None
        _, found = self._asked.popleft()
        self._ask()
        return found.result()

    def _ask(self) -> None:
        for name in itertools.islice(self._names, self._window - len(self._asked)):
            self._asked.append((name, self._begin(name)))
