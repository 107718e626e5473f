"""Somebody else who may rename in the output's directory: whatever takes the place of a staging directory, and at
whichever call, no file outside of it is changed, removed, or given to anybody.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from command import in_child
from values import folder_in_memory

from mpired.errors import MpiredError
from mpired.storage import calls, remains
from mpired.storage.together import Together

STRANGER = 4321
# The calls of the operating system that name something, and so can be led astray.
NAMING = ("chmod", "link", "listdir", "mkdir", "open", "readlink", "replace", "rmdir", "stat", "symlink", "unlink")
INSIDE = ("0", "1", "lock", "home", "manifest", "commit", "other")
RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> None:
    """Let two names change places in one step (renameat2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = -100  # AT_FDCWD
    if libc.renameat2(here, os.fsencode(one), here, os.fsencode(other), RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def made(folder: Path) -> Path:
    """Make a directory of somebody else, with two old files of his; and beside it files of ours."""
    ours, shared = folder / "ours", folder / "shared"
    ours.mkdir(mode=0o700, parents=True)
    shared.mkdir()
    for name in INSIDE:
        (ours / name).write_bytes(b"ours")
        (ours / name).chmod(0o600)
    for name in "xy":
        (shared / name).write_bytes(b"old")
        (shared / name).chmod(0o666)
        os.chown(shared / name, STRANGER, STRANGER)
    os.chown(shared, STRANGER, STRANGER)
    return shared


def link(bait: Path, ours: Path) -> None:
    """A link to a directory of ours."""
    bait.symlink_to(ours)


def links(bait: Path, ours: Path) -> None:
    """A directory of links to files of ours."""
    bait.mkdir()
    for name in INSIDE:
        (bait / name).symlink_to(ours / name)
    os.chown(bait, STRANGER, STRANGER)
    bait.chmod(0o777)


def second_names(bait: Path, ours: Path) -> None:
    """A directory of second names of files of ours."""
    bait.mkdir()
    for name in INSIDE:
        (bait / name).hardlink_to(ours / name)
    os.chown(bait, STRANGER, STRANGER)
    bait.chmod(0o777)


def private(bait: Path, ours: Path) -> None:
    """A directory of ours itself, which others may rename."""
    ours.rename(bait)
    bait.chmod(0o700)


BAITS = {each.__name__: each for each in (link, links, second_names, private)}


def belongings(folder: Path) -> dict[int, tuple[object, ...]]:
    """Return all that is to stay of our files, wherever they are, by inode."""
    found = {}
    for top, _, names in os.walk(folder):
        for name in names:
            path = Path(top) / name
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                found[status.st_ino] = (path.read_bytes(), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
    return found


def swapping_at(which: int, shared: Path) -> Callable[[], None]:
    """Return what puts the bait in the place of the first staging directory there is, just before a call."""

    def patch() -> None:
        count = iter(range(10**6))
        swapped = False

        def watched(original: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **settings: object) -> object:
                nonlocal swapped
                due = next(count) >= which
                if due and not swapped:
                    names = [name for name in LISTDIR(shared) if name.endswith(".mpired-together")]
                    if names:
                        swapped = True
                        exchange(shared / names[0], shared.parent / "bait")
                return original(*arguments, **settings)

            return call

        for name in NAMING:
            setattr(os, name, watched(getattr(os, name)))

    return patch


LISTDIR = os.listdir


def write(shared: Path) -> None:
    """Replace both files, whatever comes of it."""
    paths = [str(shared / name) for name in "xy"]
    with contextlib.suppress(MpiredError, OSError), Together(paths, overwrite=True) as outputs:
        for draft in outputs.drafts:
            with draft.created(9) as fd:
                calls.pwrite_all(fd, b"new bytes", 0)
            fd = draft.shared.open()  # as a worker does
            calls.pwrite_all(fd, b"NEW", 0)
            os.close(fd)
        outputs.commit()


class Ended(BaseException):
    """The end of a process, on paper."""


def interrupted(shared: Path) -> None:
    """End between the commit and the renames."""

    def end(*_: object, **__: object) -> None:
        raise Ended

    os.replace = end
    with contextlib.suppress(Ended):
        write(shared)


def recover(shared: Path) -> None:
    with contextlib.suppress(MpiredError, OSError):
        remains.finish_staged([str(shared / "x")])


def number_of_calls(function: Callable[[], object]) -> int:
    """Return how many calls a function makes when it is left in peace."""
    read, write_end = os.pipe()

    def child() -> None:
        made = 0

        def counted(original: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **settings: object) -> object:
                nonlocal made
                made += 1
                return original(*arguments, **settings)

            return call

        for name in NAMING:
            setattr(os, name, counted(getattr(os, name)))
        function()
        os.write(write_end, str(made).encode())

    in_child(child)
    made = int(os.read(read, 100))
    os.close(read)
    os.close(write_end)
    return made


@pytest.mark.parametrize("bait", BAITS)
@pytest.mark.parametrize("work", ["write", "recover"])
@pytest.mark.sampled(2)
def test_no_file_of_ours_is_touched(bait, work, as_root):
    with folder_in_memory() as folder:
        swap_at_every_call(bait, work, folder)


def swap_at_every_call(bait: str, work: str, folder: Path) -> None:
    job = {"write": write, "recover": recover}[work]

    def prepared(name: str) -> Path:
        shared = made(folder / name)
        if work == "recover":
            in_child(lambda: interrupted(shared))
        BAITS[bait](shared.parent / "bait", shared.parent / "ours")
        return shared

    counted = prepared("counted")
    total = number_of_calls(lambda: job(counted))
    swapped = 0
    for which in range(total):
        shared = prepared(str(which))
        before = belongings(shared.parent / ("bait" if bait == "private" else "ours"))
        in_child(lambda which=which, shared=shared: (swapping_at(which, shared)(), job(shared)))
        found = {inode: kept for inode, kept in belongings(shared.parent).items() if inode in before}
        assert found == before, which
        swapped += not (shared.parent / "bait").exists() or not same_kind(bait, shared.parent / "bait")
        shutil.rmtree(shared.parent)
    assert swapped > 20


def same_kind(bait: str, place: Path) -> bool:
    """Tell whether the bait still lies where it was, and not in the place of a staging directory."""
    return place.is_symlink() if bait == "link" else (place / "other").exists()
