"""Many new files that appear together: all of them, or none.

They are drafted in staging directories beside their places, brought to the disk, committed at once,
and then renamed one after another; `staging` says what happens after a crash between two renames.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from mpired import codecs
from mpired.context import NO_LIMITS, Context
from mpired.errors import MpiredError, OutputExistsError, RanksError, UnconfirmedError, UsageError
from mpired.storage import calls, copying, interruptions, manifest, metadata, reach, staging
from mpired.storage.folder import DraftFile, Folder, Place
from mpired.storage.output import Packing, Scratch, existing_file, is_stream
from mpired.storage.unfinished import recover_for_reading

_ATTEMPTS = 100


class Draft:
    """One of the files, while it is made.

    Parameters
    ----------
    name
        Its path as given, for messages.
    target
        The file that it becomes.
    place
        The staging directory that it lies in.
    number
        Its number there.
    packing
        How it is compressed when all of it is there; None if it is not.
    """

    def __init__(self, name: str, target: str, place: Place, number: int, packing: Packing | None = None) -> None:
        self._packing = packing
        self.name = name
        self.directory, self.base = os.path.split(target)
        self.number = str(number)
        self.place = place

    @property
    def shared(self) -> DraftFile:
        """The file as other processes of this user can open it."""
        return DraftFile(self.place, self.number)

    @contextlib.contextmanager
    def created(self, nbytes: int | None = None) -> Generator[int, None, None]:
        """Create the file, with `nbytes` reserved for it, and give its descriptor for the block."""
        with calls.blaming(self.name):
            with self.place.open() as folder:
                fd = folder.create(self.number)
            try:
                if nbytes is not None:
                    calls.allocate(fd, nbytes)
                yield fd
            finally:
                calls.let_go(fd)

    def repeat(self, original: Draft, *, link: bool) -> None:
        """Make this file what another one is: its second name, if it may be linked, or a copy, by sharing blocks."""
        with calls.blaming(self.name), original.place.open() as there:
            with self.place.open() as here:
                if link and calls.linked(original.number, self.number, there.fd, here.fd):
                    return
            source = there.open(original.number)
            try:
                with self.created() as fd:
                    copying.copy_file(source, fd)
            finally:
                calls.let_go(source)

    def seal(self, mode: int) -> None:
        """Give the file the metadata of what it replaces, or else `mode`, and bring it to the disk."""
        with calls.blaming(self.name), self.place.open() as folder:
            fd = folder.open(self.number, os.O_RDWR)
            try:
                if self._packing is not None:
                    made = os.fstat(fd).st_mtime_ns  # a record beside the result is made after that
                    with Scratch(self.directory, self.name) as packed:
                        self._packing.pack(fd, packed.fd)
                        calls.set_size(fd, 0)
                        copying.copy_file(packed.fd, fd)
                    os.utime(fd, ns=(made, made))
                existing = folder.status_beside(self.base)
                if existing is not None and stat.S_ISREG(existing.st_mode):
                    with calls.located(self.base, folder.dirfd) as path:
                        metadata.copy_metadata(os.stat(path), path, fd)
                else:
                    os.fchmod(fd, mode)
                calls.fsync(fd)
            finally:
                calls.let_go(fd)


class Together:
    """Files that appear under their names together, durable, or not at all.

    Parameters
    ----------
    paths
        The names.
    overwrite
        Whether existing files may be replaced.
    context
        The settings of the call; interruptions are held back when it is told that the files will be in place.
    level
        The level of compression of those whose suffix asks for a codec; None for the usual one.
    """

    def __init__(
        self, paths: Sequence[str], *, overwrite: bool = False, context: Context = NO_LIMITS, level: int | None = None
    ) -> None:
        packings = [Packing.of(path, level if codecs.by_suffix(path) else None) for path in paths]
        check_outputs(paths, context, overwrite=overwrite)
        self._overwrite = overwrite
        self._on_commit = context.on_commit
        self._committed = False
        self._places: dict[str, Place] = {}
        self._lock = -1
        self.drafts: list[Draft] = []
        try:
            for number, (path, target) in enumerate(zip(paths, calls.real_paths(paths), strict=True)):
                with calls.blaming(path):
                    place = self._staging_place(os.path.dirname(target))
                self.drafts.append(Draft(path, target, place, number, packings[number]))
        except BaseException:
            self._clear()
            raise

    def _staging_place(self, directory: str) -> Place:
        """Return the staging directory beside the files of a directory; it is made when it is first needed."""
        for _ in range(_ATTEMPTS):
            if directory in self._places:
                return self._places[directory]
            try:
                with interruptions.blocked(), Folder.new(directory) as folder:  # so that none leaves it behind
                    marked = False
                    try:
                        marked = self._marked(folder)
                    finally:
                        if not marked:
                            staging.remove(folder)
                    if marked:
                        self._places[directory] = folder.place
            except FileExistsError:  # the name is another command's
                continue
            except FileNotFoundError:
                if not os.path.isdir(directory):
                    raise
        raise OSError(errno.EBUSY, "cannot keep a directory for the drafts: others remove it")

    def _marked(self, folder: Folder) -> bool:
        """Mark a new staging directory as ours; until then somebody may take it for left behind and remove it."""
        home = next(iter(self._places.values()), None)
        calls.symlink(home.path if home else folder.place.name, staging.HOME, folder.fd)
        lock, has_locks, free = staging.take_lock(folder)
        if (has_locks and not free) or folder.status(staging.HOME) is None:
            calls.let_go(lock)
            return False
        if home is None:
            self._lock = lock  # it shows that this process lives
            calls.pwrite_all(lock, reach.mark(lock).encode(), 0)
        else:
            calls.let_go(lock)
        folder.sync()  # before there is anything else, so that nothing else is ever there without it
        return True

    def commit(self) -> None:
        """Make all files durable and put them in their places."""
        if not self.drafts:
            self._on_commit()
            return
        mode = metadata.default_mode()
        for draft in self.drafts:
            draft.seal(mode)
        home, *others = self._places.values()
        self._write_manifests()
        with interruptions.blocked():
            with calls.blaming(self.drafts[0].name), home.open() as folder:
                try:
                    staging.commit(folder)
                except UnconfirmedError:
                    self._committed = True  # perhaps
                    raise
            self._committed = True
            self._on_commit()
            try:
                # What has come there since the manifest was written is replaced, as it would have been before.
                staging.put_in_place(self._opened([home, *others]), overwrite=self._overwrite)
            except (OSError, MpiredError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                why = f"the results are committed, but not all in place or confirmed ({reason})"
                raise UnconfirmedError(
                    self.drafts[0].name, f"{why}; the next mpired command on them finishes it"
                ) from error
            self._remove()

    @staticmethod
    def _opened(places: Iterable[Place]) -> Iterator[Folder]:
        """Open one staging directory after another, however many there are."""
        for place in places:
            with place.open() as folder:
                yield folder

    def _write_manifests(self) -> None:
        """Say in each staging directory what goes where, and bring that and all names to the disk."""
        members = [place.path for place in self._places.values()]
        drafts: dict[str, list[Draft]] = {directory: [] for directory in self._places}
        for draft in self.drafts:
            drafts[draft.directory].append(draft)
        for directory, place in self._places.items():
            with calls.blaming(directory), place.open() as folder:
                files = [(draft.number, draft.base, self._old(folder, draft)) for draft in drafts[directory]]
                manifest.Manifest(files, members).write(folder)
                folder.sync()
                folder.sync_around()

    def _old(self, folder: Folder, draft: Draft) -> manifest.Stamp | None:
        old = manifest.stamp(folder.status_beside(draft.base))
        if old is not None and not self._overwrite:
            raise OutputExistsError(draft.name, "was created by another process; `overwrite=True` replaces it")
        return old

    def _remove(self) -> None:
        """Remove the staging directories, the home last; one that cannot be opened is left to the next command."""
        home, *others = self._places.values() or (None,)
        for place in reversed(others):
            with contextlib.suppress(OSError), place.open() as folder:
                staging.remove(folder)
        if home is not None:
            with contextlib.suppress(OSError), home.open() as folder:
                lock, self._lock = self._lock, -1
                staging.remove(folder, lock)
        self._places.clear()

    def _clear(self) -> None:
        """Remove what is left, unless it is committed."""
        if not self._committed:
            self._remove()
        lock, self._lock = self._lock, -1
        calls.let_go(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()


def check_outputs(paths: Sequence[str], context: Context, *, overwrite: bool) -> None:
    """Raise an error unless files can be written under all of these names; it lists each that is in the way."""
    errors: list[MpiredError | OSError] = []
    for path in paths:
        try:
            if is_stream(path):
                raise UsageError(path, "is a stream, and results that appear together are files")
            if existing_file(path) is not None and not overwrite:
                raise OutputExistsError(path, "already exists; `overwrite=True` replaces it")
            recover_for_reading(
                path, context
            )  # else its journal would outlive the file that it is of, or meet a new file
        except (MpiredError, OSError) as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise RanksError(len(paths), errors, "outputs")
