"""A target that is open for a request: a flat file, a file with columns, or one that is still to be made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import numpy as np

from mpired.context import Context
from mpired.errors import OutputExistsError, UsageError
from mpired.files import calls
from mpired.files.keys import Keys, hand_over
from mpired.files.keys import of_file as keys_of_file
from mpired.files.lock import Target, check_reach, check_reaches
from mpired.files.places import check_new
from mpired.files.scratch import Scratch
from mpired.files.transaction import Draft, publish
from mpired.files.update import Patch, Update, replacement
from mpired.formats import (
    Array,
    FlatLayout,
    Format,
    InputOptions,
    Model,
    RankFile,
    changed_there,
    format_named,
    format_to_create,
    recognise,
)
from mpired.formats.array import blocks, within_budget
from mpired.formats.convert import Order, in_form
from mpired.formats.decoding import Decoder, rewrite
from mpired.formats.missing import Missing
from mpired.sources.local import LocalSource, recovered_status
from mpired.sources.source import Source

_BLOCK_NBYTES = 4 << 20
_ALIGNMENT = 64


class Policy(NamedTuple):
    """How a target is changed."""

    commit: str = "auto"  # "rename", "journal" or "auto"
    durable: bool = True  # whether the disk has to confirm it


class Opened:
    """A target that is open for a request; `kept` is where its keys are: the locked file, or the new one."""

    def __init__(
        self, name: str, form: str, source: int, windows: Sequence[Array] = (), kept: Target | Draft | None = None
    ) -> None:
        self.name, self.format, self._kept = name, form, kept
        self.source = source  # the descriptor that has the bytes of the windows
        self.windows = windows  # where the elements are: one buffer, or one for each column

    def rewriting(self) -> int:
        """Return about how many bytes are in memory at once when it is written; 0 if it is changed where it is."""
        return 0

    def keys(self, _stack: ExitStack, /) -> Keys:
        """Return the keys of what was combined into it before: none of a new one; `_stack` closes what is opened."""
        assert self._kept is not None  # noqa: S101 - else there is a method for this
        fd = self._kept.fd if isinstance(self._kept, Target) else None
        return Keys(self.name, self._kept.base, self._kept.dirfd, fd)

    def begin(self, changed_nbytes: int, policy: Policy, /) -> Update:
        """Begin to change it."""
        raise NotImplementedError


class FlatTarget(Opened):
    """A file that is changed where its elements lie, locked."""

    def __init__(self, target: Target, windows: Sequence[Array], form: str) -> None:
        super().__init__(target.name, form, target.fd, windows, target)
        self._target = target

    def begin(self, changed_nbytes: int, policy: Policy, /) -> Update:
        """Begin to change it by the protocol of the policy."""
        replaced = replacement(self._target, changed_nbytes, policy.commit, durable=policy.durable)
        return replaced or Patch(self._target, changed_nbytes, durable=policy.durable)


def look_at(target: Target, inputs: InputOptions, decoder: Decoder, stack: ExitStack) -> Opened:
    """Look at a locked file."""
    file = looked_at(LocalSource.of_status(target.name, target.path, target.status), inputs)
    if flat := changed_there(file):
        return FlatTarget(target, flat, file.format)
    return ColumnTarget(target, file, inputs.context, decoder, stack)


def looked_at(source: Source, inputs: InputOptions) -> RankFile:
    """Look at a file that is to be a target; errors as of `look_at`."""
    row = recognise(source, inputs)
    file = row.inspect(source, inputs)
    file.check_some(inputs.taken)
    if not row.updatable:
        raise UsageError(source.name, f"is {row.name}, of which no file is updated; write its elements to another")
    return file


class PlannedTarget(Opened):
    """A target of a dry run: inspected without a lock, and never changed."""

    def __init__(self, name: str, form: str, windows: Sequence[Array], nbytes: int, like: Source | None = None) -> None:
        super().__init__(name, form, -1, windows)
        self.nbytes = nbytes  # of the file
        self._like = like  # the file that it would be written like, if it has columns

    def rewriting(self) -> int:
        """Return about how many bytes are in memory at once when it is written."""
        return 0 if self._like is None else rewriting(self.format, self._like)

    def keys(self, stack: ExitStack, /) -> Keys:
        """Return the keys of what was combined into it before."""
        return stack.enter_context(keys_of_file(self.name))


def plan_target(
    name: str, inputs: InputOptions, filling: Filling | None, policy: Policy, *, writable: bool
) -> PlannedTarget:
    """Inspect a target without a lock, or the one that would be made; errors as of `look_at`, `make_target`."""
    if filling is not None and not os.path.exists(name):
        check_new([name], inputs.context, overwrite=False)
        check_reaches(name)
        return _plan_new_target(name, filling)
    status = recovered_status(name, name, inputs.context)
    calls.let_go(calls.open_existing(os.path.realpath(name), name, writable=writable))
    check_reaches(name)
    file = looked_at(LocalSource.of_status(name, name, status), inputs)
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


def _decoded(source: Source, columns: Sequence[Array]) -> list[Array]:
    """Return columns as native elements, which are nowhere."""
    return [_native(source, each, 0) for each in columns]


def _native(source: Source, column: Array, offset: int) -> Array:
    """Return a column as native elements at an offset of a source."""
    shape = (column.count,) if column.shape is None else column.shape
    what = column.datatype, column.count, column.datatype.form
    return Array(source, *what, offset, shape, column.fortran_order, name=column.name)


class _Columns(Opened):
    """A target with columns: the elements that may change are elsewhere, as native ones, until all is written."""

    def __init__(
        self, kept: Target | Draft, form: str, like: Source, scratch: Scratch, status: os.stat_result | None = None
    ) -> None:
        super().__init__(kept.name, form, scratch.fd, kept=kept)
        self._like = like  # the file that has all else, the other columns and the schema
        self._rewriting = rewriting(form, like)  # before the work: a file that cannot be written again is refused
        self._scratch = scratch
        self._status = os.fstat(scratch.fd) if status is None else status

    def rewriting(self) -> int:
        """Return about how many bytes are in memory at once when it is written."""
        return self._rewriting

    def _put(
        self, columns: Iterable[Array], elements: Iterable[Iterator[np.ndarray]], marked: Iterable[Missing | None]
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
            flat.append(_native(source, column, end)._replace(marked=marks))  # those that are changed are all there
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
        super().__init__(target, file.format, file.source, scratch, target.status)
        self._target = target
        buffers = [decoder.decoding(within_budget(each, context)) for each in file.buffers]
        steps = (max(1, _BLOCK_NBYTES // buffer.datatype.itemsize) for buffer in buffers)
        self._put(buffers, map(blocks, buffers, steps), [each.missing for each in file.buffers])

    def begin(self, _changed_nbytes: int, policy: Policy, /) -> Update:
        """Begin to change it: always by a new file."""
        check_rewritten(self.name, self.format, policy)
        return _Written(self.name, self._scratch.fd, partial(self._finished, policy), self._target)

    def _finished(self, policy: Policy) -> Draft:
        output = Draft(self.name, overwrite=True, durable=policy.durable, target=self._target)
        with calls.undoing(output.close):
            self._encode(output)
        return output


def check_rewritten(name: str, form: str, policy: Policy) -> None:
    """Raise `UsageError` if a file that is written again, of a format, is to be changed where it is."""
    if policy.commit == "journal":
        chunked = "have chunks, codecs or missing values"
        how = chunked if format_named(form).in_place else f"are encoded or checked by {form}"
        reason = f"changes elements where they lie, and those of {name} {how}"
        raise UsageError("`commit='journal'`", f"{reason}; leave it out, which writes the file again")


def rewriting(form: str, like: Source) -> int:
    """Return about how many bytes are in memory at once when a file is written like another."""
    return format_named(form).rewriting(like)


class _Written(Update):
    """An update by a whole new file: new bytes go to a file without a name, of which the new one is made at the end."""

    def __init__(self, name: str, fd: int, finished: Callable[[], Draft], target: Target | None = None) -> None:
        super().__init__(fd)
        self.protocol = "new file" if target is None else "rename"
        self._name, self._finished, self._target = name, finished, target
        self._output: Draft | None = None

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Put new bytes to their place."""
        with calls.blaming(self._name):
            calls.pwrite_all(self.source, data, offset)

    def seal(self, new_keys: bytes) -> None:
        """Write the new file, and bring it to the disk."""
        with calls.blaming(self._name):
            self._output = self._finished()
            hand_over(new_keys, self._target and self._target.fd, self._output.fd)
        self._output.seal()

    def publish(self, on_commit: Callable[[], None]) -> None:
        """Let the new file take its place."""
        assert self._output is not None  # noqa: S101 - opened by then
        try:
            publish([self._output], on_commit)
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

    def flat(self, row: Format, source: Source) -> tuple[Array, FlatLayout]:
        """Return the elements as a buffer of a file of a format that is not streamed, and how they lie there."""
        like = self.model.buffers[0]  # of several, which no origin has then, the comparison of the counts tells
        if row.needs_type:
            stored = like.stored.newbyteorder(self.raw_order)
            like = like._replace(stored=stored, fixed_order=False, shape=None, fortran_order=False)
        layout = row.prepare(self.model._replace(buffers=(like,)))
        assert isinstance(layout, FlatLayout)  # noqa: S101 - as of all that are made new
        shape = None if row.needs_type else (like.count,) if like.shape is None else like.shape
        order = like.fortran_order
        return Array(source, like.datatype, like.count, layout.stored, layout.offset, shape, order), layout


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
    return NewTarget(output, row, filling) if row.is_flat else NewColumns(output, filling, stack)


