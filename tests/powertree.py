"""Power cuts on paper in a tree of folders: what a disk may hold when the power goes in the middle of many results.

As `powercut`, of which it has the rules for what is in a file. A name is there or not by itself, in whichever folder,
until that folder is synced. A rename is one step, but where it leads from one folder to another, a sync of the second
says nothing of the first.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from powercut import Event, File, changed, sectors, subsets

Place = tuple[int, str]
"""A folder by its inode number, and a name in it."""


RECORDED = (
    "fdatasync", "fsync", "ftruncate", "link", "mkdir", "open", "posix_fallocate", "pwrite", "replace", "rmdir",
    "symlink", "unlink",
)  # fmt: skip


class Step(NamedTuple):
    """A call that changed names, or a file, or synced either.

    Parameters
    ----------
    kind
        "name", "unlink", "rename", "sync", or what is done to the file as of `powercut.Event`.
    inode
        The file or folder.
    place, old
        Where a name is made or removed, and of a rename where it was before.
    event
        What is done to a file.
    """

    kind: str
    inode: int = 0
    place: Place = (0, "")
    old: Place = (0, "")
    event: Event | None = None


class TreeState(NamedTuple):
    """What a disk may hold: names, and of each inode its content: bytes, "folder", or where a link leads."""

    names: tuple[tuple[Place, int], ...]
    contents: tuple[tuple[int, File | str], ...]


class TreeRecorder:
    """Writes down what the calls of `os` do to files and names below a folder, as long as the block lasts."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.kinds: dict[int, str] = {}
        self._originals: dict[str, Callable[..., object]] = {}
        self._kept: list[int] = []  # open, so that no inode number is used twice

    def __enter__(self) -> Self:
        for name in RECORDED:
            self._originals[name] = getattr(os, name)
            setattr(os, name, getattr(self, f"_{name}"))
        return self

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(os, name, original)
        for fd in self._kept:
            os.close(fd)

    def _call(self, name: str, *arguments: object, **settings: object) -> object:
        return self._originals[name](*arguments, **settings)

    def _name(self, name: object, dirfd: object, kind: str) -> None:
        """Note that something has a name now."""
        inode = os.stat(name, dir_fd=dirfd, follow_symlinks=False).st_ino
        if inode not in self.kinds:
            self.kinds[inode] = kind
            self._kept.append(self._call("open", name, os.O_PATH | os.O_NOFOLLOW, dir_fd=dirfd))
        self.steps.append(Step("name", inode, (os.fstat(dirfd).st_ino, os.fsdecode(name))))

    def _open(self, path: object, flags: int, *mode: object, **settings: object) -> object:
        dirfd = settings.get("dir_fd")
        new = flags & os.O_CREAT and not _is_there(path, dirfd)
        fd = self._call("open", path, flags, *mode, **settings)
        if new:
            self._name(path, dirfd, "file")
        return fd

    def _mkdir(self, name: object, mode: int, *, dir_fd: int) -> None:
        self._call("mkdir", name, mode, dir_fd=dir_fd)
        self._name(name, dir_fd, "folder")

    def _symlink(self, target: object, name: object, *, dir_fd: int) -> None:
        self._call("symlink", target, name, dir_fd=dir_fd)
        self._name(name, dir_fd, f"link {target}")

    def _link(self, old: object, new: object, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool) -> None:
        self._call("link", old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)
        self._name(new, dst_dir_fd, "file")

    def _replace(self, old: object, new: object, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        inode = os.stat(old, dir_fd=src_dir_fd, follow_symlinks=False).st_ino
        places = [(os.fstat(fd).st_ino, os.fsdecode(name)) for fd, name in ((dst_dir_fd, new), (src_dir_fd, old))]
        self._call("replace", old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        self.steps.append(Step("rename", inode, *places))

    def _unlink(self, name: object, *, dir_fd: int) -> None:
        self._call("unlink", name, dir_fd=dir_fd)
        self.steps.append(Step("unlink", place=(os.fstat(dir_fd).st_ino, os.fsdecode(name))))

    def _rmdir(self, name: object, *, dir_fd: int) -> None:
        self._call("rmdir", name, dir_fd=dir_fd)
        self.steps.append(Step("unlink", place=(os.fstat(dir_fd).st_ino, os.fsdecode(name))))

    def _change(self, kind: str, fd: int, **details: object) -> None:
        inode = os.fstat(fd).st_ino
        self.steps.append(Step("change", inode, event=Event(kind, inode, **details)))

    def _pwrite(self, fd: int, data: bytes, offset: int) -> object:
        done = self._call("pwrite", fd, data, offset)
        self._change("write", fd, offset=offset, data=bytes(data)[:done])
        return done

    def _ftruncate(self, fd: int, nbytes: int) -> None:
        self._call("ftruncate", fd, nbytes)
        self._change("resize", fd, offset=nbytes)

    def _posix_fallocate(self, fd: int, start: int, nbytes: int) -> None:
        self._call("posix_fallocate", fd, start, nbytes)
        self._change("grow", fd, offset=start + nbytes)

    def _fsync(self, fd: int) -> None:
        self._call("fsync", fd)
        self.steps.append(Step("sync", os.fstat(fd).st_ino))

    _fdatasync = _fsync


def _is_there(path: object, dirfd: object) -> bool:
    try:
        os.stat(path, dir_fd=dirfd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class TreeDisk:
    """What is on a disk for sure, and what is on its way there."""

    def __init__(self, state: TreeState, kinds: Mapping[int, str]) -> None:
        self._names = dict(state.names)
        self._contents = dict(state.contents)
        self._kinds = kinds
        self._steps: list[Step] = []
        self._changes: dict[int, list[Event]] = {}

    def play(self, step: Step) -> None:
        """Let a call happen."""
        if step.kind == "change":
            assert step.event is not None
            self._changes.setdefault(step.inode, []).extend(sectors(step.event))
        elif step.kind != "sync":
            self._steps.append(step)
        else:
            events = self._changes.pop(step.inode, [])
            if events:
                self._contents[step.inode] = changed(self._file(step.inode), events)
            waiting = []
            for each in self._steps:
                waiting += self._synced(each, step.inode)
            self._steps = waiting

    def _synced(self, step: Step, folder: int) -> list[Step]:
        """Bring a step to the disk if its folder is synced; return what of it is not there yet."""
        if step.place[0] != folder and step.old[0] != folder:
            return [step]
        if step.kind == "rename" and step.old[0] != folder:
            self._names[step.place] = step.inode
            return [Step("unlink", place=step.old)]
        _apply(self._names, step)
        return []

    def _file(self, inode: int) -> File:
        found = self._contents.get(inode, File())
        assert isinstance(found, File)
        return found

    def states(self, chance: random.Random) -> Iterator[TreeState]:
        """Yield what may be there if the power goes now."""
        waiting: list[Step | Event] = [*self._steps, *(each for events in self._changes.values() for each in events)]
        for chosen in subsets(len(waiting), chance):
            names, changes = dict(self._names), {}
            for each, there in zip(waiting, chosen, strict=True):
                if there and isinstance(each, Step):
                    _apply(names, each)
                elif there:
                    changes.setdefault(each.inode, []).append(each)
            contents: dict[int, File | str] = {}
            for inode in set(names.values()):
                known = self._contents.get(inode) or self._kinds.get(inode, "file")
                is_file = known == "file" or isinstance(known, File)
                contents[inode] = changed(self._file(inode), changes.get(inode, [])) if is_file else known
            yield TreeState(tuple(sorted(names.items())), tuple(sorted(contents.items(), key=lambda each: each[0])))


def _apply(names: dict[Place, int], step: Step) -> None:
    if step.kind == "unlink":
        names.pop(step.place, None)
        return
    if step.kind == "rename":
        names.pop(step.old, None)
    names[step.place] = step.inode


def tree_cuts(
    start: TreeState, steps: list[Step], kinds: Mapping[int, str], chance: random.Random
) -> Iterator[tuple[int, TreeState]]:
    """Yield every state that a loss of power may leave, with the number of calls that were made before."""
    disk, seen = TreeDisk(start, kinds), set()
    for number in range(len(steps) + 1):
        for state in disk.states(chance):
            if (number == len(steps), state) not in seen:
                seen.add((number == len(steps), state))
                yield number, state
        if number < len(steps):
            disk.play(steps[number])


class TreeShelf:
    """Puts states of a disk on real files below a folder; what was there at first keeps its inodes and times."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._spare = folder.parent / "kept"
        self._spare.mkdir()
        self._first = {path.stat().st_ino: path for path in self.folder.iterdir()}
        for file in (path for top in self._first.values() for path in top.iterdir()):
            (self._spare / str(file.stat().st_ino)).hardlink_to(file)

    def state(self) -> TreeState:
        """Return what is there now, all of it on the disk."""
        names: dict[Place, int] = {}
        contents: dict[int, File | str] = {}
        for inode, top in self._first.items():
            self._add(names, contents, inode, top)
        return TreeState(tuple(sorted(names.items())), tuple(sorted(contents.items(), key=lambda each: each[0])))

    def _add(self, names: dict[Place, int], contents: dict[int, File | str], inode: int, folder: Path) -> None:
        for path in folder.iterdir():
            status = path.lstat()
            names[inode, path.name] = status.st_ino
            if stat.S_ISDIR(status.st_mode):
                contents[status.st_ino] = "folder"
                self._add(names, contents, status.st_ino, path)
            elif path.is_symlink():
                contents[status.st_ino] = f"link {path.readlink()}"
            else:
                contents[status.st_ino] = File(path.read_bytes())

    def put(self, state: TreeState) -> None:
        """Make the folders hold a state."""
        contents = dict(state.contents)
        made: dict[int, Path] = {}
        for top in self._first.values():
            for path in top.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        folders = dict(self._first)
        waiting = dict(state.names)
        while known := [place for place in waiting if place[0] in folders]:
            for place in known:
                inode = waiting.pop(place)
                self._make(folders[place[0]] / place[1], inode, contents[inode], made)
                if contents[inode] == "folder":
                    folders[inode] = made[inode]

    def _make(self, path: Path, inode: int, content: File | str, made: dict[int, Path]) -> None:
        kept = self._spare / str(inode)
        if inode in made:
            path.hardlink_to(made[inode])
        elif content == "folder":
            path.mkdir(mode=0o700)
        elif isinstance(content, str):
            path.symlink_to(content.removeprefix("link "))
        elif kept.exists():
            path.hardlink_to(kept)
        else:
            path.write_bytes(content.data)
        made.setdefault(inode, path)
