"""Outputs that cannot be, rights, full disks, and what a replaced file keeps."""

from __future__ import annotations

import os
import resource
import socket
import stat
import subprocess

import numpy as np
import pytest
from bad_files import DATA, THREE, covers, furnish
from command import become_nobody, reduce, refused, succeeded, unchanged


@covers(75)
def test_outputs_that_are_no_files(folder):
    os.symlink("nowhere.npy", folder / "dangling")
    os.symlink("loop", folder / "loop")
    with unchanged(folder):
        refused(reduce("--op", "sum", "good.npy", "-o", "loop", "-f", cwd=folder), 4, "loop", "symbolic links")
        refused(reduce("--op", "sum", "loop", "-o", "out", "-f", cwd=folder), 4, "loop", "symbolic links")
        assert reduce("--op", "sum", "good.npy", "-o", "/dev/null", cwd=folder) == (0, b"", "")
    succeeded(reduce("--op", "sum", "good.npy", "-o", "dangling", cwd=folder))
    assert (folder / "dangling").is_symlink()
    np.testing.assert_array_equal(np.load(folder / "nowhere.npy"), THREE)


@covers(75)
def test_output_to_a_socket(folder):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        with unchanged(folder):
            refused(reduce("--op", "sum", "good.npy", "-o", "socket", "-f", cwd=folder), 4, "socket")


@covers(75)
def test_output_to_a_fifo(folder):
    os.mkfifo(folder / "fifo")
    with open(os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK), "rb") as fifo:
        succeeded(reduce("--op", "sum", "good.npy", "--to", "raw", "-o", "fifo", cwd=folder))
        assert fifo.read() == DATA
    assert stat.S_ISFIFO((folder / "fifo").stat().st_mode)


@covers(76)
def test_input_without_permission(as_root, open_folder):
    (furnish(open_folder) / "good.npy").chmod(0)
    open_folder.chmod(0o777)
    with unchanged(open_folder):
        words = ("--op", "sum", "good.npy", "-o", "new", "-f")
        outcome = reduce(*words, cwd=open_folder, setup=become_nobody)
        refused(outcome, 4, "good.npy", "Permission denied")


@covers(76)
def test_output_without_permission_is_replaced_where_the_folder_allows(as_root, open_folder):
    """As with any program that writes beside and renames: the folder decides."""
    (furnish(open_folder) / "out").chmod(0o444)
    open_folder.chmod(0o777)
    words = ("--op", "sum", "good.npy", "--to", "raw", "-o", "out", "-f")
    succeeded(reduce(*words, cwd=open_folder, setup=become_nobody))
    assert (open_folder / "out").read_bytes() == DATA
    status = (open_folder / "out").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o444, 65534)


@covers(76)
def test_sticky_folder(as_root, open_folder):
    """In a folder like /tmp nobody replaces the file of somebody else."""
    furnish(open_folder).chmod(0o1777)
    with unchanged(open_folder):
        words = ("--op", "sum", "good.npy", "-o", "out", "-f")
        refused(reduce(*words, cwd=open_folder, setup=become_nobody), 4, "out", "not permitted")


@covers(76)
def test_read_only_file_system(mounted):
    where = mounted("size=1m")
    furnish(where)
    subprocess.run(["mount", "-o", "remount,ro", where], check=True)
    with unchanged(where):
        refused(reduce("--op", "sum", "good.npy", "-o", "new", cwd=where), 4, "new", "Read-only")
        refused(reduce("--op", "sum", "good.npy", "good.npy", "--in-place", cwd=where), 4, "good.npy", "Read-only")


@covers(77)
@pytest.mark.parametrize("words", [("-o", "new"), ("-o", "out", "-f"), ("--in-place",)])
def test_folder_that_cannot_be_written_to(words, as_root, open_folder):
    furnish(open_folder)
    with unchanged(open_folder):
        outcome = reduce("--op", "sum", "good.npy", "good.npy", *words, cwd=open_folder, setup=become_nobody)
        refused(outcome, 4, "Permission denied", "good.npy" if words == ("--in-place",) else words[1])


@covers(78)
@pytest.mark.parametrize("count", [8_000, 100_000], ids=["the result", "the intermediate result"])
@pytest.mark.parametrize("to", ["npy", "parquet", "arrow", "csv"])
def test_file_size_limit(to, count, folder):
    """64000 bytes of elements still fit, but not with what each format adds."""
    np.save(folder / "large.npy", np.random.default_rng(1).random(count) + 1e-300)

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64_000, 64_000))

    with unchanged(folder):
        words = ("--op", "sum", "large.npy", "large.npy", "--to", to, "-o", "out", "-f")
        outcome = reduce(*words, cwd=folder, setup=small_files)
        refused(outcome, 4, "File too large")
        assert outcome.err.startswith(("mpired: out: ", f"mpired: {folder}: "))


@covers(78)
@pytest.mark.parametrize("count", [131_000, 300_000], ids=["the result", "the intermediate result"])
@pytest.mark.parametrize("to", ["npy", "parquet", "arrow", "json"])
def test_full_disk(to, count, mounted, folder):
    where = mounted("size=1m")
    np.save(folder / "large.npy", np.random.default_rng(1).random(count))
    (where / "out").write_bytes(b"the old result")
    with unchanged(where):
        words = ("--op", "sum", str(folder / "large.npy"), "--to", to, "-o", "out", "-f")
        outcome = reduce(*words, cwd=where)
        refused(outcome, 4, "No space left")
        assert outcome.err.startswith(("mpired: out: ", f"mpired: {where}: "))


@covers(81)
@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o000, 0o666)])
def test_mode_of_a_new_file(umask, mode, folder):
    for to in ("raw", "npy", "parquet", "csv"):
        name = f"new.{to}"
        words = ("--op", "sum", "good.npy", "--to", to, "-o", name)
        succeeded(reduce(*words, cwd=folder, setup=lambda: os.umask(umask)))
        assert stat.S_IMODE((folder / name).stat().st_mode) == mode


@covers(81)
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755, 0o666])
def test_mode_and_attributes_of_an_existing_file(mode, folder):
    out = folder / "out"
    os.setxattr(out, "user.origin", b"run 7")
    out.chmod(mode)
    os.utime(out, ns=(2**62, 2**62))
    succeeded(reduce("--op", "sum", "good.npy", "--to", "raw", "-o", "out", "-f", cwd=folder))
    assert out.read_bytes() == DATA
    assert stat.S_IMODE(out.stat().st_mode) == mode
    assert os.getxattr(out, "user.origin") == b"run 7"


@covers(81)
def test_group_of_the_folder(as_root, open_folder):
    furnish(open_folder)
    os.chown(open_folder, -1, 12345)
    open_folder.chmod(0o2777)
    os.chown(open_folder / "out", -1, 23456)
    for words in (("-o", "new"), ("-o", "out", "-f")):
        succeeded(reduce("--op", "sum", "good.npy", *words, cwd=open_folder))
    assert (open_folder / "new").stat().st_gid == 12345
    assert (open_folder / "out").stat().st_gid == 23456
