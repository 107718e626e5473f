"""What the text formats share: elements as exact decimal text, streamed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing

import numpy as np

from mpired.buffers.flat import FlatBuffer
from mpired.buffers.format import Encoder
from mpired.buffers.rank import blocks
from mpired.datatypes import Datatype, Group

_BLOCK = 8192  # elements


def encoder(lines: Callable[[Sequence[FlatBuffer]], Iterator[str]]) -> Encoder:
    """Return the encoder that writes these lines."""

    def encode(results: Sequence[FlatBuffer], fd: int) -> None:
        with os.fdopen(os.dup(fd), "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines(results))

    return encode


def column_names(result: FlatBuffer) -> list[str]:
    """Return the header of a buffer's columns: its name, or one for each component."""
    parts = component_names(result.datatype)
    if len(parts) == 1:
        return [result.name or "value"]
    given = result.name.split(",")
    return given if len(given) == len(parts) else [f"{result.name}.{part}" if result.name else part for part in parts]


def component_names(datatype: Datatype) -> tuple[str, ...]:
    """Return what the components of an element are called: value and index, or real and imag."""
    if datatype.group is Group.COMPLEX:
        return "real", "imag"
    form = datatype.form
    if form.names is None:
        return ("value",)
    fields = [(name, form[name]) for name in datatype.fields]
    return tuple(
        f"{name}{place}{part}"
        for name, field in fields
        for place in _places(field.shape)
        for part in ((".real", ".imag") if field.base.kind == "c" else ("",))
    )


def _places(shape: tuple[int, ...]) -> list[str]:
    """Return what is to be written behind a field's name for each of its numbers."""
    return ["".join(f"[{i}]" for i in index) for index in np.ndindex(shape)]


def components(block: np.ndarray, datatype: Datatype) -> list[np.ndarray]:
    """Return the components of the elements as arrays."""
    if datatype.group is Group.COMPLEX:
        return list(block.view(datatype.component).reshape(-1, 2).T)
    if block.dtype.names is None:
        return [block]
    fields = [block[name] for name in datatype.fields]
    numbers = [part for field in fields for part in field.reshape(len(block), math.prod(field.shape[1:])).T]
    return [part for each in numbers for part in ((each.real, each.imag) if each.dtype.kind == "c" else (each,))]


def elements(result: FlatBuffer, join: Callable[[tuple[str, ...]], str]) -> Generator[str, None, None]:
    """Yield each element as text, its components joined by `join`; the shortest digits that give it back."""
    for block in blocks(result, _BLOCK):
        columns = [map(str, part) for part in components(block, result.datatype)]
        yield from map(join, zip(*columns, strict=True))


def rows(results: Sequence[FlatBuffer], separator: str) -> Iterator[str]:
    """Yield the elements of all buffers side by side."""
    with ExitStack() as stack:
        columns = [stack.enter_context(closing(elements(result, separator.join))) for result in results]
        yield from map(separator.join, zip(*columns, strict=True))
