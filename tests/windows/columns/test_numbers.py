"""Targets with columns: those that are meant change, and all others stay, whatever they hold."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from column_targets import CHUNK, ROWS, check, chunks, holed, strangers, table_of, write
from command import run, succeeded, unchanged
from rows import check_refusals
from tables import SUFFIXES, read

import mpired


@pytest.fixture
def target(suffix, tmp_path):
    """Return a function that writes a table of numbers and of others, and gives its path, chunks and content."""

    def made(numbers, others):
        path = tmp_path / f"t.{suffix}"
        write(table_of(numbers, others), path)
        return path, chunks(path), read(path)

    return made


def test_other_columns_stay(target, tmp_path):
    origin = np.random.default_rng(1).normal(size=ROWS)
    np.save(tmp_path / "o.npy", origin)
    for words in (("--columns", "n"), ()):
        path, before, table = target({"n": pa.array(np.arange(ROWS) / 2)}, strangers())
        succeeded(run("accumulate", "-q", "--op", "sum", *words, path.name, "o.npy", cwd=tmp_path))
        check(path, before, table, n=np.arange(ROWS) / 2 + origin)
    for key in ("a", "b", "a", "b"):
        mpired.Window(path).accumulate(np.ones(ROWS), "sum", columns=["n"], once_key=key)
    check(path, before, table, n=np.arange(ROWS) / 2 + origin + 2)


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


def test_columns_of_pairs_and_truth(target):
    pairs = pa.StructArray.from_arrays(
        [pa.array(np.arange(ROWS), pa.float64()), pa.array(np.arange(ROWS), pa.int32())], names=["v", "at"]
    )
    path, before, table = target({"p": pairs, "b": pa.array(np.arange(ROWS) % 3 == 0)}, strangers())
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
    words = f"accumulate -q --op replace {path.name} o.{origin}"
    if origin == "npy":
        np.save(tmp_path / "o.npy", np.array([9, 0], np.int32))
    else:
        write(pa.table({"s": ["", ""], "n": pa.array([9, 0], pa.int32())}), tmp_path / f"o.{origin}")
    succeeded(run(*words.split(), "--columns", "n", "--target-disp", "1", cwd=tmp_path))
    assert read(path).to_pydict() == {"x": [1, 2, 3], "n": [1, 9, 0], "b": [True, False, True]}
    assert read(path).schema == table.schema
    cases = [
        (f"{words} --columns n --target-disp 0 --commit journal", 2, "journal"),
        (f"{words} --target-disp 0", 3, "has 1 column, but the target has 3", "--columns"),
        (f"{words} --columns m", 3, "no column 'm'"),
        (f"{words} --columns n --byte-order big", 2, "--byte-order"),
    ]
    check_refusals(tmp_path, cases)


def test_all_columns_at_once(target):
    others = {name: column for name, column in strangers().items() if name != "struct"}  # a buffer but for its nulls
    path, before, table = target({"n": pa.array(np.arange(ROWS) + 0.0), "y": pa.array(np.arange(ROWS))}, others)
    with pytest.warns(mpired.errors.SameFileWarning):
        mpired.Window(path).accumulate([path] * 2, "sum")
    check(path, before, table, n=3.0 * np.arange(ROWS), y=3 * np.arange(ROWS))


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


def test_calls_on_one_element(several):
    name, here = several.name, several.parent
    done = {
        f"fetch-and-op --op sum {name} 5 --target-disp 1 --columns n": b"20\n",
        f"fetch-and-op --op sum {name} 5 --target-disp 1 --columns m --type int64_t": b"2\n",
        f"fetch-and-op --op sum {name} 5 --columns x --at 1": b"1.5\n",
        f"compare-and-swap {name} 10 99 --columns n": b"10\n",
        f"fetch-and-op --op sum {name} value.parquet --columns m": b"1\n",  # a value in a column
    }
    assert {words: run(*words.split(), cwd=here) for words in done} == {
        words: (0, out, "") for words, out in done.items()
    }
    window = mpired.Window(several)
    assert window.compare_and_swap(25, 7, columns=["n"], target_disp=1) == 25
    assert window.get_accumulate(np.array([1, 2]), "sum", columns=["m"]).tolist() == [6, 7]
    assert read(several).to_pydict() == {"s": ["a", "b"], "n": [99, 7], "x": [0.5, 6.5], "m": [7, 9]}
    with unchanged(here):
        assert run("fetch-and-op", "--op", "no_op", name, "--columns", "n", cwd=here) == (0, b"99\n", "")
        assert window.fetch_and_op(None, "no_op", columns=["n"], target_disp=1) == 7


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
