"""Paths: the names of mpired's own files beside a file, and checks of the paths of inputs and results.

`.NAME.mpired` exists during a committed change of NAME: the redo log, or a note that leads to the log.
`.NAME.mpired-new` is a draft of NAME. A recovery finds leftovers by these names, without a listing of the directory.
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
# The error for each of mpired's own files as an input or result.
_OWN_FILES = {
    LOG: "belongs to an unfinished change of {of}, and is not data; `mpired recover` of that file finishes the change",
    DRAFT: "is a draft of a command that writes {of}, not data; what an interrupted one left, the next removes",
    KEYS: "has the keys of updates of {of}, and is not data",
    _OLD_JOURNAL: "is the journal of an unfinished update of {of} by mpired 0.1; finish it with that version:"
    " `mpired recover`",
    ".%s.mpired-together": "has results that mpired 0.1 has not put in place yet, and puts there: `mpired recover` of"
    " one of them",
}
_MAX_NAME_NBYTES = 200
MARK = copying.OWN_ATTRIBUTES + "log"
"""The attribute of a log, and during an unfinished change of a file with several hard links."""
# Paths of descriptors of this process, which are never replaced.
_NAMED_DESCRIPTORS = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_NUMBERED_DESCRIPTOR = r"(?:/dev/fd|/proc/self/fd)/([0-9]{1,9})"
Inode = tuple[int, int]
"""The identity of a file: device and inode number."""
inode: Callable[[os.stat_result], Inode] = operator.attrgetter("st_dev", "st_ino")
"""The inode of a file, from its status."""


def digest(data: bytes = b"", nbytes: int = 16, person: bytes = b"") -> hashlib.blake2b:
    """Return a digest, which can be updated."""
    import hashlib  # noqa: PLC0415 - loads OpenSSL, and few commands need a digest

    return hashlib.blake2b(data, digest_size=nbytes, person=person)


def own_path(path: str, form: str = LOG) -> str:
    """Return the path of one of mpired's own files beside a file; a long name is replaced by a digest."""
    directory, slash, name = path.rpartition(os.sep)
    # A character has at most 4 bytes.
    if len(name) > _MAX_NAME_NBYTES // 4 and len(base := os.fsencode(name)) > _MAX_NAME_NBYTES:
        name = f"{os.fsdecode(base[:100])}.{digest(base).hexdigest()}"
    return directory + slash + form % name


class Place:
    """A name in an open directory."""

    durable = True  # whether the name is synced

    def __init__(self, name: str, path: str, dirfd: int, status: os.stat_result | None = None) -> None:
        self.directory, base = os.path.split(path)
        self.status = status  # of the replaced or locked file; None for a new file
        self.name = name  # of the file in messages
        self.path = path  # without symbolic links
        self.dirfd = dirfd  # of the directory
        self.base = os.fsencode(base)  # name in the directory
        self.pointer = os.fsencode(own_path(base))  # name of the log or note
        self.draft_name = os.fsencode(own_path(base, DRAFT))

    def neighbour(self, base: str | bytes) -> Place:
        """Return another file of the directory."""
        return Place(self.name, os.path.join(self.directory, os.fsdecode(base)), self.dirfd)


def sync_folders(places: Iterable[Place]) -> None:
    """Sync the directories of files, each directory once."""
    for directory, place in {place.directory: place for place in places if place.durable}.items():
        with calls.errors_name(directory):
            calls.fsync_directory(place.dirfd)


def has_log(path: str, status: os.stat_result | None = None) -> bool:
    """Return whether a file may have an unfinished change; its path is not a link."""
    if calls.status_at(own_path(path)) is not None:
        return True
    # The log may be beside another hard link of the file, which may be removed: that changes ctime, but not mtime.
    may_have_mark = status is not None and (calls.names_of(status) > 1 or status.st_ctime_ns != status.st_mtime_ns)
    return may_have_mark and bool(calls.attribute(path, MARK))


def exists_error(path: str, *, appeared: bool = False) -> OutputExistsError:
    """Return the error for a result that already exists, or has `appeared` since the first check."""
    reason = "was created by another process" if appeared else "already exists"
    return OutputExistsError(path, f"{reason}; `overwrite=True` replaces it")


def check_is_data(path: str, *, changes: bool = False) -> str:
    """Return the path that a link leads to, or the path itself; refuse mpired's own files.

    If the caller `changes` the file, an unfinished update of mpired 0.1 is refused too.
    """
    target = calls.follow_link(path)
    for candidate in (path, target):
        for form, reason in _OWN_FILES.items() if ".mpired" in candidate else ():
            base, (prefix, suffix) = os.path.basename(candidate.rstrip(os.sep)), form.split("%s")
            name = base.removeprefix(prefix).removesuffix(suffix)
            if name and base == prefix + name + suffix:
                raise BufferFileError(path, reason.format(of=name))
    if changes and calls.status_at(journal := own_path(target, _OLD_JOURNAL)) is not None:
        reason = f"has an update that mpired 0.1 did not finish ({journal})"
        raise BufferFileError(path, f"{reason}; finish it with that version: `mpired recover {path}`")
    return target


def check_are_data(arguments: Iterable[object], *, are_inputs: bool = False) -> None:
    """Refuse mpired's own files, and inputs that are the same pipe, among the arguments of a call."""
    # All arguments are checked before a file is opened: a recovery could remove an own file, and a second opening of a
    # FIFO would wait forever.
    pipes: dict[Inode, str] = {}
    for path in (os.fspath(argument) for argument in arguments if isinstance(argument, str | os.PathLike)):
        is_stdin = are_inputs and path == "-"
        try:
            status = os.fstat(0) if is_stdin else os.lstat(path)
        except (OSError, ValueError):  # raised again when the file is opened
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


def existing_output_errors(paths: Iterable[str]) -> list[OutputExistsError]:
    """Return an error for each result file that already exists; objects of stores are not checked."""
    return [exists_error(path) for path in paths if not (is_stream(path) or is_url(path)) and os.path.isfile(path)]


def check_stdout(path: str) -> None:
    """Raise `OSError` if a path is standard output, and standard output is closed."""
    if path == "-" and sys.__stdout__ is None:  # another file may have descriptor 1
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")


def warn_of_hard_links(paths: Iterable[str]) -> None:
    """Warn of replaced files that have other hard links, which keep the old content."""
    existing = {path: os.stat(path) for path in paths if not is_stream(path) and os.path.exists(path)}
    replaced = Counter(map(inode, existing.values()))
    for path, status in existing.items():
        if status.st_nlink > replaced[inode(status)]:
            log.warn(HardLinkWarning(f"{path} is a hard link; its other names keep the old content"))


def descriptor_of(path: str) -> int | None:
    """Return the descriptor that a path such as `/dev/fd/3` denotes, or None."""
    numbered = re.fullmatch(_NUMBERED_DESCRIPTOR, path)
    return int(numbered[1]) if numbered else _NAMED_DESCRIPTORS.get(path)


def is_stream(path: str) -> bool:
    """Return whether a path is a stream: `-`, a descriptor, a FIFO, a device or a socket."""
    if (path == "-" or path.startswith(("/dev/", "/proc/"))) and descriptor_of(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def is_terminal(path: str) -> bool:
    """Return whether a path is a terminal."""
    if (fd := descriptor_of(path)) is not None:
        return os.isatty(fd)
    with contextlib.suppress(OSError):  # raised again when the output is opened
        if stat.S_ISCHR(os.stat(path).st_mode):
            fd = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(fd, "wb", buffering=0) as device:
                return device.isatty()
    return False
