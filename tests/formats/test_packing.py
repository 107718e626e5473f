"""Packed values and `_Unsigned`: values that stand for themselves, integers read without a sign, wrong attributes."""

from __future__ import annotations

import warnings

import h5py
import netCDF4
import numpy as np
import pytest
from command import refused, run, succeeded

import mpired

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import xarray as xr
    import zarr

pytestmark = pytest.mark.filterwarnings("ignore")
FORMATS = ["NETCDF3_CLASSIC", "NETCDF4", "HDF5", "ZARR2", "ZARR3"]
every_format = pytest.mark.parametrize("form", FORMATS)
ENDS = {"NETCDF3_CLASSIC": "nc", "NETCDF4": "nc", "HDF5": "h5"}


def name_of(stem, form):
    return f"{stem}.{ENDS.get(form, 'zarr')}"


def result_of(form):
    return f"r.{ENDS.get(form, 'zarr.zip')}"


def write(path, form, arrays, chunk=None):
    """Write arrays, each (values, attributes), with a dimension x."""
    if form == "HDF5":
        with h5py.File(path, "w") as file:
            for name, (values, own) in arrays.items():
                file.create_dataset(name, data=values, chunks=chunk)
                file[name].attrs.update(own)
    elif form.startswith("ZARR"):
        root = zarr.open_group(path, mode="w", zarr_format=int(form[-1]))
        for name, (values, own) in arrays.items():
            plain = {key: value if isinstance(value, str) else value.tolist() for key, value in own.items()}
            dims = {"dimension_names": ["x"]} if form == "ZARR3" else {}
            made = root.create_array(name, data=values, fill_value=plain.get("_FillValue", 0), **dims)
            made.update_attributes(plain | ({} if dims else {"_ARRAY_DIMENSIONS": ["x"]}))
    else:
        with netCDF4.Dataset(path, "w", format=form) as file:
            file.createDimension("x", None)
            file.set_auto_maskandscale(False)
            for name, (values, own) in arrays.items():
                made = file.createVariable(name, values.dtype, "x", fill_value=own.get("_FillValue"))
                made[:] = values
                made.setncatts({key: value for key, value in own.items() if key != "_FillValue"})
    return str(path)


def opened(path, form, **settings):
    """Return what xarray reads, with values that are decoded."""
    if form.startswith("ZARR"):
        store = zarr.storage.ZipStore(path, mode="r") if path.suffix == ".zip" else path
        return xr.open_zarr(store, consolidated=False, **settings).load()
    with xr.open_dataset(path, engine="netcdf4", **settings) as found:
        return found.load()


def raw(path, form):
    """Return the elements and attributes of all arrays, as they lie in the file."""
    if form == "HDF5":
        with h5py.File(path) as file:
            return {name: (each[:], dict(each.attrs)) for name, each in file.items()}
    if form.startswith("ZARR"):
        store = zarr.storage.ZipStore(path, mode="r") if path.suffix == ".zip" else path
        return {name: (each[:], dict(each.attrs)) for name, each in zarr.open_group(store, mode="r").arrays()}
    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        return {name: (each[:], {key: each.getncattr(key) for key in each.ncattrs()})
                for name, each in file.variables.items()}  # fmt: skip


@every_format
def test_a_scale_of_one_and_an_offset_of_zero_pack_no_numbers_of_floating_point(tmp_path, form):
    plain = {"scale_factor": np.float32(1), "add_offset": np.float32(0)}
    arrays = {"t": (np.array([1, 2, 3], "f4"), plain), "u": (np.array([4, 5, 6], "f8"), {"add_offset": np.float64(0)})}
    names = [write(tmp_path / name_of(i, form), form, arrays) for i in range(2)]
    succeeded(run("reduce", "-q", "--op", "sum", *names, "-o", result_of(form), cwd=tmp_path))
    found = raw(tmp_path / result_of(form), form)
    for name, (values, own) in arrays.items():
        np.testing.assert_array_equal(found[name][0], values * 2)
        assert found[name][0].dtype == values.dtype
        assert own.items() <= found[name][1].items()
    integers = {"t": (np.array([1, 2], "i2"), plain)}  # these stand for numbers of floating point
    name = write(tmp_path / name_of("i", form), form, integers)
    refused(run("reduce", "--op", "sum", name, name, "-f", "-o", result_of("f"), cwd=tmp_path), 3, "--unpack")


UNSIGNED = {
    "byte": (np.array([1, 100, 200, 255, 7], "u1"), 255),
    "short": (np.array([1, 40000, 65535, 9, 65534], "u2"), 65535),
    "int": (np.array([1, 2**32 - 1, 2**31, 5, 6], "u4"), 2**32 - 1),
}


