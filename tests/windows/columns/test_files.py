"""How a file with columns is written again, and what leaves it as it was."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from command import run, succeeded
from rows import check_refusals, check_refused

# What fails leaves the target as it was


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
