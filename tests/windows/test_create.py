"""`--create` makes a target, of a count or shape or like the first origin, and takes no file name for its value."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import refused, run, succeeded
from rows import check_refusals
from shared_target import ended_well, forked

import mpired
from mpired.errors import UsageError

PAIRS = np.zeros(3, [("at", ">f8"), ("no", "<i4")])
PAIRS["at"], PAIRS["no"] = [1, 5, 3], [7, 8, 9]
SUM = ("accumulate", "-q", "--op", "sum")


@pytest.fixture
def folder(tmp_path):
    np.save(tmp_path / "day.npy", np.arange(12.0).reshape(3, 4))
    np.save(tmp_path / "o.npy", np.ones(2, np.int16))
    return tmp_path


def test_a_new_target_is_filled_with_the_identity(tmp_path):
    words = ("accumulate", "-q", "--create", "2,3", "new.npy", "o.npy", "--target-disp", "1", "--op")
    np.save(tmp_path / "o.npy", np.array([5, -5], np.int16))
    for op, rest in (("sum", 0), ("prod", 1), ("max", -(2**15)), ("min", 2**15 - 1), ("band", -1), ("bxor", 0)):
        assert run(*words, op, cwd=tmp_path) == (0, b"", ""), op
        found = np.load(tmp_path / "new.npy")
        assert found.dtype == np.int16
        assert found.tolist() == [[rest, 5, -5], [rest, rest, rest]], op
        assert (tmp_path / "new.npy").stat().st_mode & 0o777 == 0o644
        (tmp_path / "new.npy").unlink()
    pair = np.array([(2.5, 4)], np.dtype([("v", "f8"), ("i", "i4")], align=True))
    mpired.Window(tmp_path / "new.bin", type="double_int").accumulate(pair, "minloc", create=3, target_disp=1)
    found = np.fromfile(tmp_path / "new.bin", pair.dtype)
    assert found.tolist() == [(np.inf, 2**31 - 1), (2.5, 4), (np.inf, 2**31 - 1)]


REFUSED = [
    ("accumulate --op replace --create 2,3 new.npy o.npy --target-disp 1", 3, "MPI_REPLACE", "identity"),
    ("accumulate --op sum --create 2 new.npy o.npy --target-disp 1", 3, "window"),
    ("accumulate --op sum new.npy o.npy", 4, "new.npy", "No such file"),
    ("get-accumulate --op no_op --create 3 new.npy", 2, "--create", "--type"),
    ("get-accumulate --op no_op --create 3 new.npy --type int", 3, "NO_OP", "identity"),
    ("get-accumulate --op no_op --type double --create new.npy", 2, "--create", "there is none"),
    # Without a declared datatype it would not know its own again.
    *(
        (words.format(name), 2, "--create", name, reason)
        for name, reason in {"new.h4": "HDF4", "new.parquet": "parquet", "new.dat": "--type"}.items()
        for words in (
            "accumulate --op sum --create 2 {} o.npy",
            "get-accumulate --op sum --create 2 --to text {} o.npy",
            *(["fetch-and-op --op sum --type int16_t --create 2 {} 1"] if name != "new.dat" else []),
        )
    ),
    # Origins whose target would be another kind of file.
    ("accumulate --op sum --create new.parquet day.npy", 2, "makes npy and raw files", "a whole parquet file"),
    ("accumulate --op sum --create --origin-count 2 new.parquet p.parquet", 2, "makes npy and raw", "a whole parquet"),
    ("accumulate --op sum --create --pair y,x new.parquet p.parquet", 2, "--pair", "npy target"),
    ("accumulate --op sum --create new.npy p.parquet", 3, "--columns"),
    ("accumulate --op sum --create --window n.npy --window ./n.npy --target-rank 0 day.npy", 2, "one file twice"),
    # Only a count or a shape that is no file is a value; whatever may be meant as one is refused.
    ("accumulate --op sum --create 12 new.npy day.npy", 2, "--create", "also a file"),
    *(
        (f"accumulate --op sum --create {slip} new.npy day.npy", 2, "--create", slip, f"./{slip}")
        for slip in ("3x4", "(3,4)", "3,", "1e3", "3.5", "2025-01-01", "\u0661", "12,13,x")
    ),
    *(
        (f"accumulate --op sum --create={slip} new.npy day.npy", 2, "--create", "is not a count or shape")
        for slip in ("", "x", "-1", "3x4")
    ),
    ("accumulate --op sum --create like new.npy day.npy", 2, "write --create=like, or ./like",
     "see `mpired accumulate --help`"),
    ("fetch-and-op --op sum --create 3x4 new.npy 1", 2, "see `mpired fetch-and-op --help`"),
    ("accumulate --op sum --create -5 new.npy day.npy", 2, "-5"),
    ("accumulate --op sum --create", 2, "TARGET"),
    ("accumulate --op sum --create new.npy", 2, "ORIGIN"),
    (("accumulate", "--op", "sum", "--create", "", "day.npy"), 2, "--create"),
]  # fmt: skip


def test_refusals(folder):
    pq.write_table(pa.table({"x": pa.array([1, 2, 3], pa.int16()), "y": [1.0, 2.0, 3.0]}), folder / "p.parquet")
    os.link(folder / "day.npy", folder / "12")
    check_refusals(folder, REFUSED)


def test_values_and_names_that_look_like_them(folder):
    expected = np.load(folder / "day.npy")
    for words in (("--create", "3,4", "a.npy"), ("--create=3,4", "a.npy"), ("--create", "--", "a.npy")):
        succeeded(run(*SUM, *words, "day.npy", cwd=folder))
        assert np.load(folder / "a.npy").tolist() == expected.tolist(), words
        (folder / "a.npy").unlink()
    os.link(folder / "day.npy", folder / "2024-01-01")
    succeeded(run(*SUM, "--create", "2024-01-01", "day.npy", cwd=folder))
    assert np.load(folder / "2024-01-01").tolist() == (2 * expected).tolist()
    (folder / "o.bin").write_bytes(bytes(4))
    for name in ("new.dat", "new.0", "new"):
        succeeded(run(*SUM, "--type", "int16_t", "--create", "2", name, "o.bin", cwd=folder))
        assert (folder / name).read_bytes() == bytes(4)


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
    assert (total.dtype, total.shape, total.tolist()) == (array.dtype, array.shape, array.tolist())
    assert np.isfortran(total) == np.isfortran(array)


def test_a_target_that_is_there_stays(folder):
    for words in (("--create",), ("--create=like",)):
        succeeded(run(*SUM, *words, "total.npy", "day.npy", "day.npy", cwd=folder))
    assert np.load(folder / "total.npy").tolist() == (4 * np.load(folder / "day.npy")).tolist()
    refused(run(*SUM, "--create", "total.npy", "o.npy", cwd=folder), 3, "MPI_INT16_T")


def test_raw_targets(folder):
    """They have the count and the byte order that are declared, and no header: what `--offset` skips is no element."""
    np.arange(5, dtype=">i4").tofile(folder / "day.bin")
    succeeded(run(*SUM, "--type", ">i4", "--create", "t.bin", "day.bin", cwd=folder))
    assert (folder / "t.bin").read_bytes() == (folder / "day.bin").read_bytes()
    np.save(folder / "big.npy", np.arange(5, dtype=">i4"))
    succeeded(run(*SUM, "--type", "int", "--create", "n.bin", "big.npy", cwd=folder))
    assert (folder / "n.bin").read_bytes() == np.arange(5, dtype="i4").tobytes()
    (folder / "dump.bin").write_bytes(b"header!!" + np.arange(3.0).tobytes())
    for factor in (1, 2):  # the second command finds the elements at the start of the target
        succeeded(run(*SUM, "--type", "double", "--offset", "8", "--create", "d.bin", "dump.bin", cwd=folder))
        assert (folder / "d.bin").read_bytes() == (factor * np.arange(3.0)).tobytes()


def test_a_part_of_an_origin(folder):
    words = ("--origin-disp", "2", "--origin-count", "3", "--create", "t.npy", "day.npy")
    succeeded(run(*SUM, *words, cwd=folder))
    assert np.load(folder / "t.npy").tolist() == [2, 3, 4]
    pq.write_table(pa.table({"x": pa.array([1, 2, 3], pa.int16()), "y": [1.0, 2.0, 3.0]}), folder / "p.parquet")
    succeeded(run(*SUM, "--columns", "x", "--create", "c.npy", "p.parquet", cwd=folder))
    found = np.load(folder / "c.npy")
    assert (found.dtype, found.tolist()) == (np.int16, [1, 2, 3])


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
    words = (*SUM, "--once", "--columns", "hits,energy", "--create", f"t.{suffix}")
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


def test_several_windows(folder):
    """Each that is missing is like the first origin, whichever is meant."""
    np.save(folder / "w1.npy", np.ones((3, 4)))
    words = ("--window", "w0.npy", "--window", "w1.npy", "--window", "w2.npy", "--target-rank", "2", "day.npy")
    succeeded(run(*SUM, "--create", *words, cwd=folder))
    day = np.load(folder / "day.npy")
    expected = [(0 * day).tolist(), np.ones((3, 4)).tolist(), day.tolist()]
    assert [np.load(folder / f"w{rank}.npy").tolist() for rank in range(3)] == expected


def test_the_calls_that_fetch(folder):
    lowest = -(2**15)
    words = ("get-accumulate", "-q", "--op", "max", "--create", "--to", "text", "t.npy", "o.npy")
    assert run(*words, cwd=folder) == (0, f"{lowest}\n{lowest}\n".encode(), "")
    assert run(*words, cwd=folder) == (0, b"1\n1\n", "")
    words = ("fetch-and-op", "--op", "sum", "--type", "int64_t", "--create", "ticket.npy", "1")
    assert [run(*words, cwd=folder).out for _ in range(2)] == [b"0\n", b"1\n"]
    assert np.load(folder / "ticket.npy").tolist() == [2]
    assert mpired.Window(folder / "u.npy").get_accumulate(np.ones(2), "prod", create=2).tolist() == [1, 1]


def test_the_environment(folder):
    outcome = run(*SUM, "t.npy", "day.npy", cwd=folder, env={"MPIRED_CREATE": "like"})
    assert (outcome.status, "MPIRED_CREATE" in outcome.err) == (0, True)
    assert np.load(folder / "t.npy").shape == (3, 4)


def test_python(folder):
    array = np.asfortranarray(np.arange(6, dtype="<i8").reshape(2, 3))
    assert mpired.Window(folder / "t.npy").accumulate(array, "sum", create=True) == 1
    assert np.isfortran(np.load(folder / "t.npy"))
    assert np.load(folder / "t.npy").tolist() == array.tolist()
    with pytest.raises(OSError, match="missing"):
        mpired.Window(folder / "missing.npy").accumulate(array, "sum", create=False)
    for value in ("3,x", [1.5], -1, [2, -1]):
        with pytest.raises(UsageError, match="is not a count or shape"):
            mpired.Window(folder / "missing.npy").accumulate(array, "sum", create=value)


def test_many_create_one_file(tmp_path):
    def create():
        for _ in range(5):
            mpired.Window(tmp_path / "new.npy").accumulate(np.ones(100), "sum", create=100)

    ended_well([forked(create) for _ in range(8)])
    assert (np.load(tmp_path / "new.npy") == 40).all()
