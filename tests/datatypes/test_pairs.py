"""Pairs of any value and any integer index: layout, identity, and MINLOC and MAXLOC as the twin has them."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reference
import values
from click.testing import CliRunner

import mpired
from mpired.cli.types import types
from mpired.datatypes import Group, parse, value_index
from mpired.errors import OpError, UnknownDatatypeError

INTEGERS = ["signed_char", "unsigned_char", "short", "unsigned_short", "int", "unsigned", "long", "unsigned_long",
            "long_long_int", "unsigned_long_long", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t",
            "int64_t", "uint64_t", "integer", "integer1", "integer2", "integer4", "integer8", "aint", "offset",
            "count"]  # fmt: skip
FLOATS = ["float", "double", "long_double", "real", "double_precision", "real2", "real4", "real8"]

UNNAMED = [
    *(("double", index) for index in INTEGERS if index != "int"),
    *((value, "int64_t") for value in (*INTEGERS, *FLOATS) if value != "double"),
    *((value, "int8_t") for value in ("int8_t", "uint8_t", "short", "float", "long_double", "real2")),
    *((value, "uint64_t") for value in ("uint64_t", "int8_t", "real2", "long_double")),
    ("float", "uint8_t"), ("int32_t", "int"), ("integer", "int"), ("int16_t", "int8_t"), ("real", "integer"),
]  # fmt: skip


def component(name):
    ((code, _),), nbytes = reference.FORMS[name.upper()]
    return code, nbytes


def layout(value, index):
    """Lay a pair out as the C compiler does."""
    (value_code, value_bytes), (index_code, index_bytes) = component(value), component(index)
    offset = -(-value_bytes // index_bytes) * index_bytes
    align = max(value_bytes, index_bytes)
    extent = -(-(offset + index_bytes) // align) * align
    return ((value_code, 0), (index_code, offset)), extent


def write(directory, ranks):
    paths = []
    for i, rank in enumerate(ranks):
        paths.append(directory / f"rank{i}.bin")
        paths[-1].write_bytes(rank)
    return paths


def test_there_are_enough_of_them():
    assert len(set(UNNAMED)) >= 60


@pytest.mark.parametrize("op", ["MAXLOC", "MINLOC"])
@pytest.mark.parametrize(("value", "index"), sorted(set(UNNAMED)))
def test_an_unnamed_pair_gives_the_bits_of_the_twin(tmp_path, monkeypatch, op, value, index):
    name = f"pair({value},{index})"
    monkeypatch.setitem(reference.FORMS, name, layout(value, index))
    ranks = values.ranks(name, 5, 203)
    output = tmp_path / "result.bin"
    mpired.reduce(write(tmp_path, ranks), op, output=output, type=name, format="raw")
    assert output.read_bytes().hex(" ") == reference.reduce(op, name, ranks).hex(" ")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("pair(long double,int64_t)", "pair(long_double,int64_t)"),
        (" PAIR ( unsigned  long\tlong , signed char ) ", "pair(unsigned_long_long,signed_char)"),
        ("pair(MPI_LONG DOUBLE,int)", "long_double_int"), ("long double", "long_double"), ("double int", "double_int"),
    ],
)  # fmt: skip
def test_names_as_in_c(text, same):
    assert parse(text)[0] is parse(same)[0]


@pytest.mark.parametrize("value", [*INTEGERS, *FLOATS])
def test_every_combination_exists_once(value):
    for index in INTEGERS:
        datatype, order = parse(f"pair({value},{index})")
        assert order is None
        assert datatype.group is Group.PAIR
        assert datatype is parse(f" MPI_PAIR( mpi_{value} ,{index.upper()}) ")[0]
        assert datatype is value_index(parse(value)[0], parse(index)[0])
        assert pickle.loads(pickle.dumps(datatype)) is datatype
        parts, extent = layout(value, index)
        assert datatype.extent == extent
        assert datatype.form.fields["index"][1] == parts[1][1]
        assert datatype.size == component(value)[1] + component(index)[1]


@pytest.mark.parametrize(
    ("value", "index", "name"),
    [
        ("float", "int", "FLOAT_INT"), ("double", "int", "DOUBLE_INT"), ("long", "int", "LONG_INT"),
        ("int", "int", "2INT"), ("short", "int", "SHORT_INT"), ("long_double", "int", "LONG_DOUBLE_INT"),
        ("real", "real", "2REAL"), ("double_precision", "double_precision", "2DOUBLE_PRECISION"),
        ("integer", "integer", "2INTEGER"),
    ],
)  # fmt: skip
def test_a_pair_with_a_name_has_it(value, index, name):
    assert parse(f"pair({value},{index})")[0] is parse(name)[0]


@pytest.mark.parametrize(
    ("value", "index"),
    [("double", "double"), ("double", "float"), ("c_complex", "int"), ("c_bool", "int"), ("byte", "int"),
     ("int", "byte"), ("int", "logical"), ("double_int", "int"), ("char", "int"), ("real", "double_precision")],
)  # fmt: skip
def test_other_combinations_are_no_type(value, index):
    assert value_index(parse(value)[0], parse(index)[0]) is None
    with pytest.raises(UnknownDatatypeError, match=rf"\^{value if index == 'int' else index}\b"):
        parse(f"pair({value},{index})")
    shown = CliRunner().invoke(types(), ["--value-index", value, index])
    assert (shown.exit_code, shown.output) == (0, "MPI_DATATYPE_NULL\n")


def test_the_command_says_the_pair():
    assert CliRunner().invoke(types(), ["--value-index", "double", "uint64_t"]).output == "pair(double,uint64_t)\n"
    assert CliRunner().invoke(types(), ["--value-index", "short", "int"]).output == "MPI_SHORT_INT\n"
    shown = json.loads(CliRunner().invoke(types(), ["--value-index", "double", "uint64_t", "--json"]).output)
    assert (shown["name"], shown["size"], shown["extent"]) == ("pair(double,uint64_t)", 16, 16)
    assert json.loads(CliRunner().invoke(types(), ["--value-index", "double", "byte", "--json"]).output) is None


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
def test_structures_of_two_fields_are_pairs(tmp_path, align, order):
    form = np.dtype([("energy", f"{order}f8"), ("cell", f"{order}i8")], align=align)
    ranks = [np.array(rows, form) for rows in ([(1.5, 9), (2, 7), (3, 1)], [(1.5, 4), (np.nan, 8), (2, 2)])]
    for i, rank in enumerate(ranks):
        np.save(tmp_path / f"{i}.npy", rank)
    paths = sorted(tmp_path.glob("*.npy"))
    assert str(mpired.info(paths[0]).buffers[0].datatype) == "pair(double,int64_t)"
    for jobs in (1, 2):
        result = mpired.reduce(paths, "maxloc", jobs=jobs)
        assert result["cell"].tolist() == [4, 8, 1]


def test_columns_are_pairs(tmp_path):
    energies = pa.table({"energy": [1.0, 5.0], "cell": pa.array([2**40, 7], pa.int64())})
    columns = [column.combine_chunks() for column in energies.columns]
    structures = pa.table({"least": pa.StructArray.from_arrays(columns, ["e", "c"])})
    pq.write_table(energies, tmp_path / "two.parquet")
    pq.write_table(structures, tmp_path / "one.parquet")
    one, two = mpired.info(tmp_path / "one.parquet"), mpired.info(tmp_path / "two.parquet", pair=("energy", "cell"))
    assert one.buffers[0].datatype is two.buffers[0].datatype is parse("pair(double,int64_t)")[0]
    result = mpired.reduce([tmp_path / "one.parquet"] * 2, "minloc")
    assert result.tolist() == [(1.0, 2**40), (5.0, 7)]


def test_other_ops_refuse_a_pair(tmp_path):
    paths = write(tmp_path, [bytes(32)])
    with pytest.raises(OpError, match=r"pair\(double,int64_t\) takes maxloc, minloc"):
        mpired.reduce(paths, "sum", type="pair(double,int64_t)")


@pytest.mark.parametrize("form", ["npy", "parquet"])
@pytest.mark.parametrize(("index", "value"), [("i4", "f8"), ("i4", "i4"), ("i4", "i8"), ("u1", "i8")])
def test_an_index_before_its_value_is_known_by_its_name(tmp_path, index, value, form):
    dtype = np.dtype([("index", index), ("value", value)])
    ranks = [np.array([(5, 1), (6, 9)], dtype), np.array([(7, 3), (1, 2)], dtype)]
    paths = [tmp_path / f"{rank}.{form}" for rank in range(2)]
    for path, array in zip(paths, ranks, strict=True):
        if form == "npy":
            np.save(path, array)
        else:
            fields = [pa.array(array[name]) for name in dtype.names]
            pq.write_table(pa.table({"best": pa.StructArray.from_arrays(fields, dtype.names)}), path)
    found = mpired.reduce(paths, "maxloc")
    assert (found["value"].tolist(), found["index"].tolist()) == ([3, 9], [7, 6])
    output = tmp_path / f"out.{form}"
    mpired.reduce(paths, "maxloc", output=output)
    if form == "npy":
        assert (np.load(output).tolist(), np.load(output).dtype) == ([(7, 3), (6, 9)], dtype)
    else:
        assert pq.read_table(output)["best"].to_pylist() == [{"index": 7, "value": 3}, {"index": 6, "value": 9}]


FORMS = {
    "packed": np.dtype([("t", "f8"), ("who", "i4")]),
    "aligned": np.dtype([("t", "f8"), ("who", "i4")], align=True),
    "gaps": np.dtype({"names": ["t", "who"], "formats": ["f4", "i8"], "offsets": [3, 16], "itemsize": 31}),
    "index first": np.dtype([("index", "i2"), ("value", "f8")]),
    "other order of bytes": np.dtype([("t", ">f8"), ("who", ">i4")]),
    "not named": np.dtype([("value", "i8"), ("index", "u1")]),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_an_array_has_the_form_of_the_ranks(tmp_path, form):
    """Names, places and gaps, of arrays and of files, in each call; numbers are in native byte order."""
    value, index = ("value", "index") if "value" in form.names else ("t", "who")
    ranks = [np.zeros(3, form), np.zeros(3, form)]
    ranks[0][value], ranks[1][value] = [4, 2, 5], [3, 6, 5]
    ranks[0][index], ranks[1][index] = 1, 2
    paths = [tmp_path / f"r{i}.npy" for i in range(2)]
    for path, rank in zip(paths, ranks, strict=True):
        np.save(path, rank)
    mpired.reduce(paths, "maxloc", output=tmp_path / "out.npy")
    window = mpired.Window(tmp_path / "out.npy")
    of_arrays = [mpired.reduce(ranks, "maxloc"), mpired.scan(ranks, "maxloc")[1]]
    of_files = [mpired.reduce(paths, "maxloc"), window.get_accumulate(None, "no_op")]
    stored = np.load(paths[0]).dtype  # as NumPy saves it
    assert np.load(tmp_path / "out.npy").dtype == stored
    for result, like in [*((each, form) for each in of_arrays), *((each, stored) for each in of_files)]:
        assert result.dtype == like.newbyteorder("=")
        assert result[value].tolist() == [4, 6, 5]
        assert result[index].tolist() == [1, 2, 1]
    old = window.fetch_and_op((9, 7), "maxloc", target_disp=2)
    assert (old.dtype, old[value], old[index]) == (stored.newbyteorder("="), 5, 1)


def test_a_structure_keeps_its_names_from_one_format_to_another(tmp_path):
    """A column of structures to npy and to an array."""
    column = pa.StructArray.from_arrays([pa.array([1.5, 2.5]), pa.array([3, 4])], ["t", "who"])
    pq.write_table(pa.table({"peak": column}), tmp_path / "a.parquet")
    like = np.array([(1.5, 3), (2.5, 4)], [("t", "f8"), ("who", "i8")])
    mpired.reduce([tmp_path / "a.parquet"], "maxloc", output=tmp_path / "out.npy")
    for found in (np.load(tmp_path / "out.npy"), mpired.reduce([tmp_path / "a.parquet"], "maxloc")):
        assert found.dtype == like.dtype
        assert found.tolist() == like.tolist()
