"""Directories that are one file to their users: stores of arrays, of which each chunk is a file."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress

from mpired.errors import BufferFileError, UsageError
from mpired.files import calls
from mpired.files.places import digest
from mpired.files.urls import check_are_files
from mpired.sources.local import has_waited
from mpired.sources.source import STORE_DOCUMENTS, STORE_MARKS, OpenBytes, OpenSource, OpenStore, Source

INDEX_SUFFIX = ".safetensors.index.json"
"""The suffix of the index of a checkpoint whose tensors are in several files."""
SHARDS_HEAD = b"\0shards of a checkpoint\n"
"""The first bytes of shards without an index, by which their format is recognised."""
_INDICES = (INDEX_SUFFIX, ".bin.index.json")
_CHUNK = re.compile(r"c|(c[/.])?\d+([/.]\d+)*")  # the path of a chunk within its array
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")  # the usual names


def is_store(path: str) -> bool:
    """Return whether a directory is a store of arrays, by the documents that every store has."""
    return any(os.path.isfile(os.path.join(path, mark)) for mark in STORE_MARKS)


def strange_files(path: str) -> Iterator[str]:
    """Yield the paths within a store of files that are neither documents nor chunks of its arrays, in order."""
    names = sorted(
        os.path.relpath(os.path.join(folder, name), path) for folder, _, files in os.walk(path) for name in files
    )
    arrays = {os.path.dirname(name) for name in names if _is_of_array(os.path.join(path, name))}
    for name in names:
        node = os.path.dirname(name)
        while node and node not in arrays:
            node = os.path.dirname(node)
        is_chunk = node in arrays and _CHUNK.fullmatch(os.path.relpath(name, node or "."))
        if not is_chunk and os.path.basename(name) not in STORE_DOCUMENTS:
            yield name


def _is_of_array(path: str) -> bool:
    """Return whether a file of a store describes an array, not a group."""
    if os.path.basename(path) == "zarr.json":
        with suppress(OSError, ValueError), open(path, "rb") as file:
            return "shape" in json.load(file)
    return os.path.basename(path) == ".zarray"


def is_one_rank(path: str) -> bool:
    """Return whether a directory is read as one file: a store of arrays, or a checkpoint in shards."""
    try:
        return is_store(path) or (index_in(path) or "").endswith(INDEX_SUFFIX)
    except BufferFileError:  # it has several checkpoints
        return False


def index_in(path: str) -> str | None:
    """Return the path of the checkpoint in a directory: of its index, also of pickles, or of its one file, or None.

    Shards without an index have the path that theirs would have.
    """
    names = sorted(os.listdir(path))
    found = next(filter(None, ([name for name in names if name.endswith(each)] for each in _INDICES)), [])
    if not found:
        found = [name for name in names if name.endswith(".safetensors")]
        shards = [match for match in map(_SHARD.fullmatch, found) if match]
        if len(found) > max(1, len(shards)):  # files of other names beside it, which are perhaps ranks
            return None
        found = sorted({f"{shard['stem']}{INDEX_SUFFIX}" for shard in shards}) or found
    if len(found) > 1:
        reason = f"has several checkpoints, {', '.join(found)}; name the one to read"
        raise BufferFileError(path, reason)
    return os.path.join(path, found[0]) if found else None


def check_one_file(name: str) -> None:
    """Raise `UsageError` if the file to change or replace consists of several, or is an object of a store."""
    check_are_files([name])
    is_directory = os.path.isdir(name)
    if index := name if name.endswith(INDEX_SUFFIX) else index_in(name) if is_directory else None:
        if not index.endswith(_INDICES):
            raise UsageError(name, f"is a directory, which is not changed in place; name its file, {index}")
        reason = "is a checkpoint of several files, which are not changed in place"
        raise UsageError(name, f"{reason}; write a new one with `output`")
    if is_directory and is_store(name):
        reason = "is a directory, whose many files cannot be replaced as one"
        raise UsageError(name, f"{reason}; pack it into a zip archive, or write to another file with `output`")


class ShardsSource(Source):
    """The shards of a checkpoint without an index: their directory, as a file without bytes of its own."""

    nbytes = 0

    def __init__(self, index: str) -> None:
        folder, self.index = os.path.split(index)
        self.name = f"{folder}/"
        matches = filter(None, map(_SHARD.fullmatch, sorted(os.listdir(folder))))
        shards = [match for match in matches if f"{match['stem']}{INDEX_SUFFIX}" == self.index]
        self.names = [match[0] for match in shards]
        stem, count = shards[0]["stem"], shards[0]["count"]
        wanted = [f"{stem}-{number:05d}-of-{count}.safetensors" for number in range(1, int(count) + 1)]
        if self.names != wanted:
            wrong = min({*wanted} ^ {*self.names})
            what = "lacks" if wrong in wanted else "has no index, and beside the others"
            reason = f"{what} the shard {wrong}; a checkpoint without an index has all of its shards"
            raise BufferFileError(folder, reason)

    def open(self) -> OpenSource:
        """Open it for reading."""
        return OpenBytes(SHARDS_HEAD)


def index_of(source: Source) -> str:
    """Return the name of the index of a checkpoint in shards, also of a missing one; "" for other files."""
    if isinstance(source, ShardsSource):
        return source.index
    return os.path.basename(source.name) if source.name.endswith(INDEX_SUFFIX) else ""


class DirectorySource(Source):
    """A directory whose files are together what others have in one file."""

    # A change shows in what describes the arrays, and in the times of the directories: who writes a chunk makes a file
    # and renames it. One who writes into the file of a chunk itself is not seen.

    def __init__(self, name: str) -> None:
        self.name = name  # the path as given, for messages
        self.path = os.path.realpath(name)  # the path to open
        # device, inode, and a digest of the directories and documents when it was checked
        self.stamp, newest = _stamp(name, self.path)
        if has_waited(newest):
            self.stamp, _ = _stamp(name, self.path)
        self.inode = self.stamp[:2]
        files = (entry for within, entry in _entries(name, self.path) if not within.endswith("/"))
        self.nbytes = sum(entry.stat(follow_symlinks=False).st_size for entry in files)

    def open(self) -> OpenStore:
        """Open the directory for reading, if it is as it was when it was checked."""
        self.check_unchanged()
        return _OpenDirectory(self)

    def check_unchanged(self) -> None:
        """Raise `ChangedError` if the directory has changed since it was checked."""
        with calls.errors_name(self.name):
            if _stamp(self.name, self.path)[0] != self.stamp:
                raise self.changed()


class _OpenDirectory(OpenStore):
    """The files of a directory, by their paths within it."""

    source: DirectorySource

    def names(self) -> list[str]:
        """Return the paths of the files."""
        with calls.errors_name(self.source.name):
            within = [path for path, _ in _entries(self.source.name, self.source.path)]
        return sorted(path for path in within if not path.endswith("/"))

    def content(self, name: str, most: int) -> bytes:
        """Return the bytes of a file, see `OpenStore.content`; a link is not followed."""
        path = os.path.join(self.source.path, name)
        with calls.errors_name(path):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except FileNotFoundError:
                raise self.source.changed() from None
            try:
                return calls.pread_some(fd, min(os.fstat(fd).st_size, most + 1), 0)
            finally:
                calls.close_quietly(fd)


def _entries(name: str, path: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all within a directory, each with its path there; that of a directory ends with a slash."""
    left = [""]
    while left:
        prefix = left.pop()
        with os.scandir(os.path.join(path, prefix)) as entries:
            for entry in entries:
                within = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    within += "/"
                    left.append(within)
                elif not entry.is_file(follow_symlinks=False):
                    reason = f"holds {within!r}, a link or no regular file, which is not followed"
                    raise BufferFileError(name, f"{reason}; put the file itself there")
                yield within, entry


def _stamp(name: str, path: str) -> tuple[tuple[int, int, bytes], os.stat_result]:
    """Return the stamp of a directory, and the status of its file that was changed last."""
    statuses = {"": os.stat(path)}
    for within, entry in _entries(name, path):
        if entry.name in STORE_DOCUMENTS or within.endswith("/"):
            statuses[within] = entry.stat(follow_symlinks=False)
    times = [
        (within, each.st_ino, 0 if stat.S_ISDIR(each.st_mode) else each.st_size, each.st_mtime_ns)
        for within, each in sorted(statuses.items())
    ]
    stamp = statuses[""].st_dev, statuses[""].st_ino, digest(repr(times).encode("utf-8", "surrogateescape")).digest()
    return stamp, max(statuses.values(), key=lambda each: each.st_mtime_ns)
