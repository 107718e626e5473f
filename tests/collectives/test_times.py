"""Truth values, and times in columns and arrays: which ops take them, and that the type of the result is theirs."""

import json
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from command import refused, run, succeeded, unchanged
from rows import check_refusals
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


@pytest.mark.parametrize(("form", "op", "pick"), [("parquet", "max", later), ("arrow", "min", earlier)])
def test_the_extreme_of_times_is_a_time(op, pick, form, tmp_path):
    """With unit and zone: the schema of the result is that of the ranks, also in the other format."""
    kinds = {f"t{i}": kind for i, kind in enumerate(TIMES)}
    names = write(tmp_path, form, kinds)
    words = ("--columns", ",".join([*kinds, "x"]), *names, "-o", f"out.{form}")
    succeeded(run("reduce", "-q", "--op", op, *words, cwd=tmp_path))
    out = read(tmp_path / f"out.{form}")
    assert out.schema.equals(read(tmp_path / names[0]).schema, check_metadata=True)
    for name, kind in kinds.items():
        assert out[name].combine_chunks().equals(expected(tmp_path, names, name, pick)), kind
    other = {"parquet": "arrow", "arrow": "parquet"}[form]
    both = [name for name, kind in kinds.items() if kind in {pa.timestamp("us"), pa.duration("ms"), pa.date32()}]
    words = ("--columns", ",".join(both), *names, "-o", f"out.{other}")
    succeeded(run("reduce", "-q", "--op", op, *words, cwd=tmp_path))
    assert read(tmp_path / f"out.{other}").equals(out.select(both).replace_schema_metadata(None))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_durations_are_added_and_points_in_time_are_not(form, tmp_path):
    kinds = {"d": pa.duration("us"), "t": pa.timestamp("us"), "z": pa.timestamp("us", "UTC"), "day": pa.date32()}
    names = write(tmp_path, form, kinds | {"clock": pa.time64("us")})
    succeeded(run("reduce", "-q", "--op", "sum", "--columns", "d", *names, "-o", f"out.{form}", cwd=tmp_path))
    found = read(tmp_path / f"out.{form}")["d"].combine_chunks()
    assert found.equals(expected(tmp_path, names, "d", pc.add))
    words = f"reduce {' '.join(names)} --columns"
    no_form = "has no form in npy; use --to parquet or --to arrow"
    rows = [
        (f"{words} t --op sum", 3, "not defined for 't', timestamp[us], time / max, min"),
        (f"{words} d --op prod", 3, "not defined for 'd', duration[us], duration / sum"),
        (f"{words} d --op band", 3, "not defined for 'd', duration[us]"),
        (f"{words} t --op max --to raw", 3, "no form in raw; use --to npy"),
        (f"{words} t --type int64_t --op max", 3, "timestamp[us] / MPI_INT64_T"),
        (f"reduce --op max {' '.join(names)}", 3, "column 'd' is duration[us], and times / --columns x,d,t,"),
        (f"{words} z --op max -o new.npy", 3, f"timestamp[us, tz=UTC]: {no_form}"),
        (f"{words} day --op max -o new.npy", 3, f"date32[day]: {no_form}"),
        (f"{words} clock --op max -o new.npy", 3, f"time64[us]: {no_form}"),
    ]
    check_refusals(tmp_path, rows)


def test_texts_of_times(tmp_path):
    """As Arrow writes them, with a T, and in UTC with a Z; numbers are no texts in JSON, these are."""
    kinds = {f"t{i}": kind for i, kind in enumerate(TIMES) if not pa.types.is_duration(kind)}
    (first, *_) = write(tmp_path, "arrow", kinds)
    words = ("reduce", "-q", "--op", "max", first, "--columns")
    wanted = {}
    for name, kind in kinds.items():
        in_utc = pa.timestamp(kind.unit, "UTC") if getattr(kind, "tz", None) else kind
        times = read(tmp_path / first)[name].combine_chunks().cast(in_utc)
        end = "T00:00:00.000" if kind == pa.date64() else ""
        wanted[name] = [text.replace(" ", "T") + end for text in times.cast(pa.string()).to_pylist()]
    buffers = json.loads(run(*words, ",".join(kinds), "--to", "json", cwd=tmp_path).out)["buffers"]
    assert {each["name"]: each["data"] for each in buffers} == wanted
    for name in [*kinds][::4]:
        assert run(*words, name, "--to", "text", cwd=tmp_path).out.decode().splitlines() == wanted[name], name


