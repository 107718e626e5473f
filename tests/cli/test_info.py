"""`mpired info` says of every file what it holds; only what is damaged or not there is an error."""

from __future__ import annotations

import decimal
import json
import re

import numpy as np
import pyarrow as pa
import pytest
from command import refused, run, succeeded
from rows import check_refused, each
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


def lines(*words, cwd):
    """Return what is told of a file below its first line."""
    outcome = run("info", *words, cwd=cwd)
    assert (outcome.status, outcome.err) == (0, "")
    return [line.strip() for line in outcome.out.decode().splitlines()[1:]]


def test_all_of_it_is_in_the_json(folder):
    np.save(folder / "f.npy", np.zeros((2, 3), ">i2", order="F"))
    described = json.loads(run("info", "--json", "f.npy", "a.parquet", cwd=folder).out)
    assert (described[0]["file"], described[0]["format"]) == ("f.npy", "npy")
    known = {"name": "", "datatype": "MPI_INT16_T", "dtype": "int16", "count": 6, "shape": [2, 3], "order": "Fortran"}
    known |= {"datarep": None, "byte_order": "big", "nulls": 0, "unit": None, "storage": None, "use": None}
    assert described[0]["buffers"] == [known | {"label": "MPI_INT16_T (int16)"}]
    assert (described[0]["obstacle"], described[0]["once_keys"]) == (None, {"count": 0, "last": [], "obstacle": None})
    assert [(b["name"], b["datatype"], b["count"]) for b in described[1]["buffers"]] == [("x", "MPI_DOUBLE", 3)]


def test_the_good_and_the_bad(folder):
    (folder / "bad.npy").touch()
    outcome = run("info", "a.npy", "bad.npy", "missing.npy", "b.npy", cwd=folder)
    assert outcome.status == 3
    told = [line for line in outcome.out.decode().splitlines() if not line.startswith(" ")]
    assert told == ["a.npy: npy, 152 bytes", "b.npy: npy, 152 bytes"]
    assert outcome.err.count("\n") == 1
    assert "2 of 4 files" in outcome.err
    assert json.loads(run("info", "--json", "a.npy", "bad.npy", cwd=folder).out)[0]["file"] == "a.npy"
    outcome = run("info", "--json", "missing.npy", cwd=folder)
    assert (outcome.status, outcome.out) == (4, b"")  # no list
    assert json.loads(outcome.err)["subject"] == "missing.npy"


