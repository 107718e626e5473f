"""A target that is open for a request: a flat file, a file with columns, or one that is still to be made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import numpy as np

from mpired.buffers import (
    Declared,
    FlatBuffer,
    FlatLayout,
    Model,
    RankBuffer,
    RankFile,
    format_named,
    format_to_create,
    recognise,
)
from mpired.buffers.flat import Order
from mpired.buffers.rank import blocks
from mpired.buffers.source import LocalSource
from mpired.engines.decoding import Decoder, rewrite
from mpired.errors import OutputExistsError, UsageError
from mpired.storage import calls, journal
from mpired.storage.lock import Target, Waiting
from mpired.storage.output import FileOutput, Scratch
from mpired.storage.update import Extent, Update, choose
from mpired.windows import once
from mpired.windows.origin import in_form

_BLOCK_NBYTES = 4 << 20
_ALIGNMENT = 64


class Policy(NamedTuple):
    """How a target is changed.

    Parameters
    ----------
    commit
        "rename", "journal" or "auto".
    durable
        Whether the disk has to confirm it.
    waiting
        How long to wait for its lock.
    """

    commit: str = "auto"
    durable: bool = True
    waiting: Waiting = Waiting()


class Opened(Protocol):
    """What a request needs of a target."""

    name: str
    format: str
    source: int
    """The descriptor that has the bytes of the windows."""
    windows: Sequence[FlatBuffer]
    """Where the elements are: one buffer, or one for each column."""

    def remembered(self) -> list[bytes]:
        """Return the keys of what was combined into it before."""

    def begin(self, changed_nbytes: int, policy: Policy, /) -> Update:
        """Begin to change it."""


class FlatTarget:
    """A file that is changed where its elements lie, locked."""

    def __init__(self, target: Target, window: FlatBuffer, form: str) -> None:
        self.name = target.name
        self.format = form
        self.source = target.fd
        self.windows: Sequence[FlatBuffer] = (window,)
        self._target = target

    def remembered(self) -> list[bytes]:
        """Return the keys of what was combined into it before."""
        return once.stored(self._target)

    def begin(self, changed_nbytes: int, policy: Policy, /) -> Update:
        """Begin to change it by the protocol of the policy."""
        extent = Extent(self.windows[0].offset, changed_nbytes)
        return choose(self._target, extent, policy.commit, durable=policy.durable)


def open_target(target: Target, declared: Declared, decoder: Decoder, stack: ExitStack) -> Opened:
    """Look at a locked file.

    Parameters
    ----------
    target
        The file.
    declared
        The datatype of its elements, the byte order of a raw file, the columns that are meant.
    decoder
        Decodes its columns.
    stack
        Closes what stays open.

    Raises
    ------
    MpiredError
        If the file is damaged, is not of the datatype, or would lose something if it were written again.
    """
    source = LocalSource.of_status(target.name, target.path, target.status)
    row = recognise(source, declared)
    file = row.inspect(source, declared)
    file.check_some()
    if not row.updatable:
        raise UsageError(target.name, f"is {row.name}, of which no file is updated; write its elements to another")
    flat = file.buffers[0]
    if isinstance(flat, FlatBuffer):
        return FlatTarget(target, flat, row.name)
    return ColumnTarget(target, file, decoder, stack)


class ColumnTarget:
    """A file that is decoded, locked: buffers are copied out, changed, and written to a new file with all else.

    Parameters
    ----------
    target
        The file.
    file
        What it holds; its buffers are the columns that may change.
    decoder
        Decodes them.
    stack
        Closes the copy.
    """

    def __init__(self, target: Target, file: RankFile, decoder: Decoder, stack: ExitStack) -> None:
        self.name = target.name
        self.format = file.format
        self._target = target
        self._file = file
        self._scratch = stack.enter_context(Scratch(os.path.dirname(target.path), target.name))
        self.source = self._scratch.fd
        self.windows: Sequence[FlatBuffer] = self._copied_out(map(decoder.decoding, file.buffers))

    def _copied_out(self, buffers: Iterable[RankBuffer]) -> list[FlatBuffer]:
        """Copy the elements of the columns into the scratch file, as native elements."""
        flat, end = [], 0
        for buffer in buffers:
            form, at = buffer.datatype.form, end
            for block in blocks(buffer, max(1, _BLOCK_NBYTES // form.itemsize)):
                calls.pwrite_all(self._scratch.fd, block.view(np.uint8).data, at)
                at += block.nbytes
            source = LocalSource.of_status(self.name, self._scratch.shared_path, self._target.status)
            flat.append(FlatBuffer(source, buffer.datatype, buffer.count, form, end, (buffer.count,), name=buffer.name))
            end += -(-buffer.count * form.itemsize // _ALIGNMENT) * _ALIGNMENT
        return flat

    def remembered(self) -> list[bytes]:
        """Return the keys of what was combined into it before."""
        return once.stored(self._target)

    def begin(self, _changed_nbytes: int, policy: Policy, /) -> Update:
        """Begin to change it: always by a new file.

        Raises
        ------
        UsageError
            If the policy asks for a journal.
        """
        if policy.commit == "journal":
            raise UsageError("`commit='journal'`", f"changes raw and npy files; {self.name} is rewritten whole")
        return _Rewritten(self._target, self._scratch, self._encode, durable=policy.durable)

    def _encode(self, output: FileOutput) -> None:
        source = LocalSource.of(self.name, self._scratch.shared_path)
        changed = [replace(window, source=source) for window in self.windows]
        rewrite(format_named(self.format), self._file.source, changed, output.shared)


class _Written:
    """What updates by a whole new file have in common: new bytes go to a file that has no name yet."""

    protocol = "rename"

    def __init__(self, name: str, fd: int) -> None:
        self._name = name
        self.source = fd
        self._output: FileOutput | None = None

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Put new bytes to their place."""
        with calls.blaming(self._name):
            calls.pwrite_all(self.source, data, offset)

    def seal(self, keys: bytes) -> None:
        """Bring the new file to the disk."""
        assert self._output is not None  # noqa: S101 - opened by then
        if keys:
            with calls.blaming(self._name):
                journal.remember(self._output.fd, keys)
        self._output.seal()

    def publish(self, on_commit: Callable[[], None]) -> None:
        """Let the new file take its place."""
        assert self._output is not None  # noqa: S101 - opened by then
        self._output.publish(on_commit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._output is not None:
            self._output.__exit__(kind, error, trace)


class _Rewritten(_Written):
    """An update of a file with columns: the new elements are written to a new file at the end."""

    def __init__(
        self, target: Target, scratch: Scratch, encode: Callable[[FileOutput], None], *, durable: bool
    ) -> None:
        super().__init__(target.name, scratch.fd)
        self._target = target
        self._encode = encode
        self._durable = durable

    def seal(self, keys: bytes) -> None:
        """Write the new file, and bring it to the disk."""
        with calls.blaming(self._name):
            keys = keys or journal.kept_keys(self._target.fd)
            target = self._target
            self._output = FileOutput(target.name, overwrite=True, durable=self._durable, target=target)
            self._encode(self._output)
        super().seal(keys)


class Appeared(Exception):  # noqa: N818 - no error: the request starts again with the file that is there
    """Raised when a target that was to be made has been made by somebody else."""


class Filling(NamedTuple):
    """What a new target is filled with.

    Parameters
    ----------
    element
        An array of one element.
    model
        What the target is like, with one buffer.
    raw_order
        The byte order of its elements if it is raw.
    declared
        Whether the datatype was declared, so that it is known of a file that does not say it.
    """

    element: np.ndarray
    model: Model
    raw_order: Order = "="
    declared: bool = False


class NewTarget:
    """A target that does not exist yet, filled with one element again and again.

    Parameters
    ----------
    name
        Its path.
    filling
        What it holds at first.
    stack
        Closes it.
    durable
        Whether the disk has to confirm the file.

    Raises
    ------
    Appeared
        If it is there.
    UsageError
        If its suffix does not mean a format that is made so.
    """

    def __init__(self, name: str, filling: Filling, stack: ExitStack, *, durable: bool) -> None:
        self.name = name
        row = format_to_create(name, declared=filling.declared)
        try:
            self._output = stack.enter_context(FileOutput(name, overwrite=False, durable=durable))
        except OutputExistsError as error:
            raise Appeared from error
        self.source = self._output.fd
        (like,) = filling.model.buffers
        if row.needs_type:
            like = replace(like, byte_order=filling.raw_order, shape=None, fortran_order=False)
        layout = row.prepare(replace(filling.model, buffers=(like,)))
        assert isinstance(layout, FlatLayout)  # noqa: S101 - as of all that are made new
        with calls.blaming(name):
            calls.pwrite_all(self._output.fd, layout.head, 0)
            self._fill(in_form(filling.element, layout.stored), layout.offset, like.count)
        source = LocalSource.of(name, self._output.shared_path)
        shape = None if row.needs_type else (like.count,) if like.shape is None else like.shape
        self.format = row.name
        self.windows: Sequence[FlatBuffer] = (
            FlatBuffer(source, like.datatype, like.count, layout.stored, layout.offset, shape, like.fortran_order),
        )

    def _fill(self, element: np.ndarray, offset: int, count: int) -> None:
        step = max(1, _BLOCK_NBYTES // element.itemsize)
        if not element.view(np.uint8).any():
            calls.set_size(self._output.fd, offset + count * element.itemsize)
            return
        block = np.repeat(element, min(step, count)).view(np.uint8)
        for start in range(0, count, step):
            nbytes = min(step, count - start) * element.itemsize
            calls.pwrite_all(self._output.fd, block[:nbytes].data, offset + start * element.itemsize)

    def remembered(self) -> list[bytes]:
        """Return no keys: nothing was combined into it yet."""
        return []

    def begin(self, _changed_nbytes: int, _policy: Policy, /) -> Update:
        """Begin to change it."""
        return _Made(self.name, self._output)


class _Made(_Written):
    """The update that makes a new file."""

    protocol = "new file"

    def __init__(self, name: str, output: FileOutput) -> None:
        super().__init__(name, output.fd)
        self._output: FileOutput = output

    def publish(self, on_commit: Callable[[], None]) -> None:
        """Give the new file its name, if that is still free."""
        try:
            self._output.publish(on_commit)
        except OutputExistsError as error:
            raise Appeared from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the file to the one who opened it."""
