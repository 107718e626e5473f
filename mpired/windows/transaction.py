"""One request as one transaction: lock, recover, look, check, combine, commit (MPI-4.1, 12.3.4).

All that can be refused is refused before the first byte is written. Each window is changed wholly or not
at all. Several windows are locked together, but committed one after another.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from mpired import interrupts, log, ops
from mpired.context import BASE_NBYTES, STREAMED_BASE_NBYTES
from mpired.datatypes import Datatype
from mpired.errors import (
    CountError,
    DatatypeError,
    MpiredError,
    OutputExistsError,
    UnconfirmedError,
    UsageError,
    number,
)
from mpired.files.access import lock_all
from mpired.files.keys import Keys
from mpired.files.keys import of_file as keys_of_file
from mpired.files.lock import LockTimeout, Target, open_replaced
from mpired.files.places import warn_of_hard_links
from mpired.formats import Model, format_named
from mpired.formats.missing import masked
from mpired.formats.rank import lacking, reordered
from mpired.log import step
from mpired.ops.rules import holds
from mpired.ranks.opening import check_formats
from mpired.sources.local import LocalSource, stamp_of
from mpired.windows.call import WindowRequest
from mpired.windows.elements import fold
from mpired.windows.fetched import FetchOutput
from mpired.windows.once import not_applied
from mpired.windows.origin import Origin, choose_open
from mpired.windows.placement import OriginShape
from mpired.windows.targets import Appeared, WindowFile, make_window, open_window, plan_window


def transact(request: WindowRequest, output: FetchOutput | None = None) -> Work:
    """Carry out a request; `output` gets the old elements before the windows change."""
    while True:
        with contextlib.suppress(Appeared), ExitStack() as stack:
            work = Work(request, _open(request, output.replaced if output else (), stack), stack)
            work.combine()
            if output is not None and work.fetched is not None:
                output.keep(work.fetched, work.fetched_model, request.op)
            work.publish()
            return work


def dry_run(request: WindowRequest) -> Work:
    """Check a request as `transact` does, without a lock; nothing is made or changed."""
    with ExitStack() as stack:
        return Work(request, [plan_window(name, request, stack) for name in request.windows], stack)


def _open(request: WindowRequest, replaced: Sequence[str], stack: ExitStack) -> list[WindowFile]:
    """Lock and recover the windows and the files that are replaced; make windows that are missing."""
    names = request.windows
    existing = names if request.create is None else [name for name in names if os.path.exists(name)]
    # Windows that this user may only read are locked beside other readers.
    shared = not request.op.origin and not all(os.access(name, os.W_OK) for name in existing)
    waiting = LockTimeout(request.inputs.context.lock_timeout)
    try:
        locks = lock_all(
            [*existing, *(() if shared else replaced)],
            waiting,
            opened=lambda name: Target(name, shared=shared) if name in existing else open_replaced(name),
        )
        held = stack.enter_context(locks) if existing else {}
    except FileNotFoundError as error:
        if request.op.identity is not None and request.create is None and not shared:
            error.add_note("`create` makes a target that is missing")
        raise
    windows = []
    for name in names:
        if name in existing:
            target = held[name]
            source = LocalSource(name, target.path, stamp_of(target.status))
            windows.append(open_window(source, request, target, stack))
        else:
            windows.append(make_window(name, request, stack))
    return windows


class Work:
    """A request at work, and its outcome: nothing is visible of it until it is published."""

    def __init__(self, request: WindowRequest, windows: Sequence[WindowFile], stack: ExitStack) -> None:
        self.windows, self._stack, first = windows, stack, windows[0]
        if request.complete is not None:
            _check_one(first)
            request = request.complete(request, first.windows[0].datatype)
        self.request = request
        self._opened = [origin for arrays in request.origins for origin in arrays]
        for origin in self._opened:
            stack.callback(origin.close)
        self._formats = {origin.format for origin in self._opened if origin.format}
        self._formats.update(window.format.name for window in windows)
        if request.commit == "rename" and request.op.origin:
            warn_of_hard_links(request.windows)
        log.warn(*request.doubts)
        self._origins: list[Sequence[Origin]] = []
        names = [window.name for window in first.windows]
        for arrays in request.origins:  # in the order of the windows, if they have the same names
            own = {each.array.name: each for each in arrays}
            is_alike = len(own) == len(names) and own.keys() == set(names)
            self._origins.append([own[name] for name in names] if is_alike else arrays)
        self._check()
        shapes = [request.origin_shape] * len(first.windows)
        if self._origins:
            shapes = [OriginShape(each.name, each.count, each.array.shape, request.whole) for each in self._origins[0]]
        # whether whole origins have the shape of the windows, so that elements of the same index are combined
        self._by_shape = request.placement.indices is None and not request.placement.is_numbered and shapes[0].whole
        placed = [
            request.placement.runs([window.windows[i] for window in windows], each) for i, each in enumerate(shapes)
        ]
        self._placed = placed[0]
        for window, row in zip(windows, zip(*placed, strict=True), strict=True):
            shares = [(i, runs) for i, runs in enumerate(row) if runs is not None and runs.entries]
            window.shares = sorted(shares, key=lambda each: window.windows[each[0]].offset)  # in the order of the file
            window.changed_nbytes = sum(runs.nbytes for _, runs in shares)
            window.origins = range(len(request.origins) if shares else 0)
            if request.keys and shares:
                self._leave_out_applied(window)
        if request.inputs.context.max_memory is not None:
            self._check_memory()
        self.entries = tuple(sum(runs.entries for runs in row if runs) for row in placed)
        self.fetched = np.zeros(self.entries[0], first.windows[0].datatype.form) if request.fetch else None
        if self.fetched is not None and request.inputs.nullable:
            self.fetched = masked(self.fetched, mask=False)

    @property
    def protocols(self) -> tuple[str, ...]:
        """For each window how it was changed; "" if it was not."""
        return tuple(window.update.protocol if window.update else "" for window in self.windows)

    @property
    def datatypes(self) -> tuple[Datatype, ...]:
        """The datatypes of the elements of each array."""
        return tuple(array.datatype for array in self.windows[0].windows)

    @property
    def names(self) -> list[str]:
        """The names of all origins that can be used."""
        return [arrays[0].name for arrays in self.request.origins]

    @property
    def skipped(self) -> list[str]:
        """The names of the origins that had been applied before."""
        applied = {number for window in self.windows for number in window.origins}
        return [name for number, name in enumerate(self.names) if number not in applied] if self.request.keys else []

    @property
    def fetched_model(self) -> Model:
        """The model of the fetched elements: those of their window, or of the first of several."""
        count, target = self.entries[0], self.windows[0]
        window = target.windows[0]
        shape: tuple[int, ...] | None = None if window.shape is None else (count,)
        found = [(each, runs.shape) for each, runs in zip(self.windows, self._placed, strict=True) if runs]
        if len(found) == 1:
            target, shape = found[0]
            window = target.windows[0]
        array = window.result._replace(count=count, shape=shape, name="", parts=(), modelled_on=())
        array = array._replace(nullable=window.nullable)
        return Model(target.format.name, (array,), window.source, context=self.request.inputs.context)

    def _check(self) -> None:
        """Let a legal request pass, before anything is written."""
        request, op, first = self.request, self.request.op, self.windows[0]
        use = ops.Use.FETCH if request.fetch else ops.Use.ACCUMULATE
        if request.inputs.is_particular:
            check_formats(request.inputs, self._formats)
        for target in self.windows:
            ops.check_buffers(op, [(each.name, each.datatype) for each in target.windows], use)
            if len(target.windows) != len(first.windows):
                reason = "has other arrays than the first window; choose those of both with `columns`"
                raise CountError(target.name, reason)
            if request.within is not None:
                self._check_within(target, request.within)
            for arrays in self._origins:
                _compare(target, arrays, request.within)
            for i, window in enumerate(target.windows):
                ops.check_rules(op, [window.datatype], 1)
                has_null = window.nullable or not request.inputs.nullable or ops.stands_for_null(op, window.datatype)
                lacking = [window.nulls != 0, *(arrays[i].array.nulls != 0 for arrays in self._origins)]
                if not has_null and ops.may_be_null(op, window.datatype, lacking):
                    hint = "declare a `_FillValue` in it" if window.name else "use `nulls='ignore'`"
                    raise ops.null_refused(op, window.datatype, window.source.name, hint)
        if request.fetch:
            _check_one(first)

    def _check_within(self, target: WindowFile, within: Datatype) -> None:
        """Raise `UsageError` if the datatype of `accumulate_in` is not that of a target."""
        op, types = self.request.op, list(dict.fromkeys(each.datatype for each in target.windows))
        # Of several arrays with different datatypes it has to hold that of each.
        if all(each.form == within.form or (types[1:] and holds(within, each)) for each in types):
            return
        hint = "name the datatype of the target"
        fits = all(holds(types[0], origin.datatype) for arrays in self._origins for origin in arrays)
        if not fits and not types[1:] and "accumulate_in" in op.takes:
            hint = f"combine both {ops.in_new_file(op, within.name.lower())}"
        reason = f"is {within.label}, and {target.name} has {', '.join(each.label for each in types)}"
        raise UsageError("`accumulate_in`", f"{reason}; {hint}")

    def _check_memory(self) -> None:
        """Raise `UsageError` if there is less memory than the call needs beside the blocks."""
        request, shares = self.request, [(window, *share) for window in self.windows for share in window.shares]
        in_order = all(runs.in_order for _, _, runs in shares)
        held = sum(runs.held for _, _, runs in shares)
        for origin in self._opened:
            held += origin.places_nbytes + (0 if in_order else origin.count * origin.datatype.itemsize)
        if request.fetch:
            held += sum(runs.entries * window.windows[i].datatype.itemsize for window, i, runs in shares)
        # A worker that writes a target again has what this process has.
        again = sum(window.rewriting for window in self.windows)
        base = STREAMED_BASE_NBYTES if any(format_named(name).streamed for name in self._formats) else BASE_NBYTES
        # The others are opened again and again.
        one = max((origin.open_nbytes for origin in self._opened), default=0)
        request.inputs.context.check_memory(base + one + again + held * (2 if again else 1))

    def _leave_out_applied(self, window: WindowFile) -> None:
        """Leave out the origins that a window remembers; one that was changed before a crash is not changed again."""
        request, keys = self.request, self.request.keys
        if window.file is None:
            window.keys = self._stack.enter_context(keys_of_file(window.name))
        else:
            window.keys = Keys(window.file, None if window.is_new else window.file.fd)
        new, elsewhere = not_applied(keys, window.keys)
        again = [request.origins[number][0].name for key in elsewhere for number in keys[key]]
        log.warn(*log.known_content(again))
        window.origins = [number for key in new for number in keys[key]]
        window.new_keys = [(key.kept, key.text) for key in new]

    def combine(self) -> None:
        """Compute all new elements, and make the updates ready."""
        request = self.request
        if len(self._opened) > 1:
            choose_open(self._opened, request.inputs.context)
        nbytes = sum(window.changed_nbytes * len(window.origins) for window in self.windows)
        with step("combining the origins"):
            for _ in request.inputs.context.progress(self._combined(), nbytes):
                pass
        for origin in self._opened:
            origin.array.source.check_unchanged()
        for window in self.windows:
            if window.update is not None:
                new, durable = window.new_keys, request.durable
                new_keys = window.keys.append(new, durable=durable) if window.keys and new else b""
                window.update.seal(new_keys)
        if self.fetched is not None:
            self.windows[0].windows[0].datatype.clear_padding(np.ma.getdata(self.fetched))

    def _combined(self) -> Iterator[int]:
        """Combine the origins into each window, and yield the bytes of the elements that are done."""
        op, expected = self.request.op, self.request.expected
        for window in self.windows:
            is_changed = op.origin and ((window.shares and window.origins) or window.is_new)
            if is_changed and (expected is None or self._is_there(expected, window)):
                window.update = window.begin(self.request)
                self._stack.enter_context(window.update)
            for share in window.shares if window.origins or self.fetched is not None else ():
                array, origins = window.windows[share[0]], [self._origins[rank][share[0]] for rank in window.origins]
                by_shape = self._by_shape and len(array.shape or ()) > 1
                if by_shape or any(each.datatype != array.datatype for each in origins):
                    origins = [each.as_in(array, op.rules.missing, by_shape=by_shape) for each in origins]
                    for each in origins:
                        self._stack.callback(each.close)
                yield from fold(window, share, op, origins, self.fetched)

    def _is_there(self, expected: np.ndarray, window: WindowFile) -> bool:
        """Return whether a window has the element that is expected: a target that stays is not written."""
        found = masked(np.zeros(1, expected.dtype), mask=False)
        for _ in fold(window, window.shares[0], self.request.op, [], found):
            pass
        missing = np.ma.is_masked(found)
        same = np.ma.getdata(found).tobytes() == np.ma.getdata(expected).tobytes()
        return missing == np.ma.is_masked(expected) and (missing or same)

    def publish(self) -> None:
        """Commit one window after another."""
        changed: list[str] = []
        for window in self.windows:
            if window.update is None:
                continue
            try:
                window.update.commit(interrupts.committed if changed else self.request.inputs.context.on_commit)
            except (MpiredError, OSError) as error:
                if changed and not isinstance(error, UnconfirmedError):
                    why = error.reason if isinstance(error, MpiredError) else error.strerror
                    reason = f"is not changed ({why}), but {', '.join(changed)} is; several windows are not one"
                    raise UnconfirmedError(window.name, f"{reason} transaction") from error
                if isinstance(error, OutputExistsError):  # of a target that did not exist
                    raise Appeared from error
                raise
            changed.append(window.name)


def _check_one(target: WindowFile) -> None:
    """Raise `UsageError` if a target has several arrays, of which a call that fetches takes one."""
    if len(target.windows) > 1:
        names = ", ".join(window.name for window in target.windows)
        reason = f"has {number(len(target.windows), target.format.noun)} ({names}), and one is needed"
        raise UsageError(target.name, f"{reason}; choose one with `columns`")


def _compare(target: WindowFile, arrays: Sequence[Origin], within: Datatype | None) -> None:
    """Raise an error if an origin has not the arrays of a target."""
    if len(arrays) != len(target.windows):
        own = number(len(arrays), target.format.noun)
        reason = f"has {own}, but the target has {len(target.windows)}"
        names = [each.array.name for each in arrays], "the target", [each.name for each in target.windows]
        raise CountError(arrays[0].name, f"{reason}{lacking('it', *names)}; choose with `columns`")
    for origin, window in zip(arrays, target.windows, strict=True):
        name = origin.array.name
        if len(arrays) > 1 and name and window.name and name != window.name:
            reason = f"has {name!r} where the target has {window.name!r}"
            raise DatatypeError(origin.name, f"{reason}; choose those of both with `columns`")
        is_held = within is not None and holds(window.datatype, origin.datatype)
        if origin.datatype is not window.datatype and not is_held:
            reason = f"has datatype {origin.datatype.label}, but the target has {window.datatype.label}"
            types, hint = [each.datatype for each in target.windows], ""
            if within is None and all(holds(each, own.datatype) for each, own in zip(types, arrays, strict=True)):
                wide = next((each for each in types if all(holds(each, other) for other in types)), None)
                hint = f", or widen it with `accumulate_in={'longdouble' if wide is None else wide.name.lower()!r}`"
            raise DatatypeError(origin.name, f"{reason}; both sides need the same one (MPI-4.1, 12.3.4){hint}")
        fields = origin.array.stored.names or (), window.stored.names or ()
        if fields[0] != fields[1] and (how := reordered(*fields, window.datatype)):
            raise DatatypeError(origin.name, f"has {how}, as the target has them")
