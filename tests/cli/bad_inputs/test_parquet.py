"""Parquet that is cut, claims too much or is odd, and what of it is taken exactly."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_files import THREE, claiming_rows, covers, parquet
from command import in_child, measured, reduce, refused, succeeded, unchanged

import mpired
from mpired.errors import MpiredError


@covers(46)
def test_parquet_cut_anywhere(tmp_path):
    whole = parquet({"x": THREE}, compression="none", write_statistics=False)
    path = tmp_path / "cut.parquet"

    def look():
        for nbytes in range(len(whole)):
            path.write_bytes(whole[:nbytes])
            with pytest.raises(MpiredError) as caught:
                mpired.info(path)
            assert caught.value.exit_status == 3
            assert str(path) in str(caught.value)
            assert "\n" not in str(caught.value)
        path.write_bytes(whole)
        return mpired.info(path).buffers[0].count

    assert in_child(look) == 3


@covers(47)
def test_many_rows_in_few_bytes(tmp_path):
    """Twenty million equal rows in some kilobytes: read as a stream, whatever the footer says of bytes."""
    ones = np.ones(1_000_000, "u1")
    with pq.ParquetWriter(tmp_path / "bomb.parquet", pa.schema({"x": pa.uint8()})) as writer:
        for _ in range(20):
            writer.write_table(pa.table({"x": ones}))
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    words = ("reduce", "-q", "--op", "sum", "bomb.parquet", "bomb.parquet", "--to", "raw", "-o", "sum.bin")
    status, peak, err = measured(*words, "-j", "1", cwd=tmp_path)
    assert (status, err) == (0, "")
    assert np.array_equal(np.fromfile(tmp_path / "sum.bin", "u1"), np.full(20_000_000, 2, "u1"))
    assert peak < 250 << 20


@covers(48)
def test_more_rows_claimed_than_there_are(folder):
    (folder / "bad.parquet").write_bytes(claiming_rows(20_000))
    with unchanged(folder):
        words = ("--op", "sum", "bad.parquet", "bad.parquet", "-o", "out", "-f")
        refused(reduce(*words, cwd=folder), 3, "bad.parquet")


@covers(49)
def test_page_checksum_of_a_whole_file(folder):
    content = parquet({"x": THREE}, write_page_checksum=True)
    (folder / "checked.parquet").write_bytes(content)
    succeeded(reduce("--op", "sum", "checked.parquet", "good.parquet", "-o", "sum.parquet", cwd=folder))
    assert pq.read_table(folder / "sum.parquet")["x"].to_pylist() == [2.0, 4.0, 6.0]


@covers(53)
@pytest.mark.parametrize(
    ("values", "dtype", "op", "expected"),
    [
        ([2**63, 2**64 - 1, 1], "u8", "max", [2**63, 2**64 - 1, 1]),
        ([2**63, 2**64 - 1, 1], "u8", "sum", [0, 2**64 - 2, 2]),
        ([2**53 + 1, -(2**63), 7], "i8", "max", [2**53 + 1, -(2**63), 7]),
        ([200, 255, 0], "u1", "sum", [144, 254, 0]),
        ([65504, 6e-8, -0.0], "f2", "sum", [np.inf, 1.1920929e-07, -0.0]),
        ([True, False, True], "?", "lxor", [False, False, False]),
        ([True, False, True], "?", "lor", [True, False, True]),
    ],
)
def test_parquet_columns_exactly(values, dtype, op, expected, folder):
    (folder / "a.parquet").write_bytes(parquet({"x": np.array(values, dtype)}))
    words = ("--op", op, "a.parquet", "a.parquet", "-o", "result.parquet")
    succeeded(reduce(*words, "--overflow", "wrap", cwd=folder))
    column = pq.read_table(folder / "result.parquet")["x"]
    assert column.type == pa.from_numpy_dtype(np.dtype(dtype))
    assert column.to_numpy().tobytes() == np.array(expected, dtype).tobytes()


@covers(51)
def test_result_of_many_columns_as_one_array(folder):
    (folder / "two.parquet").write_bytes(parquet({"x": THREE, "y": THREE}))
    with unchanged(folder):
        refused(reduce("--op", "sum", "two.parquet", "--to", "npy", cwd=folder), 2, "x", "y", "--columns")
