"""What a staging directory says of a commit: which draft goes where, and what is there now."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from mpired.errors import BufferFileError
from mpired.storage import calls
from mpired.storage.folder import Folder
from mpired.storage.names import is_staging

MANIFEST = "manifest"
_DRAFT = re.compile(r"[0-9]{1,18}")
_LONGEST = 64 << 20  # bytes
_VERSION = 1

Stamp = tuple[int, int, int, int]
"""Device, inode, bytes and time of modification of a file."""
Entry = tuple[str, str, Stamp | None]
"""The number of a draft, the name that it gets, and what had that name."""


class Manifest(NamedTuple):
    """What a staging directory says of a commit."""

    files: Sequence[Entry]  # an entry for each draft
    members: Sequence[str]  # all staging directories of the commit

    def write(self, folder: Folder) -> None:
        """Write it into a staging directory, and bring it to the disk."""
        import json  # noqa: PLC0415 - for commits of many files only

        text = json.dumps({"version": _VERSION, "files": self.files, "members": self.members})
        fd = folder.create(MANIFEST)
        try:
            calls.pwrite_all(fd, text.encode(), 0)
            calls.fsync(fd)
        finally:
            calls.let_go(fd)

    @classmethod
    def read(cls, folder: Folder) -> Self:
        """Read it back; it is input like any other, and may only name files beside it."""
        import json  # noqa: PLC0415 - for commits of many files only

        path = os.path.join(folder.path, MANIFEST)
        with calls.blaming(path):
            fd = folder.open(MANIFEST)
            try:
                text = calls.read_at_most(fd, _LONGEST)
            finally:
                calls.let_go(fd)
        try:
            content = json.loads(text)
            if content["version"] != _VERSION:
                raise BufferFileError(path, f"is of version {content['version']!r}, which this mpired does not know")
            files = [(str(number), str(name), _as_stamp(old)) for number, name, old in content["files"]]
            members = [str(member) for member in content["members"]]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BufferFileError(path, f"is damaged ({' '.join(str(error).split())})") from None
        good = all(is_number(number) and _is_plain(name) for number, name, _ in files)
        if not good or not all(is_staging(os.path.basename(member)) for member in members):
            raise BufferFileError(path, "names files that are not results of a command")
        return cls(files, members)

    def moved_from(self, folder: Folder) -> str:
        """Return the directory that a staging directory was made in, if it was moved or copied since, else ""."""
        made = next((path for path in self.members if os.path.basename(path) == folder.place.name), folder.path)
        try:
            status = os.stat(made, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return os.path.dirname(made)
        return "" if (status.st_dev, status.st_ino) == folder.place.inode else os.path.dirname(made)


def _as_stamp(old: Any) -> Stamp | None:
    if old is None:
        return None
    device, inode, nbytes, time_ns = map(int, old)
    return device, inode, nbytes, time_ns


def is_number(name: str) -> bool:
    """Tell whether a name is one that drafts have."""
    return _DRAFT.fullmatch(name) is not None


def _is_plain(name: str) -> bool:
    return name not in {"", ".", ".."} and "/" not in name and "\0" not in name


def stamp(status: os.stat_result | None) -> Stamp | None:
    """Return what tells a file from another one under its name, None if there is none."""
    if status is None:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def is_same(found: Stamp | None, old: Stamp | None, *, moved: bool) -> bool:
    """Tell whether a file is what it was at the commit; one that was moved or copied with its times is.

    Devices are not compared: the number of one can be another after a restart of the machine.
    """
    first = 2 if moved else 1
    return found is not None and old is not None and found[first:] == old[first:]
