"""Columns of truth values, times and decimals: which ops take them, and that the type of the result is theirs."""

from __future__ import annotations

import decimal
import json
import operator
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from command import refused, run, succeeded, unchanged
from tables import bytes_of, read

import mpired
from mpired.errors import DatatypeError, OpError

TIMES = [
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "Europe/Berlin")),
    pa.date32(),
    pa.date64(),
    *(pa.time32(unit) for unit in ("s", "ms")),
    *(pa.time64(unit) for unit in ("us", "ns")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
]
NROWS, NRANKS = 300, 3
MOST = 86_399  # seconds of a day, or days


def column(kind: pa.DataType, rank: int) -> pa.Array:
    numbers = (np.arange(NROWS) * (rank + 3) * 7919 + 17) % MOST
    if kind == pa.date64():
        numbers = numbers * 86_400_000
    return pa.array(numbers.astype("i4" if kind.bit_width == 32 else "i8")).view(kind)


def write(folder, form: str, kinds: dict[str, pa.DataType]) -> list[str]:
    names = [f"r{rank}.{form}" for rank in range(NRANKS)]
    for rank, name in enumerate(names):
        table = pa.table({each: column(kind, rank) for each, kind in kinds.items()} | {"x": np.arange(NROWS) + 0.5})
        (folder / name).write_bytes(bytes_of(table, form))
    return names


def later(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.if_else(pc.greater(left, right), left, right)


def earlier(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.if_else(pc.less(left, right), left, right)


def expected(folder, names: list[str], name: str, pick) -> pa.ChunkedArray:
    """Return what Arrow makes of the columns as it reads them."""
    return reduce(pick, (read(folder / each)[name].combine_chunks() for each in names))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize(("op", "pick"), [("max", later), ("min", earlier)])
def test_the_extreme_of_times_is_a_time(op, pick, form, tmp_path):
    """With unit and zone: the schema of the result is that of the ranks."""
    kinds = {f"t{i}": kind for i, kind in enumerate(TIMES)}
    names = write(tmp_path, form, kinds)
    words = ("--columns", ",".join([*kinds, "x"]), *names, "-o", f"out.{form}")
    succeeded(run("reduce", "-q", "--op", op, *words, cwd=tmp_path))
    out = read(tmp_path / f"out.{form}")
    assert out.schema.equals(read(tmp_path / names[0]).schema, check_metadata=True)
    for name, kind in kinds.items():
        assert out[name].combine_chunks().equals(expected(tmp_path, names, name, pick)), kind


@pytest.mark.parametrize(("form", "other"), [("parquet", "arrow"), ("arrow", "parquet")])
def test_another_format_has_the_same_times(form, other, tmp_path):
    kinds = {"t": pa.timestamp("us", "UTC"), "d": pa.duration("ms"), "day": pa.date32()}
    names = write(tmp_path, form, kinds)
    words = ("--columns", ",".join(kinds), *names, "-o", f"out.{other}")
    succeeded(run("reduce", "-q", "--op", "max", *words, cwd=tmp_path))
    out = read(tmp_path / f"out.{other}")
    assert {field.name: field.type for field in out.schema} == kinds
    for name in kinds:
        assert out[name].combine_chunks().equals(expected(tmp_path, names, name, later))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_durations_are_added_and_points_in_time_are_not(form, tmp_path):
    names = write(tmp_path, form, {"d": pa.duration("us"), "t": pa.timestamp("us")})
    succeeded(run("reduce", "-q", "--op", "sum", "--columns", "d", *names, "-o", f"out.{form}", cwd=tmp_path))
    found = read(tmp_path / f"out.{form}")["d"].combine_chunks()
    assert found.equals(expected(tmp_path, names, "d", pc.add))
    with unchanged(tmp_path):
        words = ("reduce", *names, "-o", f"new.{form}", "--columns")
        refused(
            run(*words, "t", "--op", "sum", cwd=tmp_path), 3, "not defined for 't', timestamp[us], time", "max, min"
        )
        refused(run(*words, "d", "--op", "prod", cwd=tmp_path), 3, "not defined for 'd', duration[us], duration", "sum")
        refused(run(*words, "d", "--op", "band", cwd=tmp_path), 3, "not defined for 'd', duration[us]")
        refused(run(*words, "t", "--op", "max", "--to", "raw", cwd=tmp_path), 3, "no form in raw; use --to npy")
        refused(run(*words, "t", "--type", "int64_t", "--op", "max", cwd=tmp_path), 3, "timestamp[us]", "MPI_INT64_T")
        refused(
            run("reduce", "--op", "max", *names, cwd=tmp_path),
            3,
            "column 'd' is duration[us], and times",
            "--columns x,d,t,",
        )


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.date32(), pa.time64("us")])
def test_times_that_numpy_does_not_have_are_refused_in_npy(kind, tmp_path):
    names = write(tmp_path, "arrow", {"t": kind})
    with unchanged(tmp_path):
        outcome = run("reduce", "--op", "max", "--columns", "t", *names, "-o", "new.npy", cwd=tmp_path)
        refused(outcome, 3, f"{kind}: has no form in npy; use --to parquet or --to arrow")


