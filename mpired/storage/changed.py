"""A result that takes the place of some bytes of a file, all or none of them, while all else stays as it is.

It is first written where it will be in a copy of the file, which then takes its name; or, where a journal keeps more of
what the file is or is less work, to a file without a name, and from there by the journal into the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self, cast

from mpired import interrupts
from mpired.storage import calls
from mpired.storage.journal import MOST_HEAD_NBYTES
from mpired.storage.lock import Target
from mpired.storage.output import Output, Scratch
from mpired.storage.update import Extent, Journalled, replacement


class ChangedFile:
    """What is to be put into a file: its one draft is filled where the bytes lie in the file, and then committed.

    Parameters
    ----------
    path
        The file.
    target
        The file, locked; None if it cannot be, so that it can only be replaced.
    ranges
        Offset and number of the bytes that are put there, ascending and apart.
    on_commit
        Called when they are there, while interruptions are still held back.
    named
        As of `FileOutput` and `Scratch`.
    """

    def __init__(
        self,
        path: str,
        target: Target | None,
        ranges: Sequence[tuple[int, int]],
        *,
        on_commit: Callable[[], None] = interrupts.committed,
        named: bool = False,
    ) -> None:
        self._on_commit = on_commit
        self._ranges = ranges
        changed = sum(nbytes for _, nbytes in ranges)
        self._extent = Extent(min(ranges[0][0], MOST_HEAD_NBYTES), changed)
        with ExitStack() as stack:
            self._target = target or stack.enter_context(_unlocked(path))
            self._update = replacement(self._target, self._extent, "auto", durable=True, named=named)
            if self._update is not None:
                stack.enter_context(self._update)
                self._draft: Output = self._update.all_but(ranges)
            else:
                scratch = stack.enter_context(Scratch(os.path.dirname(self._target.path), path, named=named))
                with calls.blaming(path):
                    for offset, nbytes in ranges:
                        calls.reserve(scratch.fd, offset, offset + nbytes)
                self._draft = cast("Output", scratch)  # which is filled, and not committed
            self._stack = stack.pop_all()

    @property
    def drafts(self) -> Sequence[Output]:
        """What is to be filled."""
        return (self._draft,)

    def commit(self) -> None:
        """Let the file have the new bytes."""
        if self._update is not None:
            self._update.seal(b"")
            self._update.publish(self._on_commit)
            return
        with Journalled(self._target, self._extent, durable=True) as update:
            for offset, nbytes in self._ranges:
                at = offset
                for block in calls.blocks(self._draft.fd, offset, offset + nbytes):
                    update.write(block, at)
                    at += len(block)
            update.seal(b"")
            update.publish(self._on_commit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def _unlocked(path: str) -> Target:
    """Open a file that cannot be locked, as one that others may read."""
    with calls.blaming(path):
        real = os.path.realpath(path)
        dirfd = calls.open_directory(os.path.dirname(real))
        try:
            return Target(path, real, os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), dirfd, shared=True)
        except BaseException:
            os.close(dirfd)
            raise
