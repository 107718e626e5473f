"""Arrays of datetime64 and timedelta64 as ranks, of files and in memory: what NumPy makes of them is the result."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from command import refused, run, succeeded, unchanged
from tables import bytes_of

import mpired
from mpired.errors import DatatypeError, OpError

CODES = ["M8[us]", "M8[D]", "M8[25s]", "m8[ns]"]
NAT = -(2**63)
OPS = {"max": np.maximum, "min": np.minimum, "sum": np.add}


def times(code: str) -> list[np.ndarray]:
    """Return three arrays, the elements of which meet NaT as the lower operand, the upper one, and both."""
    rows = ([1, 5, -7, NAT, 8, NAT], [2, 3, -9, 4, NAT, NAT], [0, 3, 11, 4, 4, 4])
    return [np.array(row, "i8").view(code) for row in rows]


@pytest.mark.parametrize("code", CODES)
def test_what_numpy_makes_of_them(code, tmp_path):
    """NaT propagates, and the result has the dtype of the ranks, as an array and as a file."""
    ranks = times(code)
    names = [f"r{i}.npy" for i in range(len(ranks))]
    for name, each in zip(names, ranks, strict=True):
        np.save(tmp_path / name, each)
    for op, function in OPS.items():
        words = ("reduce", "-qf", "--op", op, *names, "-o", "out.npy")
        if op == "sum" and code.startswith("M"):
            refused(run(*words, cwd=tmp_path), 3, "MPI_SUM: is not defined for", "time", "takes max, min")
            with pytest.raises(OpError):
                mpired.reduce(ranks, op)
            continue
        succeeded(run(*words, cwd=tmp_path))
        wanted = function(function(ranks[0], ranks[1]), ranks[2])
        for found in (np.load(tmp_path / "out.npy"), mpired.reduce(ranks, op)):
            assert (found.dtype, found.tobytes()) == (np.dtype(code), wanted.tobytes()), op


def test_an_array_beside_a_column(tmp_path):
    """They are of one datatype if unit and zone are the same, and the result is like rank 0."""
    array = np.array(["2020-01-01", "2021-02-03"], "M8[us]")
    for name, zone in (("plain", None), ("zoned", "UTC")):
        table = pa.table({"t": pa.array(array[::-1]).cast(pa.timestamp("us", zone))})
        (tmp_path / f"{name}.arrow").write_bytes(bytes_of(table, "arrow"))
    assert mpired.reduce([array, tmp_path / "plain.arrow"], "max", columns="t").tolist() == [array[1].item()] * 2
    with pytest.raises(DatatypeError, match=r"rank 1 has datatype timestamp\[us, tz=UTC\] in 't', but rank 0"):
        mpired.reduce([array, tmp_path / "zoned.arrow"], "max", columns="t")
    np.save(tmp_path / "days.npy", array.astype("M8[D]"))
    outcome = run("reduce", "--op", "max", "days.npy", "-o", "days.parquet", cwd=tmp_path)
    refused(outcome, 3, "datetime64[D]: has no column type; use --to npy")


def test_windows_of_times(tmp_path):
    np.save(tmp_path / "t.npy", np.array(["2020-01-01", "NaT"], "M8[ms]"))
    window = mpired.Window(tmp_path / "t.npy")
    later = np.array(["2021-05-06T07:08:09.5", "2000-01-01"], "M8[ms]")
    window.accumulate(later, "max")
    assert np.array_equal(np.load(tmp_path / "t.npy"), np.array([later[0], "NaT"], "M8[ms]"), equal_nan=True)
    assert window.fetch_and_op(np.datetime64("2022-01-01"), "replace", target_disp=1) is not None
    assert np.load(tmp_path / "t.npy")[1] == np.datetime64("2022-01-01")
    assert window.get_accumulate(None, "no_op").dtype == np.dtype("M8[ms]")
    outcome = run("fetch-and-op", "--op", "min", "t.npy", "2019-12-31T23:59:59.250", cwd=tmp_path)
    assert outcome == (0, b"2021-05-06T07:08:09.500\n", "")
    assert np.load(tmp_path / "t.npy")[0] == np.datetime64("2019-12-31T23:59:59.250")
    with unchanged(tmp_path):
        for value in ("5", "now", "2019-13-01", "2019-01-01T00:00:00.0001", "99999999999-01-01"):
            outcome = run("fetch-and-op", "--op", "min", "t.npy", value, cwd=tmp_path)
            refused(outcome, 2, f"'{value}': is not an element of timestamp[ms]; write it as 2021-02-03T04:05:06")
