"""The mark on a file with several names while a journal beside one of them is at work.

A journal is named after the name by which a command was given its target. By another name of the same file (a hard
link) it would not be found, and a half change would be read, or the next update undone. So
a target with several names gets an extended attribute, which all names share, that leads to the journal:

    begun  on the disk before the journal can become valid: the update in it has to be finished first
    ended  on the disk after the new bytes, before the journal is removed: it must not be applied again

The mark also has the identity of its journal. One that a loss of power brings back says nothing of another journal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from typing import NamedTuple

from mpired.storage import calls, journal, names
from mpired.storage.journal import Journal

# The words have the same length, so that no space is needed to replace one by the other.
_WORDS = {True: b"begun", False: b"ended"}
_FORM = re.compile(rb"(begun|ended) ([0-9a-f]{32}) (/[^\0]*)", re.DOTALL)


class Mark(NamedTuple):
    """What the attribute says."""

    begun: bool  # whether the update still has to be finished, if it was committed
    identity: bytes  # that of its journal
    path: bytes  # the name of the file by which it was begun, absolute and without links

    @property
    def journal(self) -> str:
        """Where the journal is."""
        directory, base = os.path.split(self.path)
        return os.fsdecode(os.path.join(directory, names.journal_name(base)))


def read(file: str | int) -> Mark | None:
    """Return the mark of a file, given by its path or a descriptor; None if it has none, or is not there."""
    match = _FORM.fullmatch(names.mark_of(file) or b"")
    # Anything else was not written by mpired, and says nothing of a journal.
    return Mark(match[1] == _WORDS[True], bytes.fromhex(match[2].decode()), match[3]) if match else None


def write(fd: int, mark: Mark) -> None:
    """Mark a file, in the place of a mark that it has."""
    os.setxattr(fd, names.MARK, b"%b %b %b" % (_WORDS[mark.begun], mark.identity.hex().encode(), mark.path))


def end(fd: int, mark: Mark, *, durable: bool) -> None:
    """Mark that the journal is not needed any more, and bring that to the disk before the journal is removed."""
    write(fd, mark._replace(begun=False))
    if durable:
        calls.fsync(fd)


def clear(fd: int) -> None:
    """Take off the mark of an update that is ended; if it stays, that does no harm."""
    with contextlib.suppress(OSError):
        os.removexattr(fd, names.MARK)


def apply(found: Journal, fd: int, mark: Mark | None, *, durable: bool) -> None:
    """Give a file the bytes of its journal and bring them to the disk; its mark, if it has one, then says so."""
    journal.apply(found, fd)
    if durable:
        # Attributes are brought to the disk by a full sync only.
        (calls.fsync if found.header.keys_nbytes else calls.fdatasync)(fd)
    if mark is not None:  # only now: an attribute may come to the disk before the bytes
        end(fd, mark, durable=durable)


def check_possible(fd: int) -> None:
    """Raise `OSError` if a file with several names cannot be marked."""
    try:
        os.getxattr(fd, names.MARK)
    except OSError as error:
        if error.errno == errno.ENODATA:
            return
        why = f"has {os.fstat(fd).st_nlink} names (hard links), and"
        why = f"{why} its file system cannot mark it so that a journal is found by each ({error.strerror})"
        raise OSError(error.errno, f"{why}; `commit='rename'` changes the file of this name alone") from error
