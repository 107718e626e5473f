"""What the one-sided calls refuse, without a byte written."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest
from command import refused, run, unchanged

HUGE = str(2**63 - 1)
TWO = "vector(2,1,4,double)"


@pytest.mark.parametrize(
    ("rank", "reason"),
    [
        *((rank, "is not a rank") for rank in ("3", "1", "-1")),
        *((rank, "write one such as 12") for rank in "\u0660\xb3"),
    ],
)
@pytest.mark.parametrize("words", [("fetch-and-op", "--op", "sum", "t.npy", "1"),
                                   ("compare-and-swap", "t.npy", "0", "1"),
                                   ("get-accumulate", "--op", "no_op", "t.npy")])  # fmt: skip
def test_a_target_rank_that_is_none(words, rank, reason, tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3, np.int32))
    with unchanged(tmp_path):
        refused(run(*words, "--target-rank", rank, cwd=tmp_path), 2, "--target-rank", reason)


@pytest.mark.parametrize(
    ("text", "target", "origin"),
    [
        (
            "contiguous(1000000,vector(1000000,1,2,double))",
            "outside of the window of 800 bytes",
            "but it has 800 bytes",
        ),
        ("hvector(1000000,1000000,-8,double)", "from byte -", "from byte -"),
        ("hvector(1000000000,1,0,contiguous(100,double))", "overlap", None),
    ],
)
def test_types_of_very_many_elements_are_refused_before_they_are_laid_out(text, target, origin, tmp_path):
    for name in ("t.bin", "o.bin"):
        (tmp_path / name).write_bytes(bytes(800))

    def limit():
        pages = int(Path("/proc/self/statm").read_text().split()[0])  # the tests' own process has much already
        allowed = pages * resource.getpagesize() + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))

    words = ("accumulate", "--op", "sum", "--type", "double")
    with unchanged(tmp_path):
        outcome = run(*words, "--target-type", text, "t.bin", "o.bin", cwd=tmp_path, setup=limit)
        refused(outcome, 3, "t.bin: ", target)
        if origin:
            outcome = run(*words, "--origin-type", text, "t.bin", "o.bin", cwd=tmp_path, setup=limit)
            refused(outcome, 3, "o.bin: ", origin)


def _case(*words: str, status: int, reason: str):
    return pytest.param(words, status, reason, id=" ".join(words))


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        _case("--op", "sum", status=2, reason="TARGET"),
        _case("--op", "sum", "t.npy", status=2, reason="ORIGIN"),
        _case("--op", "nope", "t.npy", "o.npy", status=2, reason="is not an MPI op"),
        _case("--op", "no_op", "t.npy", "o.npy", status=3, reason="fetch only"),
        _case("--op", "./f.py:g", "t.npy", "o.npy", status=3, reason="user-defined"),
        _case("--op", "quantile:0.5", "t.npy", "o.npy", status=3, reason="quantile: is for reductions only"),
        _case("--op", "band", "t.npy", "o.npy", status=3, reason="is not defined for MPI_DOUBLE"),
        _case("--op", "sum", "t.npy", "int.npy", status=3, reason="MPI_INT32_T"),
        _case("--op", "sum", "t.npy", "o.npy", status=3, reason="has 3 elements, but the target has 12"),
        _case("--op", "sum", "t.npy", "shape.npy", status=3, reason="shape (4, 3)"),
        _case("--op", "sum", "--disp-unit", "1", "--target-disp", "73", "t.npy", "o.npy", status=3,
              reason="from byte 73 to 97, outside of the window of 96 bytes"),
        _case("--op", "sum", "--target-disp", "10", "t.npy", "o.npy", status=3, reason="outside of the window"),
        _case("--op", "sum", "--target-disp", "-1", "t.npy", "o.npy", status=3, reason="is negative"),
        _case("--op", "sum", "--target-disp", "99999999999999999999", "t.npy", "o.npy", status=3, reason="window"),
        _case("--op", "sum", "--target-disp", HUGE, "t.npy", "o.npy", status=3, reason="window"),
        _case("--op", "sum", "--disp-unit", "1", "--target-disp", HUGE, "t.npy", "o.npy", status=3, reason="window"),
        _case("--op", "sum", "--target-type", TWO, "--target-count", "9999999", "t.npy", "o.npy", status=3, reason="3"),
        _case("--op", "sum", "--disp-unit", "0", "t.npy", "o.npy", status=2, reason="--disp-unit"),
        _case("--op", "sum", "--offset", "8", "t.npy", "o.npy", status=2, reason="--offset"),
        _case("--op", "sum", "--target-count", "2", "t.npy", "o.npy", status=3, reason="3 elements for 2"),
        _case("--op", "sum", "--target-count", "-2", "t.npy", "o.npy", status=3, reason="negative"),
        _case("--op", "sum", "--origin-disp", "2", "--origin-count", "2", "t.npy", "o.npy", status=3, reason="fewer"),
        _case("--op", "sum", "--target-type", "vector(3,1,0,double)", "t.npy", "o.npy", status=3, reason="overlap"),
        _case("--op", "sum", "--target-type", "int", "t.npy", "o.npy", status=3, reason="MPI_INT"),
        _case("--op", "sum", "--type", "long", "--origin-type", "int64_t", "t.npy", "o.npy", status=3, reason="same"),
        _case("--op", "sum", "--at", "5,0:3", "t.npy", "o.npy", status=3, reason="out of bounds"),
        _case("--op", "sum", "--at", "0,0:9", "t.npy", "o.npy", status=3, reason="out of bounds"),
        _case("--op", "sum", "--at", "0,a", "t.npy", "o.npy", status=2, reason="not an index"),
        _case("--op", "sum", "--at", "0,0,0", "t.npy", "o.npy", status=2, reason="3 indices"),
        _case("--op", "sum", "--at", "0", "--target-disp", "1", "t.npy", "o.npy", status=2, reason="choose one"),
        _case("--op", "sum", "--map", "bad.npy", "t.npy", "o.npy", status=3, reason="entry 1 is 12"),
        _case("--op", "sum", "--map", "o.npy", "t.npy", "o.npy", status=3, reason="integers"),
        _case("--op", "sum", "--map", "long.npy", "t.npy", "o.npy", status=3, reason="3 elements for 4"),
        _case("--op", "sum", "--lock-timeout", "-1", "t.npy", "o.npy", status=2, reason="--lock-timeout"),
        _case("--op", "sum", "--target-disp", "\u0661", "t.npy", "o.npy", status=2, reason="--target-disp"),
        _case("--op", "sum", "--target-count", "1_0", "t.npy", "o.npy", status=2, reason="--target-count"),
        _case("--op", "sum", "--lock-timeout", "\u0661", "t.npy", "o.npy", status=2, reason="--lock-timeout"),
        _case("--op", "sum", "--at", "\u0661", "t.npy", "o.npy", status=2, reason="--at"),
        _case("--op", "sum", "--create", "\u0661", "new.npy", "o.npy", status=2, reason="--create"),
        _case("--op", "sum", "--lock-timeout", "nan", "t.npy", "o.npy", status=2, reason="--lock-timeout"),
        _case("--op", "sum", "missing.npy", "o.npy", status=4, reason="missing.npy"),
        _case("--op", "sum", "t.npy", "missing.npy", status=4, reason="missing.npy"),
        _case("--op", "sum", "folder", "o.npy", status=4, reason="folder"),
        _case("--op", "sum", "fifo", "o.npy", status=4, reason="regular"),
        _case("--op", "sum", "/dev/null", "o.npy", status=4, reason="regular"),
        _case("--op", "sum", "t.bin", "o.npy", status=2, reason="--type"),
        _case("--op", "sum", "cut.npy", "o.npy", status=3, reason="not a valid npy"),
        _case("--op", "sum", "dangling.npy", "o.npy", status=4, reason="dangling.npy"),
        _case("--op", "sum", "loop.npy", "o.npy", status=4, reason="loop.npy"),
        _case("--op", "sum", "--commit", "direct", "t.npy", "o.npy", status=2, reason="--commit"),
        _case("--op", "sum", "--durability", "some", "t.npy", "o.npy", status=2, reason="--durability"),
        _case("--op", "sum", "--target-rank", "1", "t.npy", "o.npy", status=2, reason="--target-rank"),
    ],
)  # fmt: skip
def test_refusals(words, status, reason, tmp_path):
    np.save(tmp_path / "t.npy", np.arange(12.0).reshape(3, 4))
    np.save(tmp_path / "o.npy", np.ones(3))
    np.save(tmp_path / "int.npy", np.ones(12, np.int32))
    np.save(tmp_path / "shape.npy", np.ones((4, 3)))
    np.save(tmp_path / "bad.npy", np.array([0, 12, 1]))
    np.save(tmp_path / "long.npy", np.array([0, 2, 1, 3]))
    (tmp_path / "t.bin").write_bytes(bytes(96))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "t.npy").read_bytes()[:-1])
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    os.symlink("nowhere", tmp_path / "dangling.npy")
    os.symlink("loop.npy", tmp_path / "loop.npy")
    with unchanged(tmp_path):
        refused(run("accumulate", *words, cwd=tmp_path), status, reason)
