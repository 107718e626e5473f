"""Power cuts on paper: what a disk may hold when the power goes, and what recovery makes of it.

The real code runs on real files while `Recorder` writes down every call that changes something. A
`Disk` then plays the calls back under the hardest rules that a file system may keep: what was not
synced may be there or not, in any combination, sector by sector and name by name. Each state that
can come of it is put on real files again, and the real recovery runs on them.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

SECTOR = 512
# More pending operations than this are not combined in all ways, but in the telling ones and some by chance.
_ALL_SUBSETS = 8
_BY_CHANCE = 80


class Event(NamedTuple):
    """A call that changed a file (by inode number) or a name, or synced one."""

    kind: str
    inode: int = 0
    name: str = ""
    offset: int = 0
    data: bytes = b""
    other: str = ""


class Recorder:
    """Writes down what the calls of `os` do in one folder, as long as the block lasts."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.stat(folder).st_ino
        self._spare = spare(folder)
        self.events: list[Event] = []
        self._originals: dict[str, Callable[..., object]] = {}

    def __enter__(self) -> Self:
        for name in ("open", "pwrite", "ftruncate", "posix_fallocate", "copy_file_range", "fsync", "fdatasync", "link",
                     "replace", "unlink", "setxattr", "removexattr"):  # fmt: skip
            self._originals[name] = getattr(os, name)
            setattr(os, name, getattr(self, f"_{name}"))
        return self

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(os, name, original)

    def _call(self, name: str, *arguments: object, **settings: object) -> object:
        return self._originals[name](*arguments, **settings)

    def _add(self, kind: str, **details: object) -> None:
        self.events.append(Event(kind, **details))  # type: ignore[arg-type]

    def _in_folder(self, dirfd: object) -> bool:
        return dirfd is not None and os.fstat(dirfd).st_ino == self._folder  # type: ignore[arg-type]

    def _open(self, path: object, flags: int, *mode: object, **settings: object) -> object:
        fd = self._call("open", path, flags, *mode, **settings)
        if flags & os.O_CREAT and self._in_folder(settings.get("dir_fd")):
            self._add("name", name=os.fsdecode(path), inode=os.fstat(fd).st_ino)
        return fd

    def _pwrite(self, fd: int, data: bytes, offset: int) -> object:
        done = self._call("pwrite", fd, data, offset)
        self._add("write", inode=os.fstat(fd).st_ino, offset=offset, data=bytes(data)[:done])
        return done

    def _copy_file_range(self, source: int, target: int, count: int, start: int, to: int) -> object:
        done = self._call("copy_file_range", source, target, count, start, to)
        self._add("write", inode=os.fstat(target).st_ino, offset=to, data=os.pread(source, done, start))
        return done

    def _ftruncate(self, fd: int, nbytes: int) -> object:
        self._add("resize", inode=os.fstat(fd).st_ino, offset=nbytes)
        return self._call("ftruncate", fd, nbytes)

    def _posix_fallocate(self, fd: int, start: int, nbytes: int) -> object:
        done = self._call("posix_fallocate", fd, start, nbytes)
        self._add("grow", inode=os.fstat(fd).st_ino, offset=start + nbytes)
        return done

    def _fsync(self, fd: int) -> object:
        inode = os.fstat(fd).st_ino
        self._add("sync names" if inode == self._folder else "sync", inode=inode)
        return self._call("fsync", fd)

    def _fdatasync(self, fd: int) -> object:
        self._add("sync data", inode=os.fstat(fd).st_ino)
        return self._call("fdatasync", fd)

    def _link(self, source: object, name: object, **settings: object) -> object:
        done = self._call("link", source, name, **settings)
        status = os.stat(name, dir_fd=settings["dst_dir_fd"])  # type: ignore[call-overload]
        self._add("name", name=os.fsdecode(name), inode=status.st_ino)
        return done

    def _replace(self, old: object, new: object, **settings: object) -> object:
        done = self._call("replace", old, new, **settings)
        status = os.stat(new, dir_fd=settings["dst_dir_fd"])  # type: ignore[call-overload]
        self._add("rename", name=os.fsdecode(old), other=os.fsdecode(new), inode=status.st_ino)
        kept = self._spare / str(status.st_ino)
        self._call("link", new, kept, src_dir_fd=settings["dst_dir_fd"])
        return done

    def _unlink(self, name: object, **settings: object) -> object:
        done = self._call("unlink", name, **settings)
        self._add("unlink", name=os.fsdecode(name))
        return done

    def _setxattr(self, fd: int, name: str, value: bytes) -> object:
        self._add("attribute", inode=os.fstat(fd).st_ino, name=name, data=value)
        return self._call("setxattr", fd, name, value)

    def _removexattr(self, fd: int, name: str) -> object:
        done = self._call("removexattr", fd, name)
        self._add("attribute", inode=os.fstat(fd).st_ino, name=name, other="removed")
        return done


class File(NamedTuple):
    """What a file holds."""

    data: bytes = b""
    attributes: tuple[tuple[str, bytes], ...] = ()


class State(NamedTuple):
    """What a disk may hold: names and files. Hashable, so that each is tried once."""

    names: tuple[tuple[str, int], ...]
    files: tuple[tuple[int, File], ...]


