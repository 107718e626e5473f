"""Targets with columns: those that are meant change, and all others stay, whatever they hold."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from column_targets import ROWS, check, chunks, holed, table_of, write
from command import run, succeeded
from rows import check_refusals
from tables import read


@pytest.fixture
def target(suffix, tmp_path):
    """Return a function that writes a table of numbers and of others, and gives its path, chunks and content."""

    def made(numbers, others):
        path = tmp_path / f"t.{suffix}"
        write(table_of(numbers, others), path)
        return path, chunks(path), read(path)

    return made


def test_numbers_that_are_not_chosen_stay(target, tmp_path):
    """Other types, and nulls, are nobody's business then, and --type is said of the column that is chosen."""
    pairs = pa.struct([("v", pa.float64()), ("at", pa.int32())])
    numbers = {
        "n": pa.array(np.arange(ROWS), pa.float64()),
        "i": pa.array(holed(range(ROWS)), pa.int64()),
        "h": pa.array(holed(np.arange(ROWS).astype(np.float16)), pa.float16()),
        "b": pa.array(holed(i % 2 == 0 for i in range(ROWS)), pa.bool_()),
        "p": pa.array(holed({"v": i / 2, "at": i} for i in range(ROWS)), pairs),
    }
    path, before, table = target(numbers, {})
    np.save(tmp_path / "o.npy", np.full(3, 10.0))
    words = ("accumulate", "-q", "--op", "sum", "--columns", "n", path.name, "o.npy")
    succeeded(run(*words, "--type", "double", "--target-disp", "0", cwd=tmp_path))
    succeeded(run(*words, "--target-type", "double", "--target-disp", "1", cwd=tmp_path))
    succeeded(run(*words, "--target-type", "vector(3,1,700,double)", "--target-count", "1", cwd=tmp_path))
    expected = np.arange(ROWS) + 0.0
    expected[:3] += 10
    expected[1:4] += 10
    expected[:ROWS:700] += 10
    check(path, before, table, n=expected)
    cases = [
        (f"accumulate --op sum {path.name} o.npy", 3, "has 500 nulls"),
        (f"accumulate --op sum --type double {path.name} o.npy", 3, "'i'"),
        (f"fetch-and-op --op no_op --columns n --type int {path.name}", 3, "'n'"),
    ]
    check_refusals(tmp_path, cases)


def test_no_number_at_all(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    write(pa.table({"s": ["a"], "t": ["b"]}), path)
    np.save(tmp_path / "o.npy", np.ones(1))
    commands = [
        f"accumulate --op sum {path.name} o.npy",
        f"accumulate --op sum --columns s {path.name} o.npy",
        f"accumulate --op sum o.npy {path.name}",
        f"accumulate --op sum --map {path.name} o.npy o.npy",
        f"fetch-and-op --op sum {path.name} 1",
    ]
    check_refusals(tmp_path, [(words, 3, "column 's' holds string, not numbers") for words in commands])


def test_the_columns_are_part_of_the_request_that_is_remembered(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    write(pa.table({"a": [0, 0], "b": [0, 0]}), path)
    np.save(tmp_path / "o.npy", np.array([1, 2]))
    for column in ("a", "b", "a"):
        words = ("accumulate", "--op", "sum", "--columns", column, path.name, "o.npy", "--once")
        assert run(*words, cwd=tmp_path).status == 0
    assert read(path).to_pydict() == {"a": [1, 2], "b": [1, 2]}


# Calls on one element


@pytest.fixture
def several(suffix, tmp_path):
    """The path of a target with several columns."""
    path = tmp_path / f"t.{suffix}"
    write(pa.table({"s": ["a", "b"], "n": [10, 20], "x": [0.5, 1.5], "m": [1, 2]}), path)
    write(pa.table({"n": [4], "m": [5]}), path.with_name("value.parquet"))
    np.save(tmp_path / "t.npy", np.ones(1, np.int64))
    np.save(tmp_path / "o.npy", np.array([1, 2]))
    return path


def test_a_column_has_to_be_chosen(several):
    name = several.name
    cases = [
        (f"fetch-and-op --op sum {name} 5", 2, "--columns"),
        (f"fetch-and-op --op sum {name} 5 --columns n,m", 2, "--columns"),
        (f"fetch-and-op --op sum {name} 5 --columns n,m --type int64_t", 3, "--columns"),
        (f"fetch-and-op --op sum {name} 5 --columns s", 3, "'s' holds string"),
        (f"fetch-and-op --op sum {name} 5 --target-disp 1 --columns x --at 1", 2, "choose one"),
        (f"compare-and-swap {name} 10 99", 2, name, "3 columns (n, x, m)", "choose one with --columns"),
        (f"compare-and-swap {name} 10 99 --columns x", 3, "COMPARE_AND_SWAP"),
        (f"get-accumulate --op sum {name} o.npy", 3, "--columns"),
        (f"get-accumulate --op no_op {name}", 2, "--columns"),
        ("fetch-and-op --op sum t.npy 1 --columns n", 2, "--columns"),
        ("compare-and-swap t.npy 1 2 --columns n", 2, "--columns"),
    ]
    check_refusals(several.parent, cases)
