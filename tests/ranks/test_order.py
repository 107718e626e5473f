"""The order of ranks by their names, the numbers in these, and the holes among them."""

import json
import re
import subprocess

import numpy as np
import pytest
from command import run
from rows import check_refused, each

import mpired
from mpired.errors import RankNumberError, RanksError, UsageError

NAMES = ["r10_s2.npy", "r2_s3.npy", "R3_s1.npy", "r01_s9.npy", "r2_s10.npy", "x.npy", "r2.npy"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate([*NAMES, "r1.npy", "r9.npy", "r10.npy", "r100.npy"]):
        np.save(name, np.full(2, float(number)))
    return tmp_path


def sorted_by(*words):
    """Return what another program prints of names that it sorts."""
    return subprocess.run(words, check=True, capture_output=True, text=True, env={"LC_ALL": "C"}).stdout.split()


def test_sorted_as_ls_does(folder):
    def order_of(*words):
        return [each["file"] for each in json.loads(run("info", "--json", *words, cwd=folder).out)]

    assert order_of(*NAMES) == order_of("--sort", "given", *NAMES) == NAMES
    assert order_of("--sort", "name", *NAMES) == sorted_by("ls", "-1", "--", *NAMES)
    simple = ["r10.npy", "r9.npy", "r100.npy", "r1.npy"]
    assert order_of("--sort", "natural", *simple) == ["r1.npy", "r9.npy", "r10.npy", "r100.npy"]
    assert order_of("--sort", "natural", *simple) == sorted_by("ls", "-v", "--", *simple)
    words = ("--rank-regex", r"s(\d+)", *NAMES[:5])
    assert order_of(*words) == ["R3_s1.npy", "r10_s2.npy", "r2_s3.npy", "r01_s9.npy", "r2_s10.npy"]
    assert run("info", "--expect-ranks", "1-3,9-10", *words, cwd=folder).status == 0
    words = ("info", "--expect-ranks", "0-3", *words)
    check_refused(folder, words, 3, "1 missing: 0", "2 not expected: r01_s9.npy")
    words = ("info", "--expect-ranks", "2", "--rank-regex", r"r(\d+)", "r2_s3.npy", "r2_s10.npy")
    check_refused(folder, words, 3, "1 more than once: 2", "; tell all apart with --rank-regex 's([0-9]+)'")


def test_names_without_a_number_or_with_the_same_one(folder):
    with pytest.raises(RanksError) as error:
        mpired.reduce(NAMES, "sum", rank_regex=r"r(\d+)")
    assert [type(each) for each in error.value.errors] == [RankNumberError] * 4
    told = str(error.value)
    for part in ("do not match `rank_regex=", "R3_s1.npy, x.npy", "the same number (2) in its name as r2_s3.npy"):
        assert part in told
    assert "and no one number tells all ranks apart: r2_s10.npy, r2.npy; leave `rank_regex` out" in told
    with pytest.raises(RankNumberError, match=re.escape("tell all apart with `rank_regex='s([0-9]+)'`")):
        mpired.reduce(["r2_s3.npy", "r2_s10.npy"], "sum", rank_regex=r"r(\d+)")
    for words, status, *reasons in (
        ([r"r(\d+)", "-o", "o.npy"], 3, "x.npy"),
        ([r"r\d+"], 2, "has no group"),
        ([r"r(\d+)", "--sort", "name"], 2, "--sort", "--rank-regex"),
    ):
        check_refused(folder, ("reduce", "--op", "sum", *NAMES, "--rank-regex", *words), status, *reasons)


@each("names, expected, told", [
    ("a0 a1 a2", "0-2", ""),
    ("a2 a0 a1", "0,1-2", ""),
    ("a0 a2 a5 a9", "0-10", "7 missing: 1, 3-4, 6-8, 10"),
    ("a0 b0 a1", "0-1", "1 more than once: 0 (a0.npy, b0.npy)"),
    ("a1 b1 c", "0-1", "1 missing: 0; 1 more than once: 1 (a1.npy, b1.npy); 1 not expected: c.npy"),
    (" ".join(f"a{2 * i}" for i in range(40)), "0-79", "40 missing: 1, 3, 5, 7, 9, 11, 13, 15, ..."),
    (" ".join(f"b{i}" for i in range(5)), "7", "1 missing: 7; 5 not expected: b0.npy, b1.npy, b2.npy, ..."),
])  # fmt: skip
def test_holes_doubles_and_others_are_told(names, expected, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [f"{name}.npy" for name in names.split()]
    for name in files:
        np.save(name, np.ones(2))
    outcome = run("reduce", "-q", "--op", "sum", "--expect-ranks", expected, *files, "--to", "raw", cwd=tmp_path)
    if not told:
        assert outcome == (0, np.full(2, float(len(files))).tobytes(), "")
        assert len(mpired.scan(files, "sum", expect_ranks=range(3))) == len(files)
        return
    assert outcome == (3, b"", f"mpired: --expect-ranks: {told}\n")
    with pytest.raises(RankNumberError) as error:
        mpired.locate(files, "maxloc", expect_ranks=expected)
    assert (str(error.value), error.value.mpi_class) == (f"`expect_ranks`: {told}", "MPI_ERR_RANK")


def test_what_has_no_name_cannot_be_sorted(folder):
    with pytest.raises(UsageError, match="`sort='name'`: is for files, and rank 1 has no name"):
        mpired.reduce(["r2.npy", np.zeros(2)], "sum", sort="name")
