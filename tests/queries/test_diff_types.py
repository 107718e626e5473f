"""`mpired diff` of elements of any type, of missing ones, of times, and of numbers of two datatypes."""

import datetime as dt
import decimal
import filecmp
import itertools
import json
import re
import shutil
import struct
from fractions import Fraction

import h5py
import ml_dtypes
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr
from command import run
from rows import each
from tables import bytes_of

import mpired

DAY = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
POINT = pa.struct([("x", pa.float64()), ("s", pa.string())])
UNION = pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])])


def types():
    """Yield the type of a column, three elements in A and in B, and the rows in which they differ."""
    nan, hour = float("nan"), dt.timedelta(hours=1)
    one, other = decimal.Decimal("1.25"), decimal.Decimal("1.26")
    yield pa.string(), ["a", None, "ü"], ["a", "b", "u"], [1, 2]
    yield pa.large_string(), ["a", None, "ü"], ["a", None, "ü"], []
    yield pa.binary(), [b"\xff", b"", None], [b"\xfe", b"", b""], [0, 2]
    yield pa.binary(2), [b"ab", b"cd", None], [b"ab", b"ce", None], [1]
    yield pa.decimal128(9, 2), [one, None, 0], [other, None, 0], [0]
    yield pa.timestamp("us", "Europe/Berlin"), [DAY, None, DAY], [DAY, None, DAY + hour], [2]
    yield pa.duration("ms"), [1, 2, None], [1, 3, None], [1]
    yield pa.list_(pa.float64()), [[1.0, nan], [], None], [[1.0, nan], [0.0], []], [1, 2]
    yield pa.list_(pa.int8(), 2), [[1, 2], None, [3, 4]], [[1, 2], None, [4, 3]], [2]
    yield pa.list_(pa.timestamp("ns")), [[1], [None], []], [[2], [None], []], [0]
    yield POINT, [{"x": nan, "s": "a"}, {"x": 0.0}, None], [{"x": nan, "s": "a"}, {"x": -0.0}, None], [1]
    yield pa.map_(pa.string(), pa.int64()), [[("k", 1)], None, []], [[("k", 2)], None, []], [0]
    yield pa.dictionary(pa.int8(), pa.string()), ["a", "b", None], ["b", "b", None], [0]
    yield pa.null(), [None] * 3, [None] * 3, []


@each("suffix", ["parquet", "arrow", "arrows"])
def test_columns_of_any_type(suffix, tmp_path):
    rows = list(types())
    for name, side in (("a", 1), ("b", 2)):
        columns = {f"c{i}": pa.array(row[side], row[0]) for i, row in enumerate(rows)}
        union = {} if suffix == "parquet" else {"union": UNION}
        (tmp_path / f"{name}.{suffix}").write_bytes(bytes_of(pa.table(columns | union), suffix))
    a, b = (tmp_path / f"{name}.{suffix}" for name in "ab")
    assert mpired.diff(a, a).equal
    found = mpired.diff(a, b, examples=1000)
    assert str(mpired.diff(a, b, examples=1000, jobs=2)) == str(found)
    for i, (kind, one, other, expected) in enumerate(rows):
        column = found.buffers[i]
        assert (column.reason, column.differing) == ("", len(expected)), kind
        assert [each.index for each in found.examples if each.column == f"c{i}"] == [(row,) for row in expected]
        assert column.missing_in_a == sum(one[row] is None and other[row] is not None for row in range(3))
        assert column.missing_in_b == sum(one[row] is not None and other[row] is None for row in range(3))
    assert [(each.a, each.b) for each in found.examples if each.column == "c0"] == [(None, "b"), ("ü", "u")]
    described = json.loads(run("diff", "--json", str(a), str(b), cwd=tmp_path).out)
    first = described["examples"][0]
    assert [first[key] for key in ("column", "index", "a", "b", "difference")] == ["c0", [1], None, "b", None]