@each(
    "array, text",
    [
        (np.array(["a", "bcd"]), "2 x strings (<U3), shape (2,)"),
        (np.array([[b"a", b"bcd"]]), "2 x bytes (|S3), shape (1, 2)"),
        (np.array([{}, None], object), "2 x Python objects (|O), shape (2,)"),
        (np.zeros((2, 2), "M8"), "4 x <M8, shape (2, 2)"),  # without a unit
        (np.zeros(2, [("t", "<M8[s]"), ("x", "<f8")]), "2 x (<M8[s], <f8), shape (2,)"),
        (np.zeros(2, [("a", "<f8"), ("s", "<U3")]), "2 x (<f8, <U3), shape (2,)"),
    ],
)
def test_arrays_of_no_numbers(array, text, tmp_path):
    np.save(tmp_path / "a.npy", array)
    assert lines("a.npy", cwd=tmp_path) == [f"{text}; no op takes it"]
    (described,) = json.loads(run("info", "--json", "a.npy", cwd=tmp_path).out)
    (other,) = described["other_columns"]
    assert (other["count"], other["shape"]) == (array.size, list(array.shape))
    assert described["buffers"] == []
    check_refused(tmp_path, "reduce --op sum a.npy", 3, "a.npy")
    if array.dtype != object:
        (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
        check_refused(tmp_path, "info a.npy", 3, "not a valid npy file")


@each("form", ["parquet", "arrow"])
def test_columns(form, tmp_path):
    """Nulls are those that the header tells of."""
    name = f"t.{form}"
    (tmp_path / name).write_bytes(bytes_of(COLUMNS, form))
    told = form == "arrow"  # no header of parquet tells of nulls of lists
    assert lines(name, cwd=tmp_path) == [
        "x: 3 x MPI_INT64_T (int64), 1 null; `mpired reduce --nulls ignore` leaves nulls out",
        "b: 3 x MPI_C_BOOL (bool), 2 nulls; `mpired reduce --nulls ignore` leaves nulls out",
        "s: 3 x string, 1 null; no op takes it, `mpired reduce --keep s` carries it",
        f"list: 3 x lists of int64{told * ', 1 null'}; no op takes it, `mpired reduce --keep list` carries it",
        f"none: 3 x null{told * ', 3 nulls'}; no op takes it, `mpired reduce --keep none` carries it",
        "day: 3 x date32[day]; max, min take it if --columns names it",
    ]
    found = mpired.info(tmp_path / name)
    assert [(buffer.name, buffer.nulls) for buffer in found.buffers] == [("x", 1), ("b", 2)]
    (other,) = (each for each in json.loads(run("info", "--json", name, cwd=tmp_path).out)[0]["other_columns"]
                if each["name"] == "s")  # fmt: skip
    known = {"name": "s", "type": "string", "count": 3, "shape": None, "nulls": 1, "label": "string", "unit": None}
    assert other == known | {"storage": None, "use": "no op takes it, `mpired reduce --keep s` carries it"}
    check_refused(tmp_path, f"reduce --op sum --columns x {name}", 3, "'x' has 1 null")
    np.save(tmp_path / "o.npy", np.ones(3, np.int64))
    check_refused(tmp_path, f"accumulate --op sum --columns x {name} o.npy", 3, "'x' has 1 null")


NESTED = pa.table(
    {
        "n": pa.array([{"i": 1, "f": 1.5}], pa.struct([("i", pa.int64()), ("f", pa.float64())])),
        "text": pa.array([{"i": 1, "s": "a"}]),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "word": pa.array(["a"]).dictionary_encode(),
        "price": pa.array([decimal.Decimal("1.50")], pa.decimal128(9, 2)),
        "took": pa.array([5], pa.duration("s")),
        "gone": pa.array([None], pa.timestamp("us", "UTC")),
    }
)
CARRIED = "`mpired reduce --keep {}` carries it"


@each("form", ["parquet", "arrow"])
def test_what_can_be_done_with_a_column(form, tmp_path):
    """In words, and what is said can be done."""
    name = f"t.{form}"
    (tmp_path / name).write_bytes(bytes_of(NESTED, form))
    told = {
        "n": "structures of i (int64), f (float64); user-defined ops take it",
        "text": "structures of i (int64), s (string); no op takes it, ",
        "map": "maps of string to int64; no op takes it, ",
        "word": "string by a dictionary; no op takes it, ",
        "price": "decimal128(9, 2); no op takes it, ",
        "took": "duration[s]; max, min, sum take it if --columns names it",
        "gone": "timestamp[us, tz=UTC], 1 null; `mpired reduce --nulls ignore` leaves nulls out, ",
    }
    carried = [column for column, text in told.items() if text.endswith(", ")]
    expected = [f"{column}: 1 x {text}{CARRIED.format(column) * (column in carried)}" for column, text in told.items()]
    assert lines(name, cwd=tmp_path) == expected
    (tmp_path / "ops.py").write_text("def first(a, b):\n    return a\n")
    kept = ",".join({*NESTED.column_names} - {"n"})
    succeeded(run("reduce", "-q", "--op", "ops.py:first", "--keep", kept, name, "-o", f"out.{form}", cwd=tmp_path))
    words = ("reduce", "-q", "--op", "sum", "--columns", "took", name, "-f", "-o", "out.npy")
    succeeded(run(*words, cwd=tmp_path))
    assert lines("--columns", "took", name, cwd=tmp_path) == ["took: 1 x duration[s]; max, min, sum take it"]


def test_columns_that_are_no_pair(tmp_path):
    (tmp_path / "t.parquet").write_bytes(bytes_of(pa.table({"n": [1], "f": [1.5], "c": [True]}), "parquet"))
    reason = "'n', MPI_INT64_T (int64), and 'f', MPI_DOUBLE (float64), are not a value and an index"
    check_refused(tmp_path, "info --pair n,f t.parquet", 3, reason, "--pair f,n")
    assert lines("--pair", "f,n", "t.parquet", cwd=tmp_path) == ["f,n: 1 x pair(double,int64_t)"]
    check_refused(tmp_path, "info --pair f,c t.parquet", 3, "an index is an integer\n")


def test_nulls_that_no_header_tells_of(tmp_path):
    (tmp_path / "t.parquet").write_bytes(bytes_of(COLUMNS, "parquet", write_statistics=False))
    assert lines("t.parquet", cwd=tmp_path)[0] == "x: 3 x MPI_INT64_T (int64)"
    described = json.loads(run("info", "--json", "t.parquet", cwd=tmp_path).out)
    assert described[0]["buffers"][0]["nulls"] is None
    with pytest.raises(DatatypeError, match="1 null"):
        mpired.reduce([tmp_path / "t.parquet"], "sum", columns="x")


def test_no_columns_and_two_of_one_name(tmp_path):
    twins = pa.table([pa.array([1]), pa.array([2.0]), pa.array([3])], names=["x", "x", "y"])
    (tmp_path / "twins.arrow").write_bytes(bytes_of(twins, "arrow"))
    for form in ("parquet", "arrow"):
        (tmp_path / f"none.{form}").write_bytes(bytes_of(pa.table({}), form))
        assert lines(f"none.{form}", cwd=tmp_path) == ["no columns"]
        check_refused(tmp_path, f"reduce --op sum none.{form}", 3, "holds no array or column")
    assert lines("twins.arrow", cwd=tmp_path) == [
        "y: 1 x MPI_INT64_T (int64)",
        "x: 1 x int64; other columns have this name, too",
        "x: 1 x float64; other columns have this name, too",
    ]
    for words in ("reduce --op sum twins.arrow", "info --columns x twins.arrow"):
        check_refused(tmp_path, words, 3, "2 columns named 'x'")


def test_files_that_are_not_read(tmp_path):
    (tmp_path / "raw").write_bytes(bytes(24))
    (tmp_path / "t.csv").write_text("x\n1\n")
    (tmp_path / "a.h4").write_bytes(b"\x0e\x03\x13\x01" + bytes(8))
    outcome = run("info", "raw", "t.csv", "a.h4", cwd=tmp_path)
    assert (outcome.status, outcome.err) == (0, "")
    shown = outcome.out.decode()
    assert shown.splitlines()[::2] == ["raw: raw, 24 bytes", "t.csv: csv, 4 bytes", "a.h4: HDF4, 12 bytes"]
    assert "--type" in shown
    assert "`" not in shown
    assert [each["buffers"] for each in json.loads(run("info", "--json", "raw", "a.h4", cwd=tmp_path).out)] == [[], []]
    assert repr(mpired.info(tmp_path / "a.h4")).endswith("no buffer>")
    assert mpired.info(tmp_path / "raw").obstacle.startswith("does not store the type of its elements")


def test_once_keys(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(2))
    words = ("accumulate", "-q", "--op", "sum")
    for number in range(6):
        assert run(*words, "t.npy", "t.npy", "--once-key", str(number), cwd=tmp_path).status == 0
    (described,) = json.loads(run("info", "--json", "t.npy", cwd=tmp_path).out)
    keys = described["once_keys"]
    assert (keys["count"], [each["key"] for each in keys["last"]], keys["obstacle"]) == (6, [*"5432"], None)
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", each["date"]) for each in keys["last"])
    assert lines("t.npy", cwd=tmp_path)[-1] == "once-keys: 6, the last one first: 5, 4, 3, 2, ..."
    succeeded(run(*words, "new.npy", "t.npy", "--create", "--once-key", "0", cwd=tmp_path))
    assert lines("new.npy", cwd=tmp_path)[-1] == "once-keys: 1, the last one first: 0"
    (tmp_path / "new.npy.mpired-keys").unlink()
    told = "once-keys: 1; has 1 key of --once, but new.npy.mpired-keys is missing"
    assert lines("new.npy", cwd=tmp_path)[-1].startswith(told)
    refused(run("info", cwd=tmp_path), 2, "FILE")
