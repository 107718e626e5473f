"""What an update keeps of a file, and which protocol it takes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import NOBODY, become_nobody, refused, run, unchanged
from protocols import COMMITS
from updates import WORDS, add, value

from mpired.errors import ChangedError
from mpired.files import copying
from mpired.files.log import LogWriter


def test_a_target_that_was_replaced_before_the_commit(folder, monkeypatch):
    path, check = folder / "here" / "t.npy", LogWriter.check

    def replace(writer: LogWriter, shown: str) -> None:
        np.save(folder / "other.npy", np.full(500, 7.0))
        (folder / "other.npy").replace(path)
        check(writer, shown)

    monkeypatch.setattr(LogWriter, "check", replace)
    with pytest.raises(ChangedError, match="was replaced by another program"):
        add(folder, commit="journal")
    assert (value(folder), os.listdir(folder / "here")) == (7, ["t.npy"])


@pytest.mark.parametrize("commit", COMMITS)
def test_mode_owner_and_attributes(commit, as_root, folder):
    path = folder / "here" / "t.npy"
    os.chown(path, 12345, 23456)
    path.chmod(0o640)
    os.setxattr(path, "user.origin", b"detector 7")
    add(folder, commit=commit)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 23456, 0o640)
    assert os.getxattr(path, "user.origin") == b"detector 7"
    assert os.listdir(folder / "here") == ["t.npy"]


@pytest.mark.parametrize("commit", COMMITS)
def test_symbolic_link_stays(commit, folder):
    os.symlink("here/t.npy", folder / "link.npy")
    add(folder, "link.npy", commit=commit)
    assert (folder / "link.npy").is_symlink()
    assert value(folder) == 1
    assert os.listdir(folder / "here") == ["t.npy"]


def test_hard_links_stay_together(folder):
    os.link(folder / "here" / "t.npy", folder / "other.npy")
    add(folder)
    assert value(folder, "other.npy") == 1
    assert (folder / "other.npy").stat().st_nlink == 2
    outcome = run("accumulate", "--op", "sum", "--commit", "rename", "here/t.npy", "ones.npy", cwd=folder)
    assert "hard link" in outcome.err
    assert (value(folder), value(folder, "other.npy")) == (2, 1)


def test_inode_of_a_patched_target_stays(folder):
    before = (folder / "here" / "t.npy").stat().st_ino
    add(folder, commit="journal")
    assert (folder / "here" / "t.npy").stat().st_ino == before
    add(folder, commit="rename")
    assert (folder / "here" / "t.npy").stat().st_ino != before


# Which protocol


def protocol(folder: Path, nbytes: int, part: int, **changes: Callable[..., object]) -> str:
    """Return how a target of that size is changed in its first bytes."""
    path = folder / "big.bin"
    with open(path, "wb") as file:
        file.truncate(nbytes)
    (folder / "part.bin").write_bytes(bytes(part))
    words = ("accumulate", "--op", "sum", "--type", "int8_t", "--target-disp", "0", "--target-count", str(part))
    outcome = run(*words, "big.bin", "part.bin", cwd=folder, setup=lambda: [call() for call in changes.values()])
    assert outcome.status == 0, outcome.err
    return outcome.err.rpartition("(")[2].rstrip(")\n")


def _no_clone() -> None:
    copying.clone = lambda _source, _target: False


def _clone() -> None:
    copying.clone = lambda _source, _target: True


def test_auto_chooses_what_is_cheap_and_keeps_the_file(folder):
    mebibyte = 1 << 20
    assert protocol(folder, 64 * mebibyte, 100) == "rename"
    assert protocol(folder, 65 * mebibyte, 100, clone=_no_clone) == "journal"
    assert protocol(folder, 65 * mebibyte, 100, clone=_clone) == "rename"
    assert protocol(folder, 66 * mebibyte, 17 * mebibyte, clone=_no_clone) == "rename"


def test_a_foreign_owner_means_a_patch(as_root, open_folder):
    np.save(open_folder / "t.npy", np.zeros(5))
    np.save(open_folder / "ones.npy", np.ones(5))
    (open_folder / "t.npy").chmod(0o666)
    open_folder.chmod(0o777)
    words = ("accumulate", "--op", "sum", "t.npy", "ones.npy")
    outcome = run(*words, cwd=open_folder, setup=become_nobody)
    assert outcome.err.endswith("t.npy (journal)\n"), outcome.err
    os.chown(open_folder / "t.npy", NOBODY, NOBODY)
    assert run(*words, cwd=open_folder, setup=become_nobody).err.endswith("t.npy (rename)\n")


@pytest.mark.parametrize("commit", COMMITS)
def test_folder_that_cannot_be_written_to(commit, as_root, open_folder):
    np.save(open_folder / "t.npy", np.zeros(5))
    (open_folder / "t.npy").chmod(0o666)
    with unchanged(open_folder):
        words = ("accumulate", "--op", "sum", "--commit", commit, "t.npy", "t.npy")
        refused(run(*words, cwd=open_folder, setup=become_nobody), 4, "t.npy", "Permission denied")


@pytest.mark.parametrize("commit", COMMITS)
def test_full_disk(commit, mounted, folder):
    where = mounted("size=1m")
    (where / "t.bin").write_bytes(bytes(900 << 10))
    (folder / "o.bin").write_bytes(bytes(900 << 10))
    with unchanged(where):
        words = ("accumulate", "--op", "sum", "--type", "double", "--commit", commit, str(where / "t.bin"), "o.bin")
        refused(run(*words, cwd=folder), 4, str(where / "t.bin"), "No space left")


def test_full_disk_under_a_sparse_target(mounted, folder):
    """The holes that will be written to are filled before the commit, where that can still be refused."""
    where = mounted("size=1m")
    with open(where / "t.bin", "wb") as file:
        file.truncate(8 << 20)
    (folder / "o.bin").write_bytes(bytes(700 << 10))
    words = ("accumulate", "--op", "sum", "--type", "int8_t", "--target-disp", "0", "--commit", "journal")
    refused(run(*words, str(where / "t.bin"), "o.bin", cwd=folder), 4, str(where / "t.bin"), "No space left")
    assert os.listdir(where) == ["t.bin"]
    assert not any((where / "t.bin").read_bytes())


@pytest.mark.parametrize("commit", COMMITS)
def test_file_size_limit(commit, folder):
    import resource

    with unchanged(folder / "here"):
        words = (*WORDS, "--commit", commit)
        outcome = run(*words, cwd=folder, setup=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)))
        refused(outcome, 4, "here/t.npy", "File too large")
