"""What an update keeps of a file, and which protocol it takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import NOBODY, become_nobody, run
from protocols import COMMITS
from rows import check_refusals
from updates import add, value

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


def protocol(folder: Path, nbytes: int, part: int, setup: Callable[[], None] = lambda: None) -> str:
    """Return how a target of that size is changed in its first bytes."""
    with open(folder / "big.bin", "wb") as file:
        file.truncate(nbytes)
    (folder / "part.bin").write_bytes(bytes(part))
    words = ("accumulate", "--op", "sum", "--type", "int8_t", "--target-disp", "0", "--target-count", str(part))
    outcome = run(*words, "big.bin", "part.bin", cwd=folder, setup=setup)
    assert outcome.status == 0, outcome.err
    return outcome.err.rpartition("(")[2].rstrip(")\n")


def test_auto_chooses_what_is_cheap_and_keeps_the_file(folder):
    def clones(*, answer: bool) -> Callable[[], None]:
        return lambda: setattr(copying, "clone", lambda _source, _target: answer)

    mebibyte = 1 << 20
    assert protocol(folder, 64 * mebibyte, 100) == "rename"
    assert protocol(folder, 65 * mebibyte, 100, clones(answer=False)) == "journal"
    assert protocol(folder, 65 * mebibyte, 100, clones(answer=True)) == "rename"
    assert protocol(folder, 66 * mebibyte, 17 * mebibyte, clones(answer=False)) == "rename"


def test_a_foreign_owner_means_a_patch(as_root, open_folder):
    np.save(open_folder / "t.npy", np.zeros(5))
    np.save(open_folder / "ones.npy", np.ones(5))
    (open_folder / "t.npy").chmod(0o666)
    words = ("accumulate", "--op", "sum", "t.npy", "ones.npy")
    for commit in COMMITS:  # a folder that cannot be written to
        refusal = ((*words, "--commit", commit), 4, "t.npy", "Permission denied")
        check_refusals(open_folder, [refusal], setup=become_nobody)
    open_folder.chmod(0o777)
    outcome = run(*words, cwd=open_folder, setup=become_nobody)
    assert outcome.err.endswith("t.npy (journal)\n"), outcome.err
    os.chown(open_folder / "t.npy", NOBODY, NOBODY)
    assert run(*words, cwd=open_folder, setup=become_nobody).err.endswith("t.npy (rename)\n")


def test_full_disk(mounted, folder):
    """Of a sparse target the holes that will be written to are filled before the commit, where that can be refused."""
    where = mounted("size=1m")
    words = ("accumulate", "--op", "sum", "--type", "int8_t", "--target-disp", "0")
    (where / "t.bin").write_bytes(bytes(900 << 10))
    (folder / "o.bin").write_bytes(bytes(900 << 10))
    target = str(where / "t.bin")
    no_room = [((*words, "--commit", commit, target, "o.bin"), 4, target, "No space left") for commit in COMMITS]
    check_refusals(folder, no_room)
    (where / "t.bin").unlink()
    with open(where / "t.bin", "wb") as file:
        file.truncate(8 << 20)
    (folder / "o.bin").write_bytes(bytes(700 << 10))
    check_refusals(folder, [((*words, "--commit", "journal", target, "o.bin"), 4, target, "No space left")])
    assert not any((where / "t.bin").read_bytes())
    for rank in range(6):
        np.zeros(1 << 15).tofile(folder / f"r{rank}.bin")
    words = ("scan", "-f", "--op", "sum", "--type", "double", *(f"r{rank}.bin" for rank in range(6)))
    check_refusals(folder, [((*words, "-o", f"{where}/out_{{rank}}"), 4, "No space left", "out_")])
    assert os.listdir(where) == ["t.bin"]
