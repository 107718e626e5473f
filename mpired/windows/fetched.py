"""Output of fetched elements: to a file, which is committed before the target changes, or to a stream after that."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType

import numpy as np

from mpired import interrupts, ops
from mpired.context import BASE_NBYTES, Context
from mpired.errors import MpiredError, UnconfirmedError, UsageError
from mpired.files import calls
from mpired.files.places import inode, is_terminal
from mpired.files.scratch import Compression, StreamOutput
from mpired.files.transaction import Draft, Output, open_output
from mpired.files.urls import check_are_files
from mpired.formats import RAW, Array, FlatLayout, Format, Layout, Model, output_format
from mpired.formats.convert import as_in
from mpired.formats.memory import MemorySource, masks_of
from mpired.ops.state import fill_value


def fetch_layout(path: str, to: str | None, model: Model, op: ops.Op) -> tuple[Format, Layout]:
    """Return the format and the layout of fetched elements for an output path."""
    # A column of a file with columns becomes a file with one array.
    default = RAW if model.format.has_columns else model.format
    row = output_format(path, to, default, terminal=is_terminal(path))
    for array in model.buffers:
        if array.nullable and not (row.has_nulls or ops.has_fill_value(op, array.datatype)):
            raise ops.null_result_error(op, array.datatype, row.name, "use `to='parquet'`")
    nbytes = sum(2 * array.count * array.datatype.itemsize for array in model.buffers)
    model.context.check_memory(BASE_NBYTES + nbytes + row.encoding_nbytes)
    return row, row.prepare(model._replace(source=None))


def planned_size(path: str, to: str | None, model: Model, op: ops.Op) -> tuple[str, int, bool]:
    """Return the format and the bytes of fetched elements for an output path, and whether the bytes are exact."""
    row, layout = fetch_layout(path, to, model, op)
    array = model.buffers[0]
    if isinstance(layout, FlatLayout):
        return row.name, layout.end(array.count), True
    return row.name, array.count * array.datatype.itemsize, False


class FetchOutput(AbstractContextManager["FetchOutput"]):
    """The file or the stream for fetched elements."""

    # A file is committed before the target changes, so that the old elements are never lost.

    def __init__(self, path: str, to: str | None, context: Context, windows: Sequence[str], *, overwrite: bool) -> None:
        self._path, self._to, self._windows = path, to, windows
        check_are_files([path])
        compression = Compression.of(path, None)
        self._output: Output = open_output(path, overwrite=overwrite, context=context, compression=compression)

    @property
    def replaced(self) -> list[str]:
        """The path of an existing file that the output replaces, as a list."""
        return [self._path] if isinstance(self._output, Draft) and os.path.isfile(self._path) else []

    def write(self, elements: np.ndarray, model: Model, op: ops.Op) -> None:
        """Write elements of one array, and commit a file; a stream gets them in `send`."""
        output, like = self._output, model.buffers[0]
        status = output.status if isinstance(output, Draft) else None
        if status and model.source and inode(status) == model.source.inode:
            raise UsageError("`fetch`", f"{self._path} is the target; choose another file")
        _, layout = fetch_layout(self._path, self._to, model, op)
        null, elements = masks_of(elements), np.ma.getdata(elements)
        if null.any() and (value := fill_value(like.datatype, op)) is not None:
            elements[null] = value
        with calls.errors_name(output.name):
            if isinstance(layout, FlatLayout):
                stored = as_in(layout.stored, elements, like.datatype)
                calls.pwrite_all(output.fd, layout.head, 0)
                calls.pwrite_all(output.fd, stored.view(np.uint8).data, layout.offset)
            else:
                source = MemorySource(output.name, elements.view(np.uint8).data, (~null).view(np.uint8).data)
                array = Array(source, like.datatype, like.count, elements.dtype)
                layout.encode([array._replace(mask_offset=elements.nbytes if like.nullable else None)], output.fd)
        if isinstance(output, Draft):
            # The file is readable only for users who may read each window.
            output.content_of.extend(filter(os.path.exists, self._windows))
            try:
                output.commit(interrupts.committed)
            except UnconfirmedError as error:  # the target does not change
                cause = error.__cause__
                number, text = (cause.errno, cause.strerror) if isinstance(cause, OSError) else (errno.EIO, str(cause))
                outcome = "is removed" if output.take_back() else "has the old elements all the same"
                reason = f"could not be brought to the disk ({text}), and {outcome}; nothing else has changed"
                raise OSError(number, reason, self._path) from error
        elif isinstance(output, StreamOutput):
            output.check()

    def send(self, name: str, *, has_changed: bool) -> None:
        """Send the elements to a stream, after the commit of the target `name`."""
        if isinstance(self._output, Draft):
            return
        try:
            self._output.commit(interrupts.committed)
        except BrokenPipeError:
            raise
        except OSError as error:
            if not has_changed:
                raise
            reason = f"has changed, but the old elements could not be written ({error.strerror}); do not repeat"
            raise UnconfirmedError(name, reason) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        has_failed = isinstance(error, MpiredError | OSError) and not isinstance(error, UnconfirmedError)
        if has_failed and isinstance(self._output, Draft):
            self._output.take_back()  # the target was not changed, so nothing was fetched
        self._output.__exit__(kind, error, trace)
