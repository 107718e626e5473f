"""Paths of files: mpired's own files beside a file, the look that finds them, and where results go.

`.NAME.mpired` is there while a change of NAME is committed and perhaps not finished: the redo log, or a note that leads
to it. `.NAME.mpired-new` is a draft of NAME. The leftovers of an interrupted command are found by these names alone, so
no directory is listed.
"""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mpired import log
from mpired.errors import BufferFileError, HardLinkWarning, OutputExistsError, UsageError
from mpired.files import calls, copying
from mpired.files.urls import is_url

if TYPE_CHECKING:
    import hashlib

LOG, DRAFT, KEYS, _OLD_JOURNAL = ".%s.mpired", ".%s.mpired-new", "%s.mpired-keys", ".%s.mpired-journal"
# Why such a file is not one of the user.
_OWN_FILES = {
    LOG: "belongs to an unfinished change of {of}, and is not data; `mpired recover` of that file finishes the change",
    DRAFT: "is a draft of a command that writes {of}, not data; what an interrupted one left, the next removes",
    KEYS: "has the keys of updates of {of}, and is not data",
    _OLD_JOURNAL: "is the journal of an unfinished update of {of} by mpired 0.1; finish it with that version:"
    " `mpired recover`",
    ".%s.mpired-together": "has results that mpired 0.1 has not put in place yet, and puts there: `mpired recover` of"
    " one of them",
}
_LONGEST_BASE = 200
MARK = copying.OWN_ATTRIBUTES + "log"
"""The attribute that a log has, and a file with several names (hard links) while its change is unfinished."""
# Paths of descriptors of this process, which are never replaced.
_NAMED_DESCRIPTORS = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_NUMBERED_DESCRIPTOR = r"(?:/dev/fd|/proc/self/fd)/([0-9]{1,9})"
Inode = tuple[int, int]
"""The identity of a file, by whatever name: its device and its number there."""
inode: Callable[[os.stat_result], Inode] = operator.attrgetter("st_dev", "st_ino")
"""The inode of a file by its status."""


def digest(data: bytes = b"", nbytes: int = 16, person: bytes = b"") -> hashlib.blake2b:
    """Return a digest, which can be updated by more data."""
    import hashlib  # noqa: PLC0415 - with it comes OpenSSL, and few commands need a digest

    return hashlib.blake2b(data, digest_size=nbytes, person=person)


def own_path(path: str, form: str = LOG) -> str:
    """Return the path of a file of our own beside a file, with a digest in the place of a long name."""
    directory, slash, name = path.rpartition(os.sep)
    if len(name) > _LONGEST_BASE // 4 and len(base := os.fsencode(name)) > _LONGEST_BASE:  # a character has 4 bytes
        name = f"{os.fsdecode(base[:100])}.{digest(base).hexdigest()}"
    return directory + slash + form % name


class Place:
    """A file by its name in an open directory."""

    durable = True  # whether its name is synced

    def __init__(self, name: str, path: str, dirfd: int, status: os.stat_result | None = None) -> None:
        self.directory, base = os.path.split(path)
        self.status = status  # of the file that is replaced, or when it was locked; None if there is none
        self.name = name  # the file in messages
        self.path = path  # without symbolic links
        self.dirfd = dirfd  # of its directory
        self.base = os.fsencode(base)  # the name in the directory
        self.pointer = os.fsencode(own_path(base))  # the name of its log, or of the note that leads to that
        self.draft_name = os.fsencode(own_path(base, DRAFT))

    def neighbour(self, base: str | bytes) -> Place:
        """Return another file of the directory."""
        return Place(self.name, os.path.join(self.directory, os.fsdecode(base)), self.dirfd)


def sync_folders(places: Iterable[Place]) -> None:
    """Bring the names in the directories of files to the disk, each directory once."""
    for directory, place in {place.directory: place for place in places if place.durable}.items():
        with calls.errors_name(directory):
            calls.fsync_directory(place.dirfd)


def has_log(path: str, status: os.stat_result | None = None) -> bool:
    """Return whether a change of a file may be unfinished; its path is not a link."""
    # By its status, if that is given, it is looked for by its other names too, which it has or perhaps had: to remove a
    # name changes the time of its status alone.
    if calls.status_at(own_path(path)) is not None:
        return True
    may_be = status is not None and (calls.names_of(status) > 1 or status.st_ctime_ns != status.st_mtime_ns)
    return may_be and bool(calls.attribute(path, MARK))


