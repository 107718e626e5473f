"""`mpired diff` of elements of any type, of missing ones, of times, and of numbers of two datatypes."""

from __future__ import annotations

import datetime as dt
import decimal
import filecmp
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
    wanted = {
        "v": ["a", None, "b"],
        "n": [2**60, None, None],
        "d": [DAY.date(), None, None],
        "l": [["a"], ["b", "a"], []],
    }
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


@each("write", ["netcdf", "hdf5", "zarr", "parquet"])
def test_missing_elements(write, tmp_path):
    """They equal each other, whatever stands for them, and no number; with and without a tolerance."""
    draw = np.random.default_rng(3)
    values = draw.integers(0, 4, (2, 40)).astype("f8")
    masks = draw.random((2, 40)) < 0.3
    names = [str(tmp_path / f"{name}.{write}") for name in "ab"]
    for name, numbers, mask, fill in zip(names, values, masks, (-1.0, 1e20), strict=True):
        whole = np.where(mask, fill, numbers)
        if write == "parquet":
            pq.write_table(pa.table({"t": pa.array(numbers, mask=mask)}), name)
        elif write == "hdf5":
            with h5py.File(name, "w") as file:
                file["t"] = whole
                file["t"].attrs["valid_range"] = [0.0, 10.0]
        else:
            data = xr.Dataset({"t": ("x", whole, {"_FillValue": fill})})
            data.to_zarr(name, consolidated=False) if write == "zarr" else data.to_netcdf(name, engine="netcdf4")
    for tolerance in (None, 1.0):
        found = mpired.diff(*names, atol=tolerance, format=write, columns="t", examples=100)
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


def test_no_datatype_holds_large_integers_and_fractions():
    large = np.array([2**53 + 1], "i8")
    for other in (np.array([2.0**53]), np.array([2**53 + 1], "u8")):
        for tolerance in (None, 0.0):
            reason = mpired.diff(large, other, rtol=tolerance).reason
            assert "has datatype" in reason
            assert "rtol" not in reason


def test_other_arrays_are_compared_beside_two_datatypes(tmp_path):
    """Not if their names or counts differ, too."""
    same, other = np.arange(3), np.arange(3.0) / 3
    np.savez(tmp_path / "a.npz", t=other.astype("f4"), u=other, v=same)
    np.savez(tmp_path / "b.npz", v=same, u=other + np.eye(3)[1], t=other)
    np.savez(tmp_path / "c.npz", v=same, t=other)
    outcome = run("diff", "a.npz", "b.npz", cwd=tmp_path)
    assert (outcome.status, outcome.err) == (1, "")
    way_out = "; compare them by value with --rtol"
    assert outcome.out.decode().splitlines() == [
        "different: 2 of 3 arrays",
        "  u: 1 of 3 x MPI_DOUBLE (float64), largest difference 1.0 at [1], 9007199254740992 ulp at [1]",
        "  v: 3 x MPI_INT64_T (int64)",
        f"  t: not compared, B has datatype MPI_DOUBLE (float64), but A has MPI_FLOAT (float32){way_out}",
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
    (example,) = (found := mpired.diff(values[:1], values[1:])).examples
    assert (
        str(found).splitlines()[1].startswith(f"  [0]: {values[0]!s} {values[1]!s}, difference {example.difference!s}")
    )


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
    assert run("diff", "a.h5", "a.h5", cwd=tmp_path).out.startswith(b"the same: 2 datasets\n")
    for name, value in (("o", None), ("same", None), ("p", 1)):
        np.save(tmp_path / f"{name}.npy", np.array([value], object), allow_pickle=True)
        equal = filecmp.cmp(tmp_path / "o.npy", tmp_path / f"{name}.npy", shallow=False)
        found = mpired.diff(tmp_path / "o.npy", tmp_path / f"{name}.npy")
        assert found.verdict == ("the same" if equal else "not known")
    table = pa.table({"x": ["text"] * 99, "y": [1] * 99})
    pq.write_table(table, tmp_path / "bad.parquet", write_page_checksum=True, compression="none")
    octets = (tmp_path / "bad.parquet").read_bytes()
    (tmp_path / "bad.parquet").write_bytes(octets.replace(b"text", b"next", 1))
    (tmp_path / "worse.parquet").write_bytes(octets.replace(b"text", b"exit", 1))
    found = mpired.diff(tmp_path / "bad.parquet", tmp_path / "worse.parquet")
    assert (found.verdict, found.buffers[1].differing, found.buffers[1].reason) == ("not known", 0, "")
    assert "damaged" in found.buffers[0].reason
