"""Results of the Python API as NumPy arrays, with their shapes, masks and times."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, TypeAlias

import numpy as np

from mpired.datatypes import TIMES, Datatype
from mpired.datatypes.times import as_times
from mpired.formats import Array, Model
from mpired.formats.convert import in_form, same_layout
from mpired.formats.missing import masked

Arrays: TypeAlias = np.ndarray | dict[str, np.ndarray]
"""A result: an array, or a dict of arrays by column name if a rank has several buffers."""


def as_arrays(results: Sequence[Array], model: Model) -> Arrays:
    """Return the results with the shapes of a model: an array, or a dict with several results and kept arrays."""
    arrays = {}
    for result, buffer in zip(results, model.buffers, strict=True):
        array = shaped(result, buffer.shape, fortran_order=buffer.fortran_order, form=buffer.form)
        arrays[next(iter(buffer.columns), result.name)] = array
    if model.kept is not None:
        arrays |= {**model.kept.arrays(), **model.cells.values}
    return arrays if len(arrays) > 1 else next(iter(arrays.values()))


def shaped(
    result: Array,
    shape: tuple[int, ...] | None,
    *,
    fortran_order: bool,
    form: np.dtype | None = None,  # the form of structures in the rank
) -> np.ndarray:
    """Read a result into a new array, which is masked if nulls are allowed."""
    block = np.empty(result.count, result.datatype.form)
    with closing(result.open()) as reader:
        valid = reader.read(0, block)
    mask = None if valid is None else ~valid
    return in_shape(as_numpy(block, result.datatype, form), mask, shape, fortran_order=fortran_order)


def in_shape(
    elements: np.ndarray, mask: np.ndarray | None, shape: tuple[int, ...] | None, *, fortran_order: bool
) -> np.ndarray:
    """Return elements in a shape, or with one dimension if it is None; with a mask, a masked array."""
    order: Any = "F" if fortran_order else "C"
    shape = elements.shape if shape is None else shape
    elements = elements.reshape(shape, order=order)
    return elements if mask is None else masked(elements, mask.reshape(shape, order=order))


def as_numpy(block: np.ndarray, datatype: Datatype, form: np.dtype | None) -> np.ndarray:
    """Return elements with the dtype of a NumPy program: bool, datetime64, or the form of the rank's structures."""
    if datatype.is_bool:
        return block.astype(bool)
    if datatype.group in TIMES:
        return as_times(block, datatype)
    if form is None or form == block.dtype:
        return block
    return block.view(form) if same_layout(form, datatype) else in_form(block, form)
