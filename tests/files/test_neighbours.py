"""Somebody else who may rename in the output's directory: whatever takes the place of a log or a draft, and at
whichever call, no file outside of it is changed, removed, or given to anybody.
"""

import contextlib
import ctypes
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from command import in_child
from faults import Counter, kill, kill_half_way
from scenarios import NEW_FILE, OLD_FILE, SCENARIOS, make, updated, written
from values import folder_in_memory

from mpired.context import NO_LIMITS
from mpired.errors import MpiredError
from mpired.files import calls
from mpired.files.access import recover_for_reading

STRANGER = 4321
# The calls of the operating system that name something, and so can be led astray.
NAMING = ("link", "lstat", "open", "replace", "stat", "unlink")
RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> None:
    """Let two names change places in one step (renameat2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = -100  # AT_FDCWD
    if libc.renameat2(here, os.fsencode(one), here, os.fsencode(other), RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def forged(bait: Path, _ours: Path) -> None:
    """A file of the neighbour, of the size of a result."""
    bait.write_bytes(bytes(len(OLD_FILE)))
    os.chown(bait, STRANGER, STRANGER)


BAITS: dict[str, Callable[[Path, Path], None]] = {
    "link": lambda bait, ours: bait.symlink_to(ours),
    "second name": lambda bait, ours: bait.hardlink_to(ours),
    "forged": forged,
}

write = written("a/x", "b/y", patience=0.02)
patch = updated("a/x", commit="journal", lock_timeout=0.02)


def write_named(tree: Path) -> None:
    calls.open_unnamed = lambda _dirfd: None
    write(tree)


def recover(tree: Path) -> None:
    recover_for_reading(str(tree / "a/x"), NO_LIMITS)


def killed_set(tree: Path) -> None:
    os.replace = lambda *_, **__: kill()
    write(tree)


def killed_patch(tree: Path) -> None:
    kill_half_way()
    patch(tree)


# What is done, what was left before by another, and the names that change places.
JOBS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None] | None, tuple[str, ...]]] = {
    "write": (write, None, ("a/.x.mpired", "b/.y.mpired")),
    "recover a set": (recover, killed_set, ("a/.x.mpired-new", "b/.y.mpired")),
    "write with names": (write_named, None, ("a/.x.mpired", "b/.y.mpired-new")),
    "patch": (patch, None, ("a/.x.mpired",)),
    "recover a patch": (recover, killed_patch, ("a/.x.mpired",)),
}


def kept(*paths: Path) -> list[tuple[object, ...]]:
    """Return all that is to stay of our files."""
    statuses = [(path.read_bytes(), path.stat()) for path in paths]
    return [(data, stat.S_IMODE(each.st_mode), each.st_uid, each.st_gid) for data, each in statuses]


def swapping(number: int, name: Path, bait: Path, counter: Counter) -> None:
    """Put the bait in the place of a name just before the n-th call."""
    made, is_there = 0, os.access

    def watched(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **settings: object) -> object:
            nonlocal made
            made += 1
            counter.note(made)
            if made == number:
                (exchange if is_there(name, os.F_OK) else RENAME)(bait, name)
            return original(*arguments, **settings)

        return call

    for each in NAMING:
        setattr(os, each, watched(getattr(os, each)))


RENAME = os.rename


def swaps(job: str, bait: str, name: str, folder: Path) -> int:
    """Do a job once for each of its calls, with the bait from there on; return how many there were."""
    work, before, _ = JOBS[job]
    counter = Counter()
    for number in range(1, 1000):
        tree = folder / str(number) / "tree"
        make(tree, SCENARIOS["replaced in two folders"])
        for path in ("a", "b", "a/x", "b/y"):
            os.chown(tree / path, STRANGER, STRANGER)
        originals = [os.open(tree / path, os.O_RDONLY) for path in ("a/x", "b/y")]
        if before:
            with contextlib.suppress(AssertionError, OSError):
                in_child(lambda tree=tree: before(tree))
        ours = tree.parent / "ours"
        ours.write_bytes(b"ours")
        ours.chmod(0o600)
        BAITS[bait](tree.parent / "bait", ours)
        told = kept(ours)
        counter.clear()

        def run(number: int = number, tree: Path = tree) -> None:
            swapping(number, tree / name, tree.parent / "bait", counter)
            with contextlib.suppress(MpiredError, OSError):
                work(tree)

        in_child(run)
        made, _ = counter.read()
        assert kept(ours) == told, (job, bait, number)
        for each in originals:  # whatever has its name now
            assert os.pread(each, 1 << 20, 0) in {OLD_FILE, NEW_FILE} or before is killed_patch, (job, bait, number)
            os.close(each)
        shutil.rmtree(tree.parent)
        if made < number:
            return made
    raise AssertionError("the job does not end")


@pytest.mark.parametrize("bait", BAITS)
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.sampled(4)
def test_no_file_of_ours_is_touched(bait, job, as_root):
    for name in JOBS[job][2]:
        with folder_in_memory() as folder:
            assert swaps(job, bait, name, folder) > 8
