"""Who runs the segments."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

Engine: TypeAlias = Callable[
    [Callable[[_Item], Generator[_Result, None, None]], Iterable[_Item], int], Generator[_Result, None, None]
]
"""Applies a function to items with so many workers; yields what it yields, as each is done."""
