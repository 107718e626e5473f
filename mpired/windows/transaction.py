"""The transaction of a call on windows: lock, recover, inspect, check, combine, commit (MPI-4.1, 12.3.4).

All checks come before the first write. Each window is changed completely or not at all. Several windows are locked
together, and committed one after another.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from mpired import interrupts, log, ops
from mpired.context import BASE_NBYTES, STREAMED_BASE_NBYTES
from mpired.datatypes import Datatype
from mpired.errors import CountError, MpiredError, OutputExistsError, UnconfirmedError, UsageError, number
from mpired.files.access import lock_all
from mpired.files.keys import Keys
from mpired.files.keys import of_file as keys_of_file
from mpired.files.lock import LockTimeout, Target, open_replaced
from mpired.files.places import warn_of_hard_links
from mpired.formats import Array, Model
from mpired.formats.missing import masked
from mpired.log import step
from mpired.ops.rules import holds
from mpired.ranks.opening import check_alike, check_formats
from mpired.sources.local import LocalSource, stamp_of
from mpired.windows.call import WindowRequest
from mpired.windows.elements import fold
from mpired.windows.fetched import FetchOutput
from mpired.windows.once import new_keys_of
from mpired.windows.origin import Origin, choose_open, file_of
from mpired.windows.placement import OriginShape
from mpired.windows.targets import CreatedMeanwhile, WindowFile, make_window, open_window, plan_window

# For `check_alike`: the ends of messages about an origin and a target with one array, or with several.
_HINTS_OF_ONE = {"number": "; choose with `columns`", "fields": "; save both in one order"}
_HINTS = {**_HINTS_OF_ONE, "name": "; choose those of both with `columns`"}


def transact(request: WindowRequest, output: FetchOutput | None = None) -> WindowUpdate:
    """Carry out a call on windows; `output` gets the old elements before the windows change."""
    while True:
        with contextlib.suppress(CreatedMeanwhile), ExitStack() as stack:
            update = WindowUpdate(request, _open(request, output.replaced if output else (), stack), stack)
            update.combine()
            if output is not None and update.fetched is not None:
                output.write(update.fetched, update.fetched_model, request.op)
            update.commit()
            return update


def dry_run(request: WindowRequest) -> WindowUpdate:
    """Check a call as `transact` does, without locks and changes."""
    with ExitStack() as stack:
        return WindowUpdate(request, [plan_window(name, request, stack) for name in request.windows], stack)


def _open(request: WindowRequest, replaced: Sequence[str], stack: ExitStack) -> list[WindowFile]:
    """Lock and recover the windows and `replaced` files, and create missing windows."""
    names = request.windows
    existing = names if request.create is None else [name for name in names if os.path.exists(name)]
    # Windows that this user may only read get shared locks.
    shared = not request.op.origin and not all(os.access(name, os.W_OK) for name in existing)
    timeout = LockTimeout(request.inputs.context.lock_timeout)
    try:
        locks = lock_all(
            [*existing, *(() if shared else replaced)],
            timeout,
            opened=lambda name: Target(name, shared=shared) if name in existing else open_replaced(name),
        )
        locked = stack.enter_context(locks) if existing else {}
    except FileNotFoundError as error:
        if request.op.identity is not None and request.create is None and not shared:
            error.add_note("`create` makes a target that is missing")
        raise
    windows = []
    for name in names:
        if name in existing:
            target = locked[name]
            source = LocalSource(name, target.path, stamp_of(target.status))
            windows.append(open_window(source, request, target, stack))
        else:
            windows.append(make_window(name, request, stack))
    return windows


class WindowUpdate:
    """The update of the windows of a call, and its result; files change in `commit` only."""

    def __init__(self, request: WindowRequest, windows: Sequence[WindowFile], stack: ExitStack) -> None:
        self.windows, self._stack, first = windows, stack, windows[0]
        if request.complete is not None:
            _check_one(first)
            request = request.complete(request, first.arrays[0].datatype)
        self.request = request
        self._opened = [origin for arrays in request.origins for origin in arrays]
        for origin in self._opened:
            stack.callback(origin.close)
        self._formats = {origin.format for origin in self._opened if origin.format}
        self._formats.update(window.format for window in windows)
        if request.commit == "rename" and request.op.origin:
            warn_of_hard_links(request.windows)
        log.warn(*request.warnings)
        self._origins: list[Sequence[Origin]] = []
        names = [array.name for array in first.arrays]
        for arrays in request.origins:  # in the order of the target's arrays, if both have the same names
            by_name = {origin.array.name: origin for origin in arrays}
            have_same_names = len(by_name) == len(names) and by_name.keys() == set(names)
            self._origins.append([by_name[name] for name in names] if have_same_names else arrays)
        self._check()
        shapes, whole = [request.origin_shape] * len(first.arrays), request.whole
        if self._origins:
            shapes = [OriginShape(part.name, part.count, part.array.shape, whole) for part in self._origins[0]]
        placement = request.placement
        # whether elements with the same index are combined, in whatever order each file stores the dimensions
        self._by_shape = placement.indices is None and not placement.has_displacement and shapes[0].whole
        # for each array the selection in each window
        selections = [
            placement.select([window.arrays[i] for window in windows], shape) for i, shape in enumerate(shapes)
        ]
        self._first_selections = selections[0]
        for window, of_window in zip(windows, zip(*selections, strict=True), strict=True):
            chosen = [(i, selection) for i, selection in enumerate(of_window) if selection and selection.entries]
            window.selections = sorted(chosen, key=lambda item: window.arrays[item[0]].offset)
            window.changed_nbytes = sum(selection.nbytes for _, selection in chosen)
            window.origins = range(len(request.origins) if chosen else 0)
            self._check_counted_nulls(window)
            if request.keys and chosen:
                self._skip_applied(window)
        if request.inputs.context.max_memory is not None:
            self._check_memory()
        self.entries = tuple(sum(selection.entries for selection in row if selection) for row in selections)
        self.fetched = np.zeros(self.entries[0], first.arrays[0].datatype.form) if request.fetch else None
        if self.fetched is not None and request.inputs.nullable:
            self.fetched = masked(self.fetched, mask=False)

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocol of the commit of each window, "" if the window did not change."""
        return tuple(window.update.protocol if window.update else "" for window in self.windows)

    @property
    def datatypes(self) -> tuple[Datatype, ...]:
        """The datatypes of the elements of each array."""
        return tuple(array.datatype for array in self.windows[0].arrays)

    @property
    def names(self) -> list[str]:
        """The names of the usable origins."""
        return [arrays[0].name for arrays in self.request.origins]

    @property
    def skipped(self) -> list[str]:
        """The names of the origins that were applied by an earlier call."""
        applied = {number for window in self.windows for number in window.origins}
        return [name for number, name in enumerate(self.names) if number not in applied] if self.request.keys else []

    @property
    def fetched_model(self) -> Model:
        """The model of the fetched elements: like their window, or the first window if there are several."""
        count, window = self.entries[0], self.windows[0]
        shape: tuple[int, ...] | None = None if window.arrays[0].shape is None else (count,)
        selections = zip(self.windows, self._first_selections, strict=True)
        fetched = [(file, selection.shape) for file, selection in selections if selection]
        if len(fetched) == 1:
            window, shape = fetched[0]
        like = window.arrays[0]
        array = like.result._replace(count=count, shape=shape, name="", parts=(), model_columns=())
        array = array._replace(nullable=like.nullable)
        return Model(window.format, (array,), like.source, context=self.request.inputs.context)

    def _check(self) -> None:
        """Check the op, the datatypes and the arrays of the windows and origins."""
        request, op, first = self.request, self.request.op, self.windows[0]
        use = ops.Use.FETCH if request.fetch else ops.Use.ACCUMULATE
        if request.inputs.is_particular:
            check_formats(request.inputs, self._formats)
        for target in self.windows:
            ops.check_buffers(op, [(array.name, array.datatype) for array in target.arrays], use)
            if len(target.arrays) != len(first.arrays):
                reason = "has other arrays than the first window; choose those of both with `columns`"
                raise CountError(target.name, reason)
            if request.accumulate_in is not None:
                self._check_accumulate_in(target, request.accumulate_in)
            for arrays in self._origins:
                origin = file_of(arrays)
                datatype_hint = partial(_datatype_hint, request.accumulate_in, target.arrays, origin.buffers)
                hints = _HINTS if len(target.arrays) > 1 else _HINTS_OF_ONE
                check_alike(origin, target.arrays, ("", "the target"), hints, datatype_hint)
            for i, array in enumerate(target.arrays):
                ops.check_rules(op, [array.datatype], 1)
                has_null = array.nullable or not request.inputs.nullable or ops.has_fill_value(op, array.datatype)
                have_nulls = [array.nulls != 0, *(arrays[i].array.nulls != 0 for arrays in self._origins)]
                if not has_null and ops.may_be_null(op, array.datatype, have_nulls):
                    hint = "declare a `_FillValue` in it" if array.name else "use `nulls='ignore'`"
                    raise ops.null_result_error(op, array.datatype, array.source.name, hint)
        if request.fetch:
            _check_one(first)

    def _check_counted_nulls(self, window: WindowFile) -> None:
        """Raise an error if nulls are refused, and the header of an array that is combined as a whole counts some."""
        # A dry run reads only headers.
        for i, selection in window.selections if self.request.op.rules.nulls == "error" else ():
            arrays = [window.arrays[i]] if selection.entries == window.arrays[i].count else []
            arrays += [origins[i].array for origins in self._origins if self.request.whole]
            for array in arrays:
                if array.nulls:
                    raise array.null_error(array.nulls)

    def _check_accumulate_in(self, target: WindowFile, wide: Datatype) -> None:
        """Raise `UsageError` if a target does not have the datatype of `accumulate_in`."""
        op, types = self.request.op, list(dict.fromkeys(array.datatype for array in target.arrays))
        # Different datatypes of several arrays must only be narrower.
        if all(row.form == wide.form or (types[1:] and holds(wide, row)) for row in types):
            return
        hint = "name the datatype of the target"
        fits = all(holds(types[0], origin.datatype) for arrays in self._origins for origin in arrays)
        if not fits and not types[1:] and "accumulate_in" in op.takes:
            hint = f"combine both {ops.in_new_file(op, wide.name.lower())}"
        reason = f"is {wide.label}, and {target.name} has {', '.join(row.label for row in types)}"
        raise UsageError("`accumulate_in`", f"{reason}; {hint}")

    def _check_memory(self) -> None:
        """Raise `UsageError` if there is less memory than the call needs beside the blocks."""
        request, in_order, nbytes = self.request, True, 0
        for window in self.windows:
            for i, selection in window.selections:
                in_order = in_order and selection.in_order
                nbytes += selection.memory_nbytes
                if request.fetch:
                    nbytes += selection.entries * window.arrays[i].datatype.itemsize
        for origin in self._opened:
            nbytes += origin.selection_nbytes + (0 if in_order else origin.count * origin.datatype.itemsize)
        # A worker that writes a target again needs as much as this process.
        rewrite_nbytes = sum(window.rewrite_nbytes for window in self.windows)
        base = STREAMED_BASE_NBYTES if any(form.streamed for form in self._formats) else BASE_NBYTES
        # One origin must be open at a time.
        open_nbytes = max((origin.open_nbytes for origin in self._opened), default=0)
        request.inputs.context.check_memory(base + open_nbytes + rewrite_nbytes + nbytes * (2 if rewrite_nbytes else 1))

    def _skip_applied(self, window: WindowFile) -> None:
        """Skip the origins that a window has recorded, so that a repetition after a crash applies none twice."""
        request, keys = self.request, self.request.keys
        if window.file is None:
            window.keys = self._stack.enter_context(keys_of_file(window.name))
        else:
            window.keys = Keys(window.file, None if window.is_new else window.file.fd)
        new, with_known_content = new_keys_of(keys, window.keys)
        names = [request.origins[number][0].name for key in with_known_content for number in keys[key]]
        log.warn(*log.same_content_warnings(names))
        window.origins = [number for key in new for number in keys[key]]
        window.new_keys = [(key.value, key.text) for key in new]

    def combine(self) -> None:
        """Compute all new elements, and prepare the updates for the commit."""
        request = self.request
        if len(self._opened) > 1:
            choose_open(self._opened, request.inputs.context)
        nbytes = sum(window.changed_nbytes * len(window.origins) for window in self.windows)
        with step("combining the origins"):
            for _ in request.inputs.context.progress(self._combine(), nbytes):
                pass
        for origin in self._opened:
            origin.array.source.check_unchanged()
        for window in self.windows:
            if window.update is not None:
                new, durable = window.new_keys, request.durable
                new_keys = window.keys.append(new, durable=durable) if window.keys and new else b""
                window.update.seal(new_keys)
        if self.fetched is not None:
            self.windows[0].arrays[0].datatype.clear_padding(np.ma.getdata(self.fetched))

    def _combine(self) -> Iterator[int]:
        """Combine the origins into each window, and yield the bytes of combined elements."""
        op, expected = self.request.op, self.request.expected
        for window in self.windows:
            is_changed = op.origin and ((window.selections and window.origins) or window.is_new)
            if is_changed and (expected is None or self._has_element(expected, window)):
                window.update = window.begin(self.request)
                self._stack.enter_context(window.update)
            for i, selection in window.selections if window.origins or self.fetched is not None else ():
                array, origins = window.arrays[i], [self._origins[number][i] for number in window.origins]
                by_shape = self._by_shape and len(array.shape or ()) > 1
                if by_shape or any(origin.datatype != array.datatype for origin in origins):
                    origins = [origin.converted(array, op.rules.missing, by_shape=by_shape) for origin in origins]
                    for origin in origins:
                        self._stack.callback(origin.close)
                yield from fold(window, (i, selection), op, origins, self.fetched)

    def _has_element(self, expected: np.ndarray, window: WindowFile) -> bool:
        """Return whether a window has the expected element of a compare-and-swap."""
        element = masked(np.zeros(1, expected.dtype), mask=False)
        for _ in fold(window, window.selections[0], self.request.op, [], element):
            pass
        missing = np.ma.is_masked(element)
        same = np.ma.getdata(element).tobytes() == np.ma.getdata(expected).tobytes()
        return missing == np.ma.is_masked(expected) and (missing or same)

    def commit(self) -> None:
        """Commit one window after another."""
        changed: list[str] = []
        for window in self.windows:
            if window.update is None:
                continue
            try:
                window.update.commit(interrupts.committed if changed else self.request.inputs.context.on_commit)
            except (MpiredError, OSError) as error:
                if changed and not isinstance(error, UnconfirmedError):
                    cause = error.reason if isinstance(error, MpiredError) else error.strerror
                    reason = f"is not changed ({cause}), but {', '.join(changed)} is; several windows are not one"
                    raise UnconfirmedError(window.name, f"{reason} transaction") from error
                if isinstance(error, OutputExistsError):
                    raise CreatedMeanwhile from error
                raise
            changed.append(window.name)


def _check_one(target: WindowFile) -> None:
    """Raise `UsageError` if a target has several arrays: a call that fetches is on one."""
    if len(target.arrays) > 1:
        names = ", ".join(array.name for array in target.arrays)
        reason = f"has {number(len(target.arrays), target.format.noun)} ({names}), and one is needed"
        raise UsageError(target.name, f"{reason}; choose one with `columns`")


def _datatype_hint(wide: Datatype | None, target: Sequence[Array], origin: Sequence[Array], i: int) -> str | None:
    """Return the hint about the datatypes of an origin and a target; None if they may differ by `accumulate_in`."""
    if wide is not None and holds(target[i].datatype, origin[i].datatype):
        return None
    types, hint = [array.datatype for array in target], ""
    if wide is None and all(holds(row, array.datatype) for row, array in zip(types, origin, strict=True)):
        widest = next((row for row in types if all(holds(row, other) for other in types)), None)
        hint = f", or widen it with `accumulate_in={'longdouble' if widest is None else widest.name.lower()!r}`"
    return f"; both sides need the same one (MPI-4.1, 12.3.4){hint}"