@pytest.mark.parametrize("kind", [kind for kind in TIMES if not pa.types.is_duration(kind)], ids=str)
def test_texts_of_times(kind, tmp_path):
    """As Arrow writes them, with a T, and in UTC with a Z; numbers are no texts in JSON, these are."""
    names = write(tmp_path, "arrow", {"t": kind})
    in_utc = pa.timestamp(kind.unit, "UTC") if getattr(kind, "tz", None) else kind
    times = read(tmp_path / names[0])["t"].combine_chunks().cast(in_utc)
    wanted = [text.replace(" ", "T") for text in times.cast(pa.string()).to_pylist()]
    if kind == pa.date64():
        wanted = [f"{text}T00:00:00.000" for text in wanted]
    for to, of in (("text", str.splitlines), ("json", lambda text: json.loads(text)["buffers"][0]["data"])):
        outcome = run("reduce", "-q", "--op", "max", "--columns", "t", names[0], "--to", to, cwd=tmp_path)
        assert of(outcome.out.decode()) == wanted, outcome.err


def test_a_sum_of_durations_that_overflows_is_told_of(tmp_path):
    table = pa.table({"d": pa.array([2**63 - 1, 5]).view(pa.duration("ns"))})
    (tmp_path / "r.arrow").write_bytes(bytes_of(table, "arrow"))
    words = ("reduce", "--op", "sum", "--columns", "d", "r.arrow", "r.arrow", "-o", "out.arrow")
    assert "overflow" in run(*words, cwd=tmp_path).err
    refused(run(*words, "-f", "--overflow", "error", cwd=tmp_path), 3, "r.arrow")


def test_units_and_zones_have_to_agree(tmp_path):
    for name, kind in (("a", pa.timestamp("us", "UTC")), ("b", pa.timestamp("us")), ("c", pa.timestamp("ms", "UTC"))):
        (tmp_path / f"{name}.parquet").write_bytes(bytes_of(pa.table({"t": column(kind, 0)}), "parquet"))
    for other in "bc":
        words = ("reduce", "--op", "max", "--columns", "t", "a.parquet", f"{other}.parquet")
        refused(
            run(*words, cwd=tmp_path), 3, f"{other}.parquet: rank 1 has datatype timestamp", "timestamp[us, tz=UTC]"
        )


def test_arrays_in_python(tmp_path):
    kinds = {"t": pa.timestamp("ns", "Europe/Berlin"), "day": pa.date32(), "ms": pa.date64(), "d": pa.duration("s")}
    paths = [tmp_path / name for name in write(tmp_path, "arrow", kinds | {"clock": pa.time32("s")})]
    found = mpired.reduce(paths, "max", columns=[*kinds, "clock"])
    codes = {"t": "M8[ns]", "day": "M8[D]", "ms": "M8[ms]", "d": "m8[s]", "clock": "m8[s]"}
    assert {name: array.dtype for name, array in found.items()} == {
        name: np.dtype(code) for name, code in codes.items()
    }
    for name in kinds:
        like = [read(path)[name].combine_chunks().to_numpy(zero_copy_only=False).astype(codes[name]) for path in paths]
        assert found[name].tolist() == reduce(np.maximum, like).tolist()
    with pytest.raises(OpError, match="is not defined for"):
        mpired.reduce(paths, lambda a, b: a, columns="t")


