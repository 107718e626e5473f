"""The names of what mpired puts beside files for a time, and the mark of a file that has several names.

What an interrupted command has left is seen by these. Most commands find nothing, and need no more than this look.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator

from mpired.errors import BufferFileError, UsageError
from mpired.storage import calls, metadata

# No file of a directory can be looked at then, or it may not be listed; whoever opens a file there will say why.
_NOT_LISTED = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_STAGING = ".mpired-together"
# What mpired puts beside files for a time, by its name, and why it is no file of the user.
_OWN_FILES = (
    (
        r"\.(?P<of>.+)\.mpired-journal",
        "is the journal of an unfinished update of {of}, not data; `mpired recover` of that file finishes it",
    ),
    (
        r"\.((?P<of>.+)\.)?[0-9a-f]{8,16}\.mpired-tmp",
        "is a temporary file of a command that writes {of}, not data; what an interrupted one left, the next removes",
    ),
    (
        r"\.[0-9a-f]{8}\.mpired-together",
        "has results that a command has not put in place yet, not data; `mpired recover` of those does",
    ),
)
_LONGEST_BASE = 200
_JOURNAL = ".mpired-journal"
MARK = metadata.OWN_ATTRIBUTES + "journal"
"""The attribute of a file with several names that leads to its journal."""
_NO_MARK = calls.UNSUPPORTED | {errno.ENODATA, errno.ENOENT, errno.ENOTDIR}


def is_staging(name: str) -> bool:
    """Tell whether a name is one of staging directories."""
    return name.endswith(_STAGING) and re.fullmatch(rf"\.[0-9a-f]{{8}}\{_STAGING}", name) is not None


def staging_in(directory: str) -> Iterator[str]:
    """Yield the paths of what has the name of a staging directory in a directory."""
    try:
        names = sorted(filter(is_staging, calls.names_in(directory)))
    except OSError as error:
        if error.errno not in _NOT_LISTED:
            raise
        return
    for name in names:
        yield os.path.join(directory, name)


def journal_name(base: bytes) -> bytes:
    """Return the name of the journal of the file `base`, which fits beside the longest names."""
    if len(base) > _LONGEST_BASE:
        import hashlib  # noqa: PLC0415 - with it comes OpenSSL

        base = base[:100] + b"." + hashlib.blake2b(base, digest_size=16).hexdigest().encode()
    return b".%b%b" % (base, _JOURNAL.encode())


def without_journals(directories: Iterable[str]) -> frozenset[str]:
    """Return those of some directories that can be listed and have no journal."""
    found = []
    for directory in directories:
        with contextlib.suppress(OSError):  # whoever opens a file there will say why
            if not any(name.endswith(_JOURNAL) for name in calls.names_in(directory or os.curdir)):
                found.append(directory)
    return frozenset(found)


def journal_path(path: str, *, is_link: bool = True) -> str:
    """Return where the journal of the file is that `path` leads to, which may be a link unless that is known."""
    directory, slash, base = (_followed(path) if is_link else path).rpartition(os.sep)
    return directory + slash + os.fsdecode(journal_name(os.fsencode(base)))


def _followed(path: str) -> str:
    """Return the path that a link leads to, or any other path as it is; an error of the look is an error."""
    found = status(path)
    return os.path.realpath(path) if found and stat.S_ISLNK(found.st_mode) else path


def status(path: str | bytes) -> os.stat_result | None:
    """Return what has a name, not following links, or None if nothing has; that it cannot be seen is an error."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def mark_of(file: str | int) -> bytes | None:
    """Return the mark of a file, given by its path or a descriptor; None if it has none, or is not there."""
    try:
        return os.getxattr(file, MARK)
    except OSError as error:
        if error.errno in _NO_MARK:
            return None
        raise


def check_is_data(path: str, *, is_link: bool = True) -> str:
    """Raise `BufferFileError` if a path, perhaps a link, has a name that mpired gives to files of its own.

    Return where it leads, as `calls.followed` does.
    """
    followed = calls.followed(path) if is_link else path
    _check_names(path, followed)
    return followed


def _check_names(path: str, followed: str) -> None:
    for each in (path, followed):
        for form, reason in _OWN_FILES if ".mpired-" in each else ():
            if match := re.fullmatch(form, os.path.basename(each.rstrip(os.sep)), re.DOTALL):
                raise BufferFileError(path, reason.format(of=match.groupdict().get("of") or "a file"))


def check_are_data(words: Iterable[object]) -> list[str]:
    """Check all words of a call that may be paths, as `check_is_data`, before one of them is opened or recovered.

    Else a file of such a name, which may be anything, could go with the recovery of the file that it is beside. Return
    where the paths lead.
    """
    paths = [os.fspath(word) for word in words if isinstance(word, str | os.PathLike)]
    followed = calls.followed_each(paths)
    for each in zip(paths, followed, strict=True):
        _check_names(*each)
    return followed


def check_fifos(paths: Iterable[str], followed: Iterable[str]) -> None:
    """Raise `UsageError` if a FIFO is named twice: to open it again would wait for a writer that never comes."""
    leads = [(os.path.normpath(path), end != path) for path, end in zip(paths, followed, strict=True)]
    named = Counter(name for name, _ in leads)
    doubtful = {name: None for name, is_link in leads if is_link or named[name] > 1}
    for name in doubtful:
        if (pipe := _fifo(name)) is None:
            continue
        other = next((each for each in named if each != name and _fifo(each) == pipe), None)
        if other is not None or named[name] > 1:
            what = "for several ranks" if other is None else f"as {other!r}"
            raise UsageError(name, f"is the same pipe {what}, and can be one rank only")


def _fifo(path: str) -> tuple[int, int] | None:
    """Return device and inode of a FIFO; None of anything else, and of what cannot be seen."""
    with contextlib.suppress(OSError):  # which is told where it is opened
        status = os.stat(path)
        return (status.st_dev, status.st_ino) if stat.S_ISFIFO(status.st_mode) else None
    return None


def is_orphan(path: str) -> bool:
    """Tell whether there is a journal of a file, and the file that `path` leads to is missing."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return status(journal_path(path)) is not None
    return False


DISCARDS = "`mpired recover --discard --force` removes the journal"


def check_not_orphan(path: str) -> None:
    """Raise `BufferFileError` if of a file only its journal is there: its update waits for the file."""
    if is_orphan(path):
        reason = f"is missing, but its journal {journal_path(path)} is there"
        raise BufferFileError(path, f"{reason}; bring the file back, or {DISCARDS}")
