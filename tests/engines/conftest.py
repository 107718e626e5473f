"""Ranks in the working directory, and the ops of the tests of engines."""

from pathlib import Path

import numpy as np
import pytest

NRANKS, COUNT = 4, 20_000
OPS = """
import os, signal, time
def path(name):
    return os.path.join(os.path.dirname(__file__), name)
def add(invec, inoutvec):
    return invec + inoutvec
def refuse(invec, inoutvec):
    raise ValueError("no")
def touch(invec, inoutvec):
    os.utime(path("r3.npy"), ns=(0, 1))
    return invec + inoutvec
def slow(invec, inoutvec):
    time.sleep(0.06)
    return invec + inoutvec
def sign(invec, inoutvec):
    open(path(f"in_it.{os.getpid()}"), "w").close()
    return invec + inoutvec
def all_wait(invec, inoutvec):
    open(path(f"in_it.{os.getpid()}"), "x").close()
    time.sleep(100)
def first_waits(invec, inoutvec):
    try:
        with open(path("in_it"), "x") as file:
            file.write(f"{os.getpid()}\\n")
    except FileExistsError:
        return invec + inoutvec
    time.sleep(100)
def one_refuses(invec, inoutvec):
    try:
        os.close(os.open(path("first"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        while not os.path.exists(path("in_it")):
            time.sleep(0.01)
        raise ValueError("no")
    open(path("in_it"), "x").close()
    time.sleep(100)
def end(invec, inoutvec):
    os.kill(os.getpid(), signal.SIGSEGV)
def prints(invec, inoutvec):
    print("in an op")
    return sign(invec, inoutvec)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four ranks r0.npy to r3.npy, whose sum shows the order of the additions, and ops.py."""
    monkeypatch.chdir(tmp_path)
    for rank in range(NRANKS):
        np.save(f"r{rank}.npy", np.random.default_rng(rank).standard_normal(COUNT) * 10.0 ** (3 * rank))
    Path("ops.py").write_text(OPS)
    return tmp_path
