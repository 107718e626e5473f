"""Mounts on which the locks of other machines are not seen: what is taken for dead there, and what is refused."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import refused, run, unchanged
from rows import check_refusals, each
from updates import hold

from mpired.files import mounts

RANKS = [f"r{rank}.npy" for rank in range(3)]
# The type, the options of the mount and of the file system, and whether locks of other machines are seen.
MOUNTS = [
    ("ext4", "rw,relatime", "rw", True),
    ("lustre", "rw", "rw,flock,lazystatfs", True),
    ("lustre", "rw", "rw,localflock", False),
    ("lustre", "rw", "rw,noflock", False),
    ("nfs4", "rw,relatime", "rw,vers=4.2,hard,proto=tcp,local_lock=none,addr=10.0.0.1", True),
    ("nfs4", "rw,relatime", "rw,vers=4.2,local_lock=all", False),
    ("nfs", "rw", "rw,vers=3,nolock,local_lock=all", False),
    ("nfs", "rw", "rw,vers=3,local_lock=posix", False),
    ("nfs", "rw", "rw,vers=3,local_lock=flock", True),  # ours are those of POSIX
    ("xfs", "rw", "rw,nolock,localflock", True),  # words of others
    ("cifs", "rw", "rw,vers=3.1.1", False),
    ("smb3", "rw", "rw", False),
    ("9p", "rw", "rw,access=client,trans=virtio", False),
    ("fuse.sshfs", "rw,nosuid", "rw,user_id=0", False),
    ("fuse.glusterfs", "rw", "rw", True),
    ("gpfs", "rw", "rw", True),
]


def line(folder: Path, kind: str, options: str, of_all: str) -> str:
    """A line of mountinfo, with the device of a folder."""
    device = os.stat(folder).st_dev
    place = f"{os.major(device)}:{os.minor(device)}"
    return f"36 35 {place} / /da\\040ta {options} shared:1 - {kind} server:/e\\040x {of_all}"


def mounted(folder: Path, kind: str = "lustre", of_all: str = "rw,localflock") -> Callable[[], None]:
    """Let a process find the folder mounted so."""

    def setup() -> None:
        original, text = mounts.lines, line(folder, kind, "rw", of_all)
        mounts.mount_of_device.cache_clear()
        mounts.lines = lambda path: [text] if path == "/proc/self/mountinfo" else original(path)

    return setup


@pytest.fixture(autouse=True)
def forgotten():
    yield
    mounts.mount_of_device.cache_clear()


@pytest.fixture
def here(tmp_path) -> Path:
    for rank, name in enumerate(RANKS):
        np.save(tmp_path / name, np.full(8, rank + 1.0))
    return tmp_path


def test_the_table_of_mounts(tmp_path, monkeypatch):
    fd, found = os.open(tmp_path, os.O_RDONLY), []
    for kind, options, of_all, _ in MOUNTS:
        lines = ["22 1 0:9 / /other rw - lustre a@b:/x rw,localflock", line(tmp_path, kind, options, of_all)]
        monkeypatch.setattr(mounts, "lines", lambda _path, lines=lines: lines)
        mounts.mount_of_device.cache_clear()
        assert mounts.mount_of_device(os.fstat(fd).st_dev)[0] == kind
        found.append((kind, options, of_all, mounts.obstacle(fd) is None))
    os.close(fd)
    assert found == MOUNTS


UPDATES = [
    "accumulate --op sum r0.npy r1.npy",
    "accumulate --op sum --create new.npy r1.npy",
    "get-accumulate --op sum r0.npy r1.npy",
    "fetch-and-op --op sum r0.npy 1",
    "compare-and-swap r0.npy 1 2",
    "scan --op sum r0.npy r1.npy r2.npy --in-place",
    "reduce --op sum r0.npy r1.npy r2.npy --in-place --root 0",
    "reduce-local --op sum r0.npy r1.npy",
]


def test_an_update_is_refused(here):
    reasons = "does not show the locks of other machines, so no update is safe", "copy the file elsewhere"
    cases = [(words, 5, *reasons) for words in (*UPDATES, *(f"{words} --dry-run" for words in UPDATES))]
    check_refusals(here, cases, setup=mounted(here))
    hint = "r0.npy: its file system (lustre with `localflock`)", "mount it with `-o flock`, or copy"
    check_refusals(here, [(UPDATES[0], 5, *hint)], setup=mounted(here))
    for mount in (("nfs", "rw,nolock,local_lock=all"), ("9p", "rw")):
        check_refusals(here, [(UPDATES[0], 5, *reasons)], setup=mounted(here, *mount))


WRITING = ("reduce", "-f", "--op", "sum", *RANKS[1:], "-o", "r0.npy", "--lock-timeout", "0.1")


@each("ending, words", [("mpired", ("info", "r0.npy")), ("mpired-new", WRITING)])
def test_a_log_and_a_draft_wait_for_recover(ending, words, here):
    left = here / f".r0.npy.{ending}"
    left.touch()
    with unchanged(here):
        refused(run(*words, cwd=here, setup=mounted(here)), 5, "r0.npy", "`mpired recover`")
        held = hold(left)  # which a command of this machine has
        recovered = run("recover", "r0.npy", "--lock-timeout", "0", cwd=here, setup=mounted(here))
        assert recovered.status == (5 if ending == "mpired" else 0)
        os.close(held)
    assert run("recover", "r0.npy", cwd=here, setup=mounted(here)).status == 0
    assert not left.exists()
    assert run(*words, cwd=here, setup=mounted(here)).status == 0
