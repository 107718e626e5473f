"""Derived datatypes: their figures, and what ops make of their elements."""

import gc
import pickle
import sys

import numpy as np
import pytest
from type_texts import GOLDEN, some

import mpired
from mpired.datatypes import derived, parse
from mpired.errors import OpError


@pytest.mark.parametrize(("text", "size", "lb", "extent", "true_lb", "true_extent"), GOLDEN)
def test_figures(text, size, lb, extent, true_lb, true_extent):
    made = parse(text)[0].typemap
    assert (made.size, made.lb, made.extent, made.true_lb, made.true_extent) == (size, lb, extent, true_lb, true_extent)


def test_words_of_mpi_are_taken():
    long = "darray(4,1,[10],[MPI_DISTRIBUTE_CYCLIC],[MPI_DISTRIBUTE_DFLT_DARG],[4],MPI_ORDER_FORTRAN,MPI_DOUBLE)"
    assert parse(long)[0] is parse("darray(4,1,[10],[cyclic],[dflt],[4],F,double)")[0]


@pytest.mark.parametrize("row", GOLDEN)
def test_there_is_one_instance_of_each(row):
    datatype = parse(row[0])[0]
    assert parse(f" MPI_{row[0].upper().replace(',', ' , ')} ")[0] is datatype
    assert parse(datatype.name)[0] is datatype
    assert pickle.loads(pickle.dumps(datatype)) is datatype


def test_a_million_entries_cost_nothing():
    steps = 0

    def count(frame, event, argument):
        nonlocal steps
        steps += event == "call"

    sys.setprofile(count)
    try:
        made = parse("contiguous(1000000,vector(1000000,1,2,double))")[0].typemap
        figures = made.entries, made.size, made.true_ub, made.external, made.entry(10**12 - 1).disp
    finally:
        sys.setprofile(None)
    assert figures == (10**12, 8 * 10**12, (2 * 10**6 - 1) * 8 * 10**6, 8 * 10**12, (2 * 10**6 - 1) * 8 * 10**6 - 8)
    assert steps < 1000


def test_types_that_nobody_uses_are_forgotten():
    for i in range(3000):
        parse(f"vector({i},1,2,contiguous({i},int))")
    kept = parse("vector(4,1,2,contiguous(77,int))")[0]
    gc.collect()
    assert len(derived._instances) < 100  # noqa: SLF001 - there is no other way to see it
    assert parse("vector(4,1,2,contiguous(77,int))")[0] is kept


def test_a_subarray_of_many_dimensions_is_no_deep_tree():
    ones, zeros = some(3000, 1)[:-1], some(3000, 0)[:-1]
    made = parse(f"subarray({ones},4],{ones},2],{zeros},1],C,int)")[0]
    assert [entry.disp for entry in made.typemap.walk()] == [4, 8]


def test_levels_are_reduced(tmp_path):
    text = "struct([1,1],[0,3],[int8_t," * 100 + "uint8_t" + "])" * 100
    ranks = np.random.default_rng(4).integers(0, 50, (2, 301), dtype=np.uint8)
    wanted = np.zeros(301, np.uint8)
    wanted[::3] = ranks.sum(0)[::3]
    mpired.reduce(write(tmp_path, *map(bytes, ranks)), op=add_fields, type=text, output=tmp_path / "out.bin")
    assert (tmp_path / "out.bin").read_bytes() == wanted.tobytes()


def write(directory, *ranks):
    paths = []
    for i, rank in enumerate(ranks):
        paths.append(directory / f"rank{i}.rec")
        paths[-1].write_bytes(rank)
    return paths


def add_fields(invec, inoutvec, count, datatype):
    for name in inoutvec.dtype.names:
        inoutvec[name] += invec[name]


def test_a_user_op_sees_the_fields_and_gaps_come_out_as_zeros(tmp_path):
    form = np.dtype({"names": ["a", "b"], "formats": ["<f8", "<i2"], "offsets": [8, 2], "itemsize": 24})
    ranks = []
    for value in (1, 2, 3):
        block = np.frombuffer(bytes([value]) * 96, form).copy()
        block["a"], block["b"] = value, 10 * value
        ranks.append(block.tobytes())
    ranks[1] = ranks[1][:-8]  # the last element ends with its last component
    text = "resized(0,24,struct([1,1],[8,2],[double,short]))"
    output = tmp_path / "sum.rec"
    mpired.reduce(write(tmp_path, *ranks), add_fields, type=text, format="raw", to="raw", output=output)
    expected = np.zeros(4, form)
    expected["a"], expected["b"] = 6, 60
    assert output.read_bytes() == expected.tobytes()


@pytest.mark.parametrize("text", ["contiguous(1,double)", "dup(double)", "resized(0,16,double)"])
def test_predefined_ops_refuse_derived_types(tmp_path, text):
    paths = write(tmp_path, bytes(16), bytes(16))
    with pytest.raises(OpError, match="takes user-defined ops only"):
        mpired.reduce(paths, "sum", type=text, format="raw")


@pytest.mark.parametrize("op", ["sum", "maxloc"])
def test_an_op_that_is_not_defined_is_said_before_what_is_wrong_with_the_files(tmp_path, op):
    paths = write(tmp_path, bytes(72), bytes(71))
    with pytest.raises(OpError, match="is derived"):
        mpired.reduce([*paths, tmp_path / "missing"], op, type="struct([1,1],[0,8],[double,int])", format="raw")


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("struct([1,1],[0,8],[double,int])", "use `type='MPI_DOUBLE_INT'`, which has the same layout"),
        ("struct([1,1],[0,8],[double,int64_t])", "use `type='pair(double,int64_t)'`, which has"),
        ("struct([1,1],[8,0],[double,int])", "by `mpired pack`"),
        ("resized(0,24,struct([1,1],[0,8],[double,int]))", "by `mpired pack`"),
        ("struct([1,1],[0,8],[int,double])", "by `mpired pack`"),
        ("contiguous(2,double_int)", "by `mpired pack`"),
    ],
)
def test_what_maxloc_takes_instead_of_a_structure(tmp_path, text, way_out):
    with pytest.raises(OpError) as caught:
        mpired.reduce(write(tmp_path, bytes(96)), "maxloc", type=text, format="raw")
    assert way_out in str(caught.value)
