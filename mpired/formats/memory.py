"""Ranks that a program has at hand: arrays, and files that are open.

An array is read as an npy file in memory: the header of one, and the bytes of the array where they are. A worker that
is forked finds them there; one that is a new interpreter gets them in a scratch file.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mpired.errors import DatatypeError, UsageError
from mpired.files import calls
from mpired.files.scratch import Scratch
from mpired.files.urls import signed
from mpired.formats.npy import header_of
from mpired.sources.local import LocalSource
from mpired.sources.open import open_source
from mpired.sources.source import STANDARD_INPUT, OpenBytes, OpenSource, Source
from mpired.sources.stream import StreamSource

if TYPE_CHECKING:
    from mpired.formats.array import Array
    from mpired.formats.input_options import InputOptions
    from mpired.formats.rank import RankFile


class MemorySource(Source):
    """Bytes of this process. What the program changes meanwhile is its own matter."""

    is_private = True

    def __init__(self, name: str, *parts: bytes | memoryview) -> None:
        self.name = name
        self.parts = parts
        self.nbytes = sum(map(len, parts))
        self._scratch: Scratch | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # For a process that has not this memory. The scratch file is there as long as this source is.
        if self._scratch is None:
            scratch, at = Scratch(), 0
            for part in self.parts:
                calls.pwrite_all(scratch.fd, part, at)
                at += len(part)
            self._scratch = scratch
        return LocalSource(self.name, self._scratch.shared.path).__reduce__()

    def open(self) -> OpenSource:
        """Open it for reading."""
        return OpenBytes(*self.parts)


def masks_of(elements: np.ndarray) -> np.ndarray:
    """Return which elements of an array are masked; of structures those of which a field is."""
    mask: Any = np.ma.getmaskarray(elements)
    found: np.ndarray = np.any([mask[name] for name in mask.dtype.names] if mask.dtype.names else [mask], axis=0)
    return found


def with_masks(array: Array, elements: np.ndarray) -> Array:
    """Return an array of bytes in memory with which of its elements are masked, behind them; as it is if none is."""
    null = masks_of(elements).ravel(order="F" if array.fortran_order else "C")
    if not null.any():
        return array
    source = cast("MemorySource", array.source)
    source = MemorySource(source.name, *source.parts, (~null).view(np.uint8).data)
    return array._replace(source=source, nulls=int(np.count_nonzero(null)), validity=array.offset + array.nbytes)


class AtHand:
    """A rank that is not a path. Its source is made when it is inspected."""

    path: str | None = None  # the path of its file, if it has one

    def __init__(self, name: str) -> None:
        self.name = name

    def source(self, inputs: InputOptions) -> Source:
        """Return its bytes; of a stream no more than `inputs.stream_limit`."""
        raise NotImplementedError

    def inputs(self, inputs: InputOptions) -> InputOptions:
        """Return the options of this rank, given those of all ranks."""
        return inputs

    def described(self, file: RankFile, inputs: InputOptions) -> RankFile:  # noqa: ARG002 - bytes say it all
        """Return its file as inspected, with what its bytes do not say."""
        return file


class ArrayRank(AtHand):
    """An array of any form and order, also one that is masked, or mapped from a file."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        super().__init__(name)
        self._array = array

    def source(self, inputs: InputOptions) -> Source:  # noqa: ARG002 - it is not a stream
        """Return the array as an npy file."""
        array = np.asarray(self._array)
        fortran = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
        try:
            head = header_of(array.dtype, array.shape, fortran_order=fortran)
        except ValueError as error:  # fields that overlap
            raise DatatypeError(self.name, f"has no npy form ({error})") from None
        if array.dtype.hasobject:
            return MemorySource(self.name, head)  # which the header refuses
        flat = array.ravel(order="F" if fortran else "C")
        return MemorySource(self.name, head, flat.view(np.uint8).data if flat.nbytes else b"")

    def described(self, file: RankFile, inputs: InputOptions) -> RankFile:
        """Return its file with which elements are masked, behind the elements."""
        if not np.ma.isMaskedArray(self._array) or not file.buffers:
            return file
        array = with_masks(file.buffers[0], self._array)._replace(nullable=inputs.nullable)
        return file._replace(source=array.source, buffers=[array])


class RankInFile(AtHand):
    """A rank in a raw file with others."""

    path: str

    def __init__(self, path: str, start: int, count: int | None = None) -> None:
        super().__init__(f"{path}:{start}")
        self.path, self.start, self._count = path, start, count

    def source(self, inputs: InputOptions) -> Source:
        """Return the bytes of the file."""
        check_holds_several(self.path)
        return open_source(self.path, inputs.context, inputs.stream_limit)

    def inputs(self, inputs: InputOptions) -> InputOptions:
        """Return the options of this rank, given those of all ranks."""
        count = inputs.count if self._count is None else self._count
        return inputs._replace(offset=inputs.offset + self.start, count=count)


