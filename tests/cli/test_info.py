"""`mpired info` says of every file what it holds; only what is damaged or not there is an error."""

import decimal
import json
import re

import numpy as np
import pyarrow as pa
from command import run, succeeded
from rows import check_refused, each
from tables import bytes_of


def lines(*words, cwd):
    """Return what is told of a file below its first line."""
    outcome = run("info", *words, cwd=cwd)
    assert (outcome.status, outcome.err) == (0, "")
    return [line.strip() for line in outcome.out.decode().splitlines()[1:]]


NESTED = pa.table(
    {
        "n": pa.array([{"i": 1, "f": 1.5}], pa.struct([("i", pa.int64()), ("f", pa.float64())])),
        "text": pa.array([{"i": 1, "s": "a"}]),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "word": pa.array(["a"]).dictionary_encode(),
        "price": pa.array([decimal.Decimal("1.50")], pa.decimal128(9, 2)),
        "took": pa.array([5], pa.duration("s")),
        "gone": pa.array([None], pa.timestamp("us", "UTC")),
    }
)
CARRIED = "`mpired reduce --keep {}` carries it"


@each("form", ["parquet", "arrow"])
def test_what_can_be_done_with_a_column(form, tmp_path):
    """In words, and what is said can be done."""
    name = f"t.{form}"
    (tmp_path / name).write_bytes(bytes_of(NESTED, form))
    told = {
        "n": "structures of i (int64), f (float64); user-defined ops take it",
        "text": "structures of i (int64), s (string); no op takes it, ",
        "map": "maps of string to int64; no op takes it, ",
        "word": "string by a dictionary; no op takes it, ",
        "price": "decimal128(9, 2); no op takes it, ",
        "took": "duration[s]; max, min, sum take it if --columns names it",
        "gone": "timestamp[us, tz=UTC], 1 null; `mpired reduce --nulls ignore` leaves nulls out, ",
    }
    carried = [column for column, text in told.items() if text.endswith(", ")]
    expected = [f"{column}: 1 x {text}{CARRIED.format(column) * (column in carried)}" for column, text in told.items()]
    assert lines(name, cwd=tmp_path) == expected
    (tmp_path / "ops.py").write_text("def first(a, b):\n    return a\n")
    kept = ",".join({*NESTED.column_names} - {"n"})
    succeeded(run("reduce", "-q", "--op", "ops.py:first", "--keep", kept, name, "-o", f"out.{form}", cwd=tmp_path))
    succeeded(run("reduce", "-q", "--op", "sum", "--columns", "took", name, "-f", "-o", "out.npy", cwd=tmp_path))
    assert lines("--columns", "took", name, cwd=tmp_path) == ["took: 1 x duration[s]; max, min, sum take it"]


def test_columns_that_are_no_pair(tmp_path):
    (tmp_path / "t.parquet").write_bytes(bytes_of(pa.table({"n": [1], "f": [1.5], "c": [True]}), "parquet"))
    reason = "'n', MPI_INT64_T (int64), and 'f', MPI_DOUBLE (float64), are not a value and an index"
    check_refused(tmp_path, "info --pair n,f t.parquet", 3, reason, "--pair f,n")
    assert lines("--pair", "f,n", "t.parquet", cwd=tmp_path) == ["f,n: 1 x pair(double,int64_t)"]
    check_refused(tmp_path, "info --pair f,c t.parquet", 3, "an index is an integer\n")


def test_no_columns_and_two_of_one_name(tmp_path):
    twins = pa.table([pa.array([1]), pa.array([2.0]), pa.array([3])], names=["x", "x", "y"])
    (tmp_path / "twins.arrow").write_bytes(bytes_of(twins, "arrow"))
    for form in ("parquet", "arrow"):
        (tmp_path / f"none.{form}").write_bytes(bytes_of(pa.table({}), form))
        assert lines(f"none.{form}", cwd=tmp_path) == ["no columns"]
        check_refused(tmp_path, f"reduce --op sum none.{form}", 3, "holds no array or column")
    assert lines("twins.arrow", cwd=tmp_path) == [
        "y: 1 x MPI_INT64_T (int64)",
        "x: 1 x int64; other columns have this name, too",
        "x: 1 x float64; other columns have this name, too",
    ]
    for words in ("reduce --op sum twins.arrow", "info --columns x twins.arrow"):
        check_refused(tmp_path, words, 3, "2 columns named 'x'")


def test_once_keys(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(2))
    words = ("accumulate", "-q", "--op", "sum")
    for number in range(6):
        assert run(*words, "t.npy", "t.npy", "--once-key", str(number), cwd=tmp_path).status == 0
    (described,) = json.loads(run("info", "--json", "t.npy", cwd=tmp_path).out)
    keys = described["once_keys"]
    assert (keys["count"], [each["key"] for each in keys["last"]], keys["obstacle"]) == (6, [*"5432"], None)
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", each["date"]) for each in keys["last"])
    assert lines("t.npy", cwd=tmp_path)[-1] == "once-keys: 6, the last one first: 5, 4, 3, 2, ..."
    succeeded(run(*words, "new.npy", "t.npy", "--create", "--once-key", "0", cwd=tmp_path))
    assert lines("new.npy", cwd=tmp_path)[-1] == "once-keys: 1, the last one first: 0"
    (tmp_path / "new.npy.mpired-keys").unlink()
    told = "once-keys: 1; has 1 key of --once, but new.npy.mpired-keys is missing"
    assert lines("new.npy", cwd=tmp_path)[-1].startswith(told)