def test_windows(tmp_path):
    """A target keeps its types; what is fetched goes to a file with columns, or to an array of times."""
    for form in ("parquet", "arrow"):
        names = write(tmp_path, form, {"t": pa.timestamp("ms", "UTC"), "d": pa.duration("s")})
        like, wanted = read(tmp_path / names[0]), expected(tmp_path, names, "t", later)
        succeeded(run("accumulate", "-q", "--op", "max", "--columns", "t", *names, cwd=tmp_path))
        out = read(tmp_path / names[0])
        assert out.schema.equals(like.schema, check_metadata=True)
        assert out["t"].combine_chunks().equals(wanted)
        window = mpired.Window(tmp_path / names[0])
        old = window.get_accumulate(tmp_path / names[1], "min", columns="t")
        assert old.dtype == np.dtype("M8[ms]")
        with unchanged(tmp_path):
            words = ("--op", "sum", "--columns", "t", *names[:2])
            refused(run("accumulate", *words, cwd=tmp_path), 3, "is not defined for 't', timestamp[ms, tz=UTC]")
            words = ("--op", "max", "--columns", "t", *names[:2])
            refused(run("get-accumulate", *words, cwd=tmp_path), 3, "has no form in raw")
        # The other columns are the windows by default, as ever.
        succeeded(run("accumulate", "-q", "--op", "sum", *names[:2], cwd=tmp_path))


def test_truth_values(tmp_path):
    """Logical ops alone, and the result is a column of truth values."""
    columns = [np.arange(8) % (rank + 2) == 0 for rank in range(NRANKS)]
    for form in ("parquet", "arrow"):
        names = [f"r{rank}.{form}" for rank in range(NRANKS)]
        for name, each in zip(names, columns, strict=True):
            (tmp_path / name).write_bytes(bytes_of(pa.table({"b": each}), form))
        for op, ufunc in (("land", operator.and_), ("lor", operator.or_), ("lxor", operator.xor)):
            succeeded(run("reduce", "-qf", "--op", op, *names, "-o", f"out.{form}", cwd=tmp_path))
            out = read(tmp_path / f"out.{form}")["b"]
            assert out.type == pa.bool_()
            assert out.to_pylist() == reduce(ufunc, columns).tolist()
        for op in ("sum", "max", "bor"):
            refused(run("reduce", "--op", op, *names, cwd=tmp_path), 3, "MPI_C_BOOL (bool) takes land, lor, lxor")


@pytest.mark.parametrize(
    "kind", [pa.decimal128(9, 2), pa.decimal128(18, 0), pa.decimal128(19, 3), pa.decimal256(60, 2)]
)
@pytest.mark.parametrize("op", ["sum", "max", "maxloc", "band"])
def test_decimals_are_refused_with_ways_out_that_work(op, kind, tmp_path):
    """Each that is told of: numbers that the op takes, other columns, pairs, and to carry the column along."""
    values = [decimal.Decimal(1), decimal.Decimal(2)]
    table = pa.table({"p": pa.array(values, kind), "x": [1, 2], "y": [5, 6]})
    pq.write_table(table, tmp_path / "r.parquet")

    def call(*words: str, file: str = "r.parquet"):
        return run("reduce", "-q", "--op", op, *words, file, "--to", "arrow", cwd=tmp_path)

    for words in ((), ("--columns", "p")):
        outcome = call(*words)
        refused(outcome, 3, f"column 'p' is {kind}, and no op takes decimals; ")
        first, *others = outcome.err.strip().rpartition("decimals; ")[2].split(", or ")
        told = [first, *others]
        if told[0].startswith("write it as"):
            number = told.pop(0).split()[3].rstrip(",")
            assert number == ("int64" if kind.precision <= 18 else "float64")
            scale = 10**kind.scale if number == "int64" else 1
            written = pa.array([int(value * scale) for value in values]).cast(number)
            pq.write_table(table.set_column(0, "p", written), tmp_path / "w.parquet")
            assert call("--columns", "p", file="w.parquet").status == 0
            if number == "int64" and kind.scale:
                assert "in units of 0.01" in first
        else:
            assert op == "maxloc" or (op == "band" and kind.precision > 18)
        flags = [each[each.index("--") :].replace("VALUE,INDEX", "x,y").split() for each in told]
        assert [flag for flag, _ in flags] == ["--pair" if op == "maxloc" else "--columns", *["--keep"] * (not words)]
        for each in flags:
            more = ["--pair", "x,y"] if op == "maxloc" and each[0] == "--keep" else []
            outcome = call(*each, *more)
            assert (outcome.status, outcome.err) == (0, "")
    with pytest.raises(DatatypeError, match="`keep='p'`"):
        mpired.reduce([tmp_path / "r.parquet"], op)


