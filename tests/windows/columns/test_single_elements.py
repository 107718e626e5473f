"""Calls on one element of a column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from column_targets import read, write
from command import refused, run, unchanged

import mpired


@pytest.fixture
def several(suffix, tmp_path):
    """The path of a target with several columns."""
    path = tmp_path / f"t.{suffix}"
    write(pa.table({"s": ["a", "b"], "n": [10, 20], "x": [0.5, 1.5], "m": [1, 2]}), path)
    return path


def test_fetch_and_op_on_a_column(several):
    words = ("fetch-and-op", "--op", "sum", several.name, "5", "--target-disp", "1")
    assert run(*words, "--columns", "n", cwd=several.parent) == (0, b"20\n", "")
    assert run(*words, "--columns", "m", "--type", "int64_t", cwd=several.parent) == (0, b"2\n", "")
    assert run(*words, "--columns", "x", "--at", "1", cwd=several.parent).status == 2
    assert run(*words[:-2], "--columns", "x", "--at", "1", cwd=several.parent) == (0, b"1.5\n", "")
    expected = {"s": ["a", "b"], "n": [10, 25], "x": [0.5, 6.5], "m": [1, 7]}
    assert read(several).to_pydict() == expected
    with unchanged(several.parent):
        read_only = ("fetch-and-op", "--op", "no_op", several.name, "--columns", "n")
        assert run(*read_only, cwd=several.parent) == (0, b"10\n", "")
        for said in ((), ("--columns", "n,m"), ("--columns", "n,m", "--type", "int64_t")):
            outcome = run(*words, *said, cwd=several.parent)
            refused(outcome, 3 if "--type" in said else 2, "--columns")
        refused(run(*words, "--columns", "s", cwd=several.parent), 3, "'s' holds string")


def test_compare_and_swap_on_a_column(several):
    words = ("compare-and-swap", several.name, "10", "99")
    assert run(*words, "--columns", "n", cwd=several.parent) == (0, b"10\n", "")
    assert read(several).to_pydict() == {"s": ["a", "b"], "n": [99, 20], "x": [0.5, 1.5], "m": [1, 2]}
    with unchanged(several.parent):
        refused(run(*words, cwd=several.parent), 2, several.name, "3 columns (n, x, m)", "choose one with --columns")
        refused(run(*words, "--columns", "x", cwd=several.parent), 3, "COMPARE_AND_SWAP")
    window = mpired.Window(several)
    assert window.compare_and_swap(20, 7, columns=["n"], target_disp=1) == 20
    assert window.fetch_and_op(None, "no_op", columns=["n"], target_disp=1) == 7


def test_get_accumulate_on_a_column(several):
    found = mpired.Window(several).get_accumulate(np.array([1, 2]), "sum", columns=["m"])
    assert found.tolist() == [1, 2]
    assert read(several).to_pydict() == {"s": ["a", "b"], "n": [10, 20], "x": [0.5, 1.5], "m": [2, 4]}
    np.save(several.parent / "o.npy", np.array([1, 2]))
    with unchanged(several.parent):
        for words in (("sum", several.name, "o.npy"), ("no_op", several.name)):
            outcome = run("get-accumulate", "--op", *words, cwd=several.parent)
            refused(outcome, outcome.status, "--columns")


def test_a_value_in_a_column(several):
    write(pa.table({"n": [4], "m": [5]}), several.parent / "value.parquet")
    words = ("fetch-and-op", "--op", "sum", several.name, "value.parquet", "--columns", "m")
    assert run(*words, cwd=several.parent) == (0, b"1\n", "")
    assert read(several)["m"].to_pylist() == [6, 2]


@pytest.mark.parametrize(
    "words", [("fetch-and-op", "--op", "sum", "t.npy", "1"), ("compare-and-swap", "t.npy", "1", "2")]
)
def test_columns_of_a_file_without(words, tmp_path):
    np.save(tmp_path / "t.npy", np.ones(1, np.int64))
    with unchanged(tmp_path):
        refused(run(*words, "--columns", "n", cwd=tmp_path), 2, "--columns")
