"""`mpired info` says of every file what it holds; only what is damaged or not there is an error."""

from __future__ import annotations

import decimal
import json
import re

import numpy as np
import pyarrow as pa
import pytest
from command import refused, run, succeeded
from tables import bytes_of

import mpired
from mpired.errors import DatatypeError

COLUMNS = pa.table(
    {
        "x": pa.array([1, None, 3]),
        "s": ["a", "b", None],
        "list": [[1], [], None],
        "none": pa.nulls(3),
        "day": pa.array([1, 2, 3], pa.date32()),
        "b": [None, True, None],
    }
)
TWINS = pa.table([pa.array([1]), pa.array([2.0]), pa.array([3])], names=["x", "x", "y"])
ARRAYS = {
    "text.npy": (np.array(["a", "bcd"]), "2 x strings (<U3), shape (2,)"),
    "bytes.npy": (np.array([[b"a", b"bcd"]]), "2 x bytes (|S3), shape (1, 2)"),
    "objects.npy": (np.array([{}, None], object), "2 x Python objects (|O), shape (2,)"),
    "times.npy": (np.zeros((2, 2), "M8"), "4 x <M8, shape (2, 2)"),  # without a unit
    "fields.npy": (np.zeros(2, [("t", "<M8[s]"), ("x", "<f8")]), "2 x (<M8[s], <f8), shape (2,)"),
    "mixed.npy": (np.zeros(2, [("a", "<f8"), ("s", "<U3")]), "2 x (<f8, <U3), shape (2,)"),
}


def lines(outcome) -> list[str]:
    assert (outcome.status, outcome.err) == (0, "")
    return [line.strip() for line in outcome.out.decode().splitlines()[1:]]


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_no_numbers(name, tmp_path):
    array, text = ARRAYS[name]
    np.save(tmp_path / name, array)
    assert lines(run("info", name, cwd=tmp_path)) == [f"{text}; no op takes it"]
    (described,) = json.loads(run("info", "--json", name, cwd=tmp_path).out)
    (other,) = described["other_columns"]
    assert (other["count"], other["shape"]) == (array.size, list(array.shape))
    assert described["buffers"] == []
    refused(run("reduce", "--op", "sum", name, cwd=tmp_path), 3, name)
    if array.dtype != object:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
        refused(run("info", name, cwd=tmp_path), 3, "not a valid npy file")


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_columns(form, tmp_path):
    """Nulls are those that the header tells of."""
    name = f"t.{form}"
    (tmp_path / name).write_bytes(bytes_of(COLUMNS, form))
    told = form == "arrow"  # no header of parquet tells of nulls of lists
    assert lines(run("info", name, cwd=tmp_path)) == [
        "x: 3 x MPI_INT64_T (int64), 1 null; `mpired reduce --nulls ignore` leaves nulls out",
        "b: 3 x MPI_C_BOOL (bool), 2 nulls; `mpired reduce --nulls ignore` leaves nulls out",
        "s: 3 x string, 1 null; no op takes it, `mpired reduce --keep s` carries it",
        f"list: 3 x lists of int64{told * ', 1 null'}; no op takes it, `mpired reduce --keep list` carries it",
        f"none: 3 x null{told * ', 3 nulls'}; no op takes it, `mpired reduce --keep none` carries it",
        "day: 3 x date32[day]; max, min take it if --columns names it",
    ]
    found = mpired.info(tmp_path / name)
    assert [(buffer.name, buffer.nulls) for buffer in found.buffers] == [("x", 1), ("b", 2)]
    refused(run("reduce", "--op", "sum", "--columns", "x", name, cwd=tmp_path), 3, "'x' has 1 null")
    np.save(tmp_path / "o.npy", np.ones(3, np.int64))
    words = ("accumulate", "--op", "sum", "--columns", "x", name, "o.npy")
    refused(run(*words, cwd=tmp_path), 3, "'x' has 1 null")


NESTED = pa.table(
    {
        "n": pa.array([{"i": 1, "f": 1.5}]),
        "text": pa.array([{"i": 1, "s": "a"}]),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "word": pa.array(["a"]).dictionary_encode(),
        "price": pa.array([decimal.Decimal("1.50")], pa.decimal128(9, 2)),
        "took": pa.array([5], pa.duration("s")),
        "gone": pa.array([None], pa.timestamp("us", "UTC")),
    }
)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_what_can_be_done_with_a_column(form, tmp_path):
    """In words, and what is said can be done."""
    name = f"t.{form}"
    (tmp_path / name).write_bytes(bytes_of(NESTED, form))
    as_it_is = "no op takes it as it is"
    kept_by = "`mpired reduce --keep"
    assert lines(run("info", name, cwd=tmp_path)) == [
        "n: 1 x structures of i (int64), f (float64); user-defined ops take it",
        "text: 1 x structures of i (int64), s (string); no op takes it, `mpired reduce --keep text` carries it",
        "map: 1 x maps of string to int64; no op takes it, `mpired reduce --keep map` carries it",
        "word: 1 x string by a dictionary; no op takes it, `mpired reduce --keep word` carries it",
        f"price: 1 x decimal128(9, 2); write it as int64 in units of 0.01, {as_it_is}, {kept_by} price` carries it",
        "took: 1 x duration[s]; max, min, sum take it if --columns names it",
        f"gone: 1 x timestamp[us, tz=UTC], 1 null; `mpired reduce --nulls ignore` leaves nulls out, {kept_by} gone` carries it",  # noqa: E501
    ]
    (tmp_path / "ops.py").write_text("def first(a, b):\n    return a\n")
    kept = ",".join({*NESTED.column_names} - {"n"})
    succeeded(run("reduce", "-q", "--op", "ops.py:first", "--keep", kept, name, "-o", f"out.{form}", cwd=tmp_path))
    succeeded(run("reduce", "-q", "--op", "sum", "--columns", "took", name, "-o", "out.npy", cwd=tmp_path))
    assert lines(run("info", "--columns", "took", name, cwd=tmp_path)) == [
        "took: 1 x duration[s]; max, min, sum take it"
    ]