class Disk:
    """What is on a disk for sure, and what is on its way there."""

    def __init__(self, state: State) -> None:
        self._names = dict(state.names)
        self._files = dict(state.files)
        self._pending_names: list[Event] = []
        self._pending: dict[int, list[Event]] = {}

    def play(self, event: Event) -> None:
        """Let a call happen."""
        if event.kind == "sync names":
            for each in self._pending_names:
                _rename(self._names, each)
            self._pending_names = []
        elif event.kind.startswith("sync"):
            mine = self._pending.pop(event.inode, [])
            kept = [each for each in mine if each.kind == "attribute" and event.kind == "sync data"]
            self._files[event.inode] = changed(self._files.get(event.inode, File()), [e for e in mine if e not in kept])
            if kept:
                self._pending[event.inode] = kept
        elif event.kind in {"name", "rename", "unlink"}:
            self._pending_names.append(event)
        else:
            self._pending.setdefault(event.inode, []).extend(sectors(event))

    def states(self, chance: random.Random) -> Iterator[State]:
        """Yield what may be there if the power goes now."""
        pending = [*self._pending_names, *(event for events in self._pending.values() for event in events)]
        for chosen in subsets(len(pending), chance):
            names, changes = dict(self._names), {}
            for event, there in zip(pending, chosen, strict=True):
                if there and event.kind in {"name", "rename", "unlink"}:
                    _rename(names, event)
                elif there:
                    changes.setdefault(event.inode, []).append(event)
            files = {
                inode: changed(self._files.get(inode, File()), changes.get(inode, [])) for inode in set(names.values())
            }
            yield State(tuple(sorted(names.items())), tuple(sorted(files.items())))


def _rename(names: dict[str, int], event: Event) -> None:
    if event.kind == "name":
        names[event.name] = event.inode
    else:
        names.pop(event.name, None)
        if event.kind == "rename":
            names[event.other] = event.inode


def sectors(event: Event) -> list[Event]:
    """Cut a write where a sector ends; large writes in fewer pieces, so that there are not too many."""
    if event.kind != "write":
        return [event]
    step = SECTOR * max(1, len(event.data) // SECTOR // 8)
    borders = [0, *range(step - event.offset % SECTOR, len(event.data), step), len(event.data)]
    return [
        event._replace(offset=event.offset + start, data=event.data[start:stop])
        for start, stop in itertools.pairwise(borders)
        if start < stop
    ]


def changed(file: File, events: list[Event]) -> File:
    data, attributes = bytearray(file.data), dict(file.attributes)
    for event in events:
        end = event.offset + len(event.data)
        if event.kind == "attribute":
            attributes.pop(event.name, None)
            if event.other != "removed":
                attributes[event.name] = event.data
            continue
        if end > len(data):
            data.extend(bytes(end - len(data)))
        if event.kind == "resize":
            del data[event.offset :]
        elif event.kind == "write":
            data[event.offset : end] = event.data
    return File(bytes(data), tuple(sorted(attributes.items())))


def subsets(count: int, chance: random.Random) -> Iterator[tuple[bool, ...]]:
    if count <= _ALL_SUBSETS:
        yield from itertools.product((False, True), repeat=count)
        return
    yield (False,) * count
    yield (True,) * count
    for i in range(count):
        yield tuple(j == i for j in range(count))
        yield tuple(j != i for j in range(count))
        yield tuple(j < i for j in range(count))
    for _ in range(_BY_CHANCE):
        yield tuple(chance.random() < 0.5 for _ in range(count))


def crashes(start: State, events: list[Event], chance: random.Random) -> Iterator[tuple[int, State]]:
    """Yield every state that a loss of power may leave, with the number of calls that were made before."""
    disk, seen = Disk(start), set()
    for number in range(len(events) + 1):
        for state in disk.states(chance):
            if (number == len(events), state) not in seen:
                seen.add((number == len(events), state))
                yield number, state
        if number < len(events):
            disk.play(events[number])


def spare(folder: Path) -> Path:
    """Return a folder that keeps inodes alive, because a journal knows its target by the inode."""
    path = folder.parent / "spare"
    path.mkdir(exist_ok=True)
    return path


class Shelf:
    """Puts states of a disk on real files. A target keeps its inode."""

    def __init__(self, folder: Path, base: str) -> None:
        self.folder = folder
        self._spare = spare(folder)
        path = folder / base
        kept = self._spare / str(path.stat().st_ino)
        if not kept.exists():
            kept.hardlink_to(path)

    def state(self) -> State:
        """Return what is there now, all of it on the disk."""
        names, files = {}, {}
        for path in self.folder.iterdir():
            inode = path.stat().st_ino
            attributes = tuple((name, os.getxattr(path, name)) for name in sorted(os.listxattr(path)))
            names[path.name], files[inode] = inode, File(path.read_bytes(), attributes)
        return State(tuple(sorted(names.items())), tuple(sorted(files.items())))

    def put(self, state: State) -> None:
        """Make the folder hold a state."""
        for path in self.folder.iterdir():
            path.unlink()
        files = dict(state.files)
        for name, inode in state.names:
            path = self.folder / name
            if (self._spare / str(inode)).exists():
                path.hardlink_to(self._spare / str(inode))
            path.touch()
            with open(path, "r+b") as file:
                file.truncate(0)
                file.write(files[inode].data)
            for old in os.listxattr(path):
                os.removexattr(path, old)
            for attribute, value in files[inode].attributes:
                os.setxattr(path, attribute, value)


def no_clone(fd: int, request: int, *arguments: object) -> object:
    """Take the place of `fcntl.ioctl`: a copy that is not seen by `os` is none."""
    if request == 0x40049409:  # FICLONE
        raise OSError(95, "not supported")
    return _IOCTL(fd, request, *arguments)


_IOCTL = fcntl.ioctl
