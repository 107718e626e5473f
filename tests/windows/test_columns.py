"""Targets with columns: those that are meant change, and all others stay, whatever they hold."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tables
from command import run, succeeded
from rows import check_refusals, check_refused

CHUNK = 700  # rows of a row group or a record batch
ROWS = 2 * CHUNK + 100


@pytest.fixture(params=tables.SUFFIXES)
def suffix(request):
    return request.param


def chunks(path):
    """Return the rows of each row group, or of each record batch."""
    if path.suffix == ".parquet":
        groups = pq.ParquetFile(path).metadata
        return [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
    with pa.ipc.open_file(path) as reader:
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


def test_columns_that_are_not_chosen_stay(suffix, tmp_path):
    """Their types and nulls do not matter then, and --type is that of the column that is chosen."""
    pairs = pa.struct([("v", pa.float64()), ("at", pa.int32())])
    numbers = {
        "n": pa.array(np.arange(ROWS), pa.float64()),
        "i": pa.array(holed(range(ROWS)), pa.int64()),
        "h": pa.array(holed(np.arange(ROWS).astype(np.float16)), pa.float16()),
        "b": pa.array(holed(i % 2 == 0 for i in range(ROWS)), pa.bool_()),
        "p": pa.array(holed({"v": i / 2, "at": i} for i in range(ROWS)), pairs),
    }
    path = tmp_path / f"t.{suffix}"
    tables.write(path, table_of(numbers, strangers()), CHUNK)
    before, table = chunks(path), tables.read(path)
    np.save(tmp_path / "o.npy", np.full(3, 10.0))
    words = ("accumulate", "-q", "--op", "sum", "--columns", "n", path.name, "o.npy")
    succeeded(run(*words, "--type", "double", "--target-disp", "0", cwd=tmp_path))
    succeeded(run(*words, "--target-type", "double", "--target-disp", "1", cwd=tmp_path))
    succeeded(run(*words, "--target-type", "vector(3,1,700,double)", "--target-count", "1", cwd=tmp_path))
    expected = np.arange(ROWS) + 0.0
    expected[:3] += 10
    expected[1:4] += 10
    expected[:ROWS:700] += 10
    found, place = tables.read(path), table.schema.get_field_index("n")
    assert found.equals(table.set_column(place, table.schema.field("n"), pa.array(expected)), check_metadata=True)
    found.validate(full=True)
    assert chunks(path) == before == [CHUNK, CHUNK, 100]
    cases = [
        (f"get-accumulate --op no_op --columns i {path.name}", 3, "has 500 nulls"),
        (f"get-accumulate --dry-run --op no_op --columns i {path.name}", 3, "has 500 nulls"),
        (f"accumulate --op sum --type double {path.name} o.npy", 3, "'i'"),
        (f"fetch-and-op --op no_op --columns n --type int {path.name}", 3, "'n'"),
    ]
    check_refusals(tmp_path, cases)


def test_no_number_at_all(suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    tables.write(path, pa.table({"s": ["a"], "t": ["b"]}))
    np.save(tmp_path / "o.npy", np.ones(1))
    commands = [f"accumulate --op sum {words}" for words in ("T o.npy", "--columns s T o.npy", "o.npy T")]
    commands += ["accumulate --op sum --map T o.npy o.npy", "fetch-and-op --op sum T 1"]
    reason = "column 's' holds string, not numbers"
    check_refusals(tmp_path, [(words.replace("T", path.name), 3, reason) for words in commands])


def test_a_column_has_to_be_chosen(suffix, tmp_path):
    name = f"t.{suffix}"
    tables.write(tmp_path / name, pa.table({"s": ["a", "b"], "n": [10, 20], "x": [0.5, 1.5], "m": [1, 2]}))
    np.save(tmp_path / "o.npy", np.array([1, 2]))
    cases = [
        (f"fetch-and-op --op sum {name} 5", 2, "--columns"),
        (f"fetch-and-op --op sum {name} 5 --columns n,m", 2, "--columns"),
        (f"fetch-and-op --op sum {name} 5 --columns n,m --type int64_t", 3, "--columns"),
        (f"fetch-and-op --op sum {name} 5 --columns s", 3, "'s' holds string"),
        (f"fetch-and-op --op sum {name} 5 --target-disp 1 --columns x --at 1", 2, "choose one"),
        (f"compare-and-swap {name} 10 99", 2, name, "3 columns (n, x, m)", "choose one with --columns"),
        (f"get-accumulate --op sum {name} o.npy", 3, "--columns"),
        (f"get-accumulate --op no_op {name}", 2, "--columns"),
    ]
    check_refusals(tmp_path, cases)


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
