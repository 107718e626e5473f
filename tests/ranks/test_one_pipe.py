"""A pipe is one rank, by however many names it is known."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("names", [["-", "/dev/stdin"], ["/dev/fd/0", "/dev/stdin"]])
def test_a_pipe_cannot_be_two_ranks(names: list[str]) -> None:
    """Blocks of both would alternate: the result would be wrong, with status 0."""
    command = [sys.executable, "-m", "mpired", "reduce", "--op", "sum", "--type", "double", "--count", "100000"]
    done = subprocess.run([*command, *names], input=bytes(1600000), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"is the same pipe as" in done.stderr


@pytest.mark.parametrize("words", ["reduce -k", "accumulate target"])
@pytest.mark.parametrize("again", ["fifo", "./fifo", "sub/../fifo", "link"])
def test_a_fifo_that_is_named_again_is_not_waited_for(words: str, again: str, tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    (tmp_path / "sub").mkdir()
    (tmp_path / "target").write_bytes(bytes(8))
    command = [sys.executable, "-m", "mpired", *words.split(), "--op", "sum", "--type", "double", "fifo", again]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"is the same pipe" in done.stderr