@pytest.mark.parametrize("op", ["max", "mean"])
@every_format
def test_unsigned_elements_that_the_file_has_as_signed_ones(tmp_path, form, op):
    """Elements and fill values are read without a sign, and results of the same type are stored as in the file."""
    ranks = []
    for i in range(2):
        arrays = {}
        for name, (values, fill) in UNSIGNED.items():
            signed = f"i{values.itemsize}"
            own = {"_Unsigned": "true", "_FillValue": np.array(fill, values.dtype).view(signed)[()]}
            arrays[name] = np.roll(values, i).view(signed), own
        ranks.append(write(tmp_path / name_of(i, form), form, arrays, chunk=(2,) if i else None))
    result = tmp_path / result_of(form)
    succeeded(run("reduce", "-q", "--op", op, "--nulls", "ignore", *ranks, "-o", result.name, cwd=tmp_path))
    new = raw(result, form)
    for name, (values, fill) in UNSIGNED.items():
        both = np.ma.masked_equal(np.stack([np.roll(values, i) for i in range(2)]), fill)
        if op == "max":
            expected = both.max(0).filled(fill)
            assert new[name][0].dtype == f"i{values.itemsize}"
            assert (new[name][1]["_Unsigned"], new[name][1]["_FillValue"]) == ("true", -1)
            np.testing.assert_array_equal(new[name][0].view(values.dtype), expected)
        else:
            assert "_Unsigned" not in new[name][1]
            np.testing.assert_array_equal(new[name][0], both.mean(0).filled(np.nan))
    if op == "max":
        first = opened(result, form)
        for name, (values, fill) in UNSIGNED.items():
            both = np.ma.masked_equal(np.stack([np.roll(values, i) for i in range(2)]), fill)
            np.testing.assert_array_equal(first[name], both.max(0).filled(fill).astype("f8"))


@every_format
def test_packed_elements_without_a_sign(tmp_path, form):
    own = {
        "_Unsigned": "true",
        "scale_factor": np.float64(0.5),
        "add_offset": np.float64(-3),
        "_FillValue": np.int8(-1),
    }
    arrays = {"t": (np.array([1, -56, -1, 127, -128], "i1"), own)}
    name = write(tmp_path / name_of("a", form), form, arrays)
    words = ("reduce", "-q", "--op", "max", "--unpack", "--nulls", "ignore", name, name, "-o", result_of(form))
    succeeded(run(*words, cwd=tmp_path))
    expected = np.array([1, 200, np.nan, 127, 128]) * 0.5 - 3
    np.testing.assert_array_equal(opened(tmp_path / name_of("a", form), form)["t"], expected)
    np.testing.assert_array_equal(opened(tmp_path / result_of(form), form)["t"], expected)
    assert "_Unsigned" not in raw(tmp_path / result_of(form), form)["t"][1]


@every_format
def test_signed_elements_that_the_file_has_as_unsigned_ones(tmp_path, form):
    kind = "u1" if form != "NETCDF3_CLASSIC" else "i1"  # which has no others
    arrays = {"t": (np.array([1, 250], "u1").view(kind), {"_Unsigned": "false"})}
    name = write(tmp_path / name_of("a", form), form, arrays)
    succeeded(run("reduce", "-q", "--op", "min", name, name, "-o", "r.npy", cwd=tmp_path))
    np.testing.assert_array_equal(np.load(tmp_path / "r.npy"), np.array([1, -6], "i1"))


def test_accumulate_into_elements_without_a_sign(tmp_path):
    np.save(tmp_path / "one.npy", np.array([1, 100, 5, 7], "u1"))
    for form in FORMATS[:3]:
        arrays = {"t": (np.array([1, 100, 60, -128], "i1"), {"_Unsigned": "true"})}
        name = write(tmp_path / name_of("a", form), form, arrays, chunk=(2,))
        succeeded(run("accumulate", "-q", "--op", "sum", name, "one.npy", cwd=tmp_path))
        found, own = raw(tmp_path / name_of("a", form), form)["t"]
        assert (found.tolist(), own["_Unsigned"]) == ([2, -56, 65, -121], "true")


@pytest.mark.parametrize("value", ["273.15", "", np.array([1.0, 2.0])], ids=["text", "empty", "two"])
@pytest.mark.parametrize("attribute", ["add_offset", "scale_factor"])
@every_format
def test_an_attribute_that_is_not_a_number(tmp_path, form, attribute, value):
    arrays = {"t": (np.array([1, 2], "i2"), {attribute: value}), "u": (np.array([1.0, 2.0]), {})}
    name = write(tmp_path / name_of("a", form), form, arrays)
    for more in ((), ("--unpack",)):
        words = ("reduce", "--op", "sum", *more, name, name, "-o", result_of(form))
        refused(run(*words, cwd=tmp_path), 3, f"as `{attribute}`, which is not a number; choose with --columns u")
    succeeded(run("reduce", "-q", "--op", "sum", "--columns", "u", name, "-o", result_of(form), cwd=tmp_path))


@every_format
def test_the_least_and_the_greatest_valid_value_are_valid(form, tmp_path):
    own = {"scale_factor": np.float64(0.5), "valid_min": np.int16(-5), "valid_max": np.int16(5)}
    path = write(tmp_path / name_of("a", form), form, {"v": (np.array([-6, -5, 1, 5, 6], "i2"), own)})
    assert mpired.reduce([path], "count", nulls="ignore", unpack=True).tolist() == [0, 1, 1, 1, 0]
