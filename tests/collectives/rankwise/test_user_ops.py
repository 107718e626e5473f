"""User-defined ops in the commands whose results go to the ranks."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from command import refused, run, succeeded, unchanged
from rankwise import COUNT, NPY, NRANKS, numbers, prefix

OPS = """
import mpired

@mpired.op(commute=False, identity=0)
def minus(invec, inoutvec, count, datatype):
    inoutvec[:] = 2 * invec - inoutvec

def fails_late(lower, upper):
    if (lower == 7).any():
        raise ValueError("a seven")
    return lower + upper

def dies(lower, upper):
    import os
    os._exit(3)
"""


@pytest.fixture
def ops(folder: Path) -> Path:
    (folder / "ops.py").write_text(OPS)
    return folder


def minus(arrays: list[np.ndarray]) -> np.ndarray:
    return functools.reduce(lambda lower, upper: 2 * lower - upper, arrays)


@pytest.mark.parametrize("verb", ["scan", "exscan", "allreduce", "reduce-scatter-block"])
@pytest.mark.parametrize("form", ["npy", "parquet"])
def test_user_ops_keep_the_order(ops, verb, form):
    words = (verb, "-q", "--op", "ops.py:minus", *NPY, "-o", f"out_{{rank}}.{form}")
    succeeded(run(*words, cwd=ops))
    prefixes = [minus([numbers(each) for each in range(rank + 1)]) for rank in range(NRANKS)]
    expected = {
        "scan": prefixes,
        "exscan": [None, *prefixes[:-1]],
        "allreduce": [prefixes[-1]] * NRANKS,
        "reduce-scatter-block": list(prefixes[-1].reshape(NRANKS, -1)),
    }[verb]
    for rank, array in enumerate(expected):
        path = ops / f"out_{rank}.{form}"
        assert path.exists() == (array is not None)
        if array is not None:
            result = np.load(path) if form == "npy" else pq.read_table(path).column(0).to_numpy()
            assert result.tolist() == array.tolist()


def test_user_ops_say_their_neutral_element(ops):
    words = ("exscan", "-q", "--exscan-first", "identity", *NPY, "-o", "out_{rank}.npy")
    succeeded(run(*words, "--op", "ops.py:minus", cwd=ops))
    assert np.load(ops / "out_0.npy").tolist() == [0] * COUNT
    with unchanged(ops):
        refused(run(*words, "-f", "--op", "ops.py:fails_late", cwd=ops), 3, "neutral element", "identity=")


def test_a_user_op_that_fails_leaves_all_as_it_was(ops):
    np.save(ops / "r3.npy", np.full(COUNT, 7))
    np.save(ops / "r2.npy", np.full(COUNT, 7) - prefix(1))
    for op, reason in ("fails_late", "a seven"), ("dies", "status 3"):
        with unchanged(ops):
            refused(run("scan", "-q", "--op", f"ops.py:{op}", *NPY, "--in-place", cwd=ops), 7, reason)
            refused(run("scan", "-q", "--op", f"ops.py:{op}", *NPY, "-o", "out_{rank}.npy", cwd=ops), 7, reason)
