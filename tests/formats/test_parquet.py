"""Parquet files: each type and encoding, from any element on, with nulls, damaged and encrypted."""

import base64
import contextlib
import io
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import in_child, refused, run
from rows import together
from tables import THREE

import mpired
from mpired.errors import BufferFileError, DatatypeError
from mpired.formats import InputOptions, open_rank

COUNT = 30_000
ENCODINGS = [
    {},
    {"use_dictionary": True},
    {"data_page_version": "2.0"},
    {"use_dictionary": True, "dictionary_pagesize_limit": 5_000},
]
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


def test_what_the_library_reads(tmp_path, long):
    """Every type, from any element on, with one of the encodings and compressions; with `--long` with all of them."""
    with together(tmp_path) as case:
        for number, form in enumerate(TYPES):
            elements = column(form)
            every = list(itertools.product(COMPRESSIONS, ENCODINGS, (True, False)))
            for compression, options, nullable in every if long else every[5 * number :][:1]:
                with case(form, compression, options, nullable) as folder:
                    schema = pa.schema([pa.field("x", pa.from_numpy_dtype(elements.dtype), nullable=nullable)])
                    table = pa.table([pa.array(elements)], schema)
                    path = written(table, folder / "x.parquet", compression=compression, **options)
                    for start in (0, 1, 6_999, 7_000, 23_456, COUNT - 1):
                        assert read(path, start) == elements[start:].tobytes(), start
        with case("split bytes") as folder:
            elements = column("float64")
            options = {"column_encoding": {"x": "BYTE_STREAM_SPLIT"}}
            assert read(written(pa.table({"x": elements}), folder / "x.parquet", **options)) == elements.tobytes()


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


def test_a_flipped_bit_in_the_header_of_a_page(tmp_path, long):
    """For some the library gives no row, and no error. One in seven is tried; with `--long` all."""
    path = written(pa.table({"a": column("int64"), "b": column("int64", 1)}), tmp_path / "x.parquet")
    whole, expected = path.read_bytes(), column("int64").tobytes()

    def look():
        outcomes = set()
        for bit in range(4 * 8, 24 * 8, 1 if long else 7):
            damaged(path, lambda content, _, bit=bit: content.__setitem__(bit // 8, content[bit // 8] ^ 1 << bit % 8))
            try:
                outcomes.add(mpired.reduce([path], "max", columns=["a"]).tobytes() == expected)
            except BufferFileError as error:
                outcomes.add("changed" if "changed" in str(error) else None)
            path.write_bytes(whole)
        return sorted(map(str, outcomes))

    assert in_child(look) == ["None", "True"]


@pytest.mark.parametrize("nullable", [True, False])
def test_an_encrypted_column_ends_its_worker_without_a_word(nullable, tmp_path):
    """The footer is readable, and so are the other columns; pyarrow ends the process that asks for this one."""
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        def __init__(self, _settings):
            super().__init__()

        def wrap_key(self, key, _name):
            return base64.b64encode(key)

    keys = encryption.EncryptionConfiguration("a", column_keys={"b": ["x"]}, plaintext_footer=True)
    settings = encryption.CryptoFactory(Keys).file_encryption_properties(encryption.KmsConnectionConfig(), keys)
    schema = pa.schema([pa.field("x", pa.float64(), nullable), pa.field("y", pa.float64(), nullable=False)])
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": THREE, "y": THREE}, schema), path, encryption_properties=settings)
    for words in (("reduce", "--op", "sum", "--to", "raw"), ("show",)):
        refused(run(*words, "--columns", "x", path.name, cwd=tmp_path), 3, "t.parquet: cannot be decoded")
    if not nullable:
        assert mpired.reduce([path] * 2, "sum", columns=["y"]).tolist() == (2 * THREE).tolist()
