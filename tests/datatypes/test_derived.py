"""Derived datatypes: their figures, as deep as is allowed, and what ops make of their elements."""

import gc
import pickle
import sys

import numpy as np
import pytest
from mpi4py import MPI
from rows import each
from type_texts import DEEP, GOLDEN, nested, some

import mpired
from mpired.datatypes import derived, parse
from mpired.datatypes.typemap import pieces, transfer
from mpired.datatypes.typemap.typemap import Run
from mpired.errors import DatatypeError, OpError, UnknownDatatypeError
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


# The same in the grammar and of mpi4py; MPICH takes the padding of a part for an entry, so there is none.
LAYERS = {
    "dup": ("dup(", ")", lambda inner: inner.Dup()),
    "contiguous": ("contiguous(1,", ")", lambda inner: inner.Create_contiguous(1)),
    "vector": ("vector(1,1,3,", ")", lambda inner: inner.Create_vector(1, 1, 3)),
    "hindexed": ("hindexed([1],[2],", ")", lambda inner: inner.Create_hindexed([1], [2])),
    "resized": ("resized(-2,40,", ")", lambda inner: inner.Create_resized(-2, 40)),
    "struct": ("struct([1,1],[0,4],[byte,", "])",
               lambda inner: MPI.Datatype.Create_struct([1, 1], [0, 4], [MPI.BYTE, inner])),
    "pairs": ("struct([1,1],[12,0],[", ",short_int])",
              lambda inner: MPI.Datatype.Create_struct([1, 1], [12, 0], [inner, MPI.SHORT_INT])),
}  # fmt: skip


@each("layers", [*([name] for name in LAYERS), ["struct", "dup", "contiguous"], ["resized", "vector"]])
def test_a_hundred_levels_as_a_real_mpi(layers):
    text, real = "int", MPI.INT
    for i in range(100):
        before, after, wrap = LAYERS[layers[i % len(layers)]]
        text, real = f"{before}{text}{after}", wrap(real)
    with pytest.raises(UnknownDatatypeError, match="nested deeper than 100 levels"):
        parse(f"{before}{text}{after}")
    made = parse(text)[0].typemap
    assert (made.size, (made.lb, made.extent)) == (real.Get_size(), real.Get_extent())
    assert (made.true_lb, made.true_extent) == real.Get_true_extent()
    # Where the entries are shows in the bytes that are packed.
    buffer = np.random.default_rng(6).integers(0, 256, made.true_extent, dtype=np.uint8)
    packed = np.zeros(made.size, np.uint8)
    moved = MPI.Datatype.Create_struct([1], [-made.true_lb], [real]).Create_resized(0, made.true_extent).Commit()
    moved.Pack(buffer, packed, 0, MPI.COMM_SELF)
    entries = [(entry.disp, entry.disp + entry.form.itemsize) for entry in made.walk()]
    for places in (entries, pieces.pieces(made)):
        assert packed.tobytes() == b"".join(buffer[start - made.true_lb : end - made.true_lb] for start, end in places)


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


def test_a_hundred_levels_are_packed_and_reduced(tmp_path):
    text = "struct([1,1],[1,0],[int8_t," * 100 + "uint8_t" + "])" * 100
    (tmp_path / "a.bin").write_bytes(b"ab")
    mpired.pack(tmp_path / "a.bin", type=text, to="raw", output=tmp_path / "b.bin")
    assert (tmp_path / "b.bin").read_bytes() == b"b" * 100 + b"a"
    with pytest.raises(DatatypeError, match="entries overlap"):
        mpired.unpack(tmp_path / "b.bin", type=text, format="raw", output=tmp_path / "c.bin")
    text = text.replace("[1,0]", "[0,3]")
    mpired.unpack(tmp_path / "b.bin", type=text, format="raw", output=tmp_path / "c.bin")
    assert (tmp_path / "c.bin").read_bytes() == b"b\0\0" * 100 + b"a"
    ranks = np.random.default_rng(4).integers(0, 50, (2, 301), dtype=np.uint8)
    wanted = np.zeros(301, np.uint8)
    wanted[::3] = ranks.sum(0)[::3]
    mpired.reduce(write(tmp_path, *map(bytes, ranks)), op=add_fields, type=text, output=tmp_path / "out.bin")
    assert (tmp_path / "out.bin").read_bytes() == wanted.tobytes()


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


def write(directory, *ranks):
    paths = [directory / f"rank{i}.rec" for i in range(len(ranks))]
    for path, rank in zip(paths, ranks, strict=True):
        path.write_bytes(rank)
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


@each(
    "op, text, reason",
    [
        *(("sum", text, "takes user-defined ops only") for text in ("contiguous(1,double)", "dup(double)")),
        ("maxloc", "struct([1,1],[0,8],[double,int])", "by `mpired pack`"),
        ("maxloc", "contiguous(2,double_int)", "by `mpired pack`"),
    ],
)
def test_predefined_ops_refuse_derived_types(op, text, reason, tmp_path):
    """Before anything is said of files that are wrong too."""
    paths = write(tmp_path, bytes(96), bytes(71))
    with pytest.raises(OpError) as caught:
        mpired.reduce([*paths, tmp_path / "missing"], op, type=text, format="raw")
    assert reason in str(caught.value)
