"""Types in types, as deep as is allowed."""

import pickle

import numpy as np
import pytest
from type_texts import DEEP, nested

import mpired
from mpired.datatypes import parse
from mpired.datatypes.typemap import pieces, transfer
from mpired.datatypes.typemap.typemap import Run
from mpired.errors import DatatypeError, UnknownDatatypeError
from mpired.report import describe_datatype
from mpired.windows.call import component_of
from mpired.windows.runs import Runs

# Of so many levels around a byte, by the rules of the standard: size, lb, extent, true lb, true extent, displacements.
FIGURES = {
    ("dup(", ")"): lambda n: (1, 0, 1, 0, 1, [0]),
    ("vector(1,1,1,", ")"): lambda n: (1, 0, 1, 0, 1, [0]),
    ("hindexed([1],[3],", ")"): lambda n: (1, 3 * n, 1, 3 * n, 1, [3 * n]),
    ("resized(-4,9,hindexed([1],[3],", "))"): lambda n: (1, -4, 9, 3 * n, 1, [3 * n]),
    ("struct([1,1],[1,0],[byte,", "])"): lambda n: (n + 1, 0, 2, 0, 2, [1] * n + [0]),
    ("struct([1,1],[0,3],[byte,", "])"): lambda n: (n + 1, 0, 3 * n + 1, 0, 3 * n + 1, range(0, 3 * n + 1, 3)),
    ("struct([1,1],[-5,0],[", ",short])"):
        lambda n: (2 * n + 1, -5 * n, 5 * n + 2 + n % 2, -5 * n, 5 * n + 2, [-5 * n, *range(5 - 5 * n, 1, 5)]),
}  # fmt: skip


@pytest.mark.parametrize("around", FIGURES)
def test_types_are_nested_a_hundred_levels_deep(around):
    text, depth = nested(*around)
    datatype = parse(text)[0]
    made = datatype.typemap
    found = made.size, made.lb, made.extent, made.true_lb, made.true_extent
    *figures, places = FIGURES[around](depth)
    assert found == tuple(figures)
    assert [entry.disp for entry in made.walk()] == list(places)
    assert datatype.name == text
    assert pickle.loads(pickle.dumps(datatype)) is datatype
    with pytest.raises(UnknownDatatypeError, match="nested deeper than 100 levels"):
        parse(f"{around[0]}{text}{around[1]}")


# The same in the grammar and of mpi4py; MPICH takes the padding of a part for an entry, so there is none.
LAYERS = {
    "dup": ("dup(", ")", lambda mpi, inner: inner.Dup()),
    "contiguous": ("contiguous(1,", ")", lambda mpi, inner: inner.Create_contiguous(1)),
    "vector": ("vector(1,1,3,", ")", lambda mpi, inner: inner.Create_vector(1, 1, 3)),
    "hindexed": ("hindexed([1],[2],", ")", lambda mpi, inner: inner.Create_hindexed([1], [2])),
    "resized": ("resized(-2,40,", ")", lambda mpi, inner: inner.Create_resized(-2, 40)),
    "struct": ("struct([1,1],[0,4],[byte,", "])", lambda mpi, inner: mpi.Datatype.Create_struct(
        [1, 1], [0, 4], [mpi.BYTE, inner])),
    "pairs": ("struct([1,1],[12,0],[", ",short_int])", lambda mpi, inner: mpi.Datatype.Create_struct(
        [1, 1], [12, 0], [inner, mpi.SHORT_INT])),
}  # fmt: skip


@pytest.mark.parametrize(
    "layers", [*([name] for name in LAYERS), ["struct", "dup", "contiguous"], ["resized", "vector"]]
)
def test_a_hundred_levels_as_a_real_mpi(layers):
    from mpi4py import MPI

    text, real = "int", MPI.INT
    for i in range(100):
        before, after, wrap = LAYERS[layers[i % len(layers)]]
        text, real = f"{before}{text}{after}", wrap(MPI, real)
    made = parse(text)[0].typemap
    assert made.size == real.Get_size()
    assert (made.lb, made.extent) == real.Get_extent()
    assert (made.true_lb, made.true_extent) == real.Get_true_extent()
    # Where the entries are shows in the bytes that are packed.
    buffer = np.random.default_rng(6).integers(0, 256, made.true_extent, dtype=np.uint8)
    packed = np.zeros(made.size, np.uint8)
    moved = MPI.Datatype.Create_struct([1], [-made.true_lb], [real]).Create_resized(0, made.true_extent).Commit()
    moved.Pack(buffer, packed, 0, MPI.COMM_SELF)
    entries = [(entry.disp, entry.disp + entry.form.itemsize) for entry in made.walk()]
    for places in (entries, pieces.pieces(made)):
        assert packed.tobytes() == b"".join(buffer[start - made.true_lb : end - made.true_lb] for start, end in places)


def looked_at(text):
    """Do with a type what needs to go through it from end to end."""
    datatype = parse(text)[0]
    typemap = datatype.typemap
    entries = list(typemap.walk())
    assert [typemap.entry(i) for i in (0, typemap.entries - 1)] == [entries[0], entries[-1]]
    shown = describe_datatype(datatype), typemap.unit, datatype.memory.fields, len(pieces.pieces(typemap))
    overlap = pieces.overlaps(typemap, 2)
    assert pickle.loads(pickle.dumps(datatype)) is datatype
    low, high = typemap.true_lb, typemap.true_ub
    octets = np.random.default_rng(6).integers(0, 256, high - low, dtype=np.uint8)
    packed = np.zeros(typemap.size, np.uint8)
    for run in transfer.cut(Run(typemap, -low)):
        for window in transfer.windows(run):
            window.gather(octets[window.starts[0] :], packed)
    assert packed.tobytes() == b"".join(bytes(octets[entry.disp - low :][: entry.form.itemsize]) for entry in entries)
    component = component_of(datatype)
    assert Runs.of(typemap, component.size).entries == typemap.entries
    with pytest.raises(UnknownDatatypeError):
        parse(text[:-1])
    return repr(datatype), shown, overlap


@pytest.mark.parametrize("name", [name for name in DEEP if name not in {"structures between", "with pairs", "twice"}])
def test_everything_that_goes_through_a_type_takes_a_hundred_levels(name):
    looked_at(nested(*(part.replace("char", "byte") for part in DEEP[name]))[0])


def test_levels_are_packed(tmp_path):
    levels = 100
    text = "struct([1,1],[1,0],[int8_t," * levels + "uint8_t" + "])" * levels
    datatype = parse(text)[0]
    assert (datatype.size, datatype.extent, len(datatype.typemap.unit)) == (levels + 1, 2, levels + 1)
    assert describe_datatype(datatype)["external32"] == levels + 1
    (tmp_path / "a.bin").write_bytes(b"ab")
    mpired.pack(tmp_path / "a.bin", type=text, to="raw", output=tmp_path / "b.bin")
    assert (tmp_path / "b.bin").read_bytes() == b"b" * levels + b"a"
    with pytest.raises(DatatypeError, match="entries overlap"):
        mpired.unpack(tmp_path / "b.bin", type=text, format="raw", output=tmp_path / "c.bin")
    apart = text.replace("[1,0]", "[0,3]")
    mpired.unpack(tmp_path / "b.bin", type=apart, format="raw", output=tmp_path / "c.bin")
    assert (tmp_path / "c.bin").read_bytes() == b"b\0\0" * levels + b"a"