def test_columns_that_are_no_pair(tmp_path):
    (tmp_path / "t.parquet").write_bytes(bytes_of(pa.table({"n": [1], "f": [1.5], "c": [True]}), "parquet"))
    outcome = run("info", "--pair", "n,f", "t.parquet", cwd=tmp_path)
    refused(
        outcome,
        3,
        "'n', MPI_INT64_T (int64), and 'f', MPI_DOUBLE (float64), are not a value and an index",
        "--pair f,n",
    )
    assert lines(run("info", "--pair", "f,n", "t.parquet", cwd=tmp_path)) == ["f,n: 1 x pair(double,int64_t)"]
    refused(run("info", "--pair", "f,c", "t.parquet", cwd=tmp_path), 3, "an index is an integer\n")


def test_nulls_that_no_header_tells_of(tmp_path):
    (tmp_path / "t.parquet").write_bytes(bytes_of(COLUMNS, "parquet", write_statistics=False))
    assert lines(run("info", "t.parquet", cwd=tmp_path))[0] == "x: 3 x MPI_INT64_T (int64)"
    described = json.loads(run("info", "--json", "t.parquet", cwd=tmp_path).out)
    assert described[0]["buffers"][0]["nulls"] is None
    with pytest.raises(DatatypeError, match="1 null"):
        mpired.reduce([tmp_path / "t.parquet"], "sum", columns="x")


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_no_columns_and_two_of_one_name(form, tmp_path):
    (tmp_path / f"none.{form}").write_bytes(bytes_of(pa.table({}), form))
    (tmp_path / "twins.arrow").write_bytes(bytes_of(TWINS, "arrow"))
    assert lines(run("info", f"none.{form}", cwd=tmp_path)) == ["no columns"]
    assert lines(run("info", "twins.arrow", cwd=tmp_path)) == [
        "y: 1 x MPI_INT64_T (int64)",
        "x: 1 x int64; other columns have this name, too",
        "x: 1 x float64; other columns have this name, too",
    ]
    refused(run("reduce", "--op", "sum", f"none.{form}", cwd=tmp_path), 3, "holds no array or column")
    refused(run("reduce", "--op", "sum", "twins.arrow", cwd=tmp_path), 3, "2 columns named 'x'")
    refused(run("info", "--columns", "x", "twins.arrow", cwd=tmp_path), 3, "2 columns named 'x'")


def test_files_that_are_not_read(tmp_path):
    (tmp_path / "raw").write_bytes(bytes(24))
    (tmp_path / "t.csv").write_text("x\n1\n")
    (tmp_path / "a.h4").write_bytes(b"\x0e\x03\x13\x01" + bytes(8))
    outcome = run("info", "raw", "t.csv", "a.h4", cwd=tmp_path)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.decode().splitlines()[::2] == [
        "raw: raw, 24 bytes",
        "t.csv: csv, 4 bytes",
        "a.h4: HDF4, 12 bytes",
    ]
    assert "--type" in outcome.out.decode()
    assert "`" not in outcome.out.decode()
    assert [each["buffers"] for each in json.loads(run("info", "--json", "raw", "a.h4", cwd=tmp_path).out)] == [[], []]
    assert repr(mpired.info(tmp_path / "a.h4")).endswith("no buffer>")
    assert mpired.info(tmp_path / "raw").obstacle.startswith("does not store the type of its elements")


def test_once_keys(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(2))
    for number in range(6):
        words = ("accumulate", "-q", "--op", "sum", "t.npy", "t.npy", "--once-key", str(number))
        assert run(*words, cwd=tmp_path).status == 0
    (described,) = json.loads(run("info", "--json", "t.npy", cwd=tmp_path).out)
    keys = described["once_keys"]
    assert (keys["count"], [each["key"] for each in keys["last"]], keys["obstacle"]) == (6, [*"5432"], None)
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", each["date"]) for each in keys["last"])
    shown = lines(run("info", "t.npy", cwd=tmp_path))[-1]
    assert shown == "once-keys: 6, the last one first: 5, 4, 3, 2, ..."
    succeeded(run("accumulate", "-q", "--op", "sum", "new.npy", "t.npy", "--create", "--once-key", "0", cwd=tmp_path))
    assert lines(run("info", "new.npy", cwd=tmp_path))[-1] == "once-keys: 1, the last one first: 0"
    (tmp_path / "new.npy.mpired-keys").unlink()
    shown = lines(run("info", "new.npy", cwd=tmp_path))[-1]
    assert shown.startswith("once-keys: 1; has 1 key of --once, but new.npy.mpired-keys is missing")
