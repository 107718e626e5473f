"""Results for standard output, devices, FIFOs and descriptors, and the scratch files before them."""

from __future__ import annotations

import os
import select
import stat
import subprocess

import numpy as np
import pytest
from command import Child, reduce, refused, shell, succeeded, unchanged
from one_result import NEW, OLD, WORDS, write

import mpired
from mpired.errors import OutputExistsError
from mpired.files.scratch import Scratch
from mpired.files.transaction import Draft


def test_standard_output_is_written_at_the_end(folder):
    """What can fail does so before the first byte."""
    np.save(folder / "bad.npy", np.arange(4))
    outcome = reduce("--op", "sum", "--type", "double", "rank.bin", "bad.npy", cwd=folder)
    refused(outcome, 3, "bad.npy")


@pytest.mark.parametrize("name", ["/dev/null", "/dev/zero"])
def test_device_is_written_to(name, folder):
    before = os.stat(name)
    with unchanged(folder):
        assert reduce(*WORDS, "-o", name, cwd=folder) == (0, b"", "")
    after = os.stat(name)
    assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)


def test_full_device(folder):
    with unchanged(folder):
        refused(reduce(*WORDS, "-o", "/dev/full", cwd=folder), 4, "/dev/full", "No space left")


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


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "-"])
@pytest.mark.parametrize(
    "script", ['"$@" > results/out', '{ printf %s "$HEAD"; "$@"; } > results/out', '"$@" >> results/out']
)
def test_redirected_standard_output_is_written_through(name, script, folder):
    """The shell's file is written to, after what is there; it is not replaced, and needs no --force."""
    out = folder / "results" / "out"
    inode = out.stat().st_ino
    outcome = shell(script, "reduce", "-q", *WORDS, "-o", name, cwd=folder, env=os.environ | {"HEAD": "head"})
    assert outcome == (0, b"", "")
    head = OLD if ">>" in script else b"head" if "HEAD" in script else b""
    assert out.read_bytes() == head + NEW
    assert out.stat().st_ino == inode
    assert os.listdir(folder / "results") == ["out"]


def test_process_substitution(folder):
    outcome = shell(
        '"$@" -o >(cat > copy; : > done); while [ ! -e done ]; do :; done', "reduce", "-q", *WORDS, cwd=folder
    )
    assert outcome == (0, b"", "")
    assert (folder / "copy").read_bytes() == NEW


def test_descriptor_that_is_not_open(folder):
    with unchanged(folder):
        refused(reduce(*WORDS, "-o", "/dev/fd/77", cwd=folder), 4, "/dev/fd/77")


# Scratch files


def test_scratch_file_has_no_name_and_is_shared_by_path(kind, tmp_path):
    with Scratch(str(tmp_path)) as scratch:
        assert os.listdir(tmp_path) == []
        scratch.allocate(1000)
        with open(scratch.shared_path, "r+b") as other:
            other.write(NEW[:1000])
        assert os.pread(scratch.fd, 2000, 0) == NEW[:1000]
    assert not os.path.exists(scratch.shared_path)


def test_output_is_closed_however_it_ends(kind, folder):
    before = os.listdir("/proc/self/fd")
    write(folder / "results" / "out", overwrite=True)
    write(folder / "results" / "new")
    with pytest.raises(OutputExistsError):
        Draft(str(folder / "results" / "new"))
    with pytest.raises(OSError, match="missing"):
        Draft(str(folder / "missing" / "new"))
    assert os.listdir("/proc/self/fd") == before


def test_the_reader_of_a_fifo_gets_to_its_end(tmp_path):
    """While the program lives whose result that was."""
    np.save(tmp_path / "a.npy", np.arange(3.0))
    os.mkfifo(tmp_path / "fifo")
    with subprocess.Popen(["cat", tmp_path / "fifo"], stdout=subprocess.PIPE) as reader:
        mpired.reduce([tmp_path / "a.npy"], "sum", output=tmp_path / "fifo", to="raw")
        assert reader.communicate(timeout=60)[0] == np.arange(3.0).tobytes()
