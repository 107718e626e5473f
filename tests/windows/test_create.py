"""`--create` makes a target, of a count or shape or like the first origin, and takes no file name for its value."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run
from rows import check_refusals

import mpired
from mpired.errors import UsageError


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
    mpired.Window(tmp_path / "wide.npy").accumulate(np.ones(2, "g"), "min", create=9, target_disp=1)
    padding = np.load(tmp_path / "wide.npy").view(np.uint8).reshape(9, -1)[:, 10:]
    assert np.finfo("g").nmant != 63 or not padding.any()  # the x87 format has 10 bytes of value


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
