"""The two ways to change a locked file so that it is wholly old or wholly new after any crash.

Replacement writes a whole new file and renames it over the old one: every reader sees the old or
the new. Journalled writes the new bytes to a journal first and then into the file: the work is that
of the change alone, and links and open descriptors stay, but a reader that knows nothing of journals can
see half of the change while it is made, or after a crash until the next mpired command.

Both go through the same steps: `write` the new bytes, `seal` all that can fail, `publish`. Leaving the block
before `publish` changes nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from mpired.errors import UnconfirmedError
from mpired.storage import calls, copying, interruptions, journal, marks
from mpired.storage.journal import Journal, JournalWriter
from mpired.storage.lock import Target
from mpired.storage.marks import Mark
from mpired.storage.output import FileOutput
from mpired.storage.temporary import remove_dead

# A file up to this size is copied without asking; of a larger one so much has to change.
_SMALL_NBYTES = 64 << 20
_LARGE_PART = 4


class Extent(NamedTuple):
    """What an update is about: bytes of the header of the target, and of all that will be written."""

    head_nbytes: int
    changed_nbytes: int


class Update(Protocol):
    """A change that is being prepared."""

    protocol: str
    source: int
    """The descriptor that has the old bytes."""

    def write(self, data: memoryview | bytes, offset: int) -> None: ...
    def seal(self, keys: bytes) -> None: ...
    def publish(self, on_commit: Callable[[], None]) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Replacement:
    """An update by a new file that takes the name of the old one.

    Parameters
    ----------
    target
        The locked file.
    durable
        Whether the disk has to confirm it.
    output
        The new file, if it is open already.
    named
        As of `FileOutput`.
    """

    protocol = "rename"

    def __init__(self, target: Target, *, durable: bool, output: FileOutput | None = None, named: bool = False) -> None:
        self.source = target.fd
        self._target = target
        self._size = target.status.st_size
        self._output = output or FileOutput(target.name, overwrite=True, durable=durable, target=target, named=named)
        self._copied = 0
        with calls.blaming(target.name), closing_on_error(self._output):
            if output is not None or copying.clone(target.fd, self._output.fd):
                self._copied = self._size
            else:
                os.ftruncate(self._output.fd, self._size)

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Give the new file `data` at `offset`; offsets ascend, and what lies between is the old."""
        with calls.blaming(self._target.name):
            self._copy(offset)
            calls.pwrite_all(self._output.fd, data, offset)
            self._copied = max(self._copied, offset + len(data))

    def all_but(self, ranges: Sequence[tuple[int, int]]) -> FileOutput:
        """Copy all but some ranges, offset and bytes, which ascend, and return the new file for these."""
        with calls.blaming(self._target.name):
            for offset, nbytes in ranges:
                self._copy(offset)
                self._copied = max(self._copied, offset + nbytes)
            self._copy(self._size)
        return self._output

    def seal(self, keys: bytes) -> None:
        """Copy the rest, and bring the new file to the disk."""
        with calls.blaming(self._target.name):
            self._copy(self._size)
            if keys := keys or journal.kept_keys(self._target.fd):
                journal.remember(self._output.fd, keys)
        self._output.seal()

    def publish(self, on_commit: Callable[[], None]) -> None:
        """Let the new file take the place of the old one."""
        self._output.publish(on_commit)

    def _copy(self, stop: int) -> None:
        if self._copied < stop:
            copying.copy_sparse(self._target.fd, self._output.fd, self._copied, stop, self._copied)
            self._copied = stop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._output.__exit__(kind, error, trace)


