"""One request as one transaction: lock, recover, look, check, combine, commit (MPI-4.1, 12.3.4).

All that can be refused is refused before the first byte is written. Each window is changed wholly or not
at all. Several windows are locked together, but committed one after another.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mpired import ops
from mpired.buffers import Declared, FlatBuffer
from mpired.datatypes import Datatype
from mpired.errors import DatatypeError, UnconfirmedError, UsageError
from mpired.storage import recovery
from mpired.storage.lock import Target, Waiting, lock_target
from mpired.storage.output import nothing
from mpired.storage.update import Extent, Reading, Update, choose
from mpired.windows import once
from mpired.windows.origin import Origin
from mpired.windows.window import Share, fold, open_window


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


@dataclass(frozen=True)
class Request:
    """What is to be combined into which elements.

    Parameters
    ----------
    windows
        The files, one a rank of the window.
    declared
        What the user says of them.
    op, use
        What combines, and the call that it is for.
    origins
        What is combined, one after another.
    place
        Given the windows, says which elements of which are meant, or why none can be.
    keys
        For each origin the key that is remembered; empty without --once.
    fetch
        Whether the old elements are wanted.
    """

    windows: Sequence[str]
    declared: Declared
    op: ops.Op
    use: ops.Use
    origins: Sequence[Origin]
    place: Callable[[Sequence[FlatBuffer]], Sequence[Share | None]]
    keys: Sequence[bytes] = ()
    fetch: bool = False


class Done(NamedTuple):
    """What became of a request.

    Parameters
    ----------
    protocols
        For each window how it was changed; "" if it was not.
    datatype
        The datatype of the elements.
    entries
        How many elements each origin gave.
    skipped
        The names of the origins that had been applied before.
    recovered
        The windows in which an update of a dead process was finished first.
    fetched
        The old elements.
    """

    protocols: tuple[str, ...]
    datatype: Datatype
    entries: int
    skipped: tuple[str, ...] = ()
    recovered: tuple[str, ...] = ()
    fetched: np.ndarray | None = None


Keep = Callable[[np.ndarray, FlatBuffer], None]
"""Takes the fetched elements and the window they are from, before the windows change."""


def transact(
    request: Request, policy: Policy, *, on_commit: Callable[[], None] = nothing, keep: Keep | None = None
) -> Done:
    """Carry out a request.

    Parameters
    ----------
    request
        What is to be done.
    policy
        How.
    on_commit
        Called when the first window is changed.
    keep
        Called with the old elements when all is ready.

    Raises
    ------
    MpiredError, OSError
        Nothing has changed, except after an `UnconfirmedError`.
    """
    with ExitStack() as stack:
        targets = stack.enter_context(locked(request.windows, policy.waiting))
        recovered = tuple(target.name for target in targets if recovery.settle(target).journal == "finished")
        windows = [open_window(target, request.declared) for target in targets]
        for window in windows:
            _check(request, window)
        shares = request.place(windows)
        parts = [_part(request, target, share) for target, share in zip(targets, shares, strict=True)]
        entries = sum(share.access.entries for share in shares if share)
        fetched = np.zeros(entries, windows[0].datatype.form) if request.fetch else None
        updates: list[Update | None] = []
        for target, share, part in zip(targets, shares, parts, strict=True):
            update = _begun(request, target, share, policy) if part.origins and share else None
            updates.append(stack.enter_context(update) if update else None)
            if update is not None and share is not None:
                fold(share, request.op, part.origins, update, fetched)
        for origin in request.origins:
            origin.check_unchanged()
        for update, part in zip(updates, parts, strict=True):
            if update is not None:
                update.seal(part.attribute)
        if fetched is not None and keep is not None:
            windows[0].datatype.clear_padding(fetched)
            keep(fetched, windows[0])
        _publish(targets, updates, on_commit)
    applied = {id(origin) for part in parts for origin in part.origins}
    skipped = tuple(origin.name for origin in request.origins if id(origin) not in applied) if request.keys else ()
    protocols = tuple(update.protocol if update else "" for update in updates)
    return Done(protocols, windows[0].datatype, entries, skipped, recovered, fetched)


@contextlib.contextmanager
def locked(names: Sequence[str], waiting: Waiting) -> Iterator[list[Target]]:
    """Lock some files, in the order of their inodes so that two commands never wait for each other."""

    def inode(name: str) -> tuple[int, int]:
        status = os.stat(name)
        return status.st_dev, status.st_ino

    inodes = {name: inode(name) for name in names}
    if len(set(inodes.values())) < len(names):
        raise UsageError("--window", "names one file twice; each window is a file of its own")
    with ExitStack() as stack:
        targets = {
            name: stack.enter_context(lock_target(name, waiting))
            for name in sorted(inodes, key=lambda name: inodes[name])
        }
        yield [targets[name] for name in names]


def _check(request: Request, window: FlatBuffer) -> None:
    """Let a legal request pass, before anything is written."""
    ops.check(request.op, window.datatype, request.use)
    for origin in request.origins:
        if origin.datatype is not window.datatype:
            reason = f"has datatype {origin.datatype}, but the target has {window.datatype}"
            raise DatatypeError(origin.name, f"{reason}; both sides need the same one (MPI-4.1, 12.3.4)")


class _Part(NamedTuple):
    """What is done with one window: which origins are combined into it, and what it remembers then."""

    origins: Sequence[Origin]
    attribute: bytes


def _part(request: Request, target: Target, share: Share | None) -> _Part:
    """Leave out what a window remembers; one that was changed before a crash is not changed again."""
    if share is None or not share.nbytes:
        return _Part((), b"")
    if not request.keys:
        return _Part(request.origins, b"")
    remembered = once.stored(target)
    new: dict[bytes, Origin] = {}
    for origin, key in zip(request.origins, request.keys, strict=True):
        if key not in remembered:
            new.setdefault(key, origin)
    return _Part(tuple(new.values()), once.encoded(remembered, new))


def _begun(request: Request, target: Target, share: Share, policy: Policy) -> Update:
    if request.op.name == "NO_OP":
        return Reading(target)
    extent = Extent(share.window.offset, share.access.nbytes)
    return choose(target, extent, policy.commit, durable=policy.durable)


def _publish(targets: Sequence[Target], updates: Sequence[Update | None], on_commit: Callable[[], None]) -> None:
    """Commit one window after another."""
    changed: list[str] = []
    for target, update in zip(targets, updates, strict=True):
        if update is None:
            continue
        try:
            update.publish(nothing if changed else on_commit)
        except OSError as error:
            if changed and not isinstance(error, UnconfirmedError):
                reason = f"is not changed ({error.strerror}), but {', '.join(changed)} is; several windows are not one"
                raise UnconfirmedError(target.name, f"{reason} transaction") from error
            raise
        changed.append(target.name)