def test_text_is_compared_however_it_is_stored(tmp_path):
    texts = ["a", "bü", ""]
    pq.write_table(pa.table({"s": pa.array(texts, pa.large_string()).dictionary_encode()}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"s": texts}), tmp_path / "b.parquet")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["s"] = texts
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("n", 3)
        file.createVariable("s", str, ("n",))[:] = np.array(texts, object)
    np.savez(tmp_path / "a.npz", s=np.array(texts))
    np.savez_compressed(tmp_path / "b.npz", s=np.array(texts))
    np.save(tmp_path / "a.npy", np.array(texts))
    np.save(tmp_path / "b.npy", np.array(texts, ">U9"))
    for name in ("b.parquet", "a.h5", "a.nc", "a.npz", "b.npz", "a.npy", "b.npy"):
        assert str(mpired.diff(tmp_path / "a.parquet", tmp_path / name)) == "the same: 3 x string", name
    found = mpired.diff(np.array(["a", "bu", ""]), tmp_path / "a.npz")
    assert [(each.a, each.b) for each in found.examples] == [("bu", "bü")]
    assert not mpired.diff(np.array([b"a", b"b"]), np.array([b"a", b"c"])).equal
    with netCDF4.Dataset(tmp_path / "characters.nc", "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("n", 3)
        file.createDimension("length", 2)
        file.createVariable("s", "S1", ("n", "length"))[:] = netCDF4.stringtochar(np.array(["a", "bu", ""], "S2"))
    assert "B has shape (3, 2) in 's', but A" in str(mpired.diff(tmp_path / "a.nc", tmp_path / "characters.nc"))


def test_values_are_compared_however_columns_are_encoded(tmp_path):
    """As pyarrow writes one table as arrow and as parquet, and as it casts times to other units."""
    views, numbers = pa.array(["a", "b"], pa.string_view()), pa.array([0, None, 1], pa.uint32())
    by, seconds = pa.DictionaryArray.from_arrays, pa.array([0, -1, None]).cast(pa.timestamp("s"))
    wanted = {"v": ["a", None, "b"], "n": [2**60, None, None], "d": [DAY.date(), None, None]}
    wanted["l"] = [["a"], ["b", "a"], []]
    made = {"v": by(numbers, views), "n": by(numbers, pa.array([2**60, None])), "d": pa.array(wanted["d"], pa.date64()),
            "l": pa.ListArray.from_arrays([0, 1, 3, 3], by(pa.array([0, 1, 0]), views)), "s": seconds}  # fmt: skip
    wanted["s"] = seconds.cast(pa.timestamp("ns"))
    (tmp_path / "a.arrow").write_bytes(bytes_of(pa.table(made), "arrow"))
    for changes, expected in ({}, [0] * 5), ({"v": ["a"] * 3, "d": pa.nulls(3, pa.date32())}, [2, 0, 1, 0, 0]):
        pq.write_table(pa.table(wanted | changes), tmp_path / "b.parquet")
        found = mpired.diff(tmp_path / "a.arrow", tmp_path / "b.parquet")
        assert [(each.reason, each.differing) for each in found.buffers] == [("", each) for each in expected]
    times = np.array(["9999-01-01", "NaT", "1970-01-01"], "M8[s]")
    for unit, differing in {"D": 0, "ms": 0, "ns": 1}.items():  # nanoseconds end in 2262
        assert mpired.diff(times, times.astype(f"M8[{unit}]")).buffers[0].differing == differing


@each("write, fills", [("parquet", (-1.0, 1e20)), *itertools.product(
    ("netcdf", "classic", "packed", "hdf5", "zarr"), ((-1.0, 1e20), (np.nan, np.nan), (np.nan, -1.0)))])  # fmt: skip
def test_missing_elements(write, fills, tmp_path):
    """They equal each other, whatever stands for them, also NaN, and no number; with and without a tolerance."""
    draw = np.random.default_rng(3)
    values = draw.integers(0, 4, (2, 40)).astype("f8")
    masks = draw.random((2, 40)) < 0.3
    names = [str(tmp_path / f"{name}.{write}") for name in "ab"]
    for name, numbers, mask, fill in zip(names, values, masks, fills, strict=True):
        whole = np.where(mask, fill, numbers)
        if write == "parquet":
            pq.write_table(pa.table({"t": pa.array(numbers, mask=mask)}), name)
        elif write == "hdf5":
            with h5py.File(name, "w") as file:
                file["t"] = whole
                file["t"].attrs.update({"_FillValue": fill} if np.isnan(fill) else {"valid_range": [0.0, 10.0]})
        else:
            data = xr.Dataset({"t": ("x", whole, {"_FillValue": fill})})
            data.t.attrs |= {"scale_factor": 1.0, "add_offset": 0.5} if write == "packed" else {}
            form = "NETCDF3_CLASSIC" if write == "classic" else "NETCDF4"
            if write == "zarr":
                data.to_zarr(name, mode="w", consolidated=False)
            else:
                data.to_netcdf(name, engine="netcdf4", format=form)
    for tolerance in (None, 1.0):
        form = "netcdf" if write in {"classic", "packed"} else write
        found = mpired.diff(*names, atol=tolerance, format=form, columns="t", examples=100)
        near = np.abs(values[0] - values[1]) <= (tolerance or 0)
        expected = np.where(masks.any(0), masks[0] != masks[1], ~near)
        (t,) = found.buffers
        assert t.differing == expected.sum()
        assert (t.missing_in_a, t.missing_in_b) == ((masks[0] & ~masks[1]).sum(), (masks[1] & ~masks[0]).sum())
        assert [each.index[0] for each in found.examples] == np.flatnonzero(expected).tolist()
        wrong = [(each.a is None, each.b is None) for each in found.examples]
        assert wrong == [tuple(pair) for pair in masks[:, expected].T]
        assert t.difference.amount == np.abs(values[0] - values[1])[~masks.any(0)].max()
    assert f"{t.missing_in_a} missing in A alone, {t.missing_in_b} missing in B alone, largest" in str(found)


@each("one, other", [("f4", "f8"), ("f8", "f4"), ("f2", "f8"), ("i4", "i8"), ("u4", "i8"), ("i4", "f8"), ("u1", "f2"),
                     ("f4", "c16")])  # fmt: skip
def test_numbers_of_two_datatypes(one, other):
    """By their values with a tolerance, and not without one."""
    draw = np.random.default_rng(9)
    numbers = draw.integers(0, 200, 50) / (1 if {"i", "u"} & set(one + other) else 7)
    a, b = numbers.astype(one), numbers.astype(other)
    b[7] += 3
    exact = [abs(Fraction(x) - Fraction(y.real)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert re.search(r"has datatype .*; compare them by value with `rtol`$", mpired.diff(a, b).reason)
    found = mpired.diff(a, b, atol=0.0, examples=100)
    assert [each.index[0] for each in found.examples] == [i for i, far in enumerate(exact) if far]
    assert float(found.buffers[0].difference.amount) == float(max(exact))
    assert mpired.diff(a, b, atol=3.5).equal
    assert found.buffers[0].dtype == f"{np.dtype(one).name} beside {np.dtype(other).name}"


@each("other", [np.array([2.0**53, 3]), np.array([2**53, 3], "u8"), np.array([2**53, 3], "c16")])
def test_large_integers_beside_other_numbers(other):
    """A long double holds them."""
    large = np.array([2**53 + 1, 3])
    assert mpired.diff(large, other).reason.endswith("; compare them by value with `rtol`")
    found = mpired.diff(large, other, rtol=0.0)
    assert (found.buffers[0].differing, float(found.buffers[0].difference.amount)) == (1, 1.0)
    assert "9007199254740993" in str(found)
    assert mpired.diff(large, other, atol=1.0).equal


TIMES = [("days since 2000-01-01", "standard", "f8"), ("hours since 2000-1-1 0:0:0", "gregorian", "f8"),
         ("minutes since 1999-12-31", "standard", "f8"), ("days since 2001-01-01", "standard", "f8"),
         ("days since 2000-01-01", "standard", "i8"), ("hours since 2000-01-02", "standard", "i8"),
         ("minutes since 2000-01-01 00:00 +01:00", "standard", "f8")]  # fmt: skip


@each("one, other", list(itertools.product(TIMES, repeat=2)))
def test_times_in_two_units(one, other, tmp_path):
    """Instants are compared, as xarray has them, and those of bounds."""
    names, instants = [str(tmp_path / name) for name in ("a.nc", "b.nc")], []
    when = netCDF4.num2date(np.random.default_rng(3).integers(0, 99, 12), "hours since 2000-01-03")
    for name, (units, calendar, form) in zip(names, (one, other), strict=True):
        numbers = netCDF4.date2num(when, units, calendar).astype(form) + np.eye(12, dtype=form)[5] * (name == names[1])
        own = {"units": units, "calendar": calendar, "bounds": "time_bnds"}
        data = xr.Dataset({"time": ("n", numbers, own), "time_bnds": ("n", numbers)})
        data.to_netcdf(name, engine="netcdf4", encoding={"time_bnds": {"_FillValue": None}})
        instants.append(xr.decode_cf(data).time.values.astype("M8[m]"))
    wrong = np.flatnonzero(instants[0] != instants[1]).tolist()
    found = mpired.diff(*names, rtol=1e-12, examples=100)
    assert [(each.column, *each.index) for each in found.examples] == [
        (each, at) for each in ("time", "time_bnds") for at in wrong]  # fmt: skip
    assert found.buffers[0].units == ("" if one[0] == other[0] else f"{one[0]!r} beside {other[0]!r}")
    if one[2] == other[2] == "i8":
        assert mpired.diff(*names).buffers[0].differing == len(wrong)


@each("one, other, calendar, expected", [
    ("K", "degC", "standard", "in 'K' beside 'degC'"),
    ("days since 2000-01-01", "days since 2001-01-01", "noleap", "of calendar 'noleap', but A in 'days since"),
    ("days since 2000-01-01", "days", "standard", "not compared, B has times in"),
    ("days since 1-1-1", "hours since 1-1-1", "360_day", "in 'days since 1-1-1' beside 'hours since 1-1-1'"),
])  # fmt: skip
def test_units_that_differ_are_named(one, other, calendar, expected, tmp_path):
    for name, units in (("a", one), ("b", other)):
        time = "x", np.arange(2.0) * (24 if "hours" in units else 1), {"units": units, "calendar": calendar}
        xr.Dataset({"t": time, "u": ("x", [1.0, 2.0])}).to_netcdf(tmp_path / f"{name}.nc", engine="netcdf4")
    outcome = run("diff", "a.nc", "b.nc", cwd=tmp_path)
    assert outcome.status == ("B has times" in outcome.out.decode())
    assert expected in outcome.out.decode()
    assert run("diff", "--columns", "t", "a.nc", "b.nc", cwd=tmp_path).status == outcome.status


def test_other_arrays_are_compared_beside_two_datatypes(tmp_path):
    """Not if their names or counts differ, too."""
    same, other = np.arange(3), np.arange(3.0) / 3
    np.savez(tmp_path / "a.npz", t=other.astype("f4"), u=other, v=same)
    np.savez(tmp_path / "b.npz", v=same, u=other + np.eye(3)[1], t=other)
    np.savez(tmp_path / "c.npz", v=same, t=other)
    outcome = run("diff", "a.npz", "b.npz", cwd=tmp_path)
    assert (outcome.status, outcome.err) == (1, "")
    hint = "; compare them by value with --rtol"
    assert outcome.out.decode().splitlines() == [
        "different: 2 of 3 arrays",
        "  u: 1 of 3 x MPI_DOUBLE (float64), largest difference 1.0 at [1], 9007199254740992 ulp at [1]",
        "  v: 3 x MPI_INT64_T (int64)",
        f"  t: not compared, B has datatype MPI_DOUBLE (float64), but A has MPI_FLOAT (float32){hint}",
        "  u[1]: 0.3333333333333333 1.3333333333333333, difference 1.0, 9007199254740992 ulp",
    ]
    described = mpired.diff(tmp_path / "a.npz", tmp_path / "b.npz", columns=["t", "v"])
    assert (described.verdict, [each.differing for each in described.buffers]) == ("different", [0, 3])
    assert len(mpired.diff(tmp_path / "a.npz", tmp_path / "b.npz", rtol=1e-6).buffers) == 3
    reason = mpired.diff(tmp_path / "a.npz", tmp_path / "c.npz").reason
    assert "B has 2 arrays, but A" in reason
    assert "rtol" not in reason


def test_long_doubles_have_all_digits():
    values = np.longdouble(1) + np.array([0, 1], "g") * np.finfo("g").eps
    expected = f"  [0]: {values[0]!s} {values[1]!s}, difference {values[1] - values[0]!s}"
    assert str(mpired.diff(values[:1], values[1:])).splitlines()[1] == expected


def test_ulps_are_those_of_the_wider():
    values = np.linspace(1, 2, 50).astype("f4")
    far = np.nextafter(values, np.float32(3)).astype("f8")
    assert mpired.diff(values, values.astype("f8"), ulp=0).equal
    assert {each.ulp for each in mpired.diff(values, far, ulp=0).examples} == {2**29}


SHORT = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}


@each("code", SHORT)
def test_ulps_are_those_of_short_types(code, tmp_path):
    """Unless the other file has the wider type."""
    form = np.dtype(getattr(ml_dtypes, SHORT[code]))
    every = np.arange(1 << 8 * form.itemsize).astype(f"u{form.itemsize}").view(form)
    every = every[np.isfinite(every.astype("f4"))]
    values = every[np.random.default_rng(4).integers(0, len(every), (2, 500))]
    ranked = np.searchsorted(np.unique(every.astype("f4")), values.astype("f4"))
    for name, numbers in zip("ab", values, strict=True):
        tensor = {"dtype": code, "shape": [500], "data_offsets": [0, numbers.nbytes]}
        header = json.dumps({"x": tensor}).encode()
        (tmp_path / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + numbers.tobytes())
    a, b = (tmp_path / f"{name}.safetensors" for name in "ab")
    steps = abs(ranked[0] - ranked[1])
    found = mpired.diff(a, b, ulp=2, examples=500)
    assert [each.index[0] for each in found.examples] == np.flatnonzero(steps > 2).tolist()
    assert [each.ulp for each in found.examples] == steps[steps > 2].tolist()
    assert found.buffers[0].datatype == form.name
    np.save(tmp_path / "b.npy", values[1].astype("f4"))
    assert mpired.diff(a, tmp_path / "b.npy", ulp=0).buffers[0].ulp.amount > steps.max()


def test_arrays_that_cannot_be_read(tmp_path):
    """They are neither the same nor different, unless the bytes are the same; a difference elsewhere is one."""
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1.0]
    for name in "ab":
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = [1.0 + (name == "b")]
            file["link"] = h5py.ExternalLink("other.h5", "x")
    shutil.copy(tmp_path / "a.h5", tmp_path / "copy.h5")
    a = run("diff", "a.h5", "copy.h5", cwd=tmp_path)
    assert (a.status, a.err) == (3, "")
    first, *rest = a.out.decode().splitlines()
    assert first == "not known: 2 datasets"
    assert rest[1].startswith("  link: not compared, 'link' is stored in another file")
    assert run("diff", "a.h5", "b.h5", cwd=tmp_path).status == 1
    assert run("diff", "a.h5", "copy.h5", "--follow-links", cwd=tmp_path).status == 0
    assert mpired.diff(tmp_path / "a.h5", tmp_path / "other.h5").reason.endswith("and this file lacks 'link'")
    assert run("diff", "a.h5", "a.h5", cwd=tmp_path).out.startswith(b"the same: 2 datasets\n")
    for name, value in (("o", None), ("same", None), ("p", 1)):
        np.save(tmp_path / f"{name}.npy", np.array([value], object), allow_pickle=True)
        files = tmp_path / "o.npy", tmp_path / f"{name}.npy"
        assert mpired.diff(*files).verdict == ("the same" if filecmp.cmp(*files, shallow=False) else "not known")
    table = pa.table({"x": ["text"] * 99, "y": [1] * 99})
    pq.write_table(table, tmp_path / "bad.parquet", write_page_checksum=True, compression="none")
    octets = (tmp_path / "bad.parquet").read_bytes()
    (tmp_path / "bad.parquet").write_bytes(octets.replace(b"text", b"next", 1))
    (tmp_path / "worse.parquet").write_bytes(octets.replace(b"text", b"exit", 1))
    found = mpired.diff(tmp_path / "bad.parquet", tmp_path / "worse.parquet")
    assert (found.verdict, found.buffers[1].differing, found.buffers[1].reason) == ("not known", 0, "")
    assert "damaged" in found.buffers[0].reason
