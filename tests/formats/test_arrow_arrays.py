"""Arrow's arrays and NumPy's, compared with the conversions of pyarrow itself, which load pandas."""

import os
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from command import COMMAND, reduce, succeeded
from rows import together

from mpired.formats import arrow_arrays

NUMBERS = [kind for kind in arrow_arrays.DTYPES if not pa.types.is_boolean(kind)]
TIMES = [pa.timestamp("us"), pa.duration("ns"), pa.date32(), pa.time32("ms"), pa.time64("ns")]


def integers_of(kind):
    """Return the type of the integers that times are."""
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def holed(kind, count=77):
    values = [None if i % 5 == 2 else i % 11 for i in range(count)]
    if pa.types.is_boolean(kind):
        return pa.array([None if each is None else each % 2 == 1 for each in values])
    return pa.array(values, pa.int64()).cast(integers_of(kind) if kind in TIMES else kind).view(kind)


def test_values_with_nulls_of_a_part_of_an_array(tmp_path):
    with together(tmp_path) as case:
        for kind in (pa.bool_(), *NUMBERS, *TIMES):
            for start in (0, 3, 8, 13):
                with case(kind, start):
                    part = holed(kind)[start:60]
                    values, there = arrow_arrays.nullable_values(part)
                    integers = part.view(integers_of(kind)) if kind in TIMES else part
                    zero = pa.scalar(0).cast(integers.type)
                    assert there.tolist() == part.is_valid().to_pylist()
                    assert values.tolist() == [int(each) for each in integers.fill_null(zero).to_pylist()]


def test_elements_become_a_column(tmp_path):
    there = np.arange(77) % 4 != 1
    with together(tmp_path) as case:
        for kind in (pa.bool_(), *NUMBERS, *TIMES):
            with case(kind):
                integers = integers_of(kind) if kind in TIMES else kind
                block = (np.arange(77) % 3).astype("u1" if kind == pa.bool_() else arrow_arrays.DTYPES[integers])
                want = pa.array(block != 0 if kind == pa.bool_() else block, integers, mask=~there)
                got = arrow_arrays.column_of(block, kind, there)
                got.validate(full=True)
                assert got.type == kind
                assert got.equals(want.view(kind))


def test_no_command_loads_pandas(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "pandas.py").write_text("raise SystemExit('pandas is loaded')\n")
    pair = pa.StructArray.from_arrays([pa.array([1.5, 2.5]), pa.array([1, 2], pa.int32())], names=["value", "index"])
    times = pa.array([1, 2], pa.timestamp("us"))
    table = pa.table({"x": [1.5, None], "b": [True, False], "t": times, "p": pair})
    pq.write_table(table, tmp_path / "a.parquet")
    for op, column, suffix in (("sum", "x", "parquet"), ("lor", "b", "arrow"), ("max", "t", "arrow"),
                               ("maxloc", "p", "parquet")):  # fmt: skip
        words = ("reduce", "--op", op, "--columns", column, "--nulls", "ignore", *["a.parquet"] * 2)
        environment = {**os.environ, "PYTHONPATH": str(other)}
        subprocess.run([COMMAND, *words, "-o", f"{op}.{suffix}"], cwd=tmp_path, env=environment, check=True)


def test_a_result_has_a_dictionary_where_the_first_rank_has_one(tmp_path):
    """Here 400,000 values that differ are too many for one."""
    for distinct, is_kept in ((7, True), (400_000, False)):
        values = np.arange(400_000) % distinct * 0.5
        pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet")
        succeeded(reduce("-f", "--op", "max", "a.parquet", "a.parquet", "-o", "out.parquet", cwd=tmp_path))
        chunk = pq.read_metadata(tmp_path / "out.parquet").row_group(0).column(0)
        assert chunk.has_dictionary_page is is_kept
        assert pq.read_table(tmp_path / "out.parquet")["x"].to_numpy().tobytes() == values.tobytes()
