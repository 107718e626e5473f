"""Pairs of any value and any integer index: layout, identity, and MINLOC and MAXLOC as the twin has them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import reference
import values
from rows import each

import mpired
from mpired.datatypes import parse

INTEGERS = ["signed_char", "unsigned_char", "short", "unsigned_short", "int", "unsigned", "long", "unsigned_long",
            "long_long_int", "unsigned_long_long", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t",
            "int64_t", "uint64_t", "integer", "integer1", "integer2", "integer4", "integer8", "aint", "offset",
            "count"]  # fmt: skip
FLOATS = ["float", "double", "long_double", "real", "double_precision", "real2", "real4", "real8"]

# Each index with a value, each value with an index, and some that lie otherwise.
UNNAMED = [
    *(("double", index) for index in INTEGERS if index != "int"),
    *((value, "int64_t") for value in (*INTEGERS, *FLOATS) if value != "double"),
    ("short", "int8_t"), ("real2", "int8_t"), ("int8_t", "uint64_t"), ("long_double", "uint64_t"), ("float", "uint8_t"),
    ("integer", "int"),
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


@each("value, index", sorted(set(UNNAMED)))
def test_an_unnamed_pair_gives_the_bits_of_the_twin(value, index, tmp_path, monkeypatch):
    name = f"pair({value},{index})"
    monkeypatch.setitem(reference.FORMS, name, layout(value, index))
    ranks = values.ranks(name, 3, 101)
    paths = [tmp_path / f"rank{i}.bin" for i in range(3)]
    for path, rank in zip(paths, ranks, strict=True):
        path.write_bytes(rank)
    op, output = ("MINLOC" if index == "int64_t" else "MAXLOC"), tmp_path / "out.bin"
    mpired.reduce(paths, op, output=output, type=name, format="raw", overwrite=True)
    assert output.read_bytes().hex(" ") == reference.reduce(op, name, ranks).hex(" ")


def test_structures_and_columns_are_pairs(tmp_path):
    """Those of parquet keep the names of their fields in npy and in an array."""
    energies = pa.table({"energy": [1.0, 5.0], "cell": pa.array([2**40, 7], pa.int64())})
    columns = [column.combine_chunks() for column in energies.columns]
    pq.write_table(energies, tmp_path / "two.parquet")
    pq.write_table(pa.table({"least": pa.StructArray.from_arrays(columns, ["e", "c"])}), tmp_path / "one.parquet")
    one, two = mpired.info(tmp_path / "one.parquet"), mpired.info(tmp_path / "two.parquet", pair=("energy", "cell"))
    assert one.buffers[0].datatype is two.buffers[0].datatype is parse("pair(double,int64_t)")[0]
    mpired.reduce([tmp_path / "one.parquet"] * 2, "minloc", output=tmp_path / "out.npy")
    for found in (np.load(tmp_path / "out.npy"), mpired.reduce([tmp_path / "one.parquet"] * 2, "minloc")):
        assert found.dtype == np.dtype([("e", "f8"), ("c", "i8")])
        assert found.tolist() == [(1.0, 2**40), (5.0, 7)]
