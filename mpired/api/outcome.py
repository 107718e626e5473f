"""What a program gets of a call: files that are in place and the summary of it, or arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeAlias, TypeVar

import numpy as np

from mpired import attempts
from mpired.attempts import Held, Planned
from mpired.buffers import FlatBuffer, Model
from mpired.datatypes.times import TIMES, as_times
from mpired.progress import Progress

Arrays: TypeAlias = np.ndarray | dict[str, np.ndarray]
"""A result: an array, or a dict of them by column name where a rank has several buffers."""

_P = TypeVar("_P", bound=Planned)


def carry_out(
    plan: Callable[[], _P], words: attempts.Words, progress: Progress, *, overwrite: bool, timeout: float | None
) -> _P:
    """Plan a call and do it, for a program; return what was planned. See `attempts.carry_out`."""

    def work(planned: _P, held: Held) -> None:
        planned.run(progress, overwrite=overwrite, held=held)

    return attempts.carry_out(plan, work, words, overwrite=overwrite, timeout=timeout)


def as_arrays(results: Sequence[FlatBuffer], model: Model) -> Arrays:
    """Return an array with the shape of the model's buffer, or a dict of them where there are several."""
    arrays = {
        result.name: shaped(result, buffer.shape, fortran_order=buffer.fortran_order)
        for result, buffer in zip(results, model.buffers, strict=True)
    }
    return arrays if len(arrays) > 1 else next(iter(arrays.values()))


def shaped(result: FlatBuffer, shape: tuple[int, ...] | None, *, fortran_order: bool) -> np.ndarray:
    """Read a result into an array of its own."""
    block = np.empty(result.count, result.datatype.form)
    with closing(result.open()) as reader:
        reader.read(0, block)
    if result.datatype.is_bool:
        block = block != 0
    if result.datatype.group in TIMES:
        block = as_times(block, result.datatype)
    return block.reshape(result.count if shape is None else shape, order="F" if fortran_order else "C")
