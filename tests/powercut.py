"""Power cuts on paper: what a disk may hold when the power goes, in a tree of folders.

The real code runs on real files while `Recorder` writes down every call that changes something. A `Disk` then plays the
calls back under the hardest rules that a file system may keep: what was not synced may be there or not, in any
combination, sector by sector and name by name. A `Shelf` puts each state that can come of it on real files again, with
the inodes, bytes, attributes and times that they had, and the real recovery runs on them.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

SECTOR = 512
# More pending operations than this are not combined in all ways, but in the telling ones and some by chance.
_ALL_SUBSETS = 8
_BY_CHANCE = 60

Place = tuple[int, str]
"""A folder by its inode number, and a name in it."""


class Event(NamedTuple):
    """A call that changed a file or a name, or synced one."""

    kind: str  # "name", "unlink", "rename", "write", "resize", "grow", "attribute", "sync", "sync data"
    inode: int = 0  # the file, or the folder that is synced
    place: Place = (0, "")  # the name that is made or removed
    old: Place = (0, "")  # of a rename the name before
    offset: int = 0
    data: bytes = b""
    attribute: str = ""
    removed: bool = False  # whether the attribute was removed


_NAMES = frozenset({"name", "unlink", "rename"})
# The calls that need only their arguments: the kind of their events, and what these have besides the file.
_NOTED: dict[str, tuple[str, Callable[..., dict[str, object]]]] = {
    "fsync": ("sync", dict),
    "fdatasync": ("sync data", dict),
    "ftruncate": ("resize", lambda nbytes: {"offset": nbytes}),
    "posix_fallocate": ("grow", lambda start, nbytes: {"offset": start + nbytes}),
    "setxattr": ("attribute", lambda name, value: {"attribute": name, "data": value}),
    "removexattr": ("attribute", lambda name: {"attribute": name, "removed": True}),
}


class Recorder:
    """Writes down what the calls of `os` do to files and names, as long as the block lasts."""

    def __init__(self, shelf: Shelf) -> None:
        self.events: list[Event] = []
        self._shelf = shelf
        self._originals: dict[str, Callable[..., object]] = {}

    def __enter__(self) -> Self:
        for name in ("open", "pwrite", "copy_file_range", "link", "replace", "unlink", *_NOTED):
            self._originals[name] = getattr(os, name)
            setattr(os, name, partial(self._note, name) if name in _NOTED else getattr(self, f"_{name}"))
        return self

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(os, name, original)

    def _call(self, name: str, *arguments: object, **settings: object) -> object:
        return self._originals[name](*arguments, **settings)

    def _add(self, kind: str, fd: object, **details: object) -> None:
        self.events.append(Event(kind, os.fstat(fd).st_ino, **details))  # type: ignore[arg-type]

    def _named(self, name: object, dirfd: object) -> None:
        """Note that a file has a name now."""
        status = os.stat(name, dir_fd=dirfd, follow_symlinks=False)  # type: ignore[call-overload]
        self._shelf.keep(status.st_ino, name, dirfd, self._originals["link"])
        self.events.append(Event("name", status.st_ino, _place(name, dirfd)))

    def _open(self, path: object, flags: int, *mode: object, **settings: object) -> object:
        fd = self._call("open", path, flags, *mode, **settings)
        if flags & os.O_CREAT and settings.get("dir_fd") is not None:
            self._named(path, settings["dir_fd"])
        return fd

    def _link(self, source: object, name: object, **settings: object) -> None:
        self._call("link", source, name, **settings)
        self._named(name, settings["dst_dir_fd"])

    def _replace(self, old: object, new: object, **settings: object) -> None:
        self._call("replace", old, new, **settings)
        status = os.stat(new, dir_fd=settings["dst_dir_fd"])  # type: ignore[call-overload]
        places = _place(new, settings["dst_dir_fd"]), _place(old, settings["src_dir_fd"])
        self.events.append(Event("rename", status.st_ino, *places))

    def _unlink(self, name: object, **settings: object) -> None:
        self._call("unlink", name, **settings)
        self.events.append(Event("unlink", place=_place(name, settings["dir_fd"])))

    def _pwrite(self, fd: int, data: bytes, offset: int) -> object:
        done = self._call("pwrite", fd, data, offset)
        self._add("write", fd, offset=offset, data=bytes(data)[:done])  # type: ignore[misc]
        return done

    def _copy_file_range(self, source: int, target: int, count: int, start: int, to: int) -> object:
        done = self._call("copy_file_range", source, target, count, start, to)
        self._add("write", target, offset=to, data=os.pread(source, done, start))  # type: ignore[arg-type]
        return done

    def _note(self, name: str, file: object, *arguments: object) -> None:
        """Let a call happen that needs no more than its arguments, and write it down."""
        self._call(name, file, *arguments)
        kind, details = _NOTED[name]
        self.events.append(Event(kind, os.stat(file).st_ino, **details(*arguments)))  # type: ignore[arg-type]


def _place(name: object, dirfd: object) -> Place:
    return os.fstat(dirfd).st_ino, os.fsdecode(name)  # type: ignore[arg-type]


class File(NamedTuple):
    """What a file holds."""

    data: bytes = b""
    attributes: tuple[tuple[str, bytes], ...] = ()


class State(NamedTuple):
    """What a disk may hold: names and files. Hashable, so that each is tried once."""

    names: tuple[tuple[Place, int], ...]
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
        if event.kind in _NAMES:
            self._pending_names.append(event)
        elif event.kind not in {"sync", "sync data"}:
            self._pending.setdefault(event.inode, []).extend(sectors(event))
        else:
            mine = self._pending.pop(event.inode, [])
            kept = [each for each in mine if each.kind == "attribute" and event.kind == "sync data"]
            if done := [each for each in mine if each not in kept]:
                self._files[event.inode] = changed(self._files.get(event.inode, File()), done)
            if kept:
                self._pending[event.inode] = kept
            for each in self._pending_names:
                if each.place[0] == event.inode:
                    _rename(self._names, each)
            self._pending_names = [each for each in self._pending_names if each.place[0] != event.inode]

    def states(self, chance: random.Random) -> Iterator[State]:
        """Yield what may be there if the power goes now."""
        pending = self._on_their_way()
        for chosen in subsets(len(pending), chance):
            yield self._with(itertools.compress(pending, chosen))

    def everything(self) -> State:
        """Return what there is if all comes to the disk, as processes see it already."""
        return self._with(self._on_their_way())

    def _on_their_way(self) -> list[Event]:
        return [*self._pending_names, *(event for events in self._pending.values() for event in events)]

    def _with(self, there: Iterable[Event]) -> State:
        names, changes = dict(self._names), {}
        for event in there:
            if event.kind in _NAMES:
                _rename(names, event)
            else:
                changes.setdefault(event.inode, []).append(event)
        files = {inode: self._files.get(inode, File()) for inode in set(names.values())}
        files |= {inode: changed(files[inode], events) for inode, events in changes.items() if inode in files}
        return State(tuple(sorted(names.items())), tuple(sorted(files.items())))


def _rename(names: dict[Place, int], event: Event) -> None:
    if event.kind == "unlink":
        names.pop(event.place, None)
        return
    names.pop(event.old, None)
    names[event.place] = event.inode


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
    """Return a file after some events."""
    data, attributes = bytearray(file.data), dict(file.attributes)
    for event in events:
        end = event.offset + len(event.data)
        if event.kind == "attribute":
            attributes.pop(event.attribute, None)
            if not event.removed:
                attributes[event.attribute] = event.data
            continue
        if end > len(data):
            data.extend(bytes(end - len(data)))
        if event.kind == "resize":
            del data[event.offset :]
        elif event.kind == "write":
            data[event.offset : end] = event.data
    return File(bytes(data), tuple(sorted(attributes.items())))


def subsets(count: int, chance: random.Random) -> Iterator[tuple[bool, ...]]:
    """Yield which of so many pending operations are on the disk."""
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


def crashes(
    start: State, events: list[Event], chance: random.Random, *, only_at_end: bool = False
) -> Iterator[tuple[int, State]]:
    """Yield every state that a loss of power may leave, with the number of calls that were made before."""
    disk, seen = Disk(start), set()
    for number in range(len(events) + 1):
        for state in disk.states(chance) if number == len(events) or not only_at_end else ():
            if (number == len(events), state) not in seen:
                seen.add((number == len(events), state))
                yield number, state
        if number < len(events):
            disk.play(events[number])


def seen(start: State, events: list[Event]) -> State:
    """Return what processes see after some calls."""
    disk = Disk(start)
    for event in events:
        disk.play(event)
    return disk.everything()


class Shelf:
    """Puts states of a disk on real files in the folders of a tree. Every file keeps its inode number."""

    def __init__(self, tree: Path) -> None:
        self._folders = {path.stat().st_ino: path for path in tree.iterdir()}
        self._spare = tree.parent / "spare"
        self._spare.mkdir(exist_ok=True)
        self._times: dict[int, int] = {}
        for path in self._paths():
            status = path.stat()
            self._times[status.st_ino] = status.st_mtime_ns
            if not (self._spare / str(status.st_ino)).exists():
                (self._spare / str(status.st_ino)).hardlink_to(path)

    def _paths(self) -> list[Path]:
        return [path for folder in self._folders.values() for path in folder.iterdir()]

    def keep(self, inode: int, name: object, dirfd: object, link: Callable[..., object]) -> None:
        """Keep a file from going with its last name, so that its inode number is not used again."""
        if not os.path.exists(kept := self._spare / str(inode)):
            link(name, kept, src_dir_fd=dirfd, follow_symlinks=False)

    def names_of(self, status: os.stat_result) -> int:
        """Return how many names a file has besides that by which it is kept."""
        return status.st_nlink - os.path.exists(self._spare / str(status.st_ino))

    def state(self) -> State:
        """Return what is there now, all of it on the disk."""
        names, files = {}, {}
        for inode, folder in self._folders.items():
            for path in folder.iterdir():
                number = path.stat().st_ino
                attributes = tuple((name, os.getxattr(path, name)) for name in sorted(os.listxattr(path)))
                names[inode, path.name], files[number] = number, File(path.read_bytes(), attributes)
        return State(tuple(sorted(names.items())), tuple(sorted(files.items())))

    def put(self, state: State) -> None:
        """Make the folders hold a state."""
        for path in self._paths():
            path.unlink()
        for inode, file in state.files:
            kept = self._spare / str(inode)
            with open(kept, "r+b") as opened:
                opened.truncate(0)
                opened.write(file.data)
            for old in os.listxattr(kept):
                os.removexattr(kept, old)
            for attribute, value in file.attributes:
                os.setxattr(kept, attribute, value)
            if inode in self._times:
                os.utime(kept, ns=(self._times[inode], self._times[inode]))
        for (folder, name), inode in state.names:
            (self._folders[folder] / name).hardlink_to(self._spare / str(inode))


def no_clone(fd: int, request: int, *arguments: object) -> object:
    """Take the place of `fcntl.ioctl`: a copy that is not seen by `os` is none."""
    if request == 0x40049409:  # FICLONE
        raise OSError(95, "not supported")
    return _IOCTL(fd, request, *arguments)


_IOCTL = fcntl.ioctl
