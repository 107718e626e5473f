"""A target that is open for a request: a flat file, a file with columns, or one that is still to be made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from mpired.buffers import (
    BufferModel,
    Declared,
    FlatBuffer,
    FlatLayout,
    Format,
    Model,
    RankBuffer,
    RankFile,
    changed_there,
    format_named,
    format_to_create,
    recognise,
)
from mpired.buffers.decoding import Decoder, rewrite
from mpired.buffers.flat import Order, in_form
from mpired.buffers.missing import Missing
from mpired.buffers.rank import blocks, within_budget
from mpired.context import Context
from mpired.errors import OutputExistsError, UsageError
from mpired.files import calls
from mpired.files.keys import Keys, kept, remember
from mpired.files.keys import of_file as keys_of_file
from mpired.files.lock import Target, check_reach, check_reaches
from mpired.files.places import check_new
from mpired.files.scratch import Scratch
from mpired.files.transaction import Draft
from mpired.files.update import Update, choose, closing_on_error
from mpired.sources.local import LocalSource, recovered_status
from mpired.sources.source import Source

_BLOCK_NBYTES = 4 << 20
_ALIGNMENT = 64


class Policy(NamedTuple):
    """How a target is changed."""

    commit: str = "auto"  # "rename", "journal" or "auto"
    durable: bool = True  # whether the disk has to confirm it


class Opened(Protocol):
    """What a request needs of a target."""

    name: str
    format: str
    source: int
    """The descriptor that has the bytes of the windows."""
    windows: Sequence[FlatBuffer]
    """Where the elements are: one buffer, or one for each column."""

    def rewriting(self) -> int:
        """Return about how many bytes are in memory at once when it is written; 0 if it is changed where it is."""

    def keys(self, stack: ExitStack, /) -> Keys:
        """Return the keys of what was combined into it before; `stack` closes what is opened for that."""

    def begin(self, changed_nbytes: int, policy: Policy, /) -> Update:
        """Begin to change it."""


class FlatTarget:
    """A file that is changed where its elements lie, locked."""

    def __init__(self, target: Target, windows: Sequence[FlatBuffer], form: str) -> None:
        self.name = target.name
        self.format = form
        self.source = target.fd
        self.windows = windows
        self._target = target

    def rewriting(self) -> int:
        """Return 0."""
        return 0

    def keys(self, _stack: ExitStack, /) -> Keys:
        """Return the keys of what was combined into it before."""
        return Keys(self.name, self._target.base, self._target.dirfd, self._target.fd)

    def begin(self, changed_nbytes: int, policy: Policy, /) -> Update:
        """Begin to change it by the protocol of the policy."""
        return choose(self._target, changed_nbytes, policy.commit, durable=policy.durable)


def look_at(target: Target, declared: Declared, decoder: Decoder, stack: ExitStack) -> Opened:
    """Look at a locked file."""
    file = looked_at(LocalSource.of_status(target.name, target.path, target.status), declared)
    if flat := changed_there(file):
        return FlatTarget(target, flat, file.format)
    return ColumnTarget(target, file, declared.context, decoder, stack)


def looked_at(source: Source, declared: Declared) -> RankFile:
    """Look at a file that is to be a target; errors as of `look_at`."""
    row = recognise(source, declared)
    file = row.inspect(source, declared)
    file.check_some(declared.taken)
    if not row.updatable:
        raise UsageError(source.name, f"is {row.name}, of which no file is updated; write its elements to another")
    return file


class PlannedTarget:
    """A target of a dry run: inspected without a lock, and never changed."""

    source = -1

    def __init__(
        self, name: str, form: str, windows: Sequence[FlatBuffer], nbytes: int, like: Source | None = None
    ) -> None:
        self.name = name
        self.format = form
        self.windows = windows
        self.nbytes = nbytes  # of the file
        self._like = like  # the file that it would be written like, if it has columns

    def rewriting(self) -> int:
        """Return about how many bytes are in memory at once when it is written."""
        return 0 if self._like is None else rewriting(self.format, self._like)

    def keys(self, stack: ExitStack, /) -> Keys:
        """Return the keys of what was combined into it before."""
        return stack.enter_context(keys_of_file(self.name))

    def begin(self, _changed_nbytes: int, _policy: Policy, /) -> Update:
        """Refuse to change it."""
        raise NotImplementedError


def plan_target(
    name: str, declared: Declared, filling: Filling | None, policy: Policy, *, writable: bool
) -> PlannedTarget:
    """Inspect a target without a lock, or the one that would be made; errors as of `look_at`, `make_target`."""
    if filling is not None and not os.path.exists(name):
        check_new([name], declared.context, overwrite=False)
        check_reaches(name)
        return _plan_new_target(name, filling)
    status = recovered_status(name, name, declared.context)
    calls.let_go(calls.open_existing(os.path.realpath(name), name, writable=writable))
    check_reaches(name)
    file = looked_at(LocalSource.of_status(name, name, status), declared)
    if flat := changed_there(file):
        return PlannedTarget(name, file.format, flat, status.st_size)
    check_rewritten(name, file.format, policy)
    return PlannedTarget(name, file.format, _decoded(file.source, file.buffers), status.st_size, file.source)


def _plan_new_target(name: str, filling: Filling) -> PlannedTarget:
    row, source = filling.row(name), LocalSource(name, name, (0, 0, 0, 0))
    if not row.is_flat:
        columns = _decoded(source, filling.model.buffers)
        nbytes = sum(each.count * each.stored.itemsize for each in columns)
        return PlannedTarget(name, row.name, columns, nbytes, filling.model.source)
    window, layout = filling.flat(row, source)
    nbytes = layout.offset + window.count * layout.stored.itemsize
    window = window._replace(source=LocalSource(name, name, (0, 0, nbytes, 0)))
    return PlannedTarget(name, row.name, (window,), nbytes)


def _decoded(source: Source, columns: Sequence[BufferModel | RankBuffer]) -> list[FlatBuffer]:
    """Return columns as native elements, which are nowhere."""
    shapes = [(each.count,) if each.shape is None else each.shape for each in columns]
    return [
        FlatBuffer(source, each.datatype, each.count, each.datatype.form, 0, shape, each.fortran_order, name=each.name)
        for each, shape in zip(columns, shapes, strict=True)
    ]


class _Columns:
    """A target with columns: the elements that may change are elsewhere, as native ones, until all is written."""

    def __init__(
        self, name: str, form: str, like: Source, scratch: Scratch, status: os.stat_result | None = None
    ) -> None:
        self.name = name
        self.format = form
        self.source = scratch.fd
        self.windows: Sequence[FlatBuffer] = ()
        self._like = like  # the file that has all else, the other columns and the schema
        self._rewriting = rewriting(form, like)  # before the work: a file that cannot be written again is refused
        self._scratch = scratch
        self._status = os.fstat(scratch.fd) if status is None else status

    def rewriting(self) -> int:
        """Return about how many bytes are in memory at once when it is written."""
        return self._rewriting

    def _put(
        self,
        columns: Iterable[BufferModel | RankBuffer],
        elements: Iterable[Iterator[np.ndarray]],
        marked: Iterable[Missing | None],
    ) -> None:
        """Put the elements of the columns, which come in blocks, to where they are changed."""
        # `marked` says which values of each mean to readers of the file that an element is missing.
        flat, end = [], 0
        for column, parts, marks in zip(columns, elements, marked, strict=True):
            form, at = column.datatype.form, end
            for block in parts:
                calls.pwrite_all(self._scratch.fd, block.view(np.uint8).data, at)
                at += block.nbytes
            source = LocalSource.of_status(self.name, self._scratch.shared_path, self._status)
            shape = (column.count,) if column.shape is None else column.shape
            order = column.fortran_order
            # Those that are changed are all there.
            flat.append(
                FlatBuffer(
                    source, column.datatype, column.count, form, end, shape, order, name=column.name, marked=marks
                )
            )
            end += -(-column.count * form.itemsize // _ALIGNMENT) * _ALIGNMENT
        self.windows = flat

    def _encode(self, output: Draft) -> None:
        source = LocalSource.of(self.name, self._scratch.shared_path)
        changed = [window._replace(source=source) for window in self.windows]
        rewrite(format_named(self.format), self._like, changed, output.shared)


class ColumnTarget(_Columns):
    """A file that is decoded, locked: buffers are copied out, changed, and written to a new file with all else."""

    def __init__(self, target: Target, file: RankFile, context: Context, decoder: Decoder, stack: ExitStack) -> None:
        scratch = stack.enter_context(Scratch(os.path.dirname(target.path), target.name))
        super().__init__(target.name, file.format, file.source, scratch, target.status)
        self._target = target
        buffers = [decoder.decoding(within_budget(each, context)) for each in file.buffers]
        steps = (max(1, _BLOCK_NBYTES // buffer.datatype.itemsize) for buffer in buffers)
        self._put(buffers, map(blocks, buffers, steps), [getattr(each, "missing", None) for each in file.buffers])

    def keys(self, _stack: ExitStack, /) -> Keys:
        """Return the keys of what was combined into it before."""
        return Keys(self.name, self._target.base, self._target.dirfd, self._target.fd)

    def begin(self, _changed_nbytes: int, policy: Policy, /) -> Update:
        """Begin to change it: always by a new file."""
        check_rewritten(self.name, self.format, policy)
        return _Written(self.name, self._scratch.fd, partial(self._finished, policy), self._target)

    def _finished(self, policy: Policy) -> Draft:
        output = Draft(self.name, overwrite=True, durable=policy.durable, target=self._target)
        with closing_on_error(output):
            self._encode(output)
        return output


def check_rewritten(name: str, form: str, policy: Policy) -> None:
    """Raise `UsageError` if a file that is written again, of a format, is to be changed where it is."""
    if policy.commit == "journal":
        how = (
            "have chunks, codecs or missing values"
            if format_named(form).in_place
            else f"are encoded or checked by {form}"
        )
        reason = f"changes elements where they lie, and those of {name} {how}"
        raise UsageError("`commit='journal'`", f"{reason}; leave it out, which writes the file again")


def rewriting(form: str, like: Source) -> int:
    """Return about how many bytes are in memory at once when a file is written like another."""
    return format_named(form).rewriting(like)


class _Written(calls.Closing):
    """An update by a whole new file: new bytes go to a file without a name, of which the new one is made at the end."""

    def __init__(self, name: str, fd: int, finished: Callable[[], Draft], target: Target | None = None) -> None:
        self.protocol = "new file" if target is None else "rename"
        self.source = fd
        self._name, self._finished, self._target = name, finished, target
        self._output: Draft | None = None

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Put new bytes to their place."""
        with calls.blaming(self._name):
            calls.pwrite_all(self.source, data, offset)

    def seal(self, new_keys: bytes) -> None:
        """Write the new file, and bring it to the disk."""
        with calls.blaming(self._name):
            if not new_keys and self._target is not None:
                new_keys = kept(self._target.fd)
            self._output = self._finished()
            if new_keys:
                remember(self._output.fd, new_keys)
        self._output.seal()

    def publish(self, on_commit: Callable[[], None]) -> None:
        """Let the new file take its place."""
        assert self._output is not None  # noqa: S101 - opened by then
        try:
            self._output.publish(on_commit)
        except OutputExistsError as error:  # of a target that was not there
            raise Appeared from error

    def close(self) -> None:
        """Let go of the new file, if it was not published."""
        if self._output is not None:
            self._output.close()


