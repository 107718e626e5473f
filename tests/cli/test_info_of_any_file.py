"""`mpired info` says of every file what it holds; only what is damaged or not there is an error."""

from __future__ import annotations

import json

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
LISTS = {"parquet": "list: list<element: int64>, no buffer", "arrow": "list: list<item: int64>, no buffer"}
TWINS = pa.table([pa.array([1]), pa.array([2.0]), pa.array([3])], names=["x", "x", "y"])
ARRAYS = {
    "text.npy": (np.array(["a", "bcd"]), "2 x <U3, shape (2,)"),
    "bytes.npy": (np.array([[b"a", b"bcd"]]), "2 x |S3, shape (1, 2)"),
    "objects.npy": (np.array([{}, None], object), "2 x |O, shape (2,)"),
    "times.npy": (np.zeros((2, 2), "M8[ns]"), "4 x <M8[ns], shape (2, 2)"),
    "mixed.npy": (np.zeros(2, [("a", "<f8"), ("s", "<U3")]), "2 x (<f8, <U3), shape (2,)"),
}


def lines(outcome) -> list[str]:
    assert (outcome.status, outcome.err) == (0, "")
    return [line.strip() for line in outcome.out.decode().splitlines()[1:]]


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_no_numbers(name, tmp_path):
    array, text = ARRAYS[name]
    np.save(tmp_path / name, array)
    assert lines(run("info", name, cwd=tmp_path)) == [f"{text}, no buffer"]
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
    assert lines(run("info", name, cwd=tmp_path)) == [
        "x: 3 x MPI_INT64_T, 1 null",
        "b: 3 x MPI_C_BOOL, 2 nulls",
        "s: string, no buffer",
        LISTS[form],
        "none: null, no buffer",
        "day: date32[day], no buffer",
    ]
    found = mpired.info(tmp_path / name)
    assert [(buffer.name, buffer.nulls) for buffer in found.buffers] == [("x", 1), ("b", 2)]
    refused(run("reduce", "--op", "sum", "--columns", "x", name, cwd=tmp_path), 3, "1 nulls in column 'x'")
    np.save(tmp_path / "o.npy", np.ones(3, np.int64))
    words = ("accumulate", "--op", "sum", "--columns", "x", name, "o.npy")
    refused(run(*words, cwd=tmp_path), 3, "1 nulls in column 'x'")


def test_nulls_that_no_header_tells_of(tmp_path):
    (tmp_path / "t.parquet").write_bytes(bytes_of(COLUMNS, "parquet", write_statistics=False))
    assert lines(run("info", "t.parquet", cwd=tmp_path))[0] == "x: 3 x MPI_INT64_T"
    described = json.loads(run("info", "--json", "t.parquet", cwd=tmp_path).out)
    assert described[0]["buffers"][0]["nulls"] is None
    with pytest.raises(DatatypeError, match="1 nulls"):
        mpired.reduce([tmp_path / "t.parquet"], "sum", columns="x")


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_no_columns_and_two_of_one_name(form, tmp_path):
    (tmp_path / f"none.{form}").write_bytes(bytes_of(pa.table({}), form))
    (tmp_path / "twins.arrow").write_bytes(bytes_of(TWINS, "arrow"))
    assert lines(run("info", f"none.{form}", cwd=tmp_path)) == ["no columns"]
    assert lines(run("info", "twins.arrow", cwd=tmp_path)) == [
        "y: 1 x MPI_INT64_T",
        "x: int64, no buffer",
        "x: double, no buffer",
    ]
    refused(run("reduce", "--op", "sum", f"none.{form}", cwd=tmp_path), 3, "has no columns")
    refused(run("reduce", "--op", "sum", "twins.arrow", cwd=tmp_path), 3, "2 columns named 'x'")
    refused(run("info", "--columns", "x", "twins.arrow", cwd=tmp_path), 3, "2 columns named 'x'")


def test_files_that_are_not_read(tmp_path):
    (tmp_path / "raw").write_bytes(bytes(24))
    (tmp_path / "t.csv").write_text("x\n1\n")
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(8))
    outcome = run("info", "raw", "t.csv", "a.h5", cwd=tmp_path)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.decode().splitlines()[::2] == [
        "raw: raw, 24 bytes",
        "t.csv: csv, 4 bytes",
        "a.h5: HDF5, 16 bytes",
    ]
    assert "--type" in outcome.out.decode()
    assert "`" not in outcome.out.decode()
    assert [each["buffers"] for each in json.loads(run("info", "--json", "raw", "a.h5", cwd=tmp_path).out)] == [[], []]
    assert repr(mpired.info(tmp_path / "a.h5")).endswith("no buffer>")
    assert mpired.info(tmp_path / "raw").obstacle.startswith("says nothing of its elements")


def test_once_keys(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(2))
    for number in range(6):
        words = ("accumulate", "-q", "--op", "sum", "t.npy", "t.npy", "--once-key", str(number))
        assert run(*words, cwd=tmp_path).status == 0
    (described,) = json.loads(run("info", "--json", "t.npy", cwd=tmp_path).out)
    keys = described["once_keys"]
    assert (keys["count"], len(keys["oldest"]), len({*keys["oldest"]})) == (6, 4, 4)
    shown = lines(run("info", "t.npy", cwd=tmp_path))[-1]
    assert shown == f"once-keys: 6, the oldest first: {', '.join(keys['oldest'])}, ..."
    succeeded(run("accumulate", "-q", "--op", "sum", "new.npy", "t.npy", "--create", "--once-key", "0", cwd=tmp_path))
    (described,) = json.loads(run("info", "--json", "new.npy", cwd=tmp_path).out)
    assert described["once_keys"] == {"count": 1, "oldest": keys["oldest"][:1]}
