"""How a file with columns is written again, and what leaves it as it was."""

from __future__ import annotations

import os
import resource

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from column_targets import ROWS, chunks, strangers, table_of, write
from command import measured, run, succeeded
from rows import check_refusals, check_refused
from tables import read

import mpired


def test_parquet_is_written_as_it_was(tmp_path):
    path = tmp_path / "t.parquet"
    others = strangers()
    names = ["n", *others]
    codecs = {name: ("zstd", "gzip", "none", "snappy", "lz4", "brotli")[i % 6] for i, name in enumerate(names)}
    write(
        table_of({"n": pa.array(np.arange(ROWS) / 2)}, others), path,
        compression=codecs, use_dictionary=["string", "date"], write_statistics=["n", "date"], write_page_index=True,
    )  # fmt: skip
    before, schema = pq.ParquetFile(path).metadata, pq.read_schema(path)
    mpired.Window(path).accumulate(np.ones(ROWS), "sum")
    after = pq.ParquetFile(path).metadata
    assert after.schema.equals(before.schema)
    assert pq.read_schema(path).equals(schema, check_metadata=True)
    for number in range(before.num_row_groups):
        old, new = before.row_group(number), after.row_group(number)
        for i in range(before.num_columns):
            for kept in ("path_in_schema", "physical_type", "compression", "encodings", "num_values", "is_stats_set",
                         "has_dictionary_page", "has_column_index", "has_offset_index"):  # fmt: skip
                assert getattr(new.column(i), kept) == getattr(old.column(i), kept), (old.column(i), kept)
    assert {before.row_group(0).column(i).compression for i in range(before.num_columns)} == {
        "ZSTD", "GZIP", "UNCOMPRESSED", "SNAPPY", "LZ4", "BROTLI"
    }  # fmt: skip


@pytest.mark.parametrize("version", ["1.0", "2.6"])
def test_parquet_of_another_writer(version, tmp_path):
    """Without the Arrow schema, with the old names of lists, with row groups of different sizes and an empty one."""
    path = tmp_path / "t.parquet"
    table = pa.table({
        "list": [["a"], None, [], ["b", None]] * 50, "n": np.arange(200), "l": [[1], [2], [], None] * 50,
        "time": pa.array(np.arange(200) + 1, pa.timestamp("ms")),
    })  # fmt: skip
    with pq.ParquetWriter(
        path, table.schema, store_schema=False, use_compliant_nested_type=False, version=version
    ) as writer:
        for start, stop in ((0, 10), (10, 10), (10, 150), (150, 200)):
            writer.write_table(table[start:stop])
    before = pq.ParquetFile(path)
    mpired.Window(path).accumulate(-np.arange(200), "sum", columns=["n"])
    after = pq.ParquetFile(path)
    assert chunks(path) == [10, 0, 140, 50]
    assert after.schema.equals(before.schema)
    assert read(path).drop_columns("n").equals(table.drop_columns("n"))
    assert not read(path)["n"].to_numpy().any()


def test_arrow_is_written_as_it_was(tmp_path):
    path, twin = tmp_path / "t.arrow", tmp_path / "twin.arrow"
    table = table_of({"n": pa.array(np.zeros(ROWS))}, strangers())
    for compression in (None, "lz4", "zstd"):
        write(table, path, compression=compression)
        write(table, twin, compression=compression)
        mpired.Window(path).accumulate(np.zeros(ROWS), "sum", columns=["n"])
        assert path.read_bytes() == twin.read_bytes(), compression  # by the same writer, so with the same options


def test_arrow_batches(tmp_path):
    """Batches of any length, an empty one too, with metadata, and a dictionary that grows."""
    path = tmp_path / "t.arrow"
    words = ["a", "b", "c", "d"]
    lengths = [3, 0, 1, 4]
    schema = pa.schema([("d", pa.dictionary(pa.int8(), pa.string())), ("n", pa.int64())])
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    newer = int(pa.__version__.partition(".")[0]) >= 19  # which can write metadata into the footer
    footer = {"metadata": {"by": "a test"}} if newer else {}
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema, options=options, **footer) as writer:
        for i, length in enumerate(lengths):
            dictionary = pa.DictionaryArray.from_arrays(pa.array([i] * length, pa.int8()), words[: i + 1])
            batch = pa.record_batch([dictionary, pa.array([1] * length)], schema=schema)
            writer.write_batch(batch, custom_metadata={"number": str(i)})
    mpired.Window(path).accumulate(np.arange(8), "sum")
    with pa.OSFile(str(path), "rb") as file:
        reader = pa.ipc.open_file(file)
        found = [reader.get_batch_with_custom_metadata(i) for i in range(reader.num_record_batches)]
        assert [dict(each.custom_metadata) for each in found] == [{b"number": b"%d" % i} for i in range(4)]
        assert not newer or dict(reader.metadata) == {b"by": b"a test"}
        assert [each.batch.num_rows for each in found] == lengths
        assert reader.read_all().to_pydict() == {"d": list("aaacdddd"), "n": list(range(1, 9))}


def test_a_row_group_too_large_for_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("mpired.formats.parquet._BATCH_NBYTES", 1000)
    monkeypatch.setattr("mpired.formats.parquet._KEPT_GROUP_NBYTES", 100_000)
    path = tmp_path / "t.parquet"
    table = pa.table({"s": [f"{i:01000}" for i in range(450)], "n": np.zeros(450)})
    pq.write_table(table, path, use_dictionary=False, compression="none")
    np.save(tmp_path / "o.npy", np.arange(450.0))
    succeeded(run("accumulate", "-q", "--op", "sum", "--columns", "n", "t.parquet", "o.npy", cwd=tmp_path))
    assert read(path)["s"].equals(table["s"])
    assert read(path)["n"].to_pylist() == list(range(450))
    found = chunks(path)
    assert sum(found) == 450
    assert len(found) == 5


