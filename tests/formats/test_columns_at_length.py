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
from rows import together
from tables import THREE, bytes_of

import mpired
from mpired.errors import BufferFileError

WRITER = inspect.signature(pq.ParquetWriter).parameters


def too_long(folder, *words, most, reason="smaller parts", **settings):
    """Check that a command ends with one line that gives a reason, in some MiB of memory."""
    with unchanged(folder):
        status, peak, err = measured(*words, cwd=folder, **settings)
    assert (status, err.count("\n")) == (3, 1), err
    assert reason in err
    assert peak < most << 20


def test_bombs(tmp_path):
    """One page, string or record batch in files of few bytes unfolds to 288 MiB, or to 800 without a limit."""
    count = 36 << 20
    settings = {"row_group_size": count, "data_page_size": 1 << 30, "use_dictionary": False, "compression": "zstd"}
    settings |= (
        {"max_rows_per_page": count} if "max_rows_per_page" in WRITER else {}
    )  # an old pyarrow has no such limit
    numbers, text = pa.table({"x": np.zeros(count)}), pa.table({"x": [1.0], "s": ["a" * (8 * count)]})
    (tmp_path / "page.parquet").write_bytes(bytes_of(numbers, "parquet", **settings))
    (tmp_path / "batch.arrow").write_bytes(bytes_of(numbers, "arrow", compression="zstd"))
    (tmp_path / "large.arrow").write_bytes(bytes_of(pa.table({"x": np.zeros(100 << 20)}), "arrow", compression="zstd"))
    settings = {"use_dictionary": False, "write_statistics": False, "compression": "zstd"}
    (tmp_path / "text.parquet").write_bytes(bytes_of(text, "parquet", **settings))
    (tmp_path / "text.arrow").write_bytes(bytes_of(text, "arrow", compression="zstd"))
    np.save(tmp_path / "o.npy", np.zeros(1))
    assert all(file.stat().st_size < 200_000 for file in tmp_path.iterdir())
    with together(tmp_path) as case:
        for name, *limit in (("page.parquet", "--max-memory", "200M"), ("batch.arrow", "--max-memory", "200M"),
                             ("large.arrow",)):  # fmt: skip
            words = ("-q", "--op", "sum", *limit)
            with case(name, *limit):
                too_long(tmp_path, "reduce", *words, name, "-o", "out", "--to", "raw", "-j", "1", most=150)
                too_long(tmp_path, "accumulate", *words, "--target-disp", "0", name, "o.npy", most=150)
        for name in ("text.parquet", "text.arrow"):
            with case(name) as folder:
                chosen = ("-q", "--op", "sum", "--columns", "x", name)
                too_long(tmp_path, "accumulate", *chosen, "o.npy", most=150)
                for words in (("info", name), ("reduce", *chosen, "--to", "raw", "-o", str(folder / "out"))):
                    status, peak, err = measured(*words, cwd=tmp_path)
                    assert (status, err, peak < 110 << 20) == (0, "", True)


@pytest.mark.parametrize("words", [("info", "t.arrows"), ("reduce", "--op", "sum", "--from", "arrows", "-")])
def test_a_header_that_says_it_is_longer_than_memory(words, tmp_path):
    path = tmp_path / "t.arrows"
    path.write_bytes(b"\xff" * 4 + (1 << 30).to_bytes(4, "little") + bytes(1000))
    with path.open("rb") as content:
        too_long(tmp_path, *words, stdin=content, reason="", most=110)


LONG = np.zeros(14_000_000)
LONG[::999_999] = np.arange(15)


def write_long(path):
    if path.suffix == ".npy":
        np.save(path, LONG)
    elif path.suffix == ".npz":
        np.savez_compressed(path, x=LONG)
    else:
        settings = {"compression": "zstd"} | ({"row_group_size": 1 << 20} if path.suffix == ".parquet" else {})
        parts = [pa.array(LONG[at : at + (1 << 20)]) for at in range(0, len(LONG), 1 << 20)]
        path.write_bytes(bytes_of(pa.table({"x": pa.chunked_array(parts)}), path.suffix[1:], **settings))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", ["npy", "npz", "parquet"])
@pytest.mark.parametrize("origin", ["npy", "npz", "parquet", "arrow"])
def test_long_origins_are_accumulated_in_pieces(target, origin, tmp_path):
    """Of a length that does not end with a piece."""
    write_long(tmp_path / f"target.{target}")
    write_long(tmp_path / f"origin.{origin}")
    words = ("accumulate", "-q", "--op", "sum", f"target.{target}", f"origin.{origin}")
    status, peak, err = measured(*words, cwd=tmp_path)
    assert (status, err) == (0, "")
    assert peak < 150 << 20
    if target == "parquet":
        found = pq.read_table(tmp_path / "target.parquet")["x"].to_numpy()
    else:
        found = np.load(tmp_path / f"target.{target}")
        found = found["x"] if target == "npz" else found
    assert found.tobytes() == (2 * LONG).tobytes()


def test_a_long_row_group_is_written_again_in_pieces(tmp_path):
    count = 12 << 20
    pq.write_table(pa.table({"x": np.zeros(count)}), tmp_path / "t.parquet", row_group_size=count)
    np.save(tmp_path / "o.npy", np.ones(1))
    words = ("accumulate", "-q", "--op", "sum", "--target-disp", "5", "t.parquet", "o.npy")
    status, peak, err = measured(*words, cwd=tmp_path)
    assert (status, err) == (0, "")
    assert peak < 210 << 20
    assert np.flatnonzero(pq.read_table(tmp_path / "t.parquet")["x"].to_numpy()).tolist() == [5]


def test_columns_cost_the_same_each(tmp_path):
    """The footer of each rank is parsed once: the worker that inspects it reads it."""
    for name in ("a.parquet", "b.parquet"):
        (tmp_path / name).write_bytes(bytes_of(pa.table({f"c{i}": THREE * i for i in range(60)}), "parquet"))
    log, plain = tmp_path / "log", pq.ParquetFile

    def opened(*words, **more):
        with open(log, "a") as file:  # that of a worker too
            file.write("x")
        return plain(*words, **more)

    words = ("reduce", "-q", "--op", "sum", "a.parquet", "b.parquet", "-o", "out.parquet", "-j", "1")
    succeeded(run(*words, cwd=tmp_path, setup=lambda: setattr(pq, "ParquetFile", opened)))
    assert log.stat().st_size == 2
    assert pq.read_table(tmp_path / "out.parquet")["c2"].to_pylist() == (THREE * 4).tolist()


def test_a_long_row_group_as_origin_is_decoded_once(suffix, tmp_path, monkeypatch):
    count, opened, plain = 20_000, [], os.open
    monkeypatch.setattr("mpired.windows.origin._BLOCK_NBYTES", 8000)
    values = np.random.default_rng(2).normal(size=count)
    (tmp_path / f"o.{suffix}").write_bytes(bytes_of(pa.table({"x": values}), suffix))
    np.save(tmp_path / "t.npy", np.zeros(count))
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
