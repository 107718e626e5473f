"""A pipe is one rank, by however many names it is known."""

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
