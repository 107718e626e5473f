"""A call from its plan to its results, with the locks of the files that it replaces.

A plan is made without a lock, because it may take long and most calls replace nothing. Then the files that the
results take the place of are locked, like those of `accumulate`, until the results are in place. If a file has changed
since the plan, the call is planned again under the lock, so that an update that came in between is in the result.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from mpired.context import RESERVED, Context
from mpired.engines import LOCAL
from mpired.errors import ChangedError, UsageError
from mpired.files import calls, lock
from mpired.files.access import lock_all
from mpired.files.lock import NO_LOCKED_TARGETS, LockedTargets, open_replaced
from mpired.files.places import check_are_data, inode, is_stream, warn_of_hard_links
from mpired.files.transaction import check_new
from mpired.files.urls import is_url
from mpired.formats.decoding import Decoder
from mpired.ranks.order import RankArgument, paths
from mpired.sources.open import check_unchanged
from mpired.sources.source import STANDARD_INPUT, Source

_ATTEMPTS = 5


class Planned(Protocol):
    """A call whose results are files, that has passed all checks."""

    @property
    def sources(self) -> Iterable[Source]: ...  # the files that it reads
    @property
    def paths(self) -> Iterable[str]: ...  # of its results
    @property
    def renamed(self) -> Iterable[str]: ...  # those that new files take: all, unless a file is changed in place
    @property
    def folders(self) -> Sequence[str]: ...  # the directories that are made for its results
    @property
    def overwrite(self) -> bool: ...  # whether results may replace files

    def run(self, context: Context, locked: LockedTargets) -> None:
        """Do it, and commit the results; `locked` has the files that they replace."""


_R = TypeVar("_R")
_C = TypeVar("_C", bound=Planned)


def repeated(call: Callable[[Context], _R], words: Iterable[RankArgument], context: Context) -> _R:
    """Make a call, and again if a file of its words changed while it was read: its writer may have replaced it."""
    # Not if it is an object of a store, or if workers may be on other machines.
    engine, number, inputs = context.engine or LOCAL, 0, [*paths(words)]
    if (context.dry_run or not engine.same_host) and (stream := _stream(inputs)):  # before it is read
        reason = "is a stream, which can be read only once; `dry_run` looks at files"
        if not context.dry_run:
            reason = f"is a stream of this process, which workers of the engine {engine.name} cannot open"
            reason += "; write it to a file first"
        raise UsageError(STANDARD_INPUT if stream == "-" else stream, reason)
    worker = Decoder()
    try:
        context = context if context.worker is not None else context._replace(worker=worker)
        while True:
            number += 1
            try:
                check_are_data(inputs, are_inputs=True)
                return call(context)
            except ChangedError as error:
                # To read all again is for the user to decide: objects are paid for, and many machines read.
                if number == _ATTEMPTS or _stream(inputs) or is_url(error.subject) or not engine.same_host:
                    raise
    finally:
        if worker.answers is not None:
            worker.close()


def carry_out(plan: Callable[[Context], _C], words: Sequence[RankArgument], context: Context) -> _C:
    """Plan a call, and do it under the locks of the files that it replaces; return the plan that was carried out."""
    # It is made again if these have changed. A dry run ends with the checks: nothing is made, locked, or finished that
    # an interrupted command has left.
    planned = plan(context)
    replaceable = planned.paths if planned.overwrite else ()
    existing = [path for path in replaceable if not is_stream(path) and os.path.isfile(path)]
    updated = _updated(existing, planned.sources) if existing else set()
    if context.dry_run:
        for path in updated:
            lock.check_reach(path)
        new = [*planned.folders, *(path for path in planned.paths if os.path.dirname(path) not in planned.folders)]
        check_results(new, context, overwrite=planned.overwrite, renamed=planned.renamed)
        return planned
    with contextlib.ExitStack() as stack:
        locked: LockedTargets = NO_LOCKED_TARGETS
        if existing:
            wanted = lock.descriptors_of(len(existing)) + RESERVED
            context.check_open_files(wanted)
            calls.allow_descriptors(wanted)
            opened, waiting = partial(open_replaced, updated=updated), lock.LockTimeout(context.lock_timeout)
            locked = stack.enter_context(lock_all(existing, waiting, opened=opened))
            try:
                check_unchanged([*planned.sources])
            except (ChangedError, FileNotFoundError):
                if _stream(paths(words)):
                    raise
                planned = plan(context)
            warn_of_hard_links(planned.renamed)
        planned.run(context, locked)
    return planned


def check_results(
    results: Sequence[str], context: Context, *, overwrite: bool, renamed: Iterable[str] | None = None
) -> None:
    """Check for a dry run where results go, and warn of hard links of the files that are `renamed`; None for all."""
    check_new(results, context, overwrite=overwrite)
    if overwrite:
        warn_of_hard_links(results if renamed is None else renamed)


def _stream(inputs: Iterable[str]) -> str | None:
    """Return the first path that is a stream."""
    return next(filter(is_stream, inputs), None)


def _updated(existing: Sequence[str], sources: Iterable[Source]) -> set[str]:
    """Return the existing results that replace a source."""
    inodes = set()
    for path in existing:
        with contextlib.suppress(FileNotFoundError):  # it has been removed meanwhile
            inodes.add(inode(os.stat(path)))
    # Of one inode the paths decide: a hard link is another file.
    read = set(calls.real_paths(source.name for source in sources if source.inode is None or source.inode in inodes))
    return {path for path in existing if os.path.realpath(path) in read}
