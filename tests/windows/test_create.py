"""`--create` alone makes a target like the first origin, and never takes a file name for its value."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import refused, run, succeeded, unchanged

import mpired
from mpired.errors import UsageError

PAIRS = np.zeros(3, [("at", ">f8"), ("no", "<i4")])
PAIRS["at"], PAIRS["no"] = [1, 5, 3], [7, 8, 9]


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "day.npy", np.arange(12.0).reshape(3, 4))
    np.save(tmp_path / "o.npy", np.ones(2, np.int16))
    return tmp_path


@pytest.mark.parametrize(
    ("array", "op"),
    [
        (np.arange(12.0).reshape(3, 4), "sum"),
        (np.asfortranarray(np.arange(12, dtype=">i4").reshape(3, 4)), "max"),
        (np.arange(5, dtype="<c8"), "prod"),
        (np.array([True, False, True]), "land"),
        (np.array(3.5), "min"),
        (np.zeros((2, 0), "u1"), "bor"),
        (PAIRS, "maxloc"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.dtype.str + "x".join(map(str, each.shape)),
)
def test_a_target_is_like_the_first_origin(array, op, tmp_path):
    """The origin combined with the identity is the origin, in a file that NumPy reads the same from."""
    np.save(tmp_path / "day.npy", array)
    succeeded(run("accumulate", "-q", "--op", op, "--create", "total.npy", "day.npy", cwd=tmp_path))
    total = np.load(tmp_path / "total.npy")
    assert total.dtype == array.dtype
    assert total.shape == array.shape
    assert total.tolist() == array.tolist()
    assert np.isfortran(total) == np.isfortran(array)


def test_a_target_that_is_there_stays(folder):
    for words in (("--create",), ("--create=like",)):
        succeeded(run("accumulate", "-q", "--op", "sum", *words, "total.npy", "day.npy", "day.npy", cwd=folder))
    assert np.load(folder / "total.npy").tolist() == (4 * np.load(folder / "day.npy")).tolist()
    again = run("accumulate", "-q", "--op", "sum", "--create", "total.npy", "o.npy", cwd=folder)
    refused(again, 3, "MPI_INT16_T")


def test_raw_and_columns_as_origins(folder):
    """A raw target has the count and the byte order that are declared; an npy target of a column its type."""
    np.arange(5, dtype=">i4").tofile(folder / "day.bin")
    succeeded(run("accumulate", "-q", "--op", "sum", "--type", ">i4", "--create", "t.bin", "day.bin", cwd=folder))
    assert (folder / "t.bin").read_bytes() == (folder / "day.bin").read_bytes()
    np.save(folder / "big.npy", np.arange(5, dtype=">i4"))
    succeeded(run("accumulate", "-q", "--op", "sum", "--type", "int", "--create", "n.bin", "big.npy", cwd=folder))
    assert (folder / "n.bin").read_bytes() == np.arange(5, dtype="i4").tobytes()
    pq.write_table(pa.table({"x": pa.array([1, 2, 3], pa.int16()), "y": [1.0, 2.0, 3.0]}), folder / "p.parquet")
    succeeded(run("accumulate", "-q", "--op", "sum", "--columns", "x", "--create", "c.npy", "p.parquet", cwd=folder))
    assert np.load(folder / "c.npy").dtype == np.int16
    assert np.load(folder / "c.npy").tolist() == [1, 2, 3]
    with unchanged(folder):
        words = ("accumulate", "--op", "sum", "--create")
        refused(run(*words, "new.parquet", "day.npy", cwd=folder), 2, "makes npy and raw files", "a whole parquet file")
        part = ("--origin-count", "2", "new.parquet", "p.parquet")
        refused(run(*words, *part, cwd=folder), 2, "makes npy and raw files", "a whole parquet file")
        refused(run(*words, "--pair", "y,x", "new.parquet", "p.parquet", cwd=folder), 2, "--pair", "npy target")
        refused(run(*words, "new.npy", "p.parquet", cwd=folder), 3, "--columns")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_target_with_columns(suffix, tmp_path):
    """It has the schema of the first origin, what is combined from all, and what is not from the first."""
    schema = pa.schema(
        [
            pa.field("name", pa.dictionary(pa.int8(), pa.string())),
            pa.field("hits", pa.int32(), nullable=False, metadata={"unit": "1"}),
            pa.field("energy", pa.float32()),
            pa.field("best", pa.struct([("value", pa.float64()), ("index", pa.int64())])),
            pa.field("flag", pa.bool_()),
        ],
        {"campaign": "2024"},
    )
    rows = [
        {"name": name, "hits": number, "energy": number / 2, "best": {"value": number, "index": 5}, "flag": number > 1}
        for number, name in enumerate(("a", "b", None, "a"))
    ]
    tables = [
        pa.Table.from_pylist(rows, schema),
        pa.Table.from_pylist([{**each, "name": "other", "hits": 10, "flag": False} for each in rows], schema),
    ]
    for number, table in enumerate(tables):
        if suffix == "arrow":
            with pa.ipc.new_file(tmp_path / f"{number}.arrow", schema) as writer:
                writer.write_table(table)
        else:
            pq.write_table(table, tmp_path / f"{number}.parquet", compression={"energy": "zstd"}, row_group_size=3)
    names = [f"{number}.{suffix}" for number in (0, 1)]
    words = ("accumulate", "-q", "--once", "--op", "sum", "--columns", "hits,energy", "--create", f"t.{suffix}")
    succeeded(run(*words, *names, cwd=tmp_path))
    known = "".join(f"mpired: {name}: already applied, left out\n" for name in names)
    assert run(*words, *names, cwd=tmp_path) == (0, b"", known)
    read = pq.read_table if suffix == "parquet" else lambda path: pa.ipc.open_file(path).read_all()
    found = read(tmp_path / f"t.{suffix}")
    assert found.schema.equals(read(tmp_path / names[0]).schema, check_metadata=True)
    expected = tables[0].set_column(1, schema.field("hits"), pa.array([10, 11, 12, 13], pa.int32()))
    expected = expected.set_column(2, schema.field("energy"), pa.array([0, 1, 2, 3], pa.float32()))
    assert found.to_pylist() == expected.to_pylist()
    assert (tmp_path / f"t.{suffix}").stat().st_mode & 0o777 == 0o644
    words = ("accumulate", "-q", "--op", "maxloc", "--columns", "best", "--create", f"u.{suffix}", *names)
    succeeded(run(*words, cwd=tmp_path))
    assert read(tmp_path / f"u.{suffix}").equals(tables[0])
    if suffix == "parquet":
        metadata = pq.read_metadata(tmp_path / "t.parquet")
        assert metadata.num_row_groups == 2
        assert metadata.row_group(0).column(2).compression == "ZSTD"


def test_a_raw_target_has_no_header(folder):
    """What `--offset` skips is no element; the next command finds the elements at the start of the target."""
    (folder / "dump.bin").write_bytes(b"header!!" + np.arange(3.0).tobytes())
    words = ("accumulate", "-q", "--op", "sum", "--type", "double", "--offset", "8", "--create", "t.bin", "dump.bin")
    for factor in (1, 2):
        succeeded(run(*words, cwd=folder))
        assert (folder / "t.bin").read_bytes() == (factor * np.arange(3.0)).tobytes()


def test_a_part_of_an_origin(folder):
    words = ("--op", "sum", "--origin-disp", "2", "--origin-count", "3", "--create", "t.npy", "day.npy")
    succeeded(run("accumulate", "-q", *words, cwd=folder))
    assert np.load(folder / "t.npy").tolist() == [2, 3, 4]


def test_several_windows(folder):
    """Each that is missing is like the first origin, whichever is meant."""
    np.save(folder / "w1.npy", np.ones((3, 4)))
    words = ("--window", "w0.npy", "--window", "w1.npy", "--window", "w2.npy", "--target-rank", "2", "day.npy")
    succeeded(run("accumulate", "-q", "--op", "sum", "--create", *words, cwd=folder))
    day = np.load(folder / "day.npy")
    assert [np.load(folder / f"w{rank}.npy").tolist() for rank in range(3)] == [
        (0 * day).tolist(), np.ones((3, 4)).tolist(), day.tolist(),
    ]  # fmt: skip
    words = ("--window", "new.npy", "--window", "./new.npy", "--target-rank", "0", "day.npy")
    with unchanged(folder):
        refused(run("accumulate", "--op", "sum", "--create", *words, cwd=folder), 2, "one file twice")


def test_the_calls_that_fetch(folder):
    outcome = run("get-accumulate", "-q", "--op", "max", "--create", "--to", "text", "t.npy", "o.npy", cwd=folder)
    assert (outcome.status, outcome.out) == (0, b"-32768\n-32768\n")
    words = ("fetch-and-op", "--op", "sum", "--type", "int64_t", "--create", "ticket.npy", "1")
    assert [run(*words, cwd=folder).out for _ in range(2)] == [b"0\n", b"1\n"]
    assert np.load(folder / "ticket.npy").tolist() == [2]
    with unchanged(folder):
        words = ("get-accumulate", "--op", "no_op", "--type", "double", "--create", "new.npy")
        refused(run(*words, cwd=folder), 2, "--create", "there is none")


def test_it_never_takes_a_file(folder):
    """Only a count or a shape that is no file is a value; whatever may be meant as one is refused."""
    os.link(folder / "day.npy", folder / "12")
    os.link(folder / "day.npy", folder / "2024-01-01")
    succeeded(run("accumulate", "-q", "--op", "sum", "--create", "2024-01-01", "day.npy", cwd=folder))
    assert np.load(folder / "2024-01-01").tolist() == (2 * np.arange(12.0).reshape(3, 4)).tolist()
    words = ("accumulate", "--op", "sum")
    with unchanged(folder):
        refused(run(*words, "--create", "12", "new.npy", "day.npy", cwd=folder), 2, "--create", "also a file")
        for slip in ("3x4", "(3,4)", "3,", "1e3", "3.5", "2025-01-01", "\u0661", "12,13,x"):
            refused(run(*words, "--create", slip, "new.npy", "day.npy", cwd=folder), 2, "--create", slip, f"./{slip}")
        for slip in ("--create=", "--create=x", "--create=-1", "--create=3x4"):
            refused(run(*words, slip, "new.npy", "day.npy", cwd=folder), 2, "--create", "is not a count or shape")
        ways = ("--create alone, or --create=like", "./like", "see `mpired accumulate --help`")
        refused(run(*words, "--create", "like", "new.npy", "day.npy", cwd=folder), 2, *ways)
        outcome = run("fetch-and-op", "--op", "sum", "--create", "3x4", "new.npy", "1", cwd=folder)
        refused(outcome, 2, "see `mpired fetch-and-op --help`")
        refused(run(*words, "--create", "-5", "new.npy", "day.npy", cwd=folder), 2, "-5")
        refused(run(*words, "--create", cwd=folder), 2, "TARGET")
        refused(run(*words, "--create", "new.npy", cwd=folder), 2, "ORIGIN")
        refused(run(*words, "--create", "", "day.npy", cwd=folder), 2, "--create")


@pytest.mark.parametrize("words", [("--create", "3,4"), ("--create=3,4",), ("--create", "--", "a.npy", "day.npy")])
def test_values_that_are_one(words, folder):
    names = () if "a.npy" in words else ("a.npy", "day.npy")
    succeeded(run("accumulate", "-q", "--op", "sum", *words, *names, cwd=folder))
    assert np.load(folder / "a.npy").tolist() == np.load(folder / "day.npy").tolist()


def test_the_environment(folder):
    outcome = run("accumulate", "-q", "--op", "sum", "t.npy", "day.npy", cwd=folder, env={"MPIRED_CREATE": "like"})
    assert (outcome.status, "MPIRED_CREATE" in outcome.err) == (0, True)
    assert np.load(folder / "t.npy").shape == (3, 4)


def test_python(folder):
    array = np.asfortranarray(np.arange(6, dtype="<i8").reshape(2, 3))
    window = mpired.Window(folder / "t.npy")
    assert window.accumulate(array, "sum", create=True) == 1
    assert np.isfortran(np.load(folder / "t.npy"))
    assert np.load(folder / "t.npy").tolist() == array.tolist()
    with pytest.raises(OSError, match="missing"):
        mpired.Window(folder / "missing.npy").accumulate(array, "sum", create=False)
    for value in ("3,x", [1.5], -1, [2, -1]):
        with pytest.raises(UsageError, match="is not a count or shape"):
            mpired.Window(folder / "missing.npy").accumulate(array, "sum", create=value)


def test_accumulating_a_file_into_itself_warns(folder):
    outcome = run("accumulate", "--op", "sum", "day.npy", "day.npy", cwd=folder)
    assert "warning: the origin day.npy is the same file as the target day.npy" in outcome.err
    assert np.load(folder / "day.npy").tolist() == (2 * np.arange(12.0).reshape(3, 4)).tolist()
    outcome = run("accumulate", "--op", "sum", "--create", "t.npy", "day.npy", "./day.npy", cwd=folder)
    assert "warning: the origin ./day.npy is the same file as the origin day.npy" in outcome.err