def exists_error(path: str, *, appeared: bool = False) -> OutputExistsError:
    """Return the error for a result that already exists, or has `appeared` since that was looked at."""
    reason = "was created by another process" if appeared else "already exists"
    return OutputExistsError(path, f"{reason}; `overwrite=True` replaces it")


def check_is_data(path: str, *, changes: bool = False) -> str:
    """Return where a path, perhaps a link, leads; `BufferFileError` if mpired gives such names to files of its own.

    A file that `changes` has no update either that mpired 0.1 has left unfinished.
    """
    followed = calls.followed(path)
    for each in (path, followed):
        for form, reason in _OWN_FILES.items() if ".mpired" in each else ():
            base, (before, after) = os.path.basename(each.rstrip(os.sep)), form.split("%s")
            of = base.removeprefix(before).removesuffix(after)
            if of and base == before + of + after:
                raise BufferFileError(path, reason.format(of=of))
    if changes and calls.status_at(journal := own_path(followed, _OLD_JOURNAL)) is not None:
        reason = f"has an update that mpired 0.1 did not finish ({journal})"
        raise BufferFileError(path, f"{reason}; finish it with that version: `mpired recover {path}`")
    return followed


def check_are_data(words: Iterable[object], *, are_inputs: bool = False) -> None:
    """Check the paths among the arguments of a call, before one is opened or recovered; inputs are read."""
    # Else a file of such a name, which may be anything, could go with the recovery of the file that it is beside;
    # and to open a FIFO again would wait for a writer that never comes.
    pipes: dict[Inode, str] = {}
    for path in (os.fspath(word) for word in words if isinstance(word, str | os.PathLike)):
        is_stdin = are_inputs and path == "-"
        try:
            status = os.fstat(0) if is_stdin else os.lstat(path)
        except (OSError, ValueError):  # raised again where the file is opened
            status = None
        is_link = status is not None and stat.S_ISLNK(status.st_mode)
        if ".mpired" in path or is_link:
            check_is_data(path)
        if is_link:
            with contextlib.suppress(OSError):
                status = os.stat(path)
        if is_stdin and path in pipes.values():
            raise UsageError("-", "standard input can be one rank only; write the others to files")
        if status is not None and (is_stdin or stat.S_ISFIFO(status.st_mode)):
            if (pipe := inode(status)) in pipes:
                raise UsageError(path, f"is the same pipe as {pipes[pipe]!r}, and can be one rank only")
            pipes[pipe] = path


def in_the_way(paths: Iterable[str]) -> list[OutputExistsError]:
    """Return an error for each result that already exists; objects of stores are not looked at."""
    return [exists_error(path) for path in paths if not (is_stream(path) or is_url(path)) and os.path.isfile(path)]


def check_stdout(path: str) -> None:
    """Raise `OSError` if a path is standard output, and the caller has closed that."""
    if path == "-" and sys.__stdout__ is None:  # descriptor 1 may be any file by now
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")


def warn_of_hard_links(paths: Iterable[str]) -> None:
    """Warn of replaced files that have other hard links, which keep the old content."""
    existing = {path: os.stat(path) for path in paths if not is_stream(path) and os.path.exists(path)}
    replaced = Counter(map(inode, existing.values()))
    for path, status in existing.items():
        if status.st_nlink > replaced[inode(status)]:
            log.warn(HardLinkWarning(f"{path} is a hard link; its other names keep the old content"))


def descriptor_of(path: str) -> int | None:
    """Return the number of the descriptor that a path means, None if it is an ordinary path."""
    numbered = re.fullmatch(_NUMBERED_DESCRIPTOR, path)
    return int(numbered[1]) if numbered else _NAMED_DESCRIPTORS.get(path)


def is_stream(path: str) -> bool:
    """Return whether `path` is a stream: `-`, a descriptor, a FIFO, a device, a socket."""
    if (path == "-" or path.startswith(("/dev/", "/proc/"))) and descriptor_of(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def is_terminal(path: str) -> bool:
    """Return whether `path` is a terminal."""
    if (number := descriptor_of(path)) is not None:
        return os.isatty(number)
    with contextlib.suppress(OSError):  # raised again by the opening for writing
        if stat.S_ISCHR(os.stat(path).st_mode):
            fd = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(fd, "wb", buffering=0) as device:
                return device.isatty()
    return False
