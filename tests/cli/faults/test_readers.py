"""Readers of results and messages that go."""

from __future__ import annotations

import os
import subprocess

from command import COMMAND, shell, unchanged
from rows import each
from running import MEBIBYTE


@each("script, to", [('"$@" | head -c 10', "raw"), ('"$@" | :', "npy"), ('"$@" | head -c 10', "csv")])
def test_reader_that_goes(script, to, small_folder):
    words = ("reduce", "-q", "--op", "sum", "--type", "double", "small.bin", "--to", to)
    with unchanged(small_folder):
        outcome = shell(f"{script}; exit ${{PIPESTATUS[0]}}", *words, cwd=small_folder)
        assert (outcome.status, outcome.err) == (141, "")


@each("words", ["ops", "ops --json", "--help"])
def test_reader_that_goes_before_anything_is_printed(words, tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([COMMAND, *words.split()], stdout=write, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_messages_that_nobody_reads(small_folder):
    """The result is in place when the summary is written; a reader that is gone does not make that untrue."""
    read, write = os.pipe()
    os.close(read)
    words = [COMMAND, "reduce", "--op", "sum", "--type", "double", "small.bin", "-o", "new.bin"]
    done = subprocess.run(words, stderr=write, stdout=subprocess.PIPE, cwd=small_folder, check=False)
    os.close(write)
    assert (done.returncode, done.stdout) == (0, b"")
    assert (small_folder / "new.bin").read_bytes() == bytes(2 * MEBIBYTE)
