"""NumPy's names are types, and stand beside MPI's in messages."""

from __future__ import annotations

import numpy as np
import pytest
from command import refused, run

import mpired
from mpired.datatypes import DATATYPES, parse

NAMES = [
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bool"),
]  # fmt: skip


@pytest.mark.parametrize("name", [*NAMES, np.dtype("g").name, np.dtype("G").name])
def test_a_name_of_numpy_is_the_type_of_that_form(name):
    datatype, byte_order = parse(name)
    assert byte_order is None
    assert np.dtype(name).itemsize == datatype.extent
    assert datatype.numpy_name == name
    assert datatype.is_bool if name == "bool" else datatype.form == np.dtype(name)


@pytest.mark.parametrize("name", ["half", "single", "longdouble", "intc", "uintc", "intp", "uintp", "uint"])
def test_another_name_of_numpy_is_the_same_type(name):
    assert parse(name) == parse(np.dtype(name).name)
    assert parse(f"pair({name},int32)")[0].form["value"] == np.dtype(name)


def test_names_of_mpi_mean_what_they_are_in_mpi():
    for row in filter(lambda row: row.dtype is not None, DATATYPES):
        assert parse(row.name.lower())[0] is row
    assert parse("float")[0].form == np.float32


def test_names_of_numpy_are_parts_of_types(tmp_path):
    assert str(parse("pair(float64, int64)")[0]) == "pair(double,int64_t)"
    assert str(parse("vector(3,1,2,float32)")[0]) == "vector(3,1,2,float)"


@pytest.mark.parametrize("name", NAMES)
def test_raw_files_of_a_name_of_numpy(name, tmp_path):
    values = np.array([1, 0, 1]).astype(name)
    values.tofile(tmp_path / "a.bin")
    op = "lor" if name == "bool" else "sum"
    words = ("reduce", "-q", "--op", op, "--type", name, "a.bin", "a.bin", "--to", "npy", "-o", "out.npy")
    assert run(*words, cwd=tmp_path).status == 0
    out = np.load(tmp_path / "out.npy")
    np.testing.assert_array_equal(out, values if name == "bool" else values + values)
    assert out.dtype == np.dtype(name)


@pytest.mark.parametrize(
    ("word", "hint"), [("flot64", "float64"), ("Float64", "float64"), ("int23", "int32"), ("longduble", "longdouble")]
)
def test_a_slip_is_answered_with_names_of_numpy_too(word, hint, tmp_path):
    message = run("types", word, cwd=tmp_path).err
    assert hint in message.partition("did you mean")[2]


def test_messages_have_both_names(tmp_path):
    np.save(tmp_path / "h.npy", np.ones(2, "f2"))
    np.save(tmp_path / "d.npy", np.ones(2))
    refused(run("reduce", "--op", "band", "h.npy", cwd=tmp_path), 3, "MPI_REAL2 (float16)")
    both = run("reduce", "--op", "sum", "h.npy", "d.npy", cwd=tmp_path)
    refused(both, 3, "datatype MPI_DOUBLE (float64)", "has MPI_REAL2 (float16)")


@pytest.mark.parametrize("value", [np.float64, np.dtype("f8"), mpired.datatypes.DOUBLE, np.dtype("f8").name])
def test_types_of_numpy_and_of_mpired_in_python(value, tmp_path):
    np.arange(4.0).tofile(tmp_path / "a.bin")
    assert mpired.reduce([tmp_path / "a.bin"], "max", type=value).tolist() == [0, 1, 2, 3]


def test_the_byte_order_of_a_type_of_numpy(tmp_path):
    np.arange(4, dtype=">i4").tofile(tmp_path / "a.bin")
    assert mpired.reduce([tmp_path / "a.bin"], "max", type=np.dtype(">i4")).tolist() == [0, 1, 2, 3]
    for value in (np.dtype("U3"), np.dtype("f8,i4")):
        with pytest.raises(mpired.errors.UnknownDatatypeError):
            mpired.reduce([tmp_path / "a.bin"], "max", type=value)
