"""Arrays are combined by the names of their dimensions, and other units are warned of."""

from __future__ import annotations

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from command import refused, run, succeeded

VALUES = np.arange(9.0).reshape(3, 3)


def netcdf(path, dims, form="NETCDF4", units="K"):
    with netCDF4.Dataset(path, "w", format=form) as file:
        for name in ("lat", "lon"):
            file.createDimension(name, 3)
        array = file.createVariable("t", "f8", dims)
        array.units = units
        array[:] = VALUES


def hdf5(path, dims):
    with h5py.File(path, "w") as file:
        file["t"] = VALUES
        for axis, name in enumerate(dims):
            file[f"axis{name}"] = np.arange(3.0)
            file[f"axis{name}"].make_scale(name)
            file["t"].dims[axis].attach_scale(file[f"axis{name}"])


def store(path, dims):
    group = zarr.create_group(zarr.storage.LocalStore(path))
    group.create_array("t", data=VALUES, dimension_names=dims)


WRITERS = {
    "classic.nc": lambda path, dims: netcdf(path, dims, "NETCDF3_CLASSIC"),
    "new.nc": netcdf,
    "h5": hdf5,
    "zarr": store,
}


@pytest.mark.parametrize("form", WRITERS)
def test_dimensions_in_another_order_are_refused(form, tmp_path):
    """By position the two are of one shape: xarray adds them by their names."""
    WRITERS[form](tmp_path / f"a.{form}", ("lat", "lon"))
    WRITERS[form](tmp_path / f"b.{form}", ("lon", "lat"))
    words = ("reduce", "-q", "--op", "sum", "--columns", "t", "--to", "npy", "-o", "out.npy")
    outcome = run(*words, f"a.{form}", f"b.{form}", cwd=tmp_path)
    refused(outcome, 3, f"b.{form}", "lat", "lon", "write all in one order")
    assert not (tmp_path / "out.npy").exists()
    succeeded(run(*words, f"a.{form}", f"a.{form}", cwd=tmp_path))
    assert np.array_equal(np.load(tmp_path / "out.npy"), 2 * VALUES)


def test_xarray_adds_by_names(tmp_path):
    """So the sum by position would be another one."""
    netcdf(tmp_path / "a.nc", ("lat", "lon"))
    netcdf(tmp_path / "b.nc", ("lon", "lat"))
    with xr.open_dataset(tmp_path / "a.nc") as one, xr.open_dataset(tmp_path / "b.nc") as other:
        assert not np.array_equal((one.t + other.t).values, 2 * VALUES)


def test_dimensions_without_names_or_with_other_names_are_combined(tmp_path):
    for name, keys in {"a.h5": {}, "b.h5": {}}.items():
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("t", data=VALUES, **keys)
    netcdf(tmp_path / "c.nc", ("lat", "lon"))
    for ranks in (("a.h5", "b.h5"), ("a.h5", "c.nc"), ("c.nc", "a.h5")):
        succeeded(run("reduce", "-q", "--op", "sum", "--to", "npy", "-f", "-o", "o.npy", *ranks, cwd=tmp_path))


@pytest.mark.parametrize("form", ["NETCDF3_CLASSIC", "NETCDF4"])
def test_other_units_are_warned_of(form, tmp_path):
    netcdf(tmp_path / "a.nc", ("lat", "lon"), form)
    netcdf(tmp_path / "b.nc", ("lat", "lon"), form, units="degC")
    outcome = run("reduce", "-q", "--op", "mean", "--to", "npy", "-o", "out.npy", "a.nc", "b.nc", cwd=tmp_path)
    assert outcome.status == 0
    expected = "'b.nc' has t in 'degC', but 'a.nc' has it in 'K'"
    assert outcome.err.count("\n") == 1
    assert expected in outcome.err
    assert run("reduce", "-q", "--op", "mean", "-o", "b2.nc", "a.nc", "a.nc", cwd=tmp_path).err == ""
