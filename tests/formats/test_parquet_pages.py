"""Pages of parquet files: each encoding, from any element, with nulls, and damaged ones."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import in_child
from rows import together

import mpired
from mpired.errors import BufferFileError, DatatypeError
from mpired.formats import InputOptions, open_rank

COUNT = 30_000
COMPRESSIONS = ["none", "snappy", "zstd", "gzip", "lz4", "brotli"]
TYPES = ["bool", "int8", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


def written(table, path, **options):
    pq.write_table(
        table, path, **{"use_dictionary": False, "data_page_size": 20_000, "row_group_size": 7_000} | options
    )
    return path


def column(form, seed=0):
    octets = np.random.default_rng(seed).integers(0, 256, COUNT * np.dtype(form).itemsize, np.uint8)
    return octets % 2 == 1 if form == "bool" else octets.view(form)


def read(path, start=0):
    """Return the bytes of all elements from one on."""
    (buffer,) = open_rank(str(path), InputOptions()).buffers
    block = np.empty(COUNT - start, buffer.datatype.form)
    with contextlib.closing(buffer.open()) as reader:
        reader.read(start, block)
    return block.tobytes()


@pytest.mark.parametrize("form", TYPES)
def test_what_the_library_reads(form, tmp_path, long):
    """Every type with one of the compressions, nullable or not; with `--long` with each of them."""
    given, number = column(form), TYPES.index(form)
    every = [(compression, nullable) for compression in COMPRESSIONS for nullable in (True, False)]
    for compression, nullable in every if long else every[number : number + 1]:
        schema = pa.schema([pa.field("x", pa.from_numpy_dtype(given.dtype), nullable=nullable)])
        path = written(pa.table([pa.array(given)], schema), tmp_path / "x.parquet", compression=compression)
        for start in (0, 1, 6_999, 7_000, 23_456, COUNT - 1):
            assert read(path, start) == given[start:].tobytes(), (compression, nullable, start)


ENCODINGS = [
    {"use_dictionary": True},
    {"data_page_version": "2.0"},
    {"column_encoding": {"x": "BYTE_STREAM_SPLIT"}},
    {"use_dictionary": True, "dictionary_pagesize_limit": 5_000},
]


def test_every_encoding(tmp_path):
    given = column("float64")
    for options in ENCODINGS:
        path = written(pa.table({"x": given}), tmp_path / "x.parquet", **options)
        for start in (0, 10_001):
            assert read(path, start) == given[start:].tobytes(), (options, start)


def test_nulls_in_any_page(tmp_path):
    with together(tmp_path) as case:
        for at, statistics in ((0, True), (8_123, True), (COUNT - 1, True), (0, False), (COUNT - 1, False)):
            values = pa.array(range(COUNT), mask=np.arange(COUNT) == at)
            with case(at, statistics) as folder:
                path = written(pa.table({"x": values}), folder / "x.parquet", write_statistics=statistics)
                with pytest.raises(DatatypeError, match="1 null"):
                    mpired.reduce([path], "sum")
                result = mpired.reduce([path, path], "sum", nulls="ignore")
                assert result.mask.nonzero()[0].tolist() == [at]
                assert (result.data == 2 * np.arange(COUNT))[~result.mask].all()


def damaged(path, change):
    content = bytearray(path.read_bytes())
    change(content, pq.ParquetFile(io.BytesIO(bytes(content))).metadata.row_group(0).column(0))
    path.write_bytes(content)


def test_a_flipped_bit_in_a_page_with_a_checksum(tmp_path):
    def flip(content, chunk):
        content[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 4

    for compression in ("none", "snappy", "zstd"):
        options = {"compression": compression, "write_page_checksum": True}
        damaged(path := written(pa.table({"x": column("int64")}), tmp_path / "x.parquet", **options), flip)
        with pytest.raises(BufferFileError, match="CRC"):
            mpired.reduce([path], "sum")


def test_a_flipped_bit_in_the_header_of_a_page(tmp_path, long):
    """For some the library gives no row, and no error. One in three is tried; with `--long` all."""
    path = written(pa.table({"a": column("int64"), "b": column("int64", 1)}), tmp_path / "x.parquet")
    whole, expected = path.read_bytes(), column("int64").tobytes()

    def look():
        outcomes = set()
        for bit in range(4 * 8, 24 * 8, 1 if long else 3):
            damaged(path, lambda content, _, bit=bit: content.__setitem__(bit // 8, content[bit // 8] ^ 1 << bit % 8))
            try:
                outcomes.add(mpired.reduce([path], "max", columns=["a"]).tobytes() == expected)
            except BufferFileError as error:
                outcomes.add("changed" if "changed" in str(error) else None)
            path.write_bytes(whole)
        return sorted(map(str, outcomes))

    assert in_child(look) == ["None", "True"]


def test_columns_whose_names_are_alike(tmp_path):
    """A dot in a name is no path: the column `s.x` is another one than the field `x` of `s`."""
    one, two = column("float64"), column("float64", 1)
    fields = pa.StructArray.from_arrays([pa.array(two), pa.array(column("int32"))], ["x", "y"])
    path = written(pa.table({"s.x": one, "s": fields, "s.x.z": two}), tmp_path / "x.parquet")
    for name, given in (("s.x", one), ("s.x.z", two)):
        assert mpired.reduce([path], "max", columns=[name]).tobytes() == given.tobytes()
    assert mpired.reduce([path], "maxloc", columns=["s"])["x"].tobytes() == two.tobytes()
