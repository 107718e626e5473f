"""What a program gets of a call: files that are in place, or arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from mpired import attempts
from mpired.attempts import Held, Planned
from mpired.buffers import FlatBuffer, Model
from mpired.datatypes.times import TIMES, as_times
from mpired.progress import unwatched


def carry_out(plan: Callable[[], Planned], words: attempts.Words, *, overwrite: bool, timeout: float | None) -> None:
    """Plan a call and do it, for a program; see `attempts.carry_out`."""

    def work(planned: Planned, held: Held) -> None:
        planned.run(unwatched, overwrite=overwrite, held=held)

    attempts.carry_out(plan, work, words, overwrite=overwrite, timeout=timeout)


def as_arrays(results: Sequence[FlatBuffer], model: Model) -> Any:
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
