"""Files of windows, open for a request: patched where their elements lie, or written again; some are new."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mpired.context import Context
from mpired.datatypes.pairs import FIELDS
from mpired.errors import DatatypeError, OutputExistsError, UsageError
from mpired.files import calls
from mpired.files.keys import Keys
from mpired.files.lock import Target, check_reach
from mpired.files.scratch import Scratch
from mpired.files.transaction import Draft, check_new
from mpired.files.update import Update, open_update
from mpired.formats import Array, FlatLayout, Format, arrays_in_place, format_to_create, recognise
from mpired.formats.array import blocks, within_budget
from mpired.formats.cells import gives_truths
from mpired.formats.conventions import DTYPE
from mpired.formats.convert import in_form
from mpired.formats.decoding import call_in_worker, write_to
from mpired.formats.input_options import ORDERS
from mpired.formats.layout import part_of, write_native
from mpired.ops import Op, may_be_null, neutral
from mpired.ops.state import Elements
from mpired.sources.local import LocalSource, stamp_of
from mpired.sources.source import Source
from mpired.windows.call import WindowRequest
from mpired.windows.placement import Runs

_BLOCK_NBYTES = 4 << 20
_ALIGNMENT = 64


class Appeared(Exception):  # noqa: N818 - no error: the request starts again with the file that is there
    """Raised when another process has made a target meanwhile."""


@dataclass
class WindowFile:
    """A file of a window, and the work on it."""

    name: str
    format: Format
    windows: Sequence[Array]  # where the elements are changed: one array, or one for each column
    file: Target | Draft | None = None  # locked, or being made; `None` in a dry run
    nbytes: int = 0  # of the file
    fd: int = -1  # the descriptor that has the bytes of the windows
    # of a file that is written again the one that has all else, such as the schema; `None` if elements are changed
    # where they lie
    like: Source | None = None
    rewriting: int = 0  # memory that writing it again takes
    scratch: Scratch | None = None  # has the elements then, as native ones
    shares: Sequence[tuple[int, Runs]] = ()  # its elements in the call, each with the number of its array
    origins: Sequence[int] = ()  # the numbers of the origins that are combined into it
    changed_nbytes: int = 0  # about how many bytes are read and written for each origin
    keys: Keys | None = None
    new_keys: Sequence[tuple[bytes, str]] = ()  # with their labels
    update: Update | None = None  # `None` if it does not change

    @property
    def is_new(self) -> bool:
        """Whether the file is being made: even if nothing is combined into it."""
        return isinstance(self.file, Draft)

    def begin(self, request: WindowRequest) -> Update:
        """Begin to change it."""
        assert self.file is not None  # noqa: S101 - in a dry run nothing changes
        encode = None if self.like is None else partial(self._encode, request.inputs.context)
        if isinstance(self.file, Draft):
            new = self.file
        elif encode is not None:
            self.check_commit(request.commit)
            new = Draft(self.name, overwrite=True, durable=request.durable, place=self.file)
        else:
            return open_update(self.file, self.changed_nbytes, request.commit, durable=request.durable)
        new.into, new.complete = self.fd, encode
        return new

    def _encode(self, context: Context, draft: Draft) -> None:
        """Write the file again, with the elements that the scratch file has."""
        assert self.like is not None  # noqa: S101 - else elements are changed where they lie
        assert self.scratch is not None  # noqa: S101 - as above
        source = LocalSource(self.name, self.scratch.shared.path)
        changed: list[Array] = []
        for each in (window._replace(source=source) for window in self.windows):
            parts = zip(FIELDS, each.columns, strict=True) if len(each.columns) > 1 else ()  # pairs of two arrays
            changed += [part_of(each, field)._replace(name=name) for field, name in parts] or [each]
        call_in_worker(context, self.like.name, write_to, draft.shared, self.format.rewrite, self.like, changed)
        if self.is_new:
            self.like.check_unchanged()

    def check_commit(self, commit: str) -> None:
        """Raise `UsageError` if the call asks to patch a file that can only be written again."""
        if self.like is not None and commit == "journal":
            are_pairs = any(len(each.columns) > 1 for each in self.windows)
            chunked = "are pairs of two arrays" if are_pairs else "have chunks, codecs or missing values"
            how = chunked if self.format.in_place else f"are encoded or checked by {self.format.name}"
            reason = f"changes elements where they lie, and those of {self.name} {how}"
            raise UsageError("`commit='journal'`", f"{reason}; leave it out, which writes the file again")


def open_window(source: LocalSource, request: WindowRequest, target: Target | None, stack: ExitStack) -> WindowFile:
    """Inspect a locked file, or one of a dry run, and decode the elements unless they are flat."""
    # The datatype, the columns, and of a raw file the byte order; most other options describe origins alone.
    declared = request.within or request.inputs.datatype
    inputs = request.inputs._replace(datatype=declared, format=None, offset=0, count=None, pair=None, window=True)
    inputs = inputs._replace(nullable=True)  # elements that the call does not change may be missing
    row = recognise(source, inputs)
    if request.within is not None and not row.needs_type:
        inputs = inputs._replace(datatype=None)
    file = row.inspect(source, inputs)
    if pair := request.inputs.pair:
        if request.origins and len(own := request.origins[0][0].array.columns) == len(pair):  # not patterns of names
            pair = own[0], own[1]
        if {*pair} <= {*file.names}:  # else it has pairs in one array
            file = row.inspect(source, inputs._replace(pair=pair))
    file.check(inputs.taken)
    # A reader such as xarray would take every number but 0 for true.
    truths = [each.name for each in file.headers if each.attributes.get(DTYPE) == "bool"]
    if truths and not gives_truths(request.op):
        reason = f"{truths[0]!r} has truth values by its attribute 'dtype', and {request.op} gives numbers"
        raise DatatypeError(source.name, f"{reason}; use land, lor, lxor or replace, or `reduce-local`, which drops it")
    if not row.updatable:
        raise UsageError(source.name, f"is {row.name}, of which no file is updated; write its elements to another")
    if flat := arrays_in_place(file):
        plain = [each._replace(nullable=False) for each in flat]
        return WindowFile(source.name, row, plain, target, source.nbytes, -1 if target is None else target.fd)
    # Before the work: a file that cannot be written again is refused.
    nbytes = row.rewriting(file.source)
    window = WindowFile(source.name, row, (), target, source.nbytes, like=file.source, rewriting=nbytes)
    if target is None:
        return replace(window, windows=[_native(source, each, row, request) for each in file.buffers])
    arrays = [inputs.context.worker.decoding(within_budget(each, inputs.context)) for each in file.buffers]
    elements = (blocks(each, max(1, _BLOCK_NBYTES // each.datatype.itemsize)) for each in arrays)
    return _decoded(window, arrays, elements, request, stack)


def plan_window(name: str, request: WindowRequest, stack: ExitStack) -> WindowFile:
    """Inspect a target for a dry run, without a lock, or the one that would be made."""
    context = request.inputs.context
    if request.create is not None and not os.path.exists(name):
        check_new([name], context, overwrite=False)
        check_reach(name)
        return _new_window(name, _row(name, request), request, None, stack)
    source = LocalSource.inspected(name, name, calls.followed(name), context)
    with calls.errors_name(name):
        calls.close_quietly(calls.open_regular(os.path.realpath(name), os.O_RDWR if request.op.origin else os.O_RDONLY))
    check_reach(name)
    window = open_window(source, request, None, stack)
    window.check_commit(request.commit)
    return window


def make_window(name: str, request: WindowRequest, stack: ExitStack) -> WindowFile:
    """Make a target that does not exist yet."""
    row, keyed = _row(name, request), bool(request.keys)
    try:  # of those who make it with a file of keys one at a time
        draft = Draft(name, context=request.inputs.context, durable=request.durable, named=keyed)
    except OutputExistsError as error:
        raise Appeared from error
    stack.enter_context(draft)
    if keyed and calls.status_at(draft.base, draft.dirfd) is not None:
        raise Appeared
    check_reach(name, draft.fd)  # another machine may make it, too
    return _new_window(name, row, request, draft, stack)


def _row(name: str, request: WindowRequest) -> Format:
    """Return the format of a new target."""
    like = request.create.format if request.create and request.whole else ""
    return format_to_create(name, like=like, declared=(request.within or request.inputs.datatype) is not None)


def _new_window(name: str, row: Format, request: WindowRequest, draft: Draft | None, stack: ExitStack) -> WindowFile:
    """Fill the draft of a new target with initial elements; in a dry run there is no draft."""
    assert request.create is not None  # noqa: S101 - else nothing is made
    inputs, model = request.inputs, request.create
    if not row.is_flat:
        return _new_columns(name, row, request, draft, stack)
    like = model.buffers[0]  # of several, which no origin has then, the comparison of the counts tells
    if row.needs_type:
        order = ORDERS[inputs.byte_order or inputs.type_order]
        like = like._replace(stored=like.stored.newbyteorder(order), fixed_order=False, shape=None, fortran_order=False)
    layout = row.prepare(model._replace(buffers=(like,)))
    assert isinstance(layout, FlatLayout)  # noqa: S101 - of all that are made new
    nbytes = layout.end(like.count)
    source = LocalSource(name, name, (0, 0, nbytes, 0))
    if draft is not None:
        element, at = in_form(neutral(request.op, like.datatype).reshape(1), layout.stored), layout.offset
        with calls.errors_name(name):
            calls.pwrite_all(draft.fd, layout.head, 0)
            calls.set_size(draft.fd, nbytes)
            for block in _repeated(element, like.count) if element.view(np.uint8).any() else ():
                calls.pwrite_all(draft.fd, block.view(np.uint8).data, at)
                at += block.nbytes
        source = LocalSource(name, draft.shared.path)
    shape = None if row.needs_type else (like.count,) if like.shape is None else like.shape
    window = Array(source, like.datatype, like.count, layout.stored, layout.offset, shape, like.fortran_order)
    return WindowFile(name, row, [window], draft, nbytes, -1 if draft is None else draft.fd)


def _new_columns(name: str, row: Format, request: WindowRequest, draft: Draft | None, stack: ExitStack) -> WindowFile:
    """Return a new target with columns: the first origin, with other elements in the columns that are combined."""
    model = request.create
    assert model is not None  # noqa: S101 - else nothing is made
    if model.source is None:
        why = "they are in several files; name a target that exists"
        if request.within is not None:
            why = "`accumulate_in` has another datatype; name an npy target, or one that exists"
        raise UsageError("`create`", f"makes the columns of the first origin, and {why}")
    nbytes = sum(each.count * each.stored.itemsize for each in model.buffers)
    window = WindowFile(name, row, (), draft, nbytes, like=model.source, rewriting=row.rewriting(model.source))
    if draft is None:
        source = LocalSource(name, name, (0, 0, 0, 0))
        return replace(window, windows=[_native(source, each, row, request) for each in model.buffers])
    return _decoded(window, model.buffers, map(partial(_initial, request.op), model.buffers), request, stack)


def _decoded(
    window: WindowFile,
    columns: Sequence[Array],
    elements: Iterable[Iterable[Elements]],
    request: WindowRequest,
    stack: ExitStack,
) -> WindowFile:
    """Put the elements of columns, which come in blocks, into a scratch file, where they are changed."""
    assert window.file is not None  # noqa: S101 - in a dry run nothing is decoded
    scratch = stack.enter_context(Scratch(window.file.directory, window.name))
    status = window.file.status if isinstance(window.file, Target) else os.fstat(scratch.fd)
    source = LocalSource(window.name, scratch.shared.path, stamp_of(status))
    windows, end, has_nulls = [], 0, window.format.has_nulls and not window.format.has_arrays
    for column, parts in zip(columns, elements, strict=True):
        array = _native(source, column, window.format, request)._replace(offset=end)
        if array.marked is None and (array.nullable or (column.nulls != 0 and has_nulls)):
            array = array._replace(validity=array.end + -array.end % _ALIGNMENT)
        write_native(array, parts, scratch.fd)
        end = array.end if array.validity is None else array.validity + array.count
        end += -end % _ALIGNMENT
        windows.append(array)
    return replace(window, windows=windows, scratch=scratch, fd=scratch.fd)


def _native(source: Source, column: Array, row: Format, request: WindowRequest) -> Array:
    """Return a column as native elements of a source, with whether some may be null, if the file can say so."""
    shape = (column.count,) if column.shape is None else column.shape
    form, marked = column.datatype.form, column.missing
    array = Array(source, column.datatype, column.count, form, 0, shape, column.fortran_order, name=column.name)
    array = array._replace(parts=column.parts, nulls=column.nulls, marked=marked)
    nullable = marked is not None and bool(marked.values)
    if row.has_nulls and not row.has_arrays:  # the format says so beside the values
        nullable = column.nulls != 0 or request.complete is not None
        lacking = [column.nulls != 0, *(each.array.nulls != 0 for arrays in request.origins for each in arrays)]
        nullable = nullable or may_be_null(request.op, column.datatype, lacking)
    return array._replace(nullable=request.inputs.nullable and nullable)


def _initial(op: Op, array: Array) -> Iterator[Elements]:
    """Yield the elements of a new array: missing ones, which take the first value that comes, if they may be that."""
    element, are_missing = neutral(op, array.datatype).reshape(1), op.rules.nulls == "ignore" and array.nulls != 0
    if are_missing and array.missing is not None:
        array.missing.mark(element, slice(None))
    for block in _repeated(element, array.count):
        yield block, np.zeros(len(block), np.bool_) if are_missing else None


def _repeated(element: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Yield an element `count` times, in blocks."""
    block = np.repeat(element, min(max(1, _BLOCK_NBYTES // element.itemsize), count))
    for start in range(0, count, max(1, len(block))):
        yield block[: count - start]