def test_two_columns_of_one_name(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    table = pa.Table.from_arrays([pa.array([1.0]), pa.array(["a"]), pa.array(["b"])], names=["n", "s", "s"])
    write(table, path)
    succeeded(run("fetch-and-op", "--op", "sum", "--columns", "n", path.name, "2", cwd=tmp_path)._replace(out=b""))
    with pa.OSFile(str(path)) as file:
        found = (
            next(pq.ParquetFile(file).iter_batches()) if suffix == "parquet" else pa.ipc.open_file(file).get_batch(0)
        )
        assert [column.to_pylist() for column in found.columns] == [[3.0], ["a"], ["b"]]


def test_empty_targets(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    table = pa.table({"s": pa.array([], pa.string()), "n": pa.array([], pa.int64())})
    write(table, path)
    mpired.Window(path).accumulate(np.empty(0, np.int64), "sum")
    assert read(path).equals(table)


def test_memory_does_not_grow_with_the_file(suffix, tmp_path):
    path, rows = tmp_path / f"t.{suffix}", 1 << 13
    random = np.random.default_rng(2)
    schema = pa.schema([("s", pa.binary()), ("n", pa.float64())])
    with pa.OSFile(str(path), "wb") as file:
        options = {"use_dictionary": False, "compression": "none"} if suffix == "parquet" else {}
        with (pq.ParquetWriter if suffix == "parquet" else pa.ipc.new_file)(file, schema, **options) as writer:
            for _ in range(32):
                octets = [random.bytes(1000)] * rows
                writer.write_batch(pa.record_batch([pa.array(octets), np.zeros(rows)], schema=schema))
    np.save(tmp_path / "o.npy", np.ones(rows * 32))
    size = os.path.getsize(path)
    words = ("accumulate", "-q", "--durability", "none", "--op", "sum", path.name, "o.npy")
    status, peak, err = measured(*words, cwd=tmp_path)
    assert (status, err) == (0, "")
    assert peak < 200 << 20 < size


# What fails leaves the target as it was


def test_no_room(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    write(table_of({"n": pa.array(np.zeros(ROWS))}, strangers()), path)
    np.save(tmp_path / "o.npy", np.ones(ROWS))
    limit = ROWS * 8 + 4096
    assert os.path.getsize(path) > 2 * limit
    refusal = (f"accumulate --op sum {path.name} o.npy --columns n", 4, path.name, "too large")
    check_refusals(tmp_path, [refusal], setup=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))


def test_a_damaged_column_that_is_not_chosen(tmp_path):
    path = tmp_path / "t.parquet"
    table = pa.table({"n": np.arange(1000), "s": [f"word {i}" for i in range(1000)]})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    octets = bytearray(path.read_bytes())
    octets[octets.index(b"word 500")] ^= 1
    path.write_bytes(octets)
    np.save(tmp_path / "o.npy", np.ones(1000, np.int64))
    check_refusals(tmp_path, [(f"accumulate --op sum {path.name} o.npy --columns n", 3, "t.parquet", "damaged")])


def test_int96(tmp_path):
    """Old times stay as they are, and others of the same file; those that nanoseconds of 64 bits cannot hold do not."""
    np.save(tmp_path / "o.npy", np.ones(4, np.int64))
    times = pa.array([None, -(1 << 53), 1 << 53, -1_500_000_001], pa.timestamp("us"))
    nested = pa.ListArray.from_arrays(range(5), pa.StructArray.from_arrays([times], ["x"]))
    table = pa.table({"n": np.arange(4), "t": times, "nested": nested})
    pq.write_table(table, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    before = pq.read_table(tmp_path / "t.parquet")
    succeeded(run("accumulate", "-q", "--op", "sum", "t.parquet", "o.npy", cwd=tmp_path))
    found = pq.ParquetFile(tmp_path / "t.parquet")
    assert found.read().equals(before.set_column(0, "n", pa.array(np.arange(1, 5))))
    assert [found.schema.column(leaf).physical_type for leaf in range(3)] == ["INT64", "INT96", "INT96"]
    succeeded(
        run("reduce", "-q", "--op", "min", "--columns", "t", "--nulls=ignore", "t.parquet", "-ou.npy", cwd=tmp_path)
    )
    np.testing.assert_array_equal(np.load(tmp_path / "u.npy")[1:], times[1:].to_numpy().astype("M8[ns]"))
    far = pa.array([0, 1, 1 << 54, 2], pa.timestamp("us"))
    for name, column in ("t", far), ("nested", pa.ListArray.from_arrays(range(5), far)):
        table = pa.table({"n": np.arange(4), name: column})
        pq.write_table(table, tmp_path / "far.parquet", use_deprecated_int96_timestamps=True)
        reason = f"column {name!r} has times of 96 bits before 1677 or after 2262; write it as a timestamp of 64 bits"
        check_refused(tmp_path, "accumulate --op sum far.parquet o.npy", 3, "far.parquet: ", reason)
        words = f"reduce --op sum --columns n --keep {name} far.parquet far.parquet -o k.parquet"
        check_refused(tmp_path, words, 3, "far.parquet: ", reason)
