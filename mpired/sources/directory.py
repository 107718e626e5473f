"""Directories that are one rank: stores of arrays, with a file for each chunk, and checkpoints in shards."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress

from mpired.errors import BufferFileError, UsageError
from mpired.files import calls
from mpired.files.places import digest
from mpired.files.urls import check_are_files
from mpired.sources.local import has_waited
from mpired.sources.source import STORE_DOCUMENTS, STORE_MARKS, OpenBytes, OpenSource, OpenStore, Source

INDEX_SUFFIX = ".safetensors.index.json"
"""The suffix of the index of a checkpoint in several files."""
SHARDS_HEAD = b"\0shards of a checkpoint\n"
"""The content of shards without an index for the recognition of their format."""
_INDEX_SUFFIXES = (INDEX_SUFFIX, ".bin.index.json")
_CHUNK = re.compile(r"c|(c[/.])?\d+([/.]\d+)*")  # path of a chunk relative to its array
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


def is_store(path: str) -> bool:
    """Return whether a directory is a store of arrays."""
    return any(os.path.isfile(os.path.join(path, mark)) for mark in STORE_MARKS)


def strange_files(path: str) -> Iterator[str]:
    """Yield the sorted relative paths of files in a store that are neither documents nor chunks."""
    names = sorted(
        os.path.relpath(os.path.join(folder, name), path) for folder, _, files in os.walk(path) for name in files
    )
    arrays = {os.path.dirname(name) for name in names if _is_array_document(os.path.join(path, name))}
    for name in names:
        if os.path.basename(name) not in STORE_DOCUMENTS and array_of_chunk(name, arrays) is None:
            yield name


def array_of_chunk(name: str, arrays: Collection[str]) -> str | None:
    """Return the path of the array to which a file of a store belongs as a chunk, or None."""
    parts = name.split("/")
    paths = {"/".join(parts[:depth]): "/".join(parts[depth:]) for depth in range(len(parts))}
    return next((path for path, key in paths.items() if path in arrays and _CHUNK.fullmatch(key)), None)


def _is_array_document(path: str) -> bool:
    """Return whether a file of a store is the document of an array, not of a group."""
    if os.path.basename(path) == "zarr.json":
        with suppress(OSError, ValueError), open(path, "rb") as file:
            return "shape" in json.load(file)
    return os.path.basename(path) == ".zarray"


def is_one_rank(path: str) -> bool:
    """Return whether a directory is one rank: a store of arrays, or a checkpoint in shards."""
    try:
        return is_store(path) or (index_in(path) or "").endswith(INDEX_SUFFIX)
    except BufferFileError:  # several checkpoints
        return False


def index_in(path: str) -> str | None:
    """Return the path of the checkpoint in a directory: its index, its only file, or the name of a missing index."""
    names = sorted(os.listdir(path))
    indices = ([name for name in names if name.endswith(suffix)] for suffix in _INDEX_SUFFIXES)
    checkpoints = next(filter(None, indices), [])
    if not checkpoints:
        files = [name for name in names if name.endswith(".safetensors")]
        shards = [match for match in map(_SHARD.fullmatch, files) if match]
        if len(files) > max(1, len(shards)):  # files with other names may be ranks
            return None
        checkpoints = sorted({f"{shard['stem']}{INDEX_SUFFIX}" for shard in shards}) or files
    if len(checkpoints) > 1:
        reason = f"has several checkpoints, {', '.join(checkpoints)}; name the one to read"
        raise BufferFileError(path, reason)
    return os.path.join(path, checkpoints[0]) if checkpoints else None


def check_one_file(name: str) -> None:
    """Raise `UsageError` if the file to change or replace consists of several files, or is an object of a store."""
    check_are_files([name])
    is_directory = os.path.isdir(name)
    if index := name if name.endswith(INDEX_SUFFIX) else index_in(name) if is_directory else None:
        if not index.endswith(_INDEX_SUFFIXES):
            raise UsageError(name, f"is a directory, which is not changed in place; name its file, {index}")
        reason = "is a checkpoint of several files, which are not changed in place"
        raise UsageError(name, f"{reason}; write a new one with `output`")
    if is_directory and is_store(name):
        reason = "is a directory, whose many files cannot be replaced as one"
        raise UsageError(name, f"{reason}; pack it into a zip archive, or write to another file with `output`")


class ShardsSource(Source):
    """The shards of a checkpoint without an index: a directory as an empty source."""

    nbytes = 0

    def __init__(self, index: str) -> None:
        folder, self.index = os.path.split(index)
        self.name = f"{folder}/"
        matches = filter(None, map(_SHARD.fullmatch, sorted(os.listdir(folder))))
        shards = [match for match in matches if f"{match['stem']}{INDEX_SUFFIX}" == self.index]
        self.names = [match[0] for match in shards]
        stem, count = shards[0]["stem"], shards[0]["count"]
        expected = [f"{stem}-{number:05d}-of-{count}.safetensors" for number in range(1, int(count) + 1)]
        if self.names != expected:
            shard = min({*expected} ^ {*self.names})
            problem = "lacks" if shard in expected else "has no index, and beside the others"
            reason = f"{problem} the shard {shard}; a checkpoint without an index has all of its shards"
            raise BufferFileError(folder, reason)

    def open(self) -> OpenSource:
        """Open the source for reading."""
        return OpenBytes(SHARDS_HEAD)


def index_of(source: Source) -> str:
    """Return the name of the index of a checkpoint in shards, which may be missing; "" for other sources."""
    if isinstance(source, ShardsSource):
        return source.index
    return os.path.basename(source.name) if source.name.endswith(INDEX_SUFFIX) else ""


class DirectorySource(Source):
    """A directory with the files of a store of arrays."""

    # A change shows in the documents of the arrays, and in the times of the directories, because a library writes a
    # chunk as a new file and renames it. A program that writes into the file of a chunk is not noticed.

    def __init__(self, name: str) -> None:
        self.name = name  # path of the caller, for messages
        self.path = os.path.realpath(name)  # to open
        self.stamp, newest = _stamp(name, self.path)
        if has_waited(newest):
            self.stamp, _ = _stamp(name, self.path)
        self.inode = self.stamp[:2]
        files = (entry for path, entry in _entries(name, self.path) if not path.endswith("/"))
        self.nbytes = sum(entry.stat(follow_symlinks=False).st_size for entry in files)

    def open(self) -> OpenStore:
        """Open the directory for reading; `ChangedError` if it has changed."""
        self.check_unchanged()
        return _OpenDirectory(self)

    def check_unchanged(self) -> None:
        """Raise `ChangedError` if the directory has changed since the inspection."""
        with calls.errors_name(self.name):
            if _stamp(self.name, self.path)[0] != self.stamp:
                raise self.changed()


class _OpenDirectory(OpenStore):
    """The files of a directory; their names are relative paths."""

    source: DirectorySource

    def names(self) -> list[str]:
        with calls.errors_name(self.source.name):
            return sorted(path for path, _ in _entries(self.source.name, self.source.path) if not path.endswith("/"))

    def content(self, name: str, limit: int) -> bytes:
        """Return the first bytes of a file, at most `limit + 1`; a link is not followed."""
        path = os.path.join(self.source.path, name)
        with calls.errors_name(path):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except FileNotFoundError:
                raise self.source.changed() from None
            try:
                return calls.pread_some(fd, min(os.fstat(fd).st_size, limit + 1), 0)
            finally:
                calls.close_quietly(fd)


def _entries(name: str, path: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the relative paths and entries of all files and subdirectories; a path of a directory ends with a slash."""
    remaining = [""]
    while remaining:
        prefix = remaining.pop()
        with os.scandir(os.path.join(path, prefix)) as entries:
            for entry in entries:
                entry_path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    entry_path += "/"
                    remaining.append(entry_path)
                elif not entry.is_file(follow_symlinks=False):
                    reason = f"holds {entry_path!r}, a link or no regular file, which is not followed"
                    raise BufferFileError(name, f"{reason}; put the file itself there")
                yield entry_path, entry


def _stamp(name: str, path: str) -> tuple[tuple[int, int, bytes], os.stat_result]:
    """Return device, inode and a digest of the directories and documents, and the status of the newest of these."""
    statuses = {"": os.stat(path)}
    for entry_path, entry in _entries(name, path):
        if entry.name in STORE_DOCUMENTS or entry_path.endswith("/"):
            statuses[entry_path] = entry.stat(follow_symlinks=False)
    times = [
        (entry_path, status.st_ino, 0 if stat.S_ISDIR(status.st_mode) else status.st_size, status.st_mtime_ns)
        for entry_path, status in sorted(statuses.items())
    ]
    stamp = statuses[""].st_dev, statuses[""].st_ino, digest(repr(times).encode("utf-8", "surrogateescape")).digest()
    return stamp, max(statuses.values(), key=lambda status: status.st_mtime_ns)
