"""Targets with columns of every sort, and whether all stayed that was not meant."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa
import pyarrow.parquet as pq
import tables

CHUNK = 700  # rows of a row group or a record batch
ROWS = 2 * CHUNK + 100


def write(table, path, **settings):
    """Write a table in row groups, or in record batches, of `CHUNK` rows."""
    tables.write(path, table, CHUNK, **settings)


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
    found = tables.read(path)
    assert found.schema.equals(table.schema, check_metadata=True)
    assert found.equals(table)
    found.validate(full=True)
    assert chunks(path) == before == [CHUNK, CHUNK, 100]
