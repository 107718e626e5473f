"""Derived datatypes: their figures, as deep as is allowed, and what ops make of their elements."""

import pickle
import sys

import numpy as np
import pytest
from rows import each
from type_texts import DEEP, GOLDEN, nested

import mpired
from mpired.datatypes import parse
from mpired.datatypes.typemap import pieces, transfer
from mpired.datatypes.typemap.typemap import Run
from mpired.errors import OpError
from mpired.report import describe_datatype
from mpired.windows.call import component_of
from mpired.windows.runs import Runs


@each("row", GOLDEN)
def test_figures(row):
    """Those of the standard; and there is one instance of each type."""
    text, *figures = row
    datatype = parse(text)[0]
    made = datatype.typemap
    assert [made.size, made.lb, made.extent, made.true_lb, made.true_extent] == figures
    assert parse(f" MPI_{text.upper().replace(',', ' , ')} ")[0] is datatype
    assert parse(datatype.name)[0] is datatype
    assert pickle.loads(pickle.dumps(datatype)) is datatype


def test_words_of_mpi_are_taken():
    long = "darray(4,1,[10],[MPI_DISTRIBUTE_CYCLIC],[MPI_DISTRIBUTE_DFLT_DARG],[4],MPI_ORDER_FORTRAN,MPI_DOUBLE)"
    assert parse(long)[0] is parse("darray(4,1,[10],[cyclic],[dflt],[4],F,double)")[0]


@each("name", [name for name in DEEP if name not in {"structures between", "with pairs", "twice"}])
def test_everything_that_goes_through_a_type_takes_a_hundred_levels(name):
    text = nested(*(part.replace("char", "byte") for part in DEEP[name]))[0]
    datatype = parse(text)[0]
    typemap = datatype.typemap
    entries = list(typemap.walk())
    assert [typemap.entry(i) for i in (0, typemap.entries - 1)] == [entries[0], entries[-1]]
    _ = describe_datatype(datatype), typemap.unit, datatype.memory.fields, repr(datatype), pieces.overlaps(typemap, 2)
    assert pickle.loads(pickle.dumps(datatype)) is datatype
    low, high = typemap.true_lb, typemap.true_ub
    octets = np.random.default_rng(6).integers(0, 256, high - low, dtype=np.uint8)
    packed = np.zeros(typemap.size, np.uint8)
    for run in transfer.cut(Run(typemap, -low)):
        for window in transfer.windows(run):
            window.gather(octets[window.starts[0] :], packed)
    assert packed.tobytes() == b"".join(bytes(octets[entry.disp - low :][: entry.form.itemsize]) for entry in entries)
    assert Runs.of(typemap, component_of(datatype).size).entries == typemap.entries


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


def write(directory, *ranks):
    paths = [directory / f"rank{i}.rec" for i in range(len(ranks))]
    for path, rank in zip(paths, ranks, strict=True):
        path.write_bytes(rank)
    return paths


@each(
    "op, text, reason",
    [
        *(("sum", text, "takes user-defined ops only") for text in ("contiguous(1,double)", "dup(double)")),
        ("maxloc", "struct([1,1],[0,8],[double,int])", "by `mpired pack`"),
        ("maxloc", "struct([1,1],[0,8],[int,double])", "by `mpired pack`"),
        ("maxloc", "contiguous(2,double_int)", "by `mpired pack`"),
    ],
)
def test_predefined_ops_refuse_derived_types(op, text, reason, tmp_path):
    """Before anything is said of files that are wrong too."""
    paths = write(tmp_path, bytes(96), bytes(71))
    with pytest.raises(OpError) as caught:
        mpired.reduce([*paths, tmp_path / "missing"], op, type=text, format="raw")
    assert reason in str(caught.value)
