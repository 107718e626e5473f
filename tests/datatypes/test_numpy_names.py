"""NumPy's names are types, and stand beside MPI's in messages."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows import check_refused, each

import mpired
from mpired.datatypes import parse

NAMES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 bool".split()  # noqa: SIM905 - names


@each("name", [*NAMES, np.dtype("g").name, np.dtype("G").name])
def test_a_name_of_numpy_is_the_type_of_that_form(name, tmp_path):
    datatype, byte_order = parse(name)
    assert (byte_order, datatype.extent, datatype.numpy_name) == (None, np.dtype(name).itemsize, name)
    assert datatype.is_bool if name == "bool" else datatype.form == np.dtype(name)
    values = np.array([1, 0, 1]).astype(name)
    values.tofile(tmp_path / "a.bin")
    found = mpired.reduce([tmp_path / "a.bin"], "lor" if name == "bool" else "sum", type=name)
    np.testing.assert_array_equal(found, values, strict=True)


BOTH = ["MPI_DOUBLE (float64)", "MPI_FLOAT (float32)"]


@each("words, reasons", [
    ("reduce --op band h.npy", ["MPI_REAL2 (float16)"]),
    ("reduce --op sum h.npy d.npy", ["datatype MPI_DOUBLE (float64)", "has MPI_REAL2 (float16)"]),
    ("reduce --op max --type float32 d.npy", BOTH),
    ("reduce --op max --type float32 d.parquet", BOTH),
    ("reduce --op max --type >f8 d.npy", [BOTH[0], "<f8", "not big-endian"]),
    ("accumulate --op sum --type float32 --target-type contiguous(2,double) d.npy d.npy", BOTH),
    ("accumulate --op sum --map d.npy d.npy d.npy", BOTH[:1]),
])  # fmt: skip
def test_messages_have_both_names(words, reasons, tmp_path):
    np.save(tmp_path / "h.npy", np.ones(2, "f2"))
    np.save(tmp_path / "d.npy", np.ones(2))
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "d.parquet")
    check_refused(tmp_path, words, 3, *reasons)


def test_types_of_numpy_and_of_mpired_in_python(tmp_path):
    np.arange(4.0).tofile(tmp_path / "a.bin")
    for value in (np.float64, np.dtype("f8"), mpired.datatypes.DOUBLE, np.dtype("f8").name):
        assert mpired.reduce([tmp_path / "a.bin"], "max", type=value).tolist() == [0, 1, 2, 3]
    np.arange(4, dtype=">i4").tofile(tmp_path / "a.bin")
    assert mpired.reduce([tmp_path / "a.bin"], "max", type=np.dtype(">i4")).tolist() == [0, 1, 2, 3]
    for value in (np.dtype("U3"), np.dtype("f8,i4")):
        with pytest.raises(mpired.errors.UnknownDatatypeError):
            mpired.reduce([tmp_path / "a.bin"], "max", type=value)