class Appeared(Exception):  # noqa: N818 - no error: the request starts again with the file that is there
    """Raised when a target that was to be made has been made by somebody else."""


class Filling(NamedTuple):
    """What a new target is filled with."""

    elements: Sequence[np.ndarray]  # for each buffer of the model an array of one element
    model: Model  # what the target is like
    raw_order: Order = "="  # the byte order of its elements if it is raw
    declared: bool = False  # whether the datatype was declared, so that it is known of a file that does not say it
    whole: bool = False  # whether it is like the whole file that is the source of the model
    # for each buffer of the model which values mean to readers of such a file that an element is missing
    marked: Sequence[Missing | None] = ()

    def row(self, name: str) -> Format:
        """Return the format of a target of that name."""
        like = self.model.format if self.whole else ""
        return format_to_create(name, like=like, declared=self.declared)

    def flat(self, row: Format, source: Source) -> tuple[FlatBuffer, FlatLayout]:
        """Return the elements as a buffer of a file of a format that is not streamed, and how they lie there."""
        like = self.model.buffers[0]  # of several, which no origin has then, the comparison of the counts tells
        if row.needs_type:
            like = like._replace(byte_order=self.raw_order, shape=None, fortran_order=False)
        layout = row.prepare(self.model._replace(buffers=(like,)))
        assert isinstance(layout, FlatLayout)  # noqa: S101 - as of all that are made new
        shape = None if row.needs_type else (like.count,) if like.shape is None else like.shape
        order = like.fortran_order
        return FlatBuffer(source, like.datatype, like.count, layout.stored, layout.offset, shape, order), layout


