"""The order of ranks by their names, the numbers in these, and the holes among them."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
from command import refused, run, unchanged

import mpired
from mpired.errors import OrderWarning, RankNumberError, RanksError, UsageError

NAMES = ["r10_s2.npy", "r2_s3.npy", "R3_s1.npy", "r01_s9.npy", "r2_s10.npy", "x.npy", "r2.npy"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(NAMES):
        np.save(name, np.full(2, float(number)))
    return tmp_path


def order_of(*words):
    outcome = run("info", "--json", *words, cwd=".")
    assert outcome.status == 0, outcome.err
    return [each["file"] for each in json.loads(outcome.out)]


def test_sorted_as_ls_does(folder):
    def ls(*flags):
        words = ["ls", "-1", *flags, "--", *NAMES]
        return subprocess.run(words, check=True, capture_output=True, text=True, env={"LC_ALL": "C"}).stdout.split()

    assert order_of(*NAMES) == order_of("--sort", "given", *NAMES) == NAMES
    assert order_of("--sort", "name", *NAMES) == ls()
    simple = [f"r{number}.npy" for number in (10, 9, 100, 1)]
    for name in simple:
        np.save(name, np.zeros(2))
    assert order_of("--sort", "natural", *simple) == ["r1.npy", "r9.npy", "r10.npy", "r100.npy"]
    versions = subprocess.run(["sort", "-V"], input="\n".join(simple), check=True, capture_output=True, text=True)
    assert order_of("--sort", "natural", *simple) == versions.stdout.split()


def test_sorted_by_the_group_of_an_expression(folder):
    words = ("--rank-regex", r"s(\d+)", *NAMES[:5])
    assert order_of(*words) == ["R3_s1.npy", "r10_s2.npy", "r2_s3.npy", "r01_s9.npy", "r2_s10.npy"]
    assert mpired.reduce(NAMES[:5], "last", rank_regex=r"s(\d+)").tolist() == [4.0, 4.0]
    found = mpired.reduce(NAMES[:5], "minloc", rank_regex=r"s(\d+)", index="number")
    assert found["index"].tolist() == [2, 2]


def test_names_without_a_number_or_with_the_same_one(folder):
    with pytest.raises(RanksError) as error:
        mpired.reduce(NAMES, "sum", rank_regex=r"r(\d+)")
    assert [type(each) for each in error.value.errors] == [RankNumberError] * 4
    told = str(error.value)
    for part in ("do not match `rank_regex=", "R3_s1.npy, x.npy", "the same number (2) in its name as r2_s3.npy"):
        assert part in told
    with unchanged(folder):
        refused(
            run("reduce", "-q", "--op", "sum", "--rank-regex", r"r(\d+)", *NAMES, "-o", "o.npy", cwd="."), 3, "x.npy"
        )
        refused(run("reduce", "-q", "--op", "sum", "--rank-regex", r"r\d+", *NAMES, cwd="."), 2, "has no group")
        refused(run("reduce", "-q", "--op", "sum", "--rank-regex", "r(", *NAMES, cwd="."), 2, "not a regular")
        words = ("--rank-regex", r"r(\d+)", "--sort", "name")
        refused(run("reduce", "-q", "--op", "sum", *words, *NAMES, cwd="."), 2, "--sort", "--rank-regex")


@pytest.mark.parametrize(
    ("names", "expected", "told"),
    [
        ("a0 a1 a2", "0-2", ""),
        ("a2 a0 a1", "0,1-2", ""),
        ("a0 a2 a5 a9", "0-10", "7 missing: 1, 3-4, 6-8, 10"),
        ("a0 b0 a1", "0-1", "1 more than once: 0 (a0.npy, b0.npy)"),
        ("a0 a1 a7 x", "0-1", "2 not expected: a7.npy, x.npy"),
        ("a1 b1 c", "0-1", "1 missing: 0; 1 more than once: 1 (a1.npy, b1.npy); 1 not expected: c.npy"),
        (" ".join(f"a{2 * i}" for i in range(40)), "0-79", "40 missing: 1, 3, 5, 7, 9, 11, 13, 15, ..."),
        (" ".join(f"b{i}" for i in range(5)), "7", "1 missing: 7; 5 not expected: b0.npy, b1.npy, b2.npy, ..."),
    ],
)
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


def test_the_number_expected_is_that_of_the_expression(folder):
    words = ("--rank-regex", r"s(\d+)", *NAMES[:5])
    assert run("info", "--expect-ranks", "1-3,9-10", *words, cwd=folder).status == 0
    refused(run("info", "--expect-ranks", "0-3", *words, cwd=folder), 3, "1 missing: 0", "2 not expected: r01_s9.npy")


@pytest.mark.parametrize("call", ["reduce", "scan"])
def test_an_order_that_was_chosen_is_no_cause_for_a_warning(call, folder):
    names = ["r10.npy", "r2.npy"]
    np.save("r10.npy", np.zeros(2))
    with pytest.warns(OrderWarning, match="`sort='natural'` sorts by number"):
        getattr(mpired, call)(names, "sum")
    for options in ({"sort": "natural"}, {"sort": "name"}, {"rank_regex": r"(\d+)"}):
        getattr(mpired, call)(names, "sum", **options)


def test_a_sum_that_is_rounded_once_is_no_cause_for_a_warning(folder):
    names = ["r10.npy", "r2.npy"]
    np.save("r10.npy", np.zeros(2))
    mpired.reduce(names, "sum", exact=True)
    with pytest.warns(OrderWarning, match="shows in the results"):
        mpired.scan(names, "sum", exact=True)


def test_what_has_no_name_cannot_be_sorted(folder):
    with pytest.raises(UsageError, match="`sort='name'`: is for files, and rank 1 has no name"):
        mpired.reduce(["r2.npy", np.zeros(2)], "sum", sort="name")
    assert mpired.reduce([], "sum", files_from=_list("r2.npy\nx.npy\n")).tolist() == [11.0, 11.0]


def _list(content):
    with open("list", "w", encoding="utf-8") as file:
        file.write(content)
    return "list"
