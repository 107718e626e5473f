"""Arrow's arrays and NumPy's, compared with the conversions of pyarrow itself, which load pandas."""

import os
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import COMMAND, run

from mpired.formats import arrow_arrays

NUMBERS = [kind for kind in arrow_arrays.DTYPES if not pa.types.is_boolean(kind)]
TIMES = [pa.timestamp("us"), pa.duration("ns"), pa.date32(), pa.time32("ms"), pa.time64("ns")]


CALLS = [("sum", "x", ["--nulls", "ignore"]), ("lor", "b", []), ("max", "t", []), ("maxloc", "p", [])]


def holed(kind, count=77):
    values = [None if i % 5 == 2 else i % 11 for i in range(count)]
    if pa.types.is_boolean(kind):
        return pa.array([None if each is None else each % 2 == 1 for each in values])
    return pa.array(values, pa.int64()).cast(arrow_arrays.integers_of(kind) if kind in TIMES else kind).view(kind)


@pytest.mark.parametrize("kind", [pa.bool_(), *NUMBERS, *TIMES], ids=str)
@pytest.mark.parametrize("start", [0, 3, 8, 13])
def test_values_with_nulls_of_a_part_of_an_array(kind, start):
    part = holed(kind)[start:60]
    values, there = arrow_arrays.nullable_values(part)
    integers = part.view(arrow_arrays.integers_of(kind)) if kind in TIMES else part
    zero = pa.scalar(0).cast(integers.type)
    assert there.tolist() == part.is_valid().to_pylist()
    assert values.tolist() == [int(each) for each in integers.fill_null(zero).to_pylist()]


@pytest.mark.parametrize("kind", [pa.bool_(), *NUMBERS, *TIMES], ids=str)
def test_elements_become_a_column(kind):
    integers = arrow_arrays.integers_of(kind) if kind in TIMES else kind
    block = (np.arange(77) % 3).astype(np.uint8 if kind == pa.bool_() else arrow_arrays.DTYPES[integers])
    there = np.arange(77) % 4 != 1
    want = pa.array(block != 0 if kind == pa.bool_() else block, integers, mask=~there)
    got = arrow_arrays.column_of(block, kind, there)
    got.validate(full=True)
    assert got.type == kind
    assert got.equals(want.view(kind))


def test_no_command_loads_pandas(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "pandas.py").write_text("raise SystemExit('pandas is loaded')\n")
    pair = np.array([(1.5, 1), (2.5, 2)], "f8,i4")
    table = pa.table(
        {
            "x": [1.5, None],
            "b": [True, False],
            "t": pa.array([1, 2], pa.timestamp("us")),
            "p": pa.StructArray.from_arrays([pa.array(pair["f0"]), pa.array(pair["f1"])], names=["value", "index"]),
        }
    )
    for name in ("a", "b"):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    for op, column, more in CALLS:
        for suffix in ("parquet", "arrow"):
            words = "reduce", "--op", op, "--columns", column, *more, "a.parquet", "b.parquet", "-o", f"{op}.{suffix}"
            subprocess.run([COMMAND, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(other)}, check=True)


@pytest.mark.parametrize(("distinct", "kept"), [(7, True), (400_000, False)])
def test_a_result_has_a_dictionary_where_the_first_rank_has_one(tmp_path, distinct, kept):
    values = np.arange(400_000) % distinct * 0.5  # those that differ are too many for a dictionary
    for name in ("a", "b"):
        pq.write_table(pa.table({"x": values}), tmp_path / f"{name}.parquet")
    assert run("reduce", "--op", "max", "a.parquet", "b.parquet", "-o", "out.parquet", cwd=tmp_path).status == 0
    chunk = pq.read_metadata(tmp_path / "out.parquet").row_group(0).column(0)
    assert chunk.has_dictionary_page is kept
    assert pq.read_table(tmp_path / "out.parquet")["x"].to_numpy().tobytes() == values.tobytes()