def make_target(
    name: str, filling: Filling, context: Context, stack: ExitStack, *, durable: bool, keyed: bool
) -> NewTarget | NewColumns:
    """Make a target that does not exist yet; of those who make it `keyed`, with a file of keys, one at a time."""
    row = filling.row(name)
    try:
        output = stack.enter_context(Draft(name, overwrite=False, context=context, durable=durable, named=keyed))
    except OutputExistsError as error:
        raise Appeared from error
    if keyed and calls.status_at(output.base, output.dirfd) is not None:
        raise Appeared
    check_reach(output.fd, name)  # another machine may make it, too
    if not row.is_flat:
        return NewColumns(output, filling, stack)
    return NewTarget(output, row, filling)


class NewColumns(_Columns):
    """A target with columns that does not exist yet: the first origin, with other elements in what is combined."""

    def __init__(self, output: Draft, filling: Filling, stack: ExitStack) -> None:
        model = filling.model
        assert model.source is not None  # noqa: S101 - else its format is not made
        if any(len(buffer.columns) > 1 for buffer in model.buffers):
            reason = f"makes pairs of two columns, which {model.format} targets do not have; name an npy target"
            raise UsageError("`pair`", reason)
        scratch = stack.enter_context(Scratch(output.directory, output.name))
        super().__init__(output.name, model.format, model.source, scratch)
        self._output = output
        counts = (buffer.count for buffer in model.buffers)
        self._put(model.buffers, map(_repeated, filling.elements, counts), filling.marked)

    def keys(self, _stack: ExitStack, /) -> Keys:
        """Return no keys: nothing was combined into it yet."""
        return Keys(self.name, self._output.base, self._output.dirfd, None)

    def begin(self, _changed_nbytes: int, _policy: Policy, /) -> Update:
        """Begin to change it."""
        return _Written(self.name, self._scratch.fd, self._finished)

    def _finished(self) -> Draft:
        self._encode(self._output)
        self._like.check_unchanged()
        return self._output