class NewColumns(_Columns):
    """A target with columns that does not exist yet: the first origin, with other elements in what is combined."""

    def __init__(self, output: Draft, filling: Filling, stack: ExitStack) -> None:
        model = filling.model
        assert model.source is not None  # noqa: S101 - else its format is not made
        if any(len(buffer.columns) > 1 for buffer in model.buffers):
            reason = f"makes pairs of two columns, which {model.format} targets do not have; name an npy target"
            raise UsageError("`pair`", reason)
        scratch = stack.enter_context(Scratch(output.directory, output.name))
        super().__init__(output, model.format, model.source, scratch)
        self._output = output
        counts = (buffer.count for buffer in model.buffers)
        self._put(model.buffers, map(_repeated, filling.elements, counts), filling.marked)

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


class NewTarget(Opened):
    """A flat target that does not exist yet, filled with one element again and again."""

    def __init__(self, output: Draft, row: Format, filling: Filling) -> None:
        super().__init__(output.name, row.name, output.fd, kept=output)
        self._output = output
        window, layout = filling.flat(row, LocalSource(self.name, output.shared_path, (0, 0, 0, 0)))
        with calls.blaming(self.name):
            calls.pwrite_all(output.fd, layout.head, 0)
            self._fill(in_form(filling.elements[0], layout.stored), layout.offset, window.count)
        self.windows = (window._replace(source=LocalSource.of(self.name, output.shared_path)),)

    def _fill(self, element: np.ndarray, offset: int, count: int) -> None:
        if not element.view(np.uint8).any():
            calls.set_size(self._output.fd, offset + count * element.itemsize)
            return
        for block in _repeated(element, count):
            calls.pwrite_all(self._output.fd, block.view(np.uint8).data, offset)
            offset += block.nbytes

    def begin(self, _changed_nbytes: int, _policy: Policy, /) -> Update:
        """Begin to change it."""
        return _Written(self.name, self._output.fd, lambda: self._output)