def test_the_old_times_of_parquet_are_refused(tmp_path):
    table = pa.table({"t": pa.array([0, 1 << 53], pa.int64()).view(pa.timestamp("us"))})
    (tmp_path / "r.parquet").write_bytes(bytes_of(table, "parquet", use_deprecated_int96_timestamps=True))
    outcome = run("reduce", "--op", "max", "--columns", "t", "r.parquet", "-o", "out.parquet", cwd=tmp_path)
    refused(outcome, 3, "r.parquet", "INT96")


@pytest.mark.parametrize("option", ["--columns", "--keep"])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (pa.timestamp("s", "UTC"), "timestamp[s, tz=UTC]: would be timestamp[ms, tz=UTC] in parquet"),
        (pa.date64(), "date64[ms]: would be date32[day] in parquet"),
        (pa.time32("s"), "time32[s]: would be time32[ms] in parquet"),
    ],
)
def test_what_would_be_of_another_type_in_parquet_is_refused(option, kind, reason, tmp_path):
    (tmp_path / "r.arrow").write_bytes(bytes_of(pa.table({"t": column(kind, 0), "x": np.arange(NROWS)}), "arrow"))
    columns = ("--columns", "t") if option == "--columns" else ("--columns", "x", "--keep", "t")
    with unchanged(tmp_path):
        outcome = run("reduce", "--op", "max", *columns, "r.arrow", "-o", "out.parquet", cwd=tmp_path)
        refused(outcome, 3, reason, "--to arrow")


def test_what_parquet_does_not_have_is_refused(tmp_path):
    table = pa.table({"i": pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "x": [1]})
    (tmp_path / "r.arrow").write_bytes(bytes_of(table, "arrow"))
    words = ("reduce", "-q", "--op", "max", "--columns", "x", "--keep", "i", "r.arrow", "-o")
    refused(run(*words, "out.parquet", cwd=tmp_path), 3, "month_day_nano_interval: has no form in parquet")
    succeeded(run(*words, "out.arrow", cwd=tmp_path))
    assert read(tmp_path / "out.arrow").equals(table.select(["i", "x"]))


@pytest.mark.parametrize("kind", [pa.time64("ns"), pa.time32("ms"), pa.date32(), pa.timestamp("us")])
def test_times_have_no_neutral_element(kind, tmp_path):
    """The least number of the form is no time that other programs can show."""
    for rank in range(2):
        column = pa.array(np.arange(3), pa.int64()).cast(f"int{kind.bit_width}").view(kind)
        (tmp_path / f"r{rank}.arrow").write_bytes(bytes_of(pa.table({"t": column}), "arrow"))
    words = ("exscan", "--op", "max", "--columns", "t", "r0.arrow", "r1.arrow", "-o", "e{rank}.arrow")
    refused(run(*words, "--exscan-first", "identity", cwd=tmp_path), 3, "MPI_MAX", "no neutral element", str(kind))
    assert run("exscan", "-q", *words[1:], cwd=tmp_path).status == 0
