"""Ranks that are not paths: arrays, open files and parts of raw files.

An array is read like an npy file, whose source has a header and the memory of the array. Forked workers read this
memory; workers that are new interpreters get a copy in a scratch file.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mpired.errors import DatatypeError, UsageError
from mpired.files import calls
from mpired.formats.npy import header_of
from mpired.sources.local import LocalSource
from mpired.sources.open import open_source
from mpired.sources.source import STANDARD_INPUT, OpenBytes, OpenSource, Source
from mpired.sources.stream import StreamSource, copy_to_scratch

if TYPE_CHECKING:
    from mpired.formats.input_options import InputOptions
    from mpired.formats.rank import RankFile


class MemorySource(Source):
    """Bytes in the memory of this process. Changes by other threads of the program are not detected."""

    is_private = True

    def __init__(self, name: str, *parts: bytes | memoryview) -> None:
        self.name = name
        self.parts = parts
        self.nbytes = sum(map(len, parts))
        self._copy: LocalSource | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy for a process that does not share this memory; it exists as long as this source.
        self._copy = self._copy or copy_to_scratch(self.name, self.open())
        return self._copy.__reduce__()

    def open(self) -> OpenSource:
        """Open the bytes for reading."""
        return OpenBytes(*self.parts)


def masks_of(elements: np.ndarray) -> np.ndarray:
    """Return the mask of an array; a structure is masked if one of its fields is."""
    mask: Any = np.ma.getmaskarray(elements)
    fields = [mask[name] for name in mask.dtype.names] if mask.dtype.names else [mask]
    return cast("np.ndarray", np.any(fields, axis=0))


class RankObject:
    """A rank that is not a path. Its source is made when it is inspected."""

    path: str | None = None  # path of its file, or None
    # returns the source, of a stream at most `stream_limit` bytes, and the options for this rank
    opened: Callable[[InputOptions], tuple[Source, InputOptions]]

    def __init__(self, name: str, content: Any = None) -> None:
        self.name, self.content = name, content


class ArrayRank(RankObject):
    """An array of NumPy, also a masked array or a memory map."""

    def opened(self, inputs: InputOptions) -> tuple[Source, InputOptions]:
        """Return the array as an npy file."""
        array = np.asarray(self.content)
        fortran = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
        try:
            head = header_of(array.dtype, array.shape, fortran_order=fortran)
        except ValueError as error:  # fields that overlap
            raise DatatypeError(self.name, f"has no npy form ({error})") from None
        if array.dtype.hasobject:
            return MemorySource(self.name, head), inputs  # the npy reader refuses objects
        flat = array.ravel(order="F" if fortran else "C")
        return MemorySource(self.name, head, flat.view(np.uint8).data if flat.nbytes else b""), inputs

    def with_masks(self, file: RankFile, *, nullable: bool) -> RankFile:
        """Return the description of the npy file with the mask appended to the elements, if some are masked."""
        if not np.ma.isMaskedArray(self.content) or not file.buffers:
            return file
        array, source = file.buffers[0]._replace(nullable=nullable), cast("MemorySource", file.source)
        null = masks_of(self.content).ravel(order="F" if array.fortran_order else "C")
        if null.any():
            source = MemorySource(source.name, *source.parts, (~null).view(np.uint8).data)
            mask_offset = array.offset + array.nbytes
            array = array._replace(source=source, nulls=int(np.count_nonzero(null)), mask_offset=mask_offset)
        return file._replace(source=source, buffers=[array])


class RankInFile(RankObject):
    """A rank that is a part of a raw file."""

    path: str

    def __init__(self, path: str, start: int, count: int | None = None) -> None:
        super().__init__(f"{path}:{start}")
        self.path, self.start, self._count = path, start, count

    def opened(self, inputs: InputOptions) -> tuple[Source, InputOptions]:
        """Return the source of the file, and options with the offset and the count of the rank."""
        check_holds_several(self.path)
        count = inputs.count if self._count is None else self._count
        inputs = inputs._replace(offset=inputs.offset + self.start, count=count)
        return open_source(self.path, inputs.context, inputs.stream_limit), inputs


def check_holds_several(path: str) -> None:
    """Raise `UsageError` if a path is a stream, which cannot be read at several positions."""
    if path == "-" or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)):
        reason = "is a stream, of which no rank can be read alone; write it to a file first"
        raise UsageError(STANDARD_INPUT if path == "-" else path, reason)


class OpenFile(RankObject):
    """An open binary file. It is read from its start, and its position does not change."""

    _stream: Source | None = None  # source of a pipe, which is made once

    def opened(self, inputs: InputOptions) -> tuple[Source, InputOptions]:
        """Return the source of the file."""
        try:
            if isinstance(self.content, io.BytesIO):
                return MemorySource(self.name, self.content.getvalue()), inputs
            fd = self.content.fileno()
        except (AttributeError, OSError, ValueError):
            reason = "is closed, or has no descriptor (fileno); read it into an array or a BytesIO"
            raise UsageError(self.name, reason) from None
        with calls.errors_name(self.name):
            if self.content.writable():
                self.content.flush()
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode):
                path, followed = f"/proc/{os.getpid()}/fd/{fd}", self.path and calls.follow_link(self.path)
                return LocalSource.inspected(self.name, path, followed, inputs.context, status), inputs
            self._stream = self._stream or StreamSource(
                self.name, os.dup(fd), inputs.stream_limit, digested=bool(inputs.context.record)
            )
            return self._stream, inputs
