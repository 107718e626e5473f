"""Targets that a call makes."""

from __future__ import annotations

import os

import numpy as np
import pytest
from command import refused, run, unchanged

import mpired


def test_create_fills_with_the_identity(tmp_path):
    words = ("accumulate", "-q", "--create", "2,3", "new.npy", "o.npy", "--target-disp", "1", "--op")
    np.save(tmp_path / "o.npy", np.array([5, -5], np.int16))
    for op, rest in (("sum", 0), ("prod", 1), ("max", -(2**15)), ("min", 2**15 - 1), ("band", -1), ("bxor", 0)):
        assert run(*words, op, cwd=tmp_path) == (0, b"", ""), op
        found = np.load(tmp_path / "new.npy")
        assert found.dtype == np.int16
        assert found.tolist() == [[rest, 5, -5], [rest, rest, rest]], op
        assert (tmp_path / "new.npy").stat().st_mode & 0o777 == 0o644
        (tmp_path / "new.npy").unlink()
    refused(run(*words, "replace", cwd=tmp_path), 3, "MPI_REPLACE", "identity")
    refused(run(*words, "sum", "--create", "2,x", cwd=tmp_path), 2, "2,x")
    refused(run(*words, "sum", "--create", "2", cwd=tmp_path), 3, "window")
    refused(run("accumulate", "--op", "sum", "new.npy", "o.npy", cwd=tmp_path), 4, "new.npy", "No such file")
    refused(run(*words[:3], "2", "new.parquet", "o.npy", "--op", "sum", cwd=tmp_path), 2, "--create")
    assert os.listdir(tmp_path) == ["o.npy"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("accumulate", ("--op", "sum", "--create", "2", "{}", "o.npy")),
        ("get-accumulate", ("--op", "sum", "--create", "2", "--to", "text", "{}", "o.npy")),
        ("fetch-and-op", ("--op", "sum", "--type", "int16_t", "--create", "2", "{}", "1")),
    ],
)
def test_create_makes_no_file_that_looks_like_another_format(command, words, tmp_path):
    """Without a declared datatype it would not know its own again."""
    np.save(tmp_path / "o.npy", np.array([5, -5], np.int16))
    with unchanged(tmp_path):
        for name, reason in {"new.h4": "HDF4", "new.parquet": "parquet", "new.dat": "--type"}.items():
            if command != "fetch-and-op" or name != "new.dat":
                outcome = run(command, *(word.format(name) for word in words), cwd=tmp_path)
                refused(outcome, 2, "--create", name, reason)
                assert "--to" not in outcome.err
    (tmp_path / "o.bin").write_bytes(bytes(4))
    for name in ("new.dat", "new.0", "new"):
        declared = ("--op", "sum", "--type", "int16_t", "--create", "2", name, "o.bin")
        assert run("accumulate", "-q", *declared, cwd=tmp_path) == (0, b"", "")
        assert (tmp_path / name).read_bytes() == bytes(4)


def test_create_of_pairs_and_raw(tmp_path):
    pair = np.array([(2.5, 4)], np.dtype([("v", "f8"), ("i", "i4")], align=True))
    mpired.Window(tmp_path / "new.bin", type="double_int").accumulate(pair, "minloc", create=3, target_disp=1)
    found = np.fromfile(tmp_path / "new.bin", pair.dtype)
    assert found.tolist() == [(np.inf, 2**31 - 1), (2.5, 4), (np.inf, 2**31 - 1)]


def test_a_call_that_fetches_may_create(tmp_path):
    np.save(tmp_path / "o.npy", np.array([3, -4, 5], np.int32))
    words = ("get-accumulate", "-q", "--op", "max", "--create", "3", "--to", "text", "t.npy", "o.npy")
    lowest = np.iinfo(np.int32).min
    assert run(*words, cwd=tmp_path) == (0, f"{lowest}\n{lowest}\n{lowest}\n".encode(), "")
    assert run(*words, cwd=tmp_path) == (0, b"3\n-4\n5\n", "")
    assert np.load(tmp_path / "t.npy").tolist() == [3, -4, 5]
    assert mpired.Window(tmp_path / "u.npy").get_accumulate(np.ones(2), "prod", create=2).tolist() == [1, 1]
    words = ("get-accumulate", "--op", "no_op", "--create", "3", "new.npy")
    refused(run(*words, cwd=tmp_path), 2, "--create", "--type")
    refused(run(*words, "--type", "int", cwd=tmp_path), 3, "NO_OP", "identity")
    assert not (tmp_path / "new.npy").exists()


def test_many_create_one_file(tmp_path):
    pids = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(5):
                    mpired.Window(tmp_path / "new.npy").accumulate(np.ones(100), "sum", create=100)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    assert (np.load(tmp_path / "new.npy") == 40).all()