def test_columns_that_are_refused(tmp_path):
    """Units and zones that differ, the old times of parquet, and what would be of another type there, or of none."""
    for name, kind in (("a", pa.timestamp("us", "UTC")), ("b", pa.timestamp("us")), ("c", pa.timestamp("ms", "UTC"))):
        (tmp_path / f"{name}.parquet").write_bytes(bytes_of(pa.table({"t": column(kind, 0)}), "parquet"))
    old = pa.table({"t": pa.array([0, 1 << 54], pa.int64()).view(pa.timestamp("us"))})
    (tmp_path / "old.parquet").write_bytes(bytes_of(old, "parquet", use_deprecated_int96_timestamps=True))
    reduce, agree = "reduce --op max --columns t", "rank 1 has datatype timestamp / timestamp[us, tz=UTC]"
    rows = [
        (f"{reduce} a.parquet b.parquet", 3, f"b.parquet: {agree}"),
        (f"{reduce} a.parquet c.parquet", 3, f"c.parquet: {agree}"),
        (f"{reduce} old.parquet -o out.parquet", 3, "old.parquet / 96 bits"),
    ]
    others = {
        pa.timestamp("s", "UTC"): "timestamp[s, tz=UTC]: would be timestamp[ms, tz=UTC] in parquet",
        pa.date64(): "date64[ms]: would be date32[day] in parquet",
        pa.time32("s"): "time32[s]: would be time32[ms] in parquet",
    }
    for number, (kind, reason) in enumerate(others.items()):
        table = pa.table({"t": column(kind, 0), "x": np.arange(NROWS)})
        (tmp_path / f"{number}.arrow").write_bytes(bytes_of(table, "arrow"))
        words = f"reduce --op max {number}.arrow -o out.parquet --columns"
        rows += [(f"{words} {each}", 3, f"{reason} / --to arrow") for each in ("t", "x --keep t")]
    for kind in pa.time64("ns"), pa.time32("ms"), pa.date32(), pa.timestamp("us"):
        name = f"{kind}".partition("[")[0]
        (tmp_path / f"{name}.arrow").write_bytes(bytes_of(pa.table({"t": column(kind, 0)}), "arrow"))
        words = f"exscan --op max --columns t {name}.arrow {name}.arrow -o e{{rank}}.arrow"  # no time could be shown
        rows.append((f"{words} --exscan-first identity", 3, f"MPI_MAX / no neutral element / {kind}"))
    table = pa.table({"i": pa.array([(1, 2, 3)], pa.month_day_nano_interval()), "x": [1]})
    (tmp_path / "i.arrow").write_bytes(bytes_of(table, "arrow"))
    words = "reduce -q --op max --columns x --keep i i.arrow -o"
    rows.append((f"{words} out.parquet", 3, "month_day_nano_interval: has no form in parquet"))
    check_refusals(tmp_path, rows)
    succeeded(run(*words.split(), "out.arrow", cwd=tmp_path))
    assert read(tmp_path / "out.arrow").equals(table)


CODES = ["M8[us]", "M8[D]", "M8[25s]", "m8[ns]"]
NAT = -(2**63)
OPS = {"max": np.maximum, "min": np.minimum, "sum": np.add}


@pytest.mark.parametrize("code", CODES)
def test_arrays_give_what_numpy_makes_of_them(code, tmp_path):
    """NaT propagates, and the result has the dtype of the ranks, as an array and as a file."""
    # The elements meet NaT as the lower operand, the upper one, and both.
    rows = ([1, 5, -7, NAT, 8, NAT], [2, 3, -9, 4, NAT, NAT], [0, 3, 11, 4, 4, 4])
    ranks = [np.array(row, "i8").view(code) for row in rows]
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
