"""`mpired info`: what it tells of each file."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from command import reduce, refused, run, succeeded


def test_info_of_a_file_with_other_columns(folder):
    """A column that is no number is shown; to reduce the others they must be chosen."""
    pq.write_table(pa.table({"s": ["u", "v"], "d": [1.0, 2.0], "": [1, 2]}), folder / "mixed.parquet")
    outcome = run("info", "mixed.parquet", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.decode().splitlines()[1:] == [
        "  d: 2 x MPI_DOUBLE (float64)",
        "  '': 2 x MPI_INT64_T (int64)",
        "  s: 2 x string; no op takes it, `mpired reduce --keep s` carries it",
    ]
    described = json.loads(run("info", "--json", "mixed.parquet", cwd=folder).out)
    (other,) = described[0]["other_columns"]
    known = {"name": "s", "type": "string", "count": 2, "shape": None, "nulls": 0, "label": "string"}
    known |= {"unit": None, "storage": None}
    assert other == known | {"use": "no op takes it, `mpired reduce --keep s` carries it"}
    refused(reduce("--op", "sum", "mixed.parquet", cwd=folder), 3, "'s' holds string", "--columns d,")
    succeeded(reduce("--op", "sum", "mixed.parquet", "--columns", "d", "-o", "d.npy", cwd=folder))


def test_info(folder):
    outcome = run("info", "a.npy", "b.parquet", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.decode().splitlines() == [
        "a.npy: npy, 152 bytes",
        "  3 x MPI_DOUBLE (float64), shape (3,), C order, little-endian",
        f"b.parquet: parquet, {(folder / 'b.parquet').stat().st_size} bytes",
        "  x: 3 x MPI_DOUBLE (float64)",
    ]


def test_info_of_raw(folder):
    outcome = run("info", "a.bin", cwd=folder)
    assert outcome == (0, b"a.bin: raw, 24 bytes\n  does not store the type of its elements; give it with --type\n", "")
    outcome = run("info", "--type", ">i4", "--offset", "4", "--count", "2", "a.bin", cwd=folder)
    assert outcome.out.decode() == "a.bin: raw, 24 bytes\n  2 x MPI_INT32_T (int32), big-endian\n"


def test_info_as_json(folder):
    np.save(folder / "f.npy", np.zeros((2, 3), ">i2", order="F"))
    outcome = run("info", "--json", "f.npy", "a.parquet", cwd=folder)
    described = json.loads(outcome.out)
    assert described[0]["file"] == "f.npy"
    assert described[0]["format"] == "npy"
    assert described[0]["buffers"] == [
        {
            "name": "",
            "datatype": "MPI_INT16_T",
            "dtype": "int16",
            "count": 6,
            "shape": [2, 3],
            "order": "Fortran",
            "datarep": None,
            "byte_order": "big",
            "nulls": 0,
            "unit": None,
            "storage": None,
            "label": "MPI_INT16_T (int16)",
            "use": None,
        }
    ]
    assert (described[0]["obstacle"], described[0]["once_keys"]) == (None, {"count": 0, "last": [], "obstacle": None})
    assert [(b["name"], b["datatype"], b["count"]) for b in described[1]["buffers"]] == [("x", "MPI_DOUBLE", 3)]


def test_info_tells_of_the_good_and_of_the_bad(folder):
    (folder / "bad.npy").touch()
    outcome = run("info", "a.npy", "bad.npy", "missing.npy", "b.npy", cwd=folder)
    assert outcome.status == 3
    assert [line for line in outcome.out.decode().splitlines() if not line.startswith(" ")] == [
        "a.npy: npy, 152 bytes",
        "b.npy: npy, 152 bytes",
    ]
    assert outcome.err.count("\n") == 1
    assert "2 of 4 files" in outcome.err
    assert json.loads(run("info", "--json", "a.npy", "bad.npy", cwd=folder).out)[0]["file"] == "a.npy"


def test_json_of_nothing_is_no_list(folder):
    outcome = run("info", "--json", "missing.npy", cwd=folder)
    assert (outcome.status, outcome.out) == (4, b"")
    assert json.loads(outcome.err)["subject"] == "missing.npy"


def test_info_needs_a_file(folder):
    refused(run("info", cwd=folder), 2, "FILE")