def _repeated(element: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Yield an element so many times, in blocks."""
    block = np.repeat(element, min(max(1, _BLOCK_NBYTES // element.itemsize), count))
    for start in range(0, count, max(1, len(block))):
        yield block[: count - start]


class NewTarget:
    """A flat target that does not exist yet, filled with one element again and again."""

    def __init__(self, output: Draft, row: Format, filling: Filling) -> None:
        self.name = name = output.name
        self._output = output
        self.source = self._output.fd
        window, layout = filling.flat(row, LocalSource(name, output.shared_path, (0, 0, 0, 0)))
        with calls.blaming(name):
            calls.pwrite_all(self._output.fd, layout.head, 0)
            self._fill(in_form(filling.elements[0], layout.stored), layout.offset, window.count)
        self.format = row.name
        source = LocalSource.of(name, self._output.shared_path)
        self.windows: Sequence[FlatBuffer] = (window._replace(source=source),)

    def _fill(self, element: np.ndarray, offset: int, count: int) -> None:
        if not element.view(np.uint8).any():
            calls.set_size(self._output.fd, offset + count * element.itemsize)
            return
        for block in _repeated(element, count):
            calls.pwrite_all(self._output.fd, block.view(np.uint8).data, offset)
            offset += block.nbytes

    def rewriting(self) -> int:
        """Return 0."""
        return 0

    def keys(self, _stack: ExitStack, /) -> Keys:
        """Return no keys: nothing was combined into it yet."""
        return Keys(self.name, self._output.base, self._output.dirfd, None)

    def begin(self, _changed_nbytes: int, _policy: Policy, /) -> Update:
        """Begin to change it."""
        return _Written(self.name, self._output.fd, lambda: self._output)
