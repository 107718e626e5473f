"""Outputs that cannot be, rights, full disks, and what a replaced file keeps."""

from __future__ import annotations

import os
import resource
import stat
import subprocess

import numpy as np
import pytest
from bad_files import DATA, THREE, furnish
from command import become_nobody, reduce, refused, succeeded, unchanged
from rows import check_refused, each

SUM = ("reduce", "-q", "--op", "sum", "good.npy")


def test_links_as_outputs(folder):
    os.symlink("nowhere.npy", folder / "dangling")
    os.symlink("loop", folder / "loop")
    check_refused(folder, (*SUM, "-o", "loop", "-f"), 4, "loop", "symbolic links")
    check_refused(folder, ("reduce", "--op", "sum", "loop", "-o", "out", "-f"), 4, "loop", "symbolic links")
    assert reduce("--op", "sum", "good.npy", "-o", "/dev/null", cwd=folder) == (0, b"", "")
    succeeded(reduce("--op", "sum", "good.npy", "-o", "dangling", cwd=folder))
    assert (folder / "dangling").is_symlink()
    np.testing.assert_array_equal(np.load(folder / "nowhere.npy"), THREE)


def test_input_without_permission(as_root, open_folder):
    (furnish(open_folder) / "good.npy").chmod(0)
    open_folder.chmod(0o777)
    check_refused(open_folder, (*SUM, "-o", "new"), 4, "good.npy", "Permission denied", setup=become_nobody)


def test_output_without_permission_is_replaced_where_the_folder_allows(as_root, open_folder):
    """As with any program that writes beside and renames: the folder decides; in one like /tmp the owner does."""
    (furnish(open_folder) / "out").chmod(0o444)
    open_folder.chmod(0o1777)
    check_refused(open_folder, (*SUM, "-o", "out", "-f"), 4, "out", "not permitted", setup=become_nobody)
    open_folder.chmod(0o777)
    words = ("--op", "sum", "good.npy", "--to", "raw", "-o", "out", "-f")
    succeeded(reduce(*words, cwd=open_folder, setup=become_nobody))
    assert (open_folder / "out").read_bytes() == DATA
    status = (open_folder / "out").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o444, 65534)


def test_read_only_file_system(mounted):
    where = mounted("size=1m")
    furnish(where)
    subprocess.run(["mount", "-o", "remount,ro", where], check=True)
    check_refused(where, (*SUM, "-o", "new"), 4, "new", "Read-only")
    check_refused(where, (*SUM, "good.npy", "--in-place"), 4, "good.npy", "Read-only")


@each("words, name", [(("-o", "new"), "new"), (("-o", "out", "-f"), "out"), (("--in-place",), "good.npy")])
def test_folder_that_cannot_be_written_to(words, name, as_root, open_folder):
    furnish(open_folder)
    check_refused(open_folder, (*SUM, "good.npy", *words), 4, "Permission denied", name, setup=become_nobody)


@each("count", [8_000, 100_000])
@each("to", ["npy", "parquet", "arrow", "csv"])
def test_file_size_limit(to, count, folder):
    """Of the result, for which 64000 bytes of elements still fit but not what a format adds, and of what is before."""
    np.save(folder / "large.npy", np.random.default_rng(1).random(count) + 1e-300)

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64_000, 64_000))

    with unchanged(folder):
        words = ("--op", "sum", "large.npy", "large.npy", "--to", to, "-o", "out", "-f")
        outcome = reduce(*words, cwd=folder, setup=small_files)
        refused(outcome, 4, "File too large")
        assert outcome.err.startswith(("mpired: out: ", f"mpired: {folder}: "))


@pytest.mark.parametrize("count", [131_000, 300_000], ids=["the result", "the intermediate result"])
def test_full_disk(count, mounted, folder):
    where = mounted("size=1m")
    np.save(folder / "large.npy", np.random.default_rng(1).random(count))
    (where / "out").write_bytes(b"the old result")
    for to in ("npy", "parquet", "arrow", "json"):
        with unchanged(where):
            words = ("--op", "sum", str(folder / "large.npy"), "--to", to, "-o", "out", "-f")
            outcome = reduce(*words, cwd=where)
            refused(outcome, 4, "No space left")
            assert outcome.err.startswith(("mpired: out: ", f"mpired: {where}: ")), to


def test_mode_of_results(folder):
    """A new file has that of any new file, one that is replaced keeps its own and its attributes."""
    for to in ("raw", "npy", "parquet", "csv"):
        words = ("--op", "sum", "good.npy", "--to", to, "-o", f"new.{to}")
        succeeded(reduce(*words, cwd=folder, setup=lambda: os.umask(0o027)))
        assert stat.S_IMODE((folder / f"new.{to}").stat().st_mode) == 0o640, to
    out = folder / "out"
    os.setxattr(out, "user.origin", b"run 7")
    out.chmod(0o604)
    succeeded(reduce("--op", "sum", "good.npy", "--to", "raw", "-o", "out", "-f", cwd=folder))
    assert (out.read_bytes(), stat.S_IMODE(out.stat().st_mode)) == (DATA, 0o604)
    assert os.getxattr(out, "user.origin") == b"run 7"


def test_group_of_the_folder(as_root, open_folder):
    furnish(open_folder)
    os.chown(open_folder, -1, 12345)
    open_folder.chmod(0o2777)
    os.chown(open_folder / "out", -1, 23456)
    for words in (("-o", "new"), ("-o", "out", "-f")):
        succeeded(reduce("--op", "sum", "good.npy", *words, cwd=open_folder))
    assert (open_folder / "new").stat().st_gid == 12345
    assert (open_folder / "out").stat().st_gid == 23456