class Journalled:
    """An update by a journal of the new bytes, which are then written into the file.

    Parameters
    ----------
    target
        The locked file.
    extent
        What will be written.
    durable
        Whether the disk has to confirm it.
    """

    protocol = "journal"

    def __init__(self, target: Target, extent: Extent, *, durable: bool) -> None:
        self.source = target.fd
        self._target = target
        self._durable = durable
        self._forgets = False
        self._mark: Mark | None = None
        with calls.blaming(target.name):
            if _has_several_names(target.status):
                marks.check_possible(target.fd)
            remove_dead(target.base, target.dirfd)
            try:
                self._journal: JournalWriter | None = JournalWriter(
                    target.fd, extent.head_nbytes, target.base, target.dirfd
                )
            except OSError as error:
                where = os.path.dirname(target.path)
                raise OSError(error.errno, f"cannot make a journal in {where}: {error.strerror}") from error
            try:
                self._journal.reserve(extent.changed_nbytes)
            except BaseException:
                self._abandon()
                raise

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Note that the file is to have `data` at `offset`; offsets ascend."""
        with calls.blaming(self._target.name):
            self._open_journal.write(data, offset)

    @property
    def _open_journal(self) -> JournalWriter:
        assert self._journal is not None  # noqa: S101 - it is there until the block is left
        return self._journal

    def seal(self, keys: bytes) -> None:
        """Complete the journal, but for what makes it valid, and reserve space in the holes that will be written to."""
        target, status = self._target, self._target.status
        with calls.blaming(target.name):
            if status.st_blocks * 512 < status.st_size:
                for offset, nbytes in self._open_journal.ranges:
                    calls.reserve(target.fd, offset, offset + nbytes)
            if keys:
                self._forgets = not journal.stored_keys(target.fd)
                _reserve_keys(target.fd, keys)
            self._open_journal.seal(keys)
            if _has_several_names(target.status):
                self._mark_begun()

    def _mark_begun(self) -> None:
        """Let all names of the file lead to the journal before it can become valid."""
        writer, target = self._open_journal, self._target
        if self._durable:
            writer.sync_name()  # else a mark could lead to a journal that never was
        mark = Mark(begun=True, identity=writer.identity, path=os.fsencode(target.path))
        marks.write(target.fd, mark)
        self._mark = mark
        if self._durable:
            calls.fsync(target.fd)

    def publish(self, on_commit: Callable[[], None]) -> None:
        """Make the journal valid, write its bytes into the file, and remove it."""
        target, writer = self._target, self._open_journal
        with interruptions.blocked():
            committed = self._commit(writer)
            self._journal = None  # from here on it is finished, by us or by the next
            on_commit()
            try:
                marks.apply(committed, target.fd, self._mark, durable=self._durable)
                calls.unlink(writer.name, target.dirfd)
                if self._durable:
                    calls.fsync_directory(target.dirfd)
                if self._mark is not None:
                    marks.clear(target.fd)
            except OSError as error:
                reason = f"the update is committed, but not finished ({error.strerror}); do not repeat it"
                raise UnconfirmedError(target.name, f"{reason}, the next mpired command finishes it") from error
            finally:
                calls.let_go(writer.fd)

    def _commit(self, writer: JournalWriter) -> Journal:
        target = self._target
        try:
            with calls.blaming(target.name):
                return writer.publish(durable=self._durable)
        except OSError as error:
            whole = _is_whole(writer.fd)
            if self._abandon() or not whole:
                raise
            reason = f"the journal of the update could neither be synced nor removed ({error.strerror}); do not repeat"
            raise UnconfirmedError(target.name, f"{reason} it, the next mpired command finishes it") from error

    def _abandon(self) -> bool:
        """Remove the journal, so that nothing has happened, whatever the power does; tell whether that worked."""
        writer, self._journal = self._journal, None
        if writer is not None:
            if self._forgets:
                with contextlib.suppress(OSError):
                    journal.forget(self._target.fd)
            try:
                if self._mark is not None:  # which must not lead to a journal that is gone
                    marks.end(self._target.fd, self._mark, durable=self._durable)
            except OSError:
                calls.let_go(writer.fd)
                return False
            try:
                writer.remove()
            except OSError:
                return False
            with contextlib.suppress(OSError):
                if self._durable:
                    calls.fsync_directory(self._target.dirfd)
            if self._mark is not None:
                marks.clear(self._target.fd)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._abandon()


class Reading:
    """An update that changes nothing, for a request that only fetches."""

    protocol = ""

    def __init__(self, source: int) -> None:
        self.source = source

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Write nothing: the bytes are the old ones."""

    def seal(self, keys: bytes) -> None:
        """Have nothing to make ready."""

    def publish(self, on_commit: Callable[[], None]) -> None:
        """Change nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave nothing behind."""


@contextlib.contextmanager
def closing_on_error(output: FileOutput) -> Iterator[None]:
    """Let go of an output if the block fails."""
    try:
        yield
    except BaseException as error:
        output.__exit__(type(error), error, None)
        raise


def _is_whole(fd: int) -> bool:
    """Tell whether a journal is valid; one that cannot be read counts as that."""
    try:
        header = journal.read_header(fd)
        return header is not None and journal.is_whole(Journal(fd, header))
    except OSError:
        return True


def _reserve_keys(fd: int, keys: bytes) -> None:
    """Make room for the keys before the commit: after it there must be nothing left that can be refused."""
    old = journal.stored_keys(fd)
    # The keys that are there, and zeros, which are the key of nothing.
    journal.remember(fd, old[-len(keys) :].rjust(len(keys), b"\0"))


def choose(target: Target, extent: Extent, commit: str, *, durable: bool) -> Update:
    """Begin an update of a locked target."""
    return replacement(target, extent, commit, durable=durable) or Journalled(target, extent, durable=durable)


def replacement(
    target: Target, extent: Extent, commit: str, *, durable: bool, named: bool = False
) -> Replacement | None:
    """Begin to replace a locked target, if `choose` would; None where it takes a journal.

    One that may only be read is always replaced. `named` is as of `FileOutput`.
    """
    if target.shared:
        commit = "rename"
    if commit == "journal" or (commit == "auto" and not _rename_keeps(target.status)):
        return None
    size = target.status.st_size
    if commit == "rename" or size <= max(_SMALL_NBYTES, _LARGE_PART * extent.changed_nbytes):
        return Replacement(target, durable=durable, named=named)
    output = _cloned(target, durable=durable, named=named)
    return None if output is None else Replacement(target, durable=durable, output=output)


def _has_several_names(status: os.stat_result) -> bool:
    return status.st_nlink > 1


def _rename_keeps(status: os.stat_result) -> bool:
    """Tell whether a new file can be all that the old one is: its only name, its owner and its group."""
    if _has_several_names(status):
        return False
    if os.geteuid() == 0:
        return True
    return status.st_uid == os.geteuid() and status.st_gid in {os.getegid(), *os.getgroups()}


def _cloned(target: Target, *, durable: bool, named: bool) -> FileOutput | None:
    """Return a new file that shares the blocks of the target; None where that is not possible."""
    try:
        output = FileOutput(target.name, overwrite=True, durable=durable, target=target, named=named)
    except OSError:
        return None
    if copying.clone(target.fd, output.fd):
        return output
    output.__exit__(None, None, None)
    return None
