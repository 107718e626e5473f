"""`--header copy`: raw results begin with what stands before the elements of a raw rank, as `head` and `cat` put it."""

from __future__ import annotations

import numpy as np
import pytest
from command import run
from rows import check_refusals

import mpired
from mpired.errors import UsageError

COPY = ("-q", "--op", "sum", "--type", ">i4", "--offset", "16", "--header", "copy")
RANKS = tuple(f"r{rank}.bin" for rank in range(3))


@pytest.fixture
def folder(tmp_path):
    for rank, name in enumerate(RANKS):
        array = (np.arange(6) * (rank + 1)).astype(">i4")
        (tmp_path / name).write_bytes(b"header of rank %d" % rank + array.tobytes())
    np.save(tmp_path / "r0.npy", np.arange(6, dtype=">i4"))
    return tmp_path


def headed(rank: int, last: int, part: slice = slice(None)) -> bytes:
    sums = sum(np.arange(6) * (each + 1) for each in range(last + 1))
    return b"header of rank %d" % rank + sums[part].astype(">i4").tobytes()


def test_a_stream_may_be_the_root(folder):
    outcome = run("reduce", *COPY, "-", *RANKS[1:], cwd=folder, stdin=(folder / "r0.bin").read_bytes())
    assert (outcome.status, outcome.out) == (0, headed(0, 2))


def test_refusals(folder):
    (folder / "ops.py").write_text("def first(invec, inoutvec): return invec\n")
    ranks, apart = " ".join(RANKS), "--type 'resized(0,4,vector(2,1,2,int))' --offset 16 --count 2"
    copy = f"reduce --op sum --type >i4 --offset 16 --header copy {ranks}"
    rows = [
        (f"{copy} -o out.npy", 2, "--header / is raw, and the result npy"),
        (f"{copy} --in-place", 2, "--header / --in-place"),
        ("reduce --op sum --header copy r0.npy -o out.bin", 2, "--header / r0.npy is npy, and the result raw"),
        ("reduce --op sum --header all r0.npy -o out.bin", 2, "--header"),
        (f"reduce --op sum --type >i4 --header copy {ranks} -o o.bin", 2, "--header / a header that --offset skips"),
        (f"reduce --op ops.py:first {apart} --header copy {ranks} -o o.bin", 2, "--header / its elements in one piece"),
    ]
    check_refusals(folder, rows)
    with pytest.raises(UsageError, match="`header`: is for files"):
        mpired.reduce([folder / "r0.bin"], "sum", type=">i4", offset=16, header="copy")
