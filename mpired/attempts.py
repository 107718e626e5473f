"""A call from its plan to its results: locks on replaced files, and a new attempt if an input changes.

A call is planned without locks, because planning may take long and most calls replace no file. Then the replaced files
are locked until the results are in place. If a file has changed since the plan, the call is planned again under the
locks, so that the results include the update.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, Self, TypeVar, overload

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
    """A checked call whose results are files."""

    @property
    def sources(self) -> Iterable[Source]: ...  # inputs
    @property
    def paths(self) -> Iterable[str]: ...  # of the results
    @property
    def replaced_paths(self) -> Iterable[str]: ...  # paths that get a new file; the other files are changed in place
    @property
    def folders(self) -> Sequence[str]: ...  # directories that the call makes for its results
    @property
    def overwrite(self) -> bool: ...  # whether results may replace files

    def run(self, context: Context, locked: LockedTargets) -> Self:
        """Compute and commit the results; `locked` has the replaced files. Return the call with its final counts."""


_R = TypeVar("_R")
_C = TypeVar("_C", bound=Planned)


@overload
def retry(call: Callable[[Context], _C], arguments: Sequence[RankArgument], context: Context, *, runs: bool) -> _C: ...
@overload
def retry(call: Callable[[Context], _R], arguments: Sequence[RankArgument], context: Context) -> _R: ...
def retry(
    call: Callable[[Context], Any], arguments: Sequence[RankArgument], context: Context, *, runs: bool = False
) -> Any:
    """Return the result of a call, which is repeated if an input changes while the call reads it.

    If `runs` is true, the result is a `Planned` call, which is run under the locks of the replaced files.
    """
    engine, attempt, inputs = context.engine or LOCAL, 0, [*paths(arguments)]
    if (context.dry_run or not engine.same_host) and (stream := _stream(inputs)):  # before a byte of it is read
        reason = "is a stream, which can be read only once; `dry_run` looks at files"
        if not context.dry_run:
            reason = f"is a stream of this process, which workers of the engine {engine.name} cannot open"
            reason += "; write it to a file first"
        raise UsageError(STANDARD_INPUT if stream == "-" else stream, reason)
    worker = Decoder()
    try:
        context = context if context.worker is not None else context._replace(worker=worker)
        while True:
            attempt += 1
            try:
                check_are_data(inputs, are_inputs=True)
                planned = call(context)
                if not runs:
                    return planned
                existing = planned.paths if planned.overwrite else ()
                existing = [path for path in existing if not is_stream(path) and os.path.isfile(path)]
                if context.dry_run:  # ends here: nothing is created, locked or recovered
                    _check_dry_run(planned, existing, context)
                    return planned
                if not existing:
                    return planned.run(context, NO_LOCKED_TARGETS)
                return _run_locked(planned, existing, call, inputs, context)
            except ChangedError as error:
                # A repetition of reads of a store, or of reads by many machines, is expensive: the user decides.
                if attempt == _ATTEMPTS or _stream(inputs) or is_url(error.subject) or not engine.same_host:
                    raise
    finally:
        if worker.answers is not None:
            worker.close()


def _run_locked(
    planned: _C, existing: Sequence[str], call: Callable[[Context], _C], inputs: Sequence[str], context: Context
) -> _C:
    """Run a planned call under the locks of the existing files that it replaces; plan it again if one has changed."""
    descriptors = lock.descriptors_of(len(existing)) + RESERVED
    context.check_open_files(descriptors)
    calls.allow_descriptors(descriptors)
    opened = partial(open_replaced, updated=_updated(existing, planned.sources))
    with lock_all(existing, lock.LockTimeout(context.lock_timeout), opened=opened) as locked:
        try:
            check_unchanged([*planned.sources])
        except (ChangedError, FileNotFoundError):
            if _stream(inputs):
                raise
            planned = call(context)
        warn_of_hard_links(planned.replaced_paths)
        return planned.run(context, locked)


def _check_dry_run(planned: Planned, existing: Sequence[str], context: Context) -> None:
    """Check the results of a planned call, which is not run."""
    for path in _updated(existing, planned.sources) if existing else ():
        lock.check_reach(path)
    new = [*planned.folders, *(path for path in planned.paths if os.path.dirname(path) not in planned.folders)]
    check_new(new, context, overwrite=planned.overwrite)
    if planned.overwrite:
        warn_of_hard_links(planned.replaced_paths)


def check_results(results: Sequence[str], context: Context, *, overwrite: bool) -> None:
    """Check the paths of results for a dry run, and warn of their hard links."""
    check_new(results, context, overwrite=overwrite)
    if overwrite:
        warn_of_hard_links(results)


def _stream(inputs: Iterable[str]) -> str | None:
    """Return the first path of a stream, or None."""
    return next(filter(is_stream, inputs), None)


def _updated(existing: Sequence[str], sources: Iterable[Source]) -> set[str]:
    """Return the existing results that are also inputs."""
    inodes = set()
    for path in existing:
        with contextlib.suppress(FileNotFoundError):  # the file was removed since the plan
            inodes.add(inode(os.stat(path)))
    # Files with the same inode are compared by path, because a result replaces only one hard link.
    names = (source.name for source in sources if source.inode is None or source.inode in inodes)
    inputs = set(calls.real_paths(names))
    return {path for path in existing if os.path.realpath(path) in inputs}
