"""Pages of parquet files whose elements are taken as they lie, beside what pyarrow reads from them."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mpired
from mpired.buffers import Declared, footer, open_rank, parquet, plain_pages
from mpired.errors import BufferFileError, DatatypeError
from mpired.sources.local import LocalSource

COUNT = 30_000
TYPES = ["bool", "int8", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
PLAIN = {"int32", "uint32", "int64", "uint64", "float32", "float64"}


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
    (buffer,) = open_rank(str(path), Declared()).buffers
    block = np.empty(COUNT - start, buffer.datatype.form)
    with contextlib.closing(buffer.open()) as reader:
        reader.read(start, block)
    return block.tobytes()


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "lz4", "brotli"])
@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("form", TYPES)
def test_what_the_library_reads(form, nullable, compression, tmp_path):
    given = column(form)
    schema = pa.schema([pa.field("x", pa.from_numpy_dtype(given.dtype), nullable=nullable)])
    path = written(pa.table([pa.array(given)], schema), tmp_path / "x.parquet", compression=compression)
    for start in (0, 1, 6_999, 7_000, 23_456, COUNT - 1):
        assert read(path, start) == given[start:].tobytes(), start


@pytest.mark.parametrize("options", [{}, {"write_page_checksum": True}, {"write_statistics": False}])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("form", sorted(PLAIN))
def test_plain_pages_need_no_library(form, nullable, compression, options, tmp_path, monkeypatch):
    given = column(form)
    schema = pa.schema([pa.field("x", pa.from_numpy_dtype(given.dtype), nullable=nullable)])
    path = written(pa.table([pa.array(given)], schema), tmp_path / "x.parquet", compression=compression, **options)
    monkeypatch.setattr("mpired.buffers.parquet._batches", lambda _: pytest.fail("decoded by the library"))
    assert read(path, 5) == given[5:].tobytes()


@pytest.mark.parametrize("options", [
    {"use_dictionary": True}, {"data_page_version": "2.0"}, {"column_encoding": {"x": "BYTE_STREAM_SPLIT"}},
    {"use_dictionary": True, "dictionary_pagesize_limit": 5_000},
], ids=str)  # fmt: skip
def test_other_pages_are_decoded_by_the_library(options, tmp_path):
    given = column("float64")
    path = written(pa.table({"x": given}), tmp_path / "x.parquet", **options)
    for start in (0, 10_001):
        assert read(path, start) == given[start:].tobytes()


def test_pages_behind_a_large_dictionary_need_no_library(tmp_path, monkeypatch):
    """A writer encodes the first pages of each row group by a dictionary until that is too large."""
    given = column("float64")
    path = written(pa.table({"x": given}), tmp_path / "x.parquet", use_dictionary=True, dictionary_pagesize_limit=5_000)
    real, decoded = parquet._batches, 0  # noqa: SLF001 - what asks the library

    def counted(file):
        nonlocal decoded
        for batch in real(file):
            decoded += batch.num_rows
            yield batch

    monkeypatch.setattr(parquet, "_batches", counted)
    for start in (0, 500, 6_999, 10_001):
        assert read(path, start) == given[start:].tobytes()
    decoded = 0
    read(path)
    assert 0 < decoded < COUNT / 2


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("at", [0, 8_123, COUNT - 1])
def test_nulls_in_any_page(at, statistics, tmp_path):
    values = list(range(COUNT))
    values[at] = None
    path = written(pa.table({"x": pa.array(values, pa.int64())}), tmp_path / "x.parquet", write_statistics=statistics)
    with pytest.raises(DatatypeError, match="1 null"):
        mpired.reduce([path], "sum")
    result = mpired.reduce([path, path], "sum", nulls="ignore")
    assert result.mask.nonzero()[0].tolist() == [at]
    assert (result.data == 2 * np.arange(COUNT))[~result.mask].all()


def damaged(path, change):
    content = bytearray(path.read_bytes())
    change(content, pq.ParquetFile(io.BytesIO(bytes(content))).metadata.row_group(0).column(0))
    path.write_bytes(content)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_a_flipped_bit_in_a_page_with_a_checksum(compression, tmp_path):
    table = pa.table({"x": column("int64")})
    path = written(table, tmp_path / "x.parquet", compression=compression, write_page_checksum=True)

    def flip(content, chunk):
        content[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 4

    damaged(path, flip)
    with pytest.raises(BufferFileError, match="CRC"):
        mpired.reduce([path], "sum")


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("nbytes", [0, 4_000, 7_992, 8_008])
def test_a_page_of_another_length_than_its_header_says(nbytes, compression, tmp_path):
    """What it lacks must not come from memory that was used before."""
    body = bytes(nbytes) if compression == "none" else pa.compress(bytes(nbytes), compression, asbytes=True)
    whole = written(pa.table({"x": np.zeros(1_000)}), tmp_path / "x.parquet", compression=compression)
    with contextlib.closing(LocalSource.of("x", str(whole)).open()) as file:
        (leaf,) = footer.read(file, whole.stat().st_size).leaves
    page = footer.Page(footer.Extent(0, len(body)), 1_000, 8_000, is_plain=True)
    path = tmp_path / "page"
    path.write_bytes(body)
    with (
        contextlib.closing(LocalSource.of("page", str(path)).open()) as file,
        pytest.raises((ValueError, OSError), match=r"bytes|[Cc]orrupt|ZSTD|[Ss]nappy"),
    ):
        plain_pages.values(file, leaf._replace(plain="float64", is_optional=False), leaf.chunks[0], page)


@pytest.mark.parametrize(
    "levels", [b"", b"\x00", b"\x80", b"\xd0\x0f", b"\xd0\x0f\x00", b"\x03\xff\x00\x01", b"\x03\x7f"]
)
def test_levels_that_the_library_judges(levels):
    assert not plain_pages.are_all_present(levels, 1_000)


@pytest.mark.parametrize("levels", [b"\xd0\x0f\x01", b"\x03\xff\xc0\x0f\x01", b"\xfb\x01" + b"\xff" * 125])
def test_levels_of_a_page_without_nulls(levels):
    assert plain_pages.are_all_present(levels, 1_000)
