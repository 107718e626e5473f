"""Long columns, many and highly compressed ones: what reading them takes of memory and time."""

from __future__ import annotations

import contextlib
import inspect
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import measured, run, succeeded, unchanged
from tables import THREE, bytes_of

import mpired
from mpired.errors import BufferFileError

WRITER = inspect.signature(pq.ParquetWriter).parameters


@pytest.fixture(scope="session")
def bombs(tmp_path_factory):
    """Files of few bytes, of which one page, string or record batch unfolds to 800 MB."""
    folder, count = tmp_path_factory.mktemp("bombs"), 100 << 20
    numbers = pa.table({"x": np.zeros(count)})
    settings = {"row_group_size": count, "data_page_size": 1 << 30, "use_dictionary": False, "compression": "zstd"}
    settings |= (
        {"max_rows_per_page": count} if "max_rows_per_page" in WRITER else {}
    )  # an old pyarrow has no such limit
    (folder / "page.parquet").write_bytes(bytes_of(numbers, "parquet", **settings))
    (folder / "batch.arrow").write_bytes(bytes_of(numbers, "arrow", compression="zstd"))
    text = pa.table({"x": [1.0], "s": ["a" * (800 << 20)]})
    settings = {"use_dictionary": False, "write_statistics": False, "compression": "zstd"}
    (folder / "text.parquet").write_bytes(bytes_of(text, "parquet", **settings))
    (folder / "text.arrow").write_bytes(bytes_of(text, "arrow", compression="zstd"))
    np.save(folder / "o.npy", np.zeros(1))
    assert all(file.stat().st_size < 200_000 for file in folder.iterdir())
    return folder


@pytest.mark.parametrize(("name", "limit"), [("page.parquet", "200M"), ("batch.arrow", "200M"), ("batch.arrow", None)])
def test_a_column_that_unfolds_to_more_than_memory(name, limit, bombs):
    limit = ("--max-memory", limit) if limit else ()
    for words in (
        ("reduce", "-q", "--op", "sum", name, "--to", "raw", "-o", "out", "-j", "1", *limit),
        ("accumulate", "--op", "sum", "--target-disp", "0", *limit, name, "o.npy"),
    ):
        with unchanged(bombs):
            status, peak, err = measured(*words, cwd=bombs)
        assert (status, err.count("\n")) == (3, 1)
        assert name in err
        assert "smaller parts" in err
        assert peak < (400 << 20 if limit else 700 << 20)


@pytest.mark.parametrize("name", ["text.parquet", "text.arrow"])
def test_a_string_beside_that_unfolds_to_more_than_memory(name, bombs, tmp_path):
    with unchanged(bombs):
        status, peak, err = measured("accumulate", "--op", "sum", "--columns", "x", name, "o.npy", cwd=bombs)
        assert (status, err.count("\n")) == (3, 1)
        assert "smaller parts" in err
        assert peak < 700 << 20
        for words in (
            ("info",),
            ("reduce", "-q", "--op", "sum", "--columns", "x", "--to", "raw", "-o", tmp_path / "out"),
        ):
            status, peak, err = measured(*map(str, words), name, cwd=bombs)
            assert (status, err) == (0, "")
            assert peak < 110 << 20


@pytest.mark.parametrize("words", [("info", "t.arrows"), ("reduce", "--op", "sum", "--from", "arrows", "-")])
def test_a_header_that_says_it_is_longer_than_memory(words, tmp_path):
    path = tmp_path / "t.arrows"
    path.write_bytes(b"\xff" * 4 + (1 << 30).to_bytes(4, "little") + bytes(1000))
    with path.open("rb") as content, unchanged(tmp_path):
        status, peak, err = measured(*words, cwd=tmp_path, stdin=content)
    assert (status, err.count("\n")) == (3, 1)
    assert peak < 110 << 20


@pytest.mark.sampled(5)
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
            parts = [pa.array(values[at : at + (1 << 20)]) for at in range(0, len(values), 1 << 20)]
            (tmp_path / name).write_bytes(bytes_of(pa.table({"x": pa.chunked_array(parts)}), form, **settings))

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


@pytest.mark.parametrize("ncolumns", [3, 60])
def test_columns_cost_the_same_each(ncolumns, tmp_path):
    """The footer is parsed as often as for one column."""
    table = pa.table({f"c{i}": THREE * i for i in range(ncolumns)})
    for name in ("a", "b"):
        (tmp_path / f"{name}.parquet").write_bytes(bytes_of(table, "parquet"))
    log, plain = tmp_path / "log", pq.ParquetFile

    def opened(*words, **more):
        with open(log, "a") as file:  # that of a worker too
            file.write("x")
        return plain(*words, **more)

    words = ("reduce", "-q", "--op", "sum", "a.parquet", "b.parquet", "-o", "out.parquet", "-j", "1")
    succeeded(run(*words, cwd=tmp_path, setup=lambda: setattr(pq, "ParquetFile", opened)))
    assert log.stat().st_size == 2  # of each rank once: the worker that inspects them reads them
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


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_from_any_element(compression, tmp_path):
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
