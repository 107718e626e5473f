"""A staging directory: private, beside the results whose drafts it holds, and reached through its descriptor alone.

Whoever may rename in the directory around it can put something else under its name at any moment. So its path is
used once: the directory is opened without following a link, judged by its descriptor, and all that is inside is
made, opened, renamed and removed relative to that.
"""

from __future__ import annotations

import contextlib
import errno
import os
from types import TracebackType
from typing import Any, NamedTuple, Self

from mpired.storage import calls, metadata
from mpired.storage.calls import ANY_DEVICE

LOCK = "lock"
"""The file in it that whoever uses or removes it locks."""
# These show the owner and mode of their mount for every file, and let those in that the mount lets in.
_WITHOUT_MODES = frozenset({"vfat", "exfat", "msdos", "ntfs", "ntfs3", "fuseblk", "cifs", "smb3"})


class Place(NamedTuple):
    """Where a staging directory is, and which one it is."""

    directory: str  # the path of the directory around it, which gets the results
    name: str  # its name there
    # Its device and inode number. Where it was sent to another process the device is `ANY_DEVICE`: its number is
    # another one on each machine
    inode: tuple[int, int]

    def __reduce__(self) -> tuple[Any, ...]:
        return Place, (self.directory, self.name, (ANY_DEVICE, self.inode[1]))

    @property
    def path(self) -> str:
        """The path, for messages and for other directories to point to."""
        return os.path.join(self.directory, self.name)

    def open(self) -> Folder:
        """Open the directory again."""
        with calls.blaming(self.path):
            folder = Folder.at(self.path)
            device = folder.place.inode[0] if self.inode[0] == ANY_DEVICE else self.inode[0]
            if folder.place.inode != (device, self.inode[1]):
                folder.close()
                raise OSError(errno.ESTALE, "is not the directory that this command made: something took its name")
        return folder


class DraftFile(NamedTuple):
    """A draft in a staging directory, as every process of this user can open it."""

    place: Place
    number: str

    def open(self) -> int:
        """Open the draft to write ranges of it."""
        with self.place.open() as folder:
            return folder.open(self.number, os.O_RDWR)


class Folder:
    """A staging directory that is open, and belongs to this user alone. It is closed when the block ends.

    Parameters
    ----------
    place
        Where it is.
    dirfd
        The descriptor of the directory around it.
    fd
        Its own.
    """

    def __init__(self, place: Place, dirfd: int, fd: int) -> None:
        self.place = place
        self.dirfd = dirfd
        self.fd = fd

    @classmethod
    def at(cls, path: str) -> Self:
        """Open the directory at `path`, which is not judged."""
        directory, name = os.path.split(path)
        dirfd = calls.open_directory(directory)
        try:
            fd = calls.open_directory(name, dirfd)
        except BaseException:
            calls.let_go(dirfd)
            raise
        status = os.fstat(fd)
        return cls(Place(directory, name, (status.st_dev, status.st_ino)), dirfd, fd)

    @classmethod
    def new(cls, directory: str) -> Self:
        """Make a staging directory beside the files of a directory."""
        name = f".{os.urandom(4).hex()}.mpired-together"
        dirfd = calls.open_directory(directory)
        try:
            calls.make_directory(name, dirfd)
            try:
                metadata.allow_owner(name, dirfd)
                folder = cls.at(os.path.join(directory, name))
                folder._check_made_here()  # noqa: SLF001 - of the same class
            except OSError:
                with contextlib.suppress(OSError):  # what others have put there may not be empty, or not be ours
                    calls.remove_directory(name, dirfd)
                raise
        finally:
            calls.let_go(dirfd)
        return folder

    def _check_made_here(self) -> None:
        """Raise `OSError` unless the directory can be the one that this process has just made."""
        # A command that took it for left behind may have made its lock: whoever has that decides what becomes of it.
        if {*os.listdir(self.fd)} - {LOCK} or not self.is_private(self._owner_of_new_files()):
            self.close()
            raise OSError(errno.EPERM, "no directory for the drafts can be kept from others here", self.place.directory)

    def is_private(self, owner: int) -> bool:
        """Tell whether the directory belongs to a user, and others may not look into it."""
        status = os.fstat(self.fd)
        if status.st_mode & 0o077 and calls.filesystem_type(self.fd) not in _WITHOUT_MODES:
            return False
        return status.st_uid == owner

    def _owner_of_new_files(self) -> int:
        """Return whom a file that is made in it belongs to: this user, or whom a file server takes it for."""
        if os.fstat(self.fd).st_uid == os.geteuid():
            return os.geteuid()
        fd = calls.open_scratch(f"/proc/self/fd/{self.fd}")
        try:
            return os.fstat(fd).st_uid
        finally:
            calls.let_go(fd)

    @property
    def path(self) -> str:
        """The path, for messages."""
        return self.place.path

    def create(self, name: str) -> int:
        """Create a file that this user can open again, whatever the umask takes away, and return its descriptor."""
        fd = calls.open_new(name, self.fd)
        try:
            os.fchmod(fd, 0o600)
        except OSError:
            os.close(fd)
            raise
        return fd

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open a regular file in it; anything else there is an error (EINVAL)."""
        return calls.open_regular(name, flags, self.fd)

    def status(self, name: str) -> os.stat_result | None:
        """Return what is of that name in it, None if there is nothing."""
        return calls.status_at(name, self.fd)

    def status_beside(self, base: str) -> os.stat_result | None:
        """Return what is of that name beside it, None if there is nothing; a link is not followed."""
        return calls.status_at(base, self.dirfd)

    def sync(self) -> None:
        """Bring its names to the disk."""
        calls.fsync_directory(self.fd)

    def sync_around(self) -> None:
        """Bring the names in the directory around it to the disk."""
        calls.fsync_directory(self.dirfd)

    def close(self) -> None:
        """Close its descriptors."""
        calls.let_go(self.fd, self.dirfd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
