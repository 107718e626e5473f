"""Files of windows: existing files, which are patched in place or written again, and new files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mpired.context import Context
from mpired.datatypes.predefined import FIELDS
from mpired.errors import DatatypeError, OutputExistsError, UsageError
from mpired.files import calls
from mpired.files.keys import Keys
from mpired.files.lock import Target, check_reach
from mpired.files.scratch import Scratch
from mpired.files.transaction import Draft, check_new
from mpired.files.update import Update, open_update
from mpired.formats import Array, FlatLayout, Format, arrays_in_place, format_to_create, recognise
from mpired.formats.array import blocks, limit_decoding
from mpired.formats.cells import gives_truths
from mpired.formats.conventions import DTYPE
from mpired.formats.convert import in_form
from mpired.formats.decoding import call_in_worker, write_to
from mpired.formats.input_options import ORDERS
from mpired.formats.layout import field_of, write_native
from mpired.ops import Op, may_be_null, neutral
from mpired.ops.state import Elements
from mpired.sources.local import LocalSource, stamp_of
from mpired.sources.source import Source
from mpired.windows.call import WindowRequest
from mpired.windows.placement import WindowSelection

_BLOCK_NBYTES = 4 << 20
_ALIGNMENT = 64


class CreatedMeanwhile(Exception):  # noqa: N818 - not an error: the call starts again with the existing file
    """Raised if another process has created a missing target during the call."""


@dataclass
class WindowFile:
    """A file of a window, and the state of its update."""

    name: str
    format: Format
    arrays: Sequence[Array]  # to change: one, or one for each column
    file: Target | Draft | None = None  # a locked file, or the draft of a new file; `None` in a dry run
    nbytes: int = 0  # of the file
    fd: int = -1  # of the file or, if it is written again, of its scratch file
    # the file that is written again with other elements: the old file or, for a new file, the first origin; `None` if
    # the file is patched in place
    template: Source | None = None
    rewrite_nbytes: int = 0  # bytes of memory to write it again
    scratch: Scratch | None = None  # the elements of a file that is written again, in native form
    selections: Sequence[tuple[int, WindowSelection]] = ()  # the number of an array, and the elements to change in it
    origins: Sequence[int] = ()  # numbers of the origins to combine
    changed_nbytes: int = 0  # read and written for each origin, approximately
    keys: Keys | None = None
    new_keys: Sequence[tuple[bytes, str]] = ()  # with their labels
    update: Update | None = None  # `None` if the file does not change

    @property
    def is_new(self) -> bool:
        """Whether the call creates the file."""
        return isinstance(self.file, Draft)

    def begin(self, request: WindowRequest) -> Update:
        """Return the update of the file."""
        assert self.file is not None  # noqa: S101 - a dry run changes nothing
        encode = None if self.template is None else partial(self._encode, request.inputs.context)
        if isinstance(self.file, Draft):
            draft = self.file
        elif encode is not None:
            self.check_commit(request.commit)
            draft = Draft(self.name, overwrite=True, durable=request.durable, place=self.file)
        else:
            return open_update(self.file, self.changed_nbytes, request.commit, durable=request.durable)
        draft.into, draft.complete = self.fd, encode
        return draft

    def _encode(self, context: Context, draft: Draft) -> None:
        """Write the old file with the elements of the scratch file to a draft."""
        assert self.template is not None  # noqa: S101 - not patched in place
        assert self.scratch is not None  # noqa: S101 - not patched in place
        source = LocalSource(self.name, self.scratch.shared.path)
        changed: list[Array] = []
        for array in (old._replace(source=source) for old in self.arrays):
            parts = zip(FIELDS, array.columns, strict=True) if len(array.columns) > 1 else ()  # pairs of two arrays
            changed += [field_of(array, field)._replace(name=name) for field, name in parts] or [array]
        call_in_worker(context, self.template.name, write_to, draft.shared, self.format.rewrite, self.template, changed)
        if self.is_new:
            self.template.check_unchanged()

    def check_commit(self, commit: str) -> None:
        """Raise `UsageError` if `commit` requires to patch a file that can only be written again."""
        if self.template is not None and commit == "journal":
            are_pairs = any(len(array.columns) > 1 for array in self.arrays)
            chunked = "are pairs of two arrays" if are_pairs else "have chunks, codecs or missing values"
            obstacle = chunked if self.format.in_place else f"are encoded or checked by {self.format.name}"
            reason = f"changes elements where they lie, and those of {self.name} {obstacle}"
            raise UsageError("`commit='journal'`", f"{reason}; leave it out, which writes the file again")


def open_window(source: LocalSource, request: WindowRequest, target: Target | None, stack: ExitStack) -> WindowFile:
    """Inspect a file, which is locked unless this is a dry run, and decode elements that cannot be patched in place."""
    # `format`, `offset` and `count` describe origins only.
    declared = request.accumulate_in or request.inputs.datatype
    inputs = request.inputs._replace(datatype=declared, format=None, offset=0, count=None, pair=None, window=True)
    inputs = inputs._replace(nullable=True)  # elements that the call does not change may be missing
    row = recognise(source, inputs)
    if request.accumulate_in is not None and not row.needs_type:
        inputs = inputs._replace(datatype=None)
    file = row.inspect(source, inputs)
    if pair := request.inputs.pair:
        # The origin has the names that match patterns.
        if request.origins and len(columns := request.origins[0][0].array.columns) == len(pair):
            pair = columns[0], columns[1]
        if {*pair} <= {*file.names}:  # else the target has pairs in one array
            file = row.inspect(source, inputs._replace(pair=pair))
    file.check(inputs.op_groups)
    # A reader such as xarray takes every number except 0 for true.
    truths = [header.name for header in file.headers if header.attributes.get(DTYPE) == "bool"]
    if truths and not gives_truths(request.op):
        reason = f"{truths[0]!r} has truth values by its attribute 'dtype', and {request.op} gives numbers"
        raise DatatypeError(source.name, f"{reason}; use land, lor, lxor or replace, or `reduce-local`, which drops it")
    if not row.updatable:
        raise UsageError(source.name, f"is {row.name}, of which no file is updated; write its elements to another")
    if flat := arrays_in_place(file):
        arrays = [array._replace(nullable=False) for array in flat]
        return WindowFile(source.name, row, arrays, target, source.nbytes, -1 if target is None else target.fd)
    nbytes = row.rewrite_nbytes(file.source)  # raises if the file cannot be written again
    window = WindowFile(source.name, row, (), target, source.nbytes, template=file.source, rewrite_nbytes=nbytes)
    if target is None:
        return replace(window, arrays=[_native(source, array, row, request) for array in file.buffers])
    arrays = [inputs.context.worker.decoding(limit_decoding(array, inputs.context)) for array in file.buffers]
    elements = (blocks(array, max(1, _BLOCK_NBYTES // array.datatype.itemsize)) for array in arrays)
    return _decode(window, arrays, elements, request, stack)


def plan_window(name: str, request: WindowRequest, stack: ExitStack) -> WindowFile:
    """Inspect a target for a dry run, without a lock; a missing target is planned like a new one."""
    context = request.inputs.context
    if request.create is not None and not os.path.exists(name):
        check_new([name], context, overwrite=False)
        check_reach(name)
        return _new_window(name, _row(name, request), request, None, stack)
    source = LocalSource.inspected(name, name, calls.follow_link(name), context)
    with calls.errors_name(name):
        calls.close_quietly(calls.open_regular(os.path.realpath(name), os.O_RDWR if request.op.origin else os.O_RDONLY))
    check_reach(name)
    window = open_window(source, request, None, stack)
    window.check_commit(request.commit)
    return window


def make_window(name: str, request: WindowRequest, stack: ExitStack) -> WindowFile:
    """Create a missing target."""
    row, has_keys = _row(name, request), bool(request.keys)
    try:
        # With keys the draft has a name, so that only one process at a time creates the target and its file of keys.
        draft = Draft(name, context=request.inputs.context, durable=request.durable, named=has_keys)
    except OutputExistsError as error:
        raise CreatedMeanwhile from error
    stack.enter_context(draft)
    if has_keys and calls.status_at(draft.base, draft.dirfd) is not None:
        raise CreatedMeanwhile
    check_reach(name, draft.fd)  # processes on other machines must see the draft
    return _new_window(name, row, request, draft, stack)


def _row(name: str, request: WindowRequest) -> Format:
    """Return the format of a new target."""
    like = request.create.format if request.create and request.whole else None
    return format_to_create(name, like=like, declared=(request.accumulate_in or request.inputs.datatype) is not None)


def _new_window(name: str, row: Format, request: WindowRequest, draft: Draft | None, stack: ExitStack) -> WindowFile:
    """Return a new target, with initial elements in its draft; a dry run has no draft."""
    assert request.create is not None  # noqa: S101 - only `create` makes targets
    inputs, model = request.inputs, request.create
    if not row.is_flat:
        return _new_columns(name, row, request, draft, stack)
    array = model.buffers[0]  # if the origins have several arrays, the comparison with them fails
    if row.needs_type:
        order = ORDERS[inputs.byte_order or inputs.type_order]
        array = array._replace(stored=array.stored.newbyteorder(order), fixed_order=False)
        array = array._replace(shape=None, fortran_order=False)  # raw files have no shape
    layout = row.prepare(model._replace(buffers=(array,)))
    assert isinstance(layout, FlatLayout)  # noqa: S101 - `is_flat`
    nbytes = layout.end(array.count)
    source = LocalSource(name, name, (0, 0, nbytes, 0))
    if draft is not None:
        element, offset = in_form(neutral(request.op, array.datatype).reshape(1), layout.stored), layout.offset
        with calls.errors_name(name):
            calls.pwrite_all(draft.fd, layout.head, 0)
            calls.set_size(draft.fd, nbytes)
            for block in _repeat(element, array.count) if element.view(np.uint8).any() else ():
                calls.pwrite_all(draft.fd, block.view(np.uint8).data, offset)
                offset += block.nbytes
        source = LocalSource(name, draft.shared.path)
    shape = None if row.needs_type else (array.count,) if array.shape is None else array.shape
    window = Array(source, array.datatype, array.count, layout.stored, layout.offset, shape, array.fortran_order)
    return WindowFile(name, row, [window], draft, nbytes, -1 if draft is None else draft.fd)


def _new_columns(name: str, row: Format, request: WindowRequest, draft: Draft | None, stack: ExitStack) -> WindowFile:
    """Return a new target with columns: the file of the first origin, with initial elements in its columns."""
    model = request.create
    assert model is not None  # noqa: S101 - only `create` makes targets
    if model.source is None:
        obstacle = "they are in several files; name a target that exists"
        if request.accumulate_in is not None:
            obstacle = "`accumulate_in` has another datatype; name an npy target, or one that exists"
        raise UsageError("`create`", f"makes the columns of the first origin, and {obstacle}")
    nbytes = sum(array.count * array.stored.itemsize for array in model.buffers)
    window = WindowFile(
        name, row, (), draft, nbytes, template=model.source, rewrite_nbytes=row.rewrite_nbytes(model.source)
    )
    if draft is None:
        source = LocalSource(name, name, (0, 0, 0, 0))
        return replace(window, arrays=[_native(source, array, row, request) for array in model.buffers])
    return _decode(window, model.buffers, map(partial(_initial, request.op), model.buffers), request, stack)


def _decode(
    window: WindowFile,
    columns: Sequence[Array],
    elements: Iterable[Iterable[Elements]],  # of each column, in blocks
    request: WindowRequest,
    stack: ExitStack,
) -> WindowFile:
    """Return a window with the elements of columns in a scratch file, where they are changed."""
    assert window.file is not None  # noqa: S101 - a dry run decodes nothing
    scratch = stack.enter_context(Scratch(window.file.directory, window.name))
    status = window.file.status if isinstance(window.file, Target) else os.fstat(scratch.fd)
    source = LocalSource(window.name, scratch.shared.path, stamp_of(status))
    arrays, end, has_nulls = [], 0, window.format.has_nulls and not window.format.has_arrays
    for column, parts in zip(columns, elements, strict=True):
        array = _native(source, column, window.format, request)._replace(offset=end)
        if array.ignored_missing is None and (array.nullable or (column.nulls != 0 and has_nulls)):
            array = array._replace(mask_offset=array.end + -array.end % _ALIGNMENT)
        write_native(array, parts, scratch.fd)
        end = array.end if array.mask_offset is None else array.mask_offset + array.count
        end += -end % _ALIGNMENT
        arrays.append(array)
    return replace(window, arrays=arrays, scratch=scratch, fd=scratch.fd)


def _native(source: Source, column: Array, row: Format, request: WindowRequest) -> Array:
    """Return a column as native elements of a source, nullable if nulls are possible and the format stores them."""
    shape = (column.count,) if column.shape is None else column.shape
    form, marked = column.datatype.form, column.missing
    array = Array(source, column.datatype, column.count, form, 0, shape, column.fortran_order, name=column.name)
    array = array._replace(parts=column.parts, nulls=column.nulls, ignored_missing=marked)
    nullable = marked is not None and bool(marked.values)
    if row.has_nulls and not row.has_arrays:  # the format has a mask
        nullable = column.nulls != 0 or request.complete is not None
        have_nulls = [origin.array.nulls != 0 for arrays in request.origins for origin in arrays]
        nullable = nullable or may_be_null(request.op, column.datatype, [column.nulls != 0, *have_nulls])
    return array._replace(nullable=request.inputs.nullable and nullable)


def _initial(op: Op, array: Array) -> Iterator[Elements]:
    """Yield the initial elements of a new array: the identity, or nulls if the op ignores these and inputs have any."""
    element, are_missing = neutral(op, array.datatype).reshape(1), op.rules.nulls == "ignore" and array.nulls != 0
    if are_missing and array.missing is not None:
        array.missing.mark(element, slice(None))
    for block in _repeat(element, array.count):
        yield block, np.zeros(len(block), np.bool_) if are_missing else None


def _repeat(element: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Yield an element `count` times, in blocks."""
    block = np.repeat(element, min(max(1, _BLOCK_NBYTES // element.itemsize), count))
    for start in range(0, count, max(1, len(block))):
        yield block[: count - start]
