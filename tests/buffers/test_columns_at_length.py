"""Long columns, many and highly compressed ones: what reading them takes of memory and time."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import measured, refused, run, unchanged
from tables import THREE, bytes_of

import mpired
from mpired.buffers import footer, parquet
from mpired.errors import BufferFileError
from mpired.sources.local import LocalSource


def test_a_page_that_unfolds_to_more_than_memory(tmp_path):
    count = 10 << 20
    table = pa.table({"x": np.zeros(count)})
    settings = {"row_group_size": count, "data_page_size": 1 << 30, "use_dictionary": False, "compression": "zstd"}
    try:
        content = bytes_of(table, "parquet", max_rows_per_page=count, **settings)
    except TypeError:  # an old pyarrow has no such limit
        content = bytes_of(table, "parquet", **settings)
    assert len(content) < 10_000
    (tmp_path / "page.parquet").write_bytes(content)
    np.save(tmp_path / "o.npy", np.zeros(1))
    words = ("reduce", "-q", "--op", "sum", "page.parquet", "--to", "raw", "-o", "out", "-j", "1")
    with unchanged(tmp_path):
        refused(run(*words, cwd=tmp_path), 3, "page.parquet", "unfolds to 83886", "--max-memory")
        refused(run(*words, "--max-memory", "190M", cwd=tmp_path), 3, "page.parquet", "unfolds to")
        accumulate = ("accumulate", "--op", "sum", "--target-disp", "0", "page.parquet", "o.npy")
        refused(run(*accumulate, cwd=tmp_path), 3, "page.parquet", "unfolds to")
    status, peak, err = measured(*words, "--max-memory", "300M", cwd=tmp_path)
    assert (status, err) == (0, "")
    assert peak < 300 << 20


def test_a_string_beside_that_unfolds_to_more_than_memory(suffix, tmp_path):
    content = bytes_of(
        pa.table({"x": [1.0], "s": ["a" * (80 << 20)]}), suffix, compression="zstd",
        **({"use_dictionary": False, "write_statistics": False} if suffix == "parquet" else {}),
    )  # fmt: skip
    (tmp_path / f"t.{suffix}").write_bytes(content)
    assert len(content) < 10_000
    np.save(tmp_path / "o.npy", np.ones(1))
    with unchanged(tmp_path):
        words = ("accumulate", "--op", "sum", "--columns", "x", f"t.{suffix}", "o.npy")
        refused(run(*words, cwd=tmp_path), 3, f"t.{suffix}", "unfolds to", "smaller parts")
    for words in (("info",), ("reduce", "-q", "--op", "sum", "--columns", "x", "--to", "raw", "-o", "out")):
        status, peak, err = measured(*words, f"t.{suffix}", cwd=tmp_path)
        assert (status, err) == (0, "")
        assert peak < 110 << 20


def test_a_record_batch_larger_than_memory_is_streamed(tmp_path):
    count = 30 << 20
    content = bytes_of(pa.table({"x": np.ones(count, "i1"), "y": np.ones(count)}), "arrow", compression="zstd")
    assert len(content) < 100_000
    (tmp_path / "t.arrow").write_bytes(content)
    del content
    for words in (("info",), ("reduce", "-q", "--op", "max", "--columns", "y", "--to", "raw", "-o", "out", "-j", "1")):
        status, peak, err = measured(*words, "t.arrow", cwd=tmp_path)
        assert (status, err) == (0, "")
        assert peak < 150 << 20
    found = np.memmap(tmp_path / "out", np.float64, "r")
    assert len(found) == count
    assert found[:: count // 100].tolist() == [1.0] * len(found[:: count // 100])


@pytest.mark.parametrize("verb", ["accumulate", "fetch-and-op"])
def test_a_record_batch_that_is_too_large_to_write_again_is_not_decoded(verb, tmp_path):
    content = bytes_of(pa.table({"x": np.zeros(20 << 20)}), "arrow", compression="zstd")
    assert len(content) < 100_000
    (tmp_path / "t.arrow").write_bytes(content)
    np.save(tmp_path / "o.npy", np.zeros(20 << 20))
    operand = {"accumulate": "o.npy", "fetch-and-op": "1"}[verb]
    with unchanged(tmp_path):
        status, peak, err = measured(verb, "--op", "sum", "t.arrow", operand, cwd=tmp_path)
    assert status == 3
    assert "a record batch unfolds to 167772160 bytes" in err
    assert peak < 110 << 20


@pytest.mark.parametrize("target", ["npy", "npz", "parquet"])
@pytest.mark.parametrize("origin", ["npy", "npz", "parquet", "arrow"])
def test_long_origins_are_accumulated_in_pieces(target, origin, tmp_path):
    """Of a length that does not end with a piece."""
    values = np.zeros(20_000_000)
    values[::999_999] = np.arange(21)

    def write(name, form):
        if form in {"npy", "npz"}:
            {"npy": np.save, "npz": lambda path, x: np.savez_compressed(path, x=x)}[form](tmp_path / name, values)
        else:
            settings = {"compression": "zstd"} | ({"row_group_size": 1 << 20} if form == "parquet" else {})
            (tmp_path / name).write_bytes(bytes_of(pa.table({"x": values}), form, **settings))

    write(f"target.{target}", target)
    write(f"origin.{origin}", origin)
    words = ("accumulate", "-q", "--op", "sum", f"target.{target}", f"origin.{origin}")
    status, peak, err = measured(*words, cwd=tmp_path)
    assert (status, err) == (0, "")
    assert peak < 150 << 20
    if target == "parquet":
        found = pq.read_table(tmp_path / "target.parquet")["x"].to_numpy()
    else:
        found = np.load(tmp_path / f"target.{target}")
        found = found["x"] if target == "npz" else found
    assert found.tobytes() == (2 * values).tobytes()


def test_a_long_row_group_is_written_again_in_pieces(tmp_path):
    count = 12 << 20
    pq.write_table(pa.table({"x": np.zeros(count)}), tmp_path / "t.parquet", row_group_size=count)
    np.save(tmp_path / "o.npy", np.ones(1))
    words = ("accumulate", "-q", "--op", "sum", "--target-disp", "5", "t.parquet", "o.npy")
    status, peak, err = measured(*words, cwd=tmp_path)
    assert (status, err) == (0, "")
    assert peak < 210 << 20
    assert np.flatnonzero(pq.read_table(tmp_path / "t.parquet")["x"].to_numpy()).tolist() == [5]


# What it costs


def test_a_long_column_is_read_in_pieces(tmp_path):
    """pyarrow reads a piece whole: one of more pages would be in memory at once, or copied for each of its pages."""
    values = np.random.default_rng(1).integers(0, 1 << 60, 1_000_000)
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet", use_dictionary=False, data_page_size=100_000)
    with contextlib.closing(LocalSource.of("a", str(tmp_path / "a.parquet")).open()) as file:
        (leaf,) = footer.read(file, os.path.getsize(tmp_path / "a.parquet")).leaves
        (chunk,) = leaf.chunks
        found = footer.pages(file, chunk)
        pieces = list(found.cut(1 << 20))
    assert [page for piece in pieces for page in piece.data] == list(found.data)
    assert 5 < len(pieces) < 20
    assert all(sum(page.extent.nbytes for page in piece.data) <= 1 << 20 for piece in pieces)
    assert [piece.data for piece in found.cut(1)] == [[page] for page in found.data]
    assert np.array_equal(mpired.reduce([tmp_path / "a.parquet"], "max"), values)


@pytest.mark.parametrize("ncolumns", [3, 60])
def test_columns_cost_the_same_each(ncolumns, tmp_path, monkeypatch, engine):
    """The footer is read as often as for one column, and pyarrow sees a single column for each, once a rank."""
    table = pa.table({f"c{i}": THREE * i for i in range(ncolumns)})
    for name in ("a", "b"):
        (tmp_path / f"{name}.parquet").write_bytes(bytes_of(table, "parquet"))
    footers, opened = [], []
    monkeypatch.setattr(parquet, "read_footer", lambda *words: footers.append(words) or footer.read(*words))
    plain = pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda *words, **more: opened.append(plain(*words, **more)) or opened[-1])
    mpired.reduce([tmp_path / "a.parquet", tmp_path / "b.parquet"], "sum", output=tmp_path / "out.parquet", jobs=1)
    assert len(footers) == 3  # of both ranks, and of the first again, for the result is to be like it
    seen = [len(file.schema_arrow.names) for file in opened]
    assert seen.count(ncolumns) == 3
    assert seen.count(1) == 2 * ncolumns
    assert pq.read_table(tmp_path / "out.parquet")["c2"].to_pylist() == (THREE * 4).tolist()


@pytest.mark.parametrize("blocks", [2, 20])
def test_a_long_row_group_as_origin_is_decoded_once(blocks, suffix, tmp_path, monkeypatch):
    count = 1000 * blocks
    monkeypatch.setattr("mpired.windows.origin._BLOCK_NBYTES", 8000)
    values = np.random.default_rng(2).normal(size=count)
    (tmp_path / f"o.{suffix}").write_bytes(bytes_of(pa.table({"x": values}), suffix))
    np.save(tmp_path / "t.npy", np.zeros(count))
    opened = []
    plain = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: opened.append(path) or plain(path, *rest, **more))
    mpired.Window(tmp_path / "t.npy").accumulate(tmp_path / f"o.{suffix}", "sum", once=True)
    monkeypatch.undo()
    assert sum(str(path).endswith(suffix) for path in opened) <= 5
    assert np.array_equal(np.load(tmp_path / "t.npy"), values)


def test_reading_starts_at_any_page(tmp_path, monkeypatch):
    """What lies before a page is not decoded, with a dictionary too."""
    count = 100_000
    values = np.arange(count) % 1000 * 0.5
    (tmp_path / "t.parquet").write_bytes(
        bytes_of(pa.table({"x": values}), "parquet", data_page_size=1, write_batch_size=1000)
    )
    (buffer,) = mpired.info(tmp_path / "t.parquet").buffers
    decoded = []
    plain = parquet.values_of
    monkeypatch.setattr(parquet, "values_of", lambda column: decoded.append(len(column)) or plain(column))
    for start in (0, 1, 999, 1000, 54_321, 99_999):
        block = np.empty(min(10, count - start))
        with contextlib.closing(buffer.open()) as reader:
            reader.read(start, block)
        assert block.tolist() == values[start : start + 10].tolist()
    assert sum(decoded) < 6 * 66_000


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_from_any_element(compression, tmp_path, monkeypatch):
    monkeypatch.setattr("mpired.buffers.arrow._STREAM_NBYTES", 64)
    random = np.random.default_rng(3)
    numbers = {
        "b": random.random(500) < 0.5, "i1": random.integers(-9, 9, 500, "i1"),
        "u8": random.integers(0, 2**63, 500, "u8"),
        "f2": random.normal(size=500).astype("f2"), "f8": random.normal(size=500),
    }  # fmt: skip
    views = pa.array([f"a string that is not short {i}" for i in range(500)], pa.string_view())
    union = pa.UnionArray.from_sparse(pa.array([0] * 500, pa.int8()), [pa.array(range(500))])
    table = pa.table({"v": views, "n": pa.nulls(500), "u": union, **numbers})
    path = tmp_path / "t.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=190)
    for name, values in numbers.items():
        (buffer,) = (each for each in mpired.info(path).buffers if each.name == name)
        with contextlib.closing(buffer.open()) as reader:
            for start, stop in ((0, 500), (0, 3), (3, 200), (189, 191), (77, 78), (380, 500), (499, 500)):
                block = np.empty(stop - start, buffer.datatype.form)
                reader.read(start, block)
                assert block.tolist() == values[start:stop].tolist()


def test_arrow_in_the_byte_order_that_it_says(tmp_path):
    """Numbers are taken as the file says, whatever they look like."""
    content = bytearray(bytes_of(pa.table({"x": THREE}), "arrow"))
    swapped = content.replace(THREE.tobytes(), THREE.byteswap().tobytes())
    assert swapped != content
    (tmp_path / "little.arrow").write_bytes(swapped)
    assert mpired.reduce([tmp_path / "little.arrow"], "sum").tolist() == THREE.view("f8").byteswap().tolist()


def test_a_name_that_many_columns_have(suffix, tmp_path):
    table = pa.Table.from_arrays([pa.array([1.0])] * 1000, names=["x"] * 999 + ["y"])
    path = tmp_path / f"t.{suffix}"
    path.write_bytes(bytes_of(table, suffix))
    assert [buffer.name for buffer in mpired.info(path).buffers] == ["y"]
    with pytest.raises(BufferFileError, match=r"999 columns named 'x'; its columns are ('x', ){19}'x' and 980 more$"):
        mpired.reduce([path], "sum", columns=["x"])


def test_arrow_between_many_columns_of_views(tmp_path):
    """Of each only the record batch says how many buffers it has."""
    views = pa.array(["a string that is not short"], pa.string_view())
    table = pa.table({f"{i}": [i] if i % 3 else views for i in range(300)})
    (tmp_path / "t.arrow").write_bytes(bytes_of(table, "arrow"))
    found = mpired.reduce([tmp_path / "t.arrow"] * 2, "sum", columns=["1", "299"])
    assert {name: values.tolist() for name, values in found.items()} == {"1": [2], "299": [598]}