def check_holds_several(path: str) -> None:
    """Raise `UsageError` if a path is that of a stream, which gives its bytes once."""
    if path == "-" or (os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)):
        reason = "is a stream, of which no rank can be read alone; write it to a file first"
        raise UsageError(STANDARD_INPUT if path == "-" else path, reason)


class OpenFile(AtHand):
    """A file that is open for reading bytes. All of it is read, from its start, and its position stays."""

    def __init__(self, name: str, file: Any) -> None:
        super().__init__(name)
        self._file = file
        self._stream: Source | None = None
        path = getattr(file, "name", None)
        with contextlib.suppress(OSError, TypeError, ValueError):
            if isinstance(path, str | bytes) and os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                self.path = self.name = os.fsdecode(path)

    def source(self, inputs: InputOptions) -> Source:
        """Return the bytes of the file; those of a stream can be read once."""
        try:
            if isinstance(self._file, io.BytesIO):
                return MemorySource(self.name, self._file.getvalue())
            fd = self._file.fileno()
        except (AttributeError, OSError, ValueError):
            reason = "is closed, or has no descriptor (fileno); read it into an array or a BytesIO"
            raise UsageError(self.name, reason) from None
        with calls.errors_name(self.name):
            if self._file.writable():
                self._file.flush()
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode):
                path = f"/proc/{os.getpid()}/fd/{fd}"
                own = self.path and calls.followed(self.path)
                return LocalSource.inspected(self.name, path, own, inputs.context, status)
            self._stream = self._stream or StreamSource(
                self.name, os.dup(fd), inputs.stream_limit, digested=bool(inputs.context.record)
            )
            return self._stream


def at_hand(rank: object, name: str) -> str | AtHand:
    """Return what a caller in Python means by a rank: a path as text, or else an array or an open file by this name."""
    if isinstance(rank, str | os.PathLike):
        return os.fsdecode(rank)
    if isinstance(rank, AtHand):
        return rank
    if isinstance(rank, np.ndarray):
        return ArrayRank(f"array of {name}", rank)
    if hasattr(rank, "read"):
        return OpenFile(f"open file of {name}", rank)
    kind = type(rank).__name__
    reason = f"is of the type {kind}; a rank is the path of a file, an array, or a file that is open as bytes"
    raise UsageError(name, reason)


def path_at_hand(path: object, name: str) -> str:
    """Return the path that a caller in Python gives by a parameter of this name."""
    if isinstance(path, str | os.PathLike):
        return os.fsdecode(path)
    raise UsageError(f"`{name}`", f"is of the type {type(path).__name__}; give the path of a file, such as 'a.npy'")


def all_at_hand(ranks: object, option: str = "ranks", which: str = "rank {}") -> Sequence[str | AtHand]:
    """Return what a caller in Python means by several ranks, in order."""
    if isinstance(ranks, str | bytes | os.PathLike):
        path = os.fsdecode(ranks)
        way_out = f"sorted(glob.glob({path!r}))" if glob.has_magic(path) else "a list of paths, one per rank"
        raise UsageError(option, f"is one path; give {way_out}")
    if isinstance(ranks, np.ndarray) or hasattr(ranks, "read"):
        kind = "array" if isinstance(ranks, np.ndarray) else "open file"
        raise UsageError(option, f"is one {kind}; give a list, one a rank")
    try:
        each = list(ranks)  # type: ignore[call-overload]
    except TypeError:
        reason = f"is of the type {type(ranks).__name__}; give a list of paths, arrays or open files"
        raise UsageError(option, reason) from None
    words: list[str | AtHand] = []
    for number, rank in enumerate(each):
        word = rank if isinstance(rank, str) else at_hand(rank, which.format(number))
        if isinstance(word, str) and "://" in word:
            word = signed(word)
        elif isinstance(rank, str) and glob.has_magic(rank) and not os.path.lexists(rank):
            reason = f"is a pattern, and there is no such file; use sorted(glob.glob({rank!r}))"
            raise UsageError(rank, reason)
        words.append(word)
    return words


def paths(ranks: Iterable[str | AtHand]) -> Iterator[str]:
    """Yield the paths of ranks that have one."""
    for rank in ranks:
        path = rank if isinstance(rank, str) else rank.path
        if path is not None:
            yield path
