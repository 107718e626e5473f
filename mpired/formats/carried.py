"""Arrays that results in another format than that of their file carry: those of plain numbers, with their names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import numpy as np

from mpired.files import calls
from mpired.files.scratch import Scratch
from mpired.formats.array import Array, blocks
from mpired.formats.decoding import Decoder
from mpired.formats.layout import MarkingLayout
from mpired.sources.local import LocalSource

_BLOCK_NBYTES = 4 << 20


def carrying(layout: Any, carried: Sequence[Array], count: int) -> MarkingLayout:
    """Return the layout of `count` results whose file has other arrays too, behind them in another layout."""
    missing = layout.missing[:count] or (None,) * count
    return MarkingLayout(partial(_encode, layout, carried), missing, tuple(each.name for each in carried))


def _encode(layout: Any, carried: Sequence[Array], results: Sequence[Array], fd: int) -> None:
    """Write results, and the arrays that are carried."""
    with ExitStack() as stack:
        others = [_copied(each, stack.enter_context(Scratch())) if each.isolated else each for each in carried]
        layout([*results, *others], fd)


def _copied(array: Array, scratch: Scratch) -> Array:
    """Return the elements that a library decodes in a scratch file, and behind them which are valid."""
    form = array.datatype.form
    step, end = max(1, _BLOCK_NBYTES // form.itemsize), array.count * form.itemsize
    calls.set_size(scratch.fd, end)
    with closing(Decoder()) as decoder:
        for number, (block, valid) in enumerate(blocks(decoder.decoding(array), step)):
            marks = np.ones(len(block), np.bool_) if valid is None else valid
            calls.pwrite_all(scratch.fd, block.view(np.uint8).data, number * step * form.itemsize)
            calls.pwrite_all(scratch.fd, marks.view(np.uint8).data, end + number * step)
    source = LocalSource.of(array.source.name, scratch.shared_path)
    made = Array(source, array.datatype, array.count, form, shape=array.shape, name=array.name)
    return made._replace(nullable=array.nullable, validity=end)
