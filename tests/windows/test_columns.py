"""Targets with columns: those that are meant change, and all others stay, whatever they hold."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import resource

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import measured, refused, run, succeeded, unchanged

import mpired

SUFFIXES = ("parquet", "arrow")
CHUNK = 700  # rows of a row group or a record batch
ROWS = 2 * CHUNK + 100


@pytest.fixture(params=SUFFIXES)
def suffix(request):
    return request.param


def write(table, path, **settings):
    """Write a table in row groups, or in record batches, of `CHUNK` rows."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, **({"row_group_size": CHUNK} | settings))
        return
    options = pa.ipc.IpcWriteOptions(**settings)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=CHUNK)


def read(path):
    if path.suffix == ".parquet":
        return pq.read_table(path)
    with pa.OSFile(str(path), "rb") as file:
        return pa.ipc.open_file(file).read_all()


def chunks(path):
    """Return the rows of each row group, or of each record batch."""
    if path.suffix == ".parquet":
        groups = pq.ParquetFile(path).metadata
        return [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
    with pa.OSFile(str(path), "rb") as file:
        reader = pa.ipc.open_file(file)
        return [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]


def holed(values):
    """Return values of which every third is missing."""
    return [None if i % 3 == 1 else value for i, value in enumerate(values)]


def strangers():
    """Return columns of no MPI datatype, or with nulls, by name."""
    numbers = range(ROWS)
    moment = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    return {
        "string": pa.array(holed(f"é{i}" for i in numbers)),
        "binary": pa.array([bytes([i % 256]) * (i % 5) for i in numbers], pa.large_binary()),
        "timestamp": pa.array(
            holed(moment + dt.timedelta(seconds=i) for i in numbers), pa.timestamp("us", tz="Europe/Berlin")
        ),
        "date": pa.array([dt.date(2024, 1, 1 + i % 31) for i in numbers]),
        "decimal": pa.array(holed(decimal.Decimal(i) / 4 for i in numbers), pa.decimal128(20, 2)),
        "list": pa.array(holed(list(range(i % 4)) for i in numbers), pa.list_(pa.int32())),
        "lists": pa.array(holed([["a"], None, [str(i)]] for i in numbers), pa.list_(pa.list_(pa.string()))),
        "map": pa.array(holed([("k", i), ("l", None)] for i in numbers), pa.map_(pa.string(), pa.int64())),
        "dictionary": pa.array(holed(f"word {i % 7}" for i in numbers)).dictionary_encode(),
        "struct": pa.array(holed({"a": i, "s": {"t": None}} for i in numbers)),
        "null": pa.nulls(ROWS),
    }


def table_of(numbers, others):
    """Return a table with metadata: of the numbers `n` is not nullable, the others are around them."""
    columns = dict(list(others.items())[::2]) | numbers | dict(list(others.items())[1::2])
    fields = [
        pa.field(name, column.type, name != "n", {"unit": f"of {name}", "PARQUET:field_id": str(50 + i)})
        for i, (name, column) in enumerate(columns.items())
    ]
    return pa.table(list(columns.values()), schema=pa.schema(fields, {"made by": "a test"}))


def check(path, before, table, **changed):
    """Check that a file is the table with other numbers, in the chunks of before."""
    for name, column in changed.items():
        i = table.schema.get_field_index(name)
        table = table.set_column(i, table.schema.field(i), pa.array(column, table.schema.field(i).type))
    found = read(path)
    assert found.schema.equals(table.schema, check_metadata=True)
    assert found.equals(table)
    found.validate(full=True)
    assert chunks(path) == before == [CHUNK, CHUNK, 100]


@pytest.mark.parametrize("words", [("--columns", "n"), ()], ids=" ".join)
def test_other_columns_stay(words, suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    table = table_of({"n": pa.array(np.arange(ROWS) / 2)}, strangers())
    write(table, path)
    before, table = chunks(path), read(path)
    origin = np.random.default_rng(1).normal(size=ROWS)
    np.save(tmp_path / "o.npy", origin)
    succeeded(run("accumulate", "-q", "--op", "sum", *words, path.name, "o.npy", cwd=tmp_path))
    check(path, before, table, n=np.arange(ROWS) / 2 + origin)


def test_numbers_that_are_not_chosen_stay(suffix, tmp_path):
    """Other types, and nulls, are nobody's business then, and --type is said of the column that is chosen."""
    path = tmp_path / f"t.{suffix}"
    numbers = {
        "n": pa.array(np.arange(ROWS), pa.float64()),
        "i": pa.array(holed(range(ROWS)), pa.int64()),
        "h": pa.array(holed(np.arange(ROWS).astype(np.float16)), pa.float16()),
        "b": pa.array(holed(i % 2 == 0 for i in range(ROWS)), pa.bool_()),
        "p": pa.array(
            holed({"v": i / 2, "at": i} for i in range(ROWS)), pa.struct([("v", pa.float64()), ("at", pa.int32())])
        ),
    }
    table = table_of(numbers, {})
    write(table, path)
    before, table = chunks(path), read(path)
    np.save(tmp_path / "o.npy", np.full(3, 10.0))
    words = ("accumulate", "-q", "--op", "sum", "--columns", "n", path.name, "o.npy")
    succeeded(run(*words, "--type", "double", "--target-disp", "0", cwd=tmp_path))
    succeeded(run(*words, "--target-type", "double", "--target-disp", "1", cwd=tmp_path))
    succeeded(run(*words, "--target-type", "vector(3,1,700,double)", "--target-count", "1", cwd=tmp_path))
    expected = np.arange(ROWS) + 0.0
    expected[:3] += 10
    expected[1:4] += 10
    expected[:ROWS:700] += 10
    check(path, before, table, n=expected)
    with unchanged(tmp_path):
        refused(run("accumulate", "--op", "sum", path.name, "o.npy", cwd=tmp_path), 3, "nulls in column")
        refused(run(*words[:4], "--type", "double", path.name, "o.npy", cwd=tmp_path), 3, "'i'")
        refused(
            run("fetch-and-op", "--op", "no_op", "--columns", "n", "--type", "int", path.name, cwd=tmp_path), 3, "'n'"
        )


def test_columns_of_pairs_and_truth(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    pairs = pa.StructArray.from_arrays(
        [pa.array(np.arange(ROWS), pa.float64()), pa.array(np.arange(ROWS), pa.int32())], names=["v", "at"]
    )
    table = table_of({"p": pairs, "b": pa.array(np.arange(ROWS) % 3 == 0)}, strangers())
    write(table, path)
    before, table = chunks(path), read(path)
    window = mpired.Window(path)
    assert window.fetch_and_op((5000.0, 7), "maxloc", columns=["p"], target_disp=CHUNK).item() == (700.0, 700)
    assert not window.fetch_and_op("true", "lor", columns="b", target_disp=1)
    changed = pairs.to_pylist()
    changed[CHUNK] = {"v": 5000.0, "at": 7}
    truth = np.arange(ROWS) % 3 == 0
    truth[1] = True
    check(path, before, table, p=changed, b=truth)


@pytest.mark.parametrize("origin", ["npy", *SUFFIXES])
def test_origins_by_column(origin, suffix, tmp_path):
    table = pa.table({"x": [1.0, 2, 3], "n": pa.array([1, 2, 3], pa.int32()), "b": [True, False, True]})
    path = tmp_path / f"t.{suffix}"
    write(table, path)
    words = ("accumulate", "-q", "--op", "replace", path.name, f"o.{origin}")
    if origin == "npy":
        np.save(tmp_path / "o.npy", np.array([9, 0], np.int32))
    else:
        write(pa.table({"s": ["", ""], "n": pa.array([9, 0], pa.int32())}), tmp_path / f"o.{origin}")
    succeeded(run(*words, "--columns", "n", "--target-disp", "1", cwd=tmp_path))
    assert read(path).to_pydict() == {"x": [1, 2, 3], "n": [1, 9, 0], "b": [True, False, True]}
    assert read(path).schema == table.schema
    with unchanged(tmp_path):
        refused(run(*words, "--columns", "n", "--target-disp", "0", "--commit", "journal", cwd=tmp_path), 2, "journal")
        refused(run(*words, "--target-disp", "0", cwd=tmp_path), 3, "1 buffers", "--columns")
        refused(run(*words, "--columns", "m", cwd=tmp_path), 3, "no column 'm'")
        refused(run(*words, "--columns", "n", "--byte-order", "big", cwd=tmp_path), 2, "--byte-order")


def test_all_columns_at_once(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    table = table_of({"n": pa.array(np.arange(ROWS) + 0.0), "y": pa.array(np.arange(ROWS))}, strangers())
    table = table.drop_columns("struct")  # which would be a buffer but for its nulls
    write(table, path)
    before, table = chunks(path), read(path)
    mpired.Window(path).accumulate([path] * 2, "sum")
    check(path, before, table, n=3.0 * np.arange(ROWS), y=3 * np.arange(ROWS))


def test_no_number_at_all(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    write(pa.table({"s": ["a"], "t": ["b"]}), path)
    np.save(tmp_path / "o.npy", np.ones(1))
    with unchanged(tmp_path):
        for words in (
            ("accumulate", "--op", "sum", path.name, "o.npy"),
            ("accumulate", "--op", "sum", "--columns", "s", path.name, "o.npy"),
            ("accumulate", "--op", "sum", "o.npy", path.name),
            ("accumulate", "--op", "sum", "--map", path.name, "o.npy", "o.npy"),
            ("fetch-and-op", "--op", "sum", path.name, "1"),
        ):
            refused(run(*words, cwd=tmp_path), 3, "column 's' is string, no number")


def test_once(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    write(table_of({"n": pa.array(np.zeros(ROWS))}, strangers()), path)
    before, table = chunks(path), read(path)
    for key in ("a", "b", "a", "b"):
        mpired.Window(path).accumulate(np.ones(ROWS), "sum", columns=["n"], once_key=key)
    check(path, before, table, n=np.full(ROWS, 2.0))


def test_the_columns_are_part_of_the_request_that_is_remembered(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    write(pa.table({"a": [0, 0], "b": [0, 0]}), path)
    np.save(tmp_path / "o.npy", np.array([1, 2]))
    for column in ("a", "b", "a"):
        words = ("accumulate", "--op", "sum", "--columns", column, path.name, "o.npy", "--once")
        assert run(*words, cwd=tmp_path).status == 0
    assert read(path).to_pydict() == {"a": [1, 2], "b": [1, 2]}


# How the file is written


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


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_is_written_as_it_was(compression, tmp_path):
    path, twin = tmp_path / "t.arrow", tmp_path / "twin.arrow"
    table = table_of({"n": pa.array(np.zeros(ROWS))}, strangers())
    write(table, path, compression=compression)
    write(table, twin, compression=compression)
    mpired.Window(path).accumulate(np.zeros(ROWS), "sum", columns=["n"])
    assert path.read_bytes() == twin.read_bytes()  # by the same writer, so with the same options


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
    monkeypatch.setattr("mpired.buffers.parquet._BATCH_NBYTES", 1000)
    monkeypatch.setattr("mpired.buffers.parquet._KEPT_GROUP_NBYTES", 100_000)
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
    with unchanged(tmp_path):
        outcome = run(
            "accumulate", "--op", "sum", path.name, "o.npy", "--columns", "n", cwd=tmp_path,
            setup=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )  # fmt: skip
        refused(outcome, 4, path.name, "too large")


def test_a_damaged_column_that_is_not_chosen(tmp_path):
    path = tmp_path / "t.parquet"
    table = pa.table({"n": np.arange(1000), "s": [f"word {i}" for i in range(1000)]})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    octets = bytearray(path.read_bytes())
    octets[octets.index(b"word 500")] ^= 1
    path.write_bytes(octets)
    np.save(tmp_path / "o.npy", np.ones(1000, np.int64))
    with unchanged(tmp_path):
        words = ("accumulate", "--op", "sum", path.name, "o.npy", "--columns", "n")
        refused(run(*words, cwd=tmp_path), 3, "t.parquet", "damaged")


def test_int96(tmp_path):
    table = pa.table({"n": [1], "time": pa.array([1], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    np.save(tmp_path / "o.npy", np.ones(1, np.int64))
    with unchanged(tmp_path):
        refused(run("accumulate", "--op", "sum", "t.parquet", "o.npy", cwd=tmp_path), 3, "'time'", "INT96")
        assert run("fetch-and-op", "--op", "no_op", "t.parquet", cwd=tmp_path) == (0, b"1\n", "")


# Calls on one element


@pytest.fixture
def several(suffix, tmp_path):
    """The path of a target with several columns."""
    path = tmp_path / f"t.{suffix}"
    write(pa.table({"s": ["a", "b"], "n": [10, 20], "x": [0.5, 1.5], "m": [1, 2]}), path)
    return path


def test_fetch_and_op_on_a_column(several):
    words = ("fetch-and-op", "--op", "sum", several.name, "5", "--target-disp", "1")
    assert run(*words, "--columns", "n", cwd=several.parent) == (0, b"20\n", "")
    assert run(*words, "--columns", "m", "--type", "int64_t", cwd=several.parent) == (0, b"2\n", "")
    assert run(*words, "--columns", "x", "--at", "1", cwd=several.parent).status == 2
    assert run(*words[:-2], "--columns", "x", "--at", "1", cwd=several.parent) == (0, b"1.5\n", "")
    expected = {"s": ["a", "b"], "n": [10, 25], "x": [0.5, 6.5], "m": [1, 7]}
    assert read(several).to_pydict() == expected
    with unchanged(several.parent):
        read_only = ("fetch-and-op", "--op", "no_op", several.name, "--columns", "n")
        assert run(*read_only, cwd=several.parent) == (0, b"10\n", "")
        for said in ((), ("--columns", "n,m"), ("--columns", "n,m", "--type", "int64_t")):
            outcome = run(*words, *said, cwd=several.parent)
            refused(outcome, 3 if "--type" in said else 2, "--columns")
        refused(run(*words, "--columns", "s", cwd=several.parent), 3, "'s' is string")


def test_compare_and_swap_on_a_column(several):
    words = ("compare-and-swap", several.name, "10", "99")
    assert run(*words, "--columns", "n", cwd=several.parent) == (0, b"10\n", "")
    assert read(several).to_pydict() == {"s": ["a", "b"], "n": [99, 20], "x": [0.5, 1.5], "m": [1, 2]}
    with unchanged(several.parent):
        refused(run(*words, cwd=several.parent), 2, several.name, "3 columns (n, x, m)", "choose one with --columns")
        refused(run(*words, "--columns", "x", cwd=several.parent), 3, "COMPARE_AND_SWAP")
    window = mpired.Window(several)
    assert window.compare_and_swap(20, 7, columns=["n"], target_disp=1) == 20
    assert window.fetch_and_op(None, "no_op", columns=["n"], target_disp=1) == 7


def test_get_accumulate_on_a_column(several):
    found = mpired.Window(several).get_accumulate(np.array([1, 2]), "sum", columns=["m"])
    assert found.tolist() == [1, 2]
    assert read(several).to_pydict() == {"s": ["a", "b"], "n": [10, 20], "x": [0.5, 1.5], "m": [2, 4]}
    np.save(several.parent / "o.npy", np.array([1, 2]))
    with unchanged(several.parent):
        for words in (("sum", several.name, "o.npy"), ("no_op", several.name)):
            outcome = run("get-accumulate", "--op", *words, cwd=several.parent)
            refused(outcome, outcome.status, "--columns")


def test_a_value_in_a_column(several):
    write(pa.table({"n": [4], "m": [5]}), several.parent / "value.parquet")
    words = ("fetch-and-op", "--op", "sum", several.name, "value.parquet", "--columns", "m")
    assert run(*words, cwd=several.parent) == (0, b"1\n", "")
    assert read(several)["m"].to_pylist() == [6, 2]


@pytest.mark.parametrize(
    "words", [("fetch-and-op", "--op", "sum", "t.npy", "1"), ("compare-and-swap", "t.npy", "1", "2")]
)
def test_columns_of_a_file_without(words, tmp_path):
    np.save(tmp_path / "t.npy", np.ones(1, np.int64))
    with unchanged(tmp_path):
        refused(run(*words, "--columns", "n", cwd=tmp_path), 2, "--columns")
