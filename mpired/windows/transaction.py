"""One request as one transaction: lock, recover, look, check, combine, commit (MPI-4.1, 12.3.4).

All that can be refused is refused before the first byte is written. Each window is changed wholly or not
at all. Several windows are locked together, but committed one after another.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mpired import cautions, interrupts, ops
from mpired.context import BASE_NBYTES, STREAMED_BASE_NBYTES, Context
from mpired.errors import CountError, DatatypeError, UnconfirmedError, UsageError, number
from mpired.files import calls
from mpired.files.access import lock_all
from mpired.files.keys import Keys
from mpired.files.lock import Target, Waiting, inode, open_replaced, open_target
from mpired.files.places import parted
from mpired.files.update import Update
from mpired.formats import Model, format_named
from mpired.formats.names import lacking
from mpired.formats.rank import reordered
from mpired.log import step
from mpired.ops import overflow
from mpired.progress import Progress
from mpired.ranks import check_formats
from mpired.sources.directory import check_one_file
from mpired.windows.apply import Share, fold
from mpired.windows.origin import Origin
from mpired.windows.request import Done, Keep, Request
from mpired.windows.target import (
    Appeared,
    Filling,
    NewColumns,
    NewTarget,
    Opened,
    PlannedTarget,
    Policy,
    look_at,
    make_target,
    plan_target,
)


def transact(
    request: Request, policy: Policy, context: Context, *, keep: Keep | None = None, replaced: Sequence[str] = ()
) -> Done:
    """Carry out a request; `keep` gets the old elements when all is ready, and `replaced` are its files."""
    while True:
        with contextlib.suppress(Appeared), ExitStack() as stack:
            targets, recovered = _open(request, policy, replaced, stack)
            whole = completed(request, targets)
            tell_doubts(whole, policy)
            work = Work(whole, policy, targets, stack)
            work.combine(context.progress)
            if keep is not None and work.fetched is not None:
                keep(work.fetched, work.fetched_model)
            _publish(targets, work.updates, context.on_commit)
            return work.done(recovered)


class DryRun(NamedTuple):
    """The plan of a request: nothing is locked, made or changed."""

    request: Request
    done: Done
    windows: Sequence[PlannedTarget]
    fetched_model: Model  # of the old elements


def dry_run(request: Request, policy: Policy) -> DryRun:
    """Check a request as `transact` does; errors as of that, except those of locks."""
    _check_different(request.windows)
    with ExitStack() as stack:
        inputs, writes = request.target_options, request.op.origin
        windows = [plan_target(name, inputs, request.create, policy, writable=writes) for name in request.windows]
        whole = completed(request, windows)
        tell_doubts(whole, policy)
        work = Work(whole, policy, windows, stack)
        return DryRun(whole, work.done(), windows, work.fetched_model)


def _check_different(names: Sequence[str]) -> None:
    """Raise `UsageError` if two names lead to one file."""
    if len(set(calls.real_paths(names))) < len(names):
        raise UsageError("`windows`", "names one file twice; each window is a file of its own")


def tell_doubts(request: Request, policy: Policy) -> None:
    """Warn of what the user should know before anything changes."""
    renamed = request.windows if policy.commit == "rename" and request.op.origin else ()
    cautions.tell(*cautions.hard_links(parted(renamed)), *request.doubts)


def completed(request: Request, targets: Sequence[Opened]) -> Request:
    """Make the elements of a request that could not be made before the datatype of its windows was known."""
    if request.complete is None:
        return request
    windows = targets[0].windows
    if len(windows) > 1:
        names = ", ".join(window.name for window in windows)
        what = f"has {number(len(windows), format_named(targets[0].format).noun)} ({names})"
        reason = f"{what}, and one is needed; choose one with `columns`"
        raise UsageError(targets[0].name, reason)
    return request.complete(request, windows[0].datatype)


def _open(
    request: Request, policy: Policy, replaced: Sequence[str], stack: ExitStack
) -> tuple[Sequence[Opened], tuple[str, ...]]:
    """Lock and recover the targets; return them, and the names of those that had something to finish."""
    if request.create is not None and not all(map(os.path.exists, request.windows)):
        return _open_or_make(request, request.create, policy, replaced, stack)
    if not request.op.origin and not all(os.access(name, os.W_OK) for name in request.windows):
        # Beside other readers, when nothing in them is half done.
        targets, _ = stack.enter_context(locked(request.windows, request.inputs.context, shared=True))
        return [look_at(target, request.target_options, request.decoder, stack) for target in targets], ()
    try:
        targets, recovered = stack.enter_context(locked(request.windows, request.inputs.context, replaced=replaced))
    except FileNotFoundError as error:
        if request.op.identity is not None and request.create is None:
            error.add_note("`create` makes a target that is missing")
        raise
    return [look_at(target, request.target_options, request.decoder, stack) for target in targets], recovered


def _open_or_make(
    request: Request, filling: Filling, policy: Policy, replaced: Sequence[str], stack: ExitStack
) -> tuple[Sequence[Opened], tuple[str, ...]]:
    """Make the targets that are missing, and open the others."""
    _check_different(request.windows)
    there = [name for name in request.windows if os.path.exists(name)]
    opened, recovered = _open(replace(request, windows=there), policy, replaced, stack) if there else ((), ())
    others, context, keyed = dict(zip(there, opened, strict=True)), request.inputs.context, bool(request.keys)
    for name in request.windows:
        if name not in others:
            others[name] = make_target(name, filling, context, stack, durable=policy.durable, keyed=keyed)
    return [others[name] for name in request.windows], recovered


@contextlib.contextmanager
def locked(
    names: Sequence[str], context: Context, *, shared: bool = False, replaced: Sequence[str] = ()
) -> Iterator[tuple[list[Target], tuple[str, ...]]]:
    """Lock windows, and files that are replaced beside them; give the windows, and which of them were unfinished."""

    def opened(name: str) -> Target | None:
        if name in names:
            return open_target(name, shared=shared)
        return open_replaced(name)

    for name in names:
        check_one_file(name)
    waiting = Waiting(context.lock_timeout)
    with lock_all([*names, *replaced], waiting, opened=opened) as held:
        targets = [held[name] for name in names]
        if len({inode(target.status) for target in targets}) < len(targets):
            raise UsageError("`windows`", "names one file twice; each window is a file of its own")
        yield targets, tuple(target.name for target in targets if target.is_recovered)


class _Part(NamedTuple):
    """What is done with one window: its elements by buffer, the numbers of the origins, and what it remembers then."""

    shares: Sequence[Share]
    origins: Sequence[int]
    keys: Keys | None = None
    new: Sequence[tuple[bytes, str]] = ()  # the keys and their texts

    def attribute(self, *, durable: bool) -> bytes:
        """Record the new keys, and return what lets them count; b"" if there are none."""
        return self.keys.append(self.new, durable=durable) if self.keys and self.new else b""


class Work:
    """A request at work: all checks, and then the elements; nothing is visible of it until it is published."""

    def __init__(self, request: Request, policy: Policy, targets: Sequence[Opened], stack: ExitStack) -> None:
        self._request = request
        self._policy = policy
        self._targets = targets
        self._stack = stack
        stack.callback(request.decoder.close)
        for origin in (origin for buffers in request.origins for origin in buffers):
            stack.callback(origin.close)
        self._origins = [_as_the_windows(buffers, targets[0]) for buffers in request.origins]
        self._check()
        nbuffers = len(targets[0].windows)
        placed = [request.place(i, [target.windows[i] for target in targets]) for i in range(nbuffers)]
        shares = [
            [share._replace(buffer=i) for i, share in enumerate(of_window) if share]
            for of_window in zip(*placed, strict=True)
        ]
        self._parts = [self._part(target, mine) for target, mine in zip(targets, shares, strict=True)]
        self._placed = placed[0]
        self._check_memory()
        self._entries = tuple(sum(share.access.entries for share in row if share) for row in placed)
        self.updates: list[Update | None] = []
        self.fetched = np.zeros(self._entries[0], targets[0].windows[0].datatype.form) if request.fetch else None

    @property
    def fetched_model(self) -> Model:
        """What the fetched elements are like: those of the window of which they are, or of the first of several."""
        count = self._entries[0]
        target, window = self._targets[0], self._targets[0].windows[0]
        shape: tuple[int, ...] | None = None if window.shape is None else (count,)
        found = [(each, share) for each, share in zip(self._targets, self._placed, strict=True) if share]
        if len(found) == 1:
            target, share = found[0]
            window, shape = share.window, share.fetched_shape
        buffer = window.result._replace(count=count, shape=shape, name="", parts=(), modelled_on=())
        return Model(target.format, (buffer,), window.source, context=self._request.inputs.context)

    def _check(self) -> None:
        """Let a legal request pass, before anything is written."""
        request = self._request
        check_formats(request.inputs, request.formats | {target.format for target in self._targets})
        for target in self._targets:
            ops.check_buffers(request.op, [(each.name, each.datatype) for each in target.windows], request.use)
            if len(target.windows) != len(self._targets[0].windows):
                reason = "has other arrays than the first window; choose those of both with `columns`"
                raise CountError(target.name, reason)
            for buffers in self._origins:
                self._compare(target, buffers)
        if request.fetch and len(self._targets[0].windows) > 1:
            noun = format_named(self._targets[0].format).noun
            raise UsageError("`columns`", f"is missing; choose one {noun} to fetch")

    def _check_memory(self) -> None:
        """Raise `UsageError` if there is less memory than what is held at once, beside the blocks, takes."""
        shares = [share for part in self._parts for share in part.shares]
        in_order = all(share.access.in_order for share in shares)
        origins = [origin for buffers in self._request.origins for origin in buffers]
        names = self._request.formats | {target.format for target in self._targets}
        streamed = any(format_named(name).streamed for name in names)
        held = sum(share.access.held for share in shares) + sum(each.held(in_order=in_order) for each in origins)
        if self._request.fetch:
            held += sum(share.access.entries * share.window.datatype.itemsize for share in shares)
        # A worker that writes a target again has what this process has.
        again = sum(target.rewriting() for target in self._targets)
        base = STREAMED_BASE_NBYTES if streamed else BASE_NBYTES
        one = max((each.takes for each in origins), default=0)  # the others are opened again and again
        self._request.inputs.context.check_memory(base + one + again + held * (2 if again else 1))

    @staticmethod
    def _compare(target: Opened, buffers: Sequence[Origin]) -> None:
        if len(buffers) != len(target.windows):
            own = number(len(buffers), format_named(target.format).noun)
            reason = f"has {own}, but the target has {len(target.windows)}"
            names = [each.column for each in buffers], "the target", [each.name for each in target.windows]
            raise CountError(buffers[0].name, f"{reason}{lacking('it', *names)}; choose with `columns`")
        for origin, window in zip(buffers, target.windows, strict=True):
            if len(buffers) > 1 and origin.column and window.name and origin.column != window.name:
                reason = f"has {origin.column!r} where the target has {window.name!r}"
                raise DatatypeError(origin.name, f"{reason}; choose those of both with `columns`")
            if origin.datatype is not window.datatype:
                reason = f"has datatype {origin.datatype.label}, but the target has {window.datatype.label}"
                raise DatatypeError(origin.name, f"{reason}; both sides need the same one (MPI-4.1, 12.3.4)")
            if how := reordered(origin.fields, window.fields, window.datatype):
                raise DatatypeError(origin.name, f"has {how}, as the target has them")

    def _part(self, target: Opened, shares: Sequence[Share]) -> _Part:
        """Leave out what a window remembers; one that was changed before a crash is not changed again."""
        # They are changed in the order of the file.
        shares = sorted((share for share in shares if share.access.entries), key=lambda share: share.window.offset)
        keys = self._request.keys
        if not shares:
            return _Part((), ())
        if not keys:
            return _Part(shares, range(len(self._request.origins)))
        own = target.keys(self._stack)
        remembered = own.find({prefix for key in keys for prefix in key.prefixes})
        new = [key for key in keys if not key.is_in(remembered)]
        again = [number for key in new if key.has_known_content(remembered) for number in keys[key]]
        cautions.tell(*cautions.known_content([self._request.origins[number][0].name for number in again]))
        origins = [number for key in new for number in keys[key]]
        return _Part(shares, origins, own, [(key.kept, key.text) for key in new])

    def combine(self, progress: Progress) -> None:
        """Compute all new elements, and make the updates ready."""
        nbytes = sum(share.access.nbytes * len(part.origins) for part in self._parts for share in part.shares)
        with step("combining the origins"):
            for _ in progress(self._combined(), nbytes):
                pass
        self._request.decoder.close()  # what is written again takes another worker
        for origin in (origin for buffers in self._request.origins for origin in buffers):
            origin.check_unchanged()
        for update, part in zip(self.updates, self._parts, strict=True):
            if update is not None:
                update.seal(part.attribute(durable=self._policy.durable) if update.protocol else b"")
        if self.fetched is not None:
            self._targets[0].windows[0].datatype.clear_padding(self.fetched)

    def _combined(self) -> Iterator[int]:
        """Combine the origins into each window, and yield the bytes of the elements that are done."""
        request = self._request
        for target, part in zip(self._targets, self._parts, strict=True):
            update = self._begun(target, part)
            self.updates.append(update)
            if update is None:
                continue
            for share in part.shares:
                origins = [self._ordered(self._origins[number][share.buffer], share) for number in part.origins]
                found, hidden = yield from fold(share, request.op, origins, update, self.fetched)
                names = [origin.name for origin in origins]
                window = share.window
                overflow.tell(request.op, window.datatype, found, names, window.name if len(part.shares) > 1 else "")
                if nunset := sum(origin.nunset for origin in origins):
                    cautions.tell(cautions.unset(nunset, origins[0].column, "give the origins a `_FillValue`"))
                if hidden and (marked := window.marked) is not None:
                    cautions.tell(cautions.masked(hidden, window.name, marked.text))

    def _ordered(self, origin: Origin, share: Share) -> Origin:
        """Return an origin with its elements in the order of the window, if those of the same index are combined."""
        if not self._request.by_shape or share.window.shape is None:
            return origin
        ordered = origin.in_order(fortran_order=share.window.fortran_order)
        if ordered is not origin:
            self._stack.callback(ordered.close)
        return ordered

    def _begun(self, target: Opened, part: _Part) -> Update | None:
        """Begin to change a target, if there is anything to change."""
        made = isinstance(target, NewTarget | NewColumns)  # which comes into being even if nothing is combined into it
        if not made and not part.shares:
            return None
        if not self._request.op.origin or not self._is_as_expected(target, part):
            return self._stack.enter_context(Update(target.source))
        if not made and not part.origins:
            return None
        nbytes = sum(share.access.nbytes for share in part.shares)
        return self._stack.enter_context(target.begin(nbytes, self._policy))

    def _is_as_expected(self, target: Opened, part: _Part) -> bool:
        """Tell whether the element is there that was expected, if any was: a target that stays is not written."""
        expected = self._request.expected
        if expected is None:
            return True
        found = np.zeros_like(expected)
        for _ in fold(part.shares[0], self._request.op, [], Update(target.source), found):
            pass
        return found.tobytes() == expected.tobytes()

    def done(self, recovered: tuple[str, ...] = ()) -> Done:
        """Say what was done, or is to be done."""
        applied = {number for part in self._parts for number in part.origins}
        names = [buffers[0].name for buffers in self._request.origins]
        skipped = [name for number, name in enumerate(names) if number not in applied] if self._request.keys else []
        datatypes = tuple(window.datatype for window in self._targets[0].windows)
        protocols = tuple(update.protocol if update else "" for update in self.updates)
        nbytes = tuple(sum(share.access.nbytes for share in part.shares) for part in self._parts)
        fetched, origins = self.fetched, tuple(names)
        return Done(protocols, datatypes, self._entries, tuple(skipped), recovered, fetched, nbytes, origins=origins)


def _as_the_windows(buffers: Sequence[Origin], target: Opened) -> Sequence[Origin]:
    """Return the buffers of an origin in the order of the target's, if they have the same names."""
    own = {each.column: each for each in buffers}
    names = [window.name for window in target.windows]
    return [own[name] for name in names] if len(own) == len(names) and own.keys() == set(names) else buffers


def _publish(targets: Sequence[Opened], updates: Sequence[Update | None], on_commit: Callable[[], None]) -> None:
    """Commit one window after another."""
    changed: list[str] = []
    for target, update in zip(targets, updates, strict=True):
        if update is None:
            continue
        try:
            update.publish(interrupts.committed if changed else on_commit)
        except Appeared as error:
            if changed:
                reason = f"was made by another command meanwhile, and {', '.join(changed)} is changed; several windows"
                raise UnconfirmedError(target.name, f"{reason} are not one transaction") from error
            raise
        except OSError as error:
            if changed and not isinstance(error, UnconfirmedError):
                reason = f"is not changed ({error.strerror}), but {', '.join(changed)} is; several windows are not one"
                raise UnconfirmedError(target.name, f"{reason} transaction") from error
            raise
        changed.append(target.name)
