"""Targets with columns: those that are meant change, and all others stay, whatever they hold."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from column_targets import CHUNK, ROWS, check, chunks, holed, read, strangers, table_of, write
from command import refused, run, succeeded, unchanged
from tables import SUFFIXES

import mpired


@pytest.mark.parametrize("words", [("--columns", "n"), ()], ids=" ".join)
def test_other_columns_stay(words, suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    table = table_of({"n": pa.array(np.arange(ROWS) / 2)}, strangers())
    write(table, path)
    before, table = chunks(path), read(path)
    origin = np.random.default_rng(1).normal(size=ROWS)
    np.save(tmp_path / "o.npy", origin)
    succeeded(run("accumulate", "-q", "--op", "sum", *words, path.name, "o.npy", cwd=tmp_path))
    check(path, before, table, n=np.arange(ROWS) / 2 + origin)


def test_numbers_that_are_not_chosen_stay(suffix, tmp_path):
    """Other types, and nulls, are nobody's business then, and --type is said of the column that is chosen."""
    path = tmp_path / f"t.{suffix}"
    numbers = {
        "n": pa.array(np.arange(ROWS), pa.float64()),
        "i": pa.array(holed(range(ROWS)), pa.int64()),
        "h": pa.array(holed(np.arange(ROWS).astype(np.float16)), pa.float16()),
        "b": pa.array(holed(i % 2 == 0 for i in range(ROWS)), pa.bool_()),
        "p": pa.array(
            holed({"v": i / 2, "at": i} for i in range(ROWS)), pa.struct([("v", pa.float64()), ("at", pa.int32())])
        ),
    }
    table = table_of(numbers, {})
    write(table, path)
    before, table = chunks(path), read(path)
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
    with unchanged(tmp_path):
        refused(run("accumulate", "--op", "sum", path.name, "o.npy", cwd=tmp_path), 3, "has 500 nulls")
        refused(run(*words[:4], "--type", "double", path.name, "o.npy", cwd=tmp_path), 3, "'i'")
        refused(
            run("fetch-and-op", "--op", "no_op", "--columns", "n", "--type", "int", path.name, cwd=tmp_path), 3, "'n'"
        )


def test_columns_of_pairs_and_truth(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    pairs = pa.StructArray.from_arrays(
        [pa.array(np.arange(ROWS), pa.float64()), pa.array(np.arange(ROWS), pa.int32())], names=["v", "at"]
    )
    table = table_of({"p": pairs, "b": pa.array(np.arange(ROWS) % 3 == 0)}, strangers())
    write(table, path)
    before, table = chunks(path), read(path)
    window = mpired.Window(path)
    assert window.fetch_and_op((5000.0, 7), "maxloc", columns=["p"], target_disp=CHUNK).item() == (700.0, 700)
    assert not window.fetch_and_op("true", "lor", columns="b", target_disp=1)
    changed = pairs.to_pylist()
    changed[CHUNK] = {"v": 5000.0, "at": 7}
    truth = np.arange(ROWS) % 3 == 0
    truth[1] = True
    check(path, before, table, p=changed, b=truth)


@pytest.mark.parametrize("origin", ["npy", *SUFFIXES])
def test_origins_by_column(origin, suffix, tmp_path):
    table = pa.table({"x": [1.0, 2, 3], "n": pa.array([1, 2, 3], pa.int32()), "b": [True, False, True]})
    path = tmp_path / f"t.{suffix}"
    write(table, path)
    words = ("accumulate", "-q", "--op", "replace", path.name, f"o.{origin}")
    if origin == "npy":
        np.save(tmp_path / "o.npy", np.array([9, 0], np.int32))
    else:
        write(pa.table({"s": ["", ""], "n": pa.array([9, 0], pa.int32())}), tmp_path / f"o.{origin}")
    succeeded(run(*words, "--columns", "n", "--target-disp", "1", cwd=tmp_path))
    assert read(path).to_pydict() == {"x": [1, 2, 3], "n": [1, 9, 0], "b": [True, False, True]}
    assert read(path).schema == table.schema
    with unchanged(tmp_path):
        refused(run(*words, "--columns", "n", "--target-disp", "0", "--commit", "journal", cwd=tmp_path), 2, "journal")
        refused(run(*words, "--target-disp", "0", cwd=tmp_path), 3, "has 1 column, but the target has 3", "--columns")
        refused(run(*words, "--columns", "m", cwd=tmp_path), 3, "no column 'm'")
        refused(run(*words, "--columns", "n", "--byte-order", "big", cwd=tmp_path), 2, "--byte-order")


def test_all_columns_at_once(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    table = table_of({"n": pa.array(np.arange(ROWS) + 0.0), "y": pa.array(np.arange(ROWS))}, strangers())
    table = table.drop_columns("struct")  # which would be a buffer but for its nulls
    write(table, path)
    before, table = chunks(path), read(path)
    with pytest.warns(mpired.errors.SameFileWarning):
        mpired.Window(path).accumulate([path] * 2, "sum")
    check(path, before, table, n=3.0 * np.arange(ROWS), y=3 * np.arange(ROWS))


def test_no_number_at_all(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    write(pa.table({"s": ["a"], "t": ["b"]}), path)
    np.save(tmp_path / "o.npy", np.ones(1))
    with unchanged(tmp_path):
        for words in (
            ("accumulate", "--op", "sum", path.name, "o.npy"),
            ("accumulate", "--op", "sum", "--columns", "s", path.name, "o.npy"),
            ("accumulate", "--op", "sum", "o.npy", path.name),
            ("accumulate", "--op", "sum", "--map", path.name, "o.npy", "o.npy"),
            ("fetch-and-op", "--op", "sum", path.name, "1"),
        ):
            refused(run(*words, cwd=tmp_path), 3, "column 's' holds string, not numbers")


def test_once(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    write(table_of({"n": pa.array(np.zeros(ROWS))}, strangers()), path)
    before, table = chunks(path), read(path)
    for key in ("a", "b", "a", "b"):
        mpired.Window(path).accumulate(np.ones(ROWS), "sum", columns=["n"], once_key=key)
    check(path, before, table, n=np.full(ROWS, 2.0))


def test_the_columns_are_part_of_the_request_that_is_remembered(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    write(pa.table({"a": [0, 0], "b": [0, 0]}), path)
    np.save(tmp_path / "o.npy", np.array([1, 2]))
    for column in ("a", "b", "a"):
        words = ("accumulate", "--op", "sum", "--columns", column, path.name, "o.npy", "--once")
        assert run(*words, cwd=tmp_path).status == 0
    assert read(path).to_pydict() == {"a": [1, 2], "b": [1, 2]}
