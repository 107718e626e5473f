"""What a staging directory says of a commit: which draft goes where, and what is there now."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from mpired.errors import BufferFileError
from mpired.storage import calls

STAGING = re.compile(r"\.[0-9a-f]{8}\.mpired-together")
MANIFEST = "manifest"
_DRAFT = re.compile(r"\d{1,18}")
_LONGEST = 64 << 20  # bytes
_VERSION = 1

Stamp = tuple[int, int, int, int]
"""Device, inode, bytes and time of modification of a file."""
Entry = tuple[str, str, Stamp | None]
"""The number of a draft, the name that it gets, and what had that name."""


class Manifest(NamedTuple):
    """What a staging directory says of a commit.

    Parameters
    ----------
    files
        An entry for each draft.
    members
        All staging directories of the commit.
    """

    files: Sequence[Entry]
    members: Sequence[str]

    def write(self, folder: str) -> None:
        """Write it into a staging directory, and bring it to the disk."""
        import json  # noqa: PLC0415 - for commits of many files only

        text = json.dumps({"version": _VERSION, "files": self.files, "members": self.members})
        fd = create(os.path.join(folder, MANIFEST))
        try:
            calls.pwrite_all(fd, text.encode(), 0)
            calls.fsync(fd)
        finally:
            os.close(fd)

    @classmethod
    def read(cls, staging: str) -> Self:
        """Read it back; it is input like any other, and may only name files beside it.

        Raises
        ------
        BufferFileError
            If it is damaged.
        """
        import json  # noqa: PLC0415 - for commits of many files only

        path = os.path.join(staging, MANIFEST)
        try:
            said = json.loads(calls.read_small_file(path, _LONGEST))
            if said["version"] != _VERSION:
                raise BufferFileError(path, f"is of version {said['version']!r}, which this mpired does not know")
            files = [(str(number), str(name), _as_stamp(old)) for number, name, old in said["files"]]
            members = [str(member) for member in said["members"]]
        except (ValueError, TypeError, KeyError) as error:
            raise BufferFileError(path, f"is damaged ({' '.join(str(error).split())})") from None
        good = all(_DRAFT.fullmatch(number) and _is_plain(name) for number, name, _ in files)
        if not good or not all(STAGING.fullmatch(os.path.basename(member)) for member in members):
            raise BufferFileError(path, "names what is no result of a command")
        return cls(files, members)

    def moved_from(self, staging: str) -> str:
        """Return the directory that a staging directory was made in, if it was moved or copied since, else ""."""
        name = os.path.basename(staging)
        made = next((member for member in self.members if os.path.basename(member) == name), staging)
        if made == staging or (os.path.exists(made) and os.path.samefile(made, staging)):
            return ""
        return os.path.dirname(made)


def _as_stamp(old: Any) -> Stamp | None:
    if old is None:
        return None
    device, inode, nbytes, time_ns = map(int, old)
    return device, inode, nbytes, time_ns


def _is_plain(name: str) -> bool:
    return name not in {"", ".", ".."} and "/" not in name and "\0" not in name


def create(path: str) -> int:
    """Create a file that this user can open again, whatever the umask takes away."""
    fd = calls.open_new(path)
    try:
        os.fchmod(fd, 0o600)
    except OSError:
        os.close(fd)
        raise
    return fd


def stamp(path: str) -> Stamp | None:
    """Return what tells a file from another one under its name, None if there is none."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def is_same(found: Stamp | None, old: Stamp | None, *, moved: bool) -> bool:
    """Tell whether a file is what it was at the commit; one that was moved or copied with its times is.

    Devices are not compared: the number of one can be another after a restart of the machine.
    """
    first = 2 if moved else 1
    return found is not None and old is not None and found[first:] == old[first:]
