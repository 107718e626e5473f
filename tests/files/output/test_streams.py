"""Results for standard output, devices, FIFOs and descriptors, and the scratch files before them."""

from __future__ import annotations

import os
import select
import stat
import subprocess

import numpy as np
import pytest
from command import Child, reduce, shell, succeeded, unchanged
from one_result import NEW, OLD, WORDS
from rows import check_refusals

import mpired
from mpired.files.scratch import Scratch


def test_streams_that_take_nothing(folder):
    """What can fail does so before the first byte."""
    np.save(folder / "bad.npy", np.arange(4))
    check_refusals(
        folder,
        [
            (("reduce", "-q", "--op", "sum", "--type", "double", "rank.bin", "bad.npy"), 3, "bad.npy"),
            (("reduce", "-q", *WORDS, "-o", "/dev/full"), 4, "/dev/full", "No space left"),
            (("reduce", "-q", *WORDS, "-o", "/dev/fd/77"), 4, "/dev/fd/77"),
        ],
    )


def test_device_is_written_to(folder):
    before = os.stat("/dev/null")
    with unchanged(folder):
        assert reduce(*WORDS, "-o", "/dev/null", cwd=folder) == (0, b"", "")
    after = os.stat("/dev/null")
    assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)


def test_fifo_is_written_to(folder):
    os.mkfifo(folder / "fifo")
    with open(os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK), "rb") as fifo:
        succeeded(reduce(*WORDS, "-o", "fifo", cwd=folder))
        assert fifo.read() == NEW
    assert stat.S_ISFIFO((folder / "fifo").stat().st_mode)


def test_fifo_whose_reader_goes(folder):
    (folder / "large.bin").write_bytes(bytes(1 << 20))
    os.mkfifo(folder / "fifo")
    fifo = os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    child = Child("reduce", "-q", "--op", "sum", "--type", "double", "large.bin", "-o", "fifo", cwd=folder)
    assert select.select([fifo], [], [], 20)[0] == [fifo]
    os.close(fifo)
    assert child.finish() == (141, b"", "")


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ('"$@" > results/out', "/dev/stdout"),
        ('{ printf %s "$HEAD"; "$@"; } > results/out', "/proc/self/fd/1"),
        ('"$@" >> results/out', "/dev/fd/1"),
        ('"$@" >> results/out', "-"),
    ],
)
def test_redirected_standard_output_is_written_through(script, name, folder):
    """The shell's file is written to, after what is there; it is not replaced, and needs no --force."""
    out = folder / "results" / "out"
    inode = out.stat().st_ino
    outcome = shell(script, "reduce", "-q", *WORDS, "-o", name, cwd=folder, env=os.environ | {"HEAD": "head"})
    assert outcome == (0, b"", "")
    head = OLD if ">>" in script else b"head" if "HEAD" in script else b""
    assert (out.read_bytes(), out.stat().st_ino) == (head + NEW, inode)
    assert os.listdir(folder / "results") == ["out"]


def test_process_substitution(folder):
    script = '"$@" -o >(cat > copy; : > done); while [ ! -e done ]; do :; done'
    assert shell(script, "reduce", "-q", *WORDS, cwd=folder) == (0, b"", "")
    assert (folder / "copy").read_bytes() == NEW


def test_scratch_file_has_no_name_and_is_shared_by_path(kind, tmp_path):
    with Scratch(str(tmp_path)) as scratch:
        assert os.listdir(tmp_path) == []
        scratch.allocate(1000)
        with open(scratch.shared_path, "r+b") as other:
            other.write(NEW[:1000])
        assert os.pread(scratch.fd, 2000, 0) == NEW[:1000]
    assert not os.path.exists(scratch.shared_path)


def test_the_reader_of_a_fifo_gets_to_its_end(tmp_path):
    """While the program lives whose result that was."""
    np.save(tmp_path / "a.npy", np.arange(3.0))
    os.mkfifo(tmp_path / "fifo")
    with subprocess.Popen(["cat", tmp_path / "fifo"], stdout=subprocess.PIPE) as reader:
        mpired.reduce([tmp_path / "a.npy"], "sum", output=tmp_path / "fifo", to="raw")
        assert reader.communicate(timeout=60)[0] == np.arange(3.0).tobytes()
