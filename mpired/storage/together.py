"""Many new files that appear together: all of them, or none.

They are drafted in staging directories beside their places, brought to the disk, committed at once,
and then renamed one after another; `staging` says what happens after a crash between two renames.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Self

from mpired.errors import MpiredError, OutputExistsError, RanksError, UnconfirmedError, UsageError
from mpired.storage import calls, copying, interruptions, manifest, staging
from mpired.storage.output import existing_file, is_stream, nothing
from mpired.storage.recovery import settle_for_reading

_ATTEMPTS = 100


class Draft:
    """One of the files, while it is made.

    Parameters
    ----------
    name
        Its path as given, for messages.
    target
        The file that it becomes.
    folder
        The staging directory that it lies in.
    number
        Its number there.
    """

    def __init__(self, name: str, target: str, folder: str, number: int) -> None:
        self.name = name
        self.target = target
        self.directory = os.path.dirname(target)
        self.number = str(number)
        self.shared_path = os.path.join(folder, self.number)

    @contextlib.contextmanager
    def created(self, nbytes: int | None = None) -> Generator[int, None, None]:
        """Create the file, with `nbytes` reserved for it, and give its descriptor for the block."""
        with calls.blaming(self.name):
            fd = manifest.create(self.shared_path)
            try:
                if nbytes is not None:
                    calls.allocate(fd, nbytes)
                yield fd
            finally:
                os.close(fd)

    def repeat(self, original: Draft, *, link: bool) -> None:
        """Make this file what another one is: its second name, if it may be linked, or a copy, by sharing blocks."""
        with calls.blaming(self.name):
            if link and calls.linked(original.shared_path, self.shared_path):
                return
        with self.created() as fd:
            source = os.open(original.shared_path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                copying.copy_file(source, fd)
            finally:
                os.close(source)

    def seal(self, mode: int) -> None:
        """Give the file the metadata of what it replaces, or else `mode`, and bring it to the disk."""
        with calls.blaming(self.name), calls.opened_for_writing(self.shared_path, self.name) as fd:
            existing = existing_file(self.target)
            if existing is not None:
                calls.copy_metadata(existing, self.target, fd)
            else:
                os.fchmod(fd, mode)
            calls.fsync(fd)


class Together:
    """Files that appear under their names together, durable, or not at all.

    Parameters
    ----------
    paths
        The names.
    overwrite
        Whether existing files may be replaced.
    on_commit
        Called when it is certain that the files will be in place, while interruptions are held back.

    Raises
    ------
    OutputExistsError
        If one is there and `overwrite` is false.
    UsageError
        If one is a stream.
    RanksError
        If several cannot be written: one error that lists them all.
    OSError
        If a name is a directory, or a directory cannot be written to.
    """

    def __init__(
        self, paths: Sequence[str], *, overwrite: bool = False, on_commit: Callable[[], None] = nothing
    ) -> None:
        check_outputs(paths, overwrite=overwrite)
        self._overwrite = overwrite
        self._on_commit = on_commit
        self._committed = False
        self._folders: dict[str, str] = {}
        self._lock = -1
        self.drafts: list[Draft] = []
        try:
            for number, (path, target) in enumerate(zip(paths, calls.real_paths(paths), strict=True)):
                with calls.blaming(path):
                    folder = self._staging_folder(os.path.dirname(target))
                self.drafts.append(Draft(path, target, folder, number))
        except BaseException:
            self._clear()
            raise

    def _staging_folder(self, directory: str) -> str:
        """Return the staging directory beside the files of a directory."""
        for _ in range(_ATTEMPTS):
            if directory in self._folders:
                return self._folders[directory]
            folder = staging.new_name(directory)
            try:
                with interruptions.blocked():  # so that none leaves it behind
                    calls.make_private_directory(folder)
                    if self._marked(folder):
                        self._folders[directory] = folder
            except FileExistsError:  # the name is another command's
                continue
            except FileNotFoundError:
                if not os.path.isdir(directory):
                    raise
            except OSError:
                staging.discard(folder)
                raise
        raise OSError(errno.EBUSY, "cannot keep a directory for the drafts: others remove it")

    def _marked(self, folder: str) -> bool:
        """Mark a new staging directory as ours; until then somebody may take it for left behind and remove it."""
        for home in self._folders.values():
            calls.symlink(home, os.path.join(folder, staging.HOME))
            return True
        return self._locked(folder)

    def _locked(self, folder: str) -> bool:
        """Take the lock that shows that this process lives."""
        path = os.path.join(folder, staging.LOCK)
        fd = manifest.create(path)
        if staging.is_free(fd) and staging.is_there(path, fd):
            self._lock = fd
            return True
        os.close(fd)
        return False

    def commit(self) -> None:
        """Make all files durable and put them in their places.

        Raises
        ------
        OSError, OutputExistsError
            Before the commit point: nothing has changed.
        UnconfirmedError
            After it: not all files are in place, or not confirmed; the next command that needs one finishes it.
        """
        if not self.drafts:
            self._on_commit()
            return
        mode = calls.default_mode()
        for draft in self.drafts:
            draft.seal(mode)
        home, *_ = self._folders.values()
        self._write_manifests()
        with interruptions.blocked():
            with calls.blaming(self.drafts[0].name):
                staging.commit(home)
            self._committed = True
            self._on_commit()
            try:
                # What has come there since the manifest was written is replaced, as it would have been before.
                staging.put_in_place(list(self._folders.values()), overwrite=self._overwrite)
            except (OSError, MpiredError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                why = f"the results are committed, but not all in place or confirmed ({reason})"
                raise UnconfirmedError(
                    self.drafts[0].name, f"{why}; the next mpired command on them finishes it"
                ) from error

    def _write_manifests(self) -> None:
        """Say in each staging directory what goes where, and bring that and all names to the disk."""
        members = list(self._folders.values())
        files: dict[str, list[manifest.Entry]] = {directory: [] for directory in self._folders}
        for draft in self.drafts:
            files[draft.directory].append((draft.number, os.path.basename(draft.target), self._old(draft)))
        for directory, folder in self._folders.items():
            with calls.blaming(directory):
                manifest.Manifest(files[directory], members).write(folder)
                calls.fsync_directory_at(folder)
                calls.fsync_directory_at(directory)

    def _old(self, draft: Draft) -> manifest.Stamp | None:
        old = manifest.stamp(draft.target)
        if old is not None and not self._overwrite:
            raise OutputExistsError(
                draft.name, "appeared in the meantime; --force replaces it; in Python overwrite=True"
            )
        return old

    def _clear(self) -> None:
        """Remove what is left, unless it is committed."""
        if not self._committed:
            for folder in reversed(self._folders.values()):
                staging.discard(folder)
        if self._lock >= 0:
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()


def check_outputs(paths: Sequence[str], *, overwrite: bool) -> None:
    """Raise an error unless files can be written under all of these names; it lists each that is in the way."""
    errors: list[MpiredError | OSError] = []
    for path in paths:
        try:
            if is_stream(path):
                raise UsageError(path, "is a stream, and the results of many ranks are files")
            if existing_file(path) is not None and not overwrite:
                raise OutputExistsError(path, "is there already; --force replaces it; in Python overwrite=True")
            settle_for_reading(path)  # else its journal would outlive the file that it is of, or meet a new file
        except (MpiredError, OSError) as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise RanksError(len(paths), errors, "outputs")
