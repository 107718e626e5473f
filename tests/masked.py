"""Masked arrays as files with missing values, which other libraries write and read."""

import shutil
import tempfile

import h5py
import netCDF4
import numpy as np
import pyarrow as pa
import tables
import xarray
import zarr

FILL = -99
TABLES = ("parquet", "arrow")
FORMS = (*TABLES, "3.nc", "4.nc", "h5", "2.zarr.zip", "3.zarr.zip")
"""The endings of names: tables, netCDF classic and 4, HDF5 in chunks, Zarr of both versions."""


def write(path, **arrays):
    """Write masked arrays of one shape, of one dimension in a table; return the path."""
    form = path.name.split(".", 1)[1]
    if form in TABLES:
        columns = {name: pa.array(np.ma.getdata(a), mask=np.ma.getmaskarray(a)) for name, a in arrays.items()}
        path.write_bytes(tables.bytes_of(pa.table(columns), form))
    elif form == "h5":
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                made = file.create_dataset(name, data=array.filled(FILL), chunks=True, compression="gzip")
                made.attrs["_FillValue"] = np.array([FILL], array.dtype)
                made.attrs["units"] = "K"
    elif form.endswith("nc"):
        _write_netcdf(path, "NETCDF3_CLASSIC" if form == "3.nc" else "NETCDF4", arrays)
    else:
        encoding = {name: {"_FillValue": array.dtype.type(FILL)} for name, array in arrays.items()}
        whole = xarray.Dataset({name: (dims(array), array.filled(FILL)) for name, array in arrays.items()})
        for name, array in arrays.items():  # of integers xarray has none that are missing
            whole[name].attrs["units"] = "K"
            whole[name] = whole[name].where(~np.ma.getmaskarray(array)) if array.dtype.kind == "f" else whole[name]
        with tempfile.TemporaryDirectory() as store:  # a store in an archive has members twice
            whole.to_zarr(store, zarr_format=int(form[0]), encoding=encoding, consolidated=False, mode="w")
            shutil.make_archive(str(path).removesuffix(".zip"), "zip", store)
    return path


def dims(array):
    """Return the names of the dimensions of an array."""
    return ("z", "y", "x")[-array.ndim :]


def _write_netcdf(path, form, arrays):
    with netCDF4.Dataset(path, "w", format=form) as file:
        for name, array in arrays.items():
            for dim, length in zip(dims(array), array.shape, strict=True):
                if dim not in file.dimensions:
                    file.createDimension(dim, length)
                    file.createVariable(dim, "f8", (dim,))[:] = np.arange(length) * 10
            variable = file.createVariable(name, array.dtype, dims(array), fill_value=FILL)
            variable.units = "K"
            variable[...] = array


def read(path, name):
    """Return an array of a file as a masked one."""
    form = path.name.split(".", 1)[1]
    if form in TABLES:
        column = tables.read(path)[name].combine_chunks()
        there = column.is_valid().to_numpy(zero_copy_only=False)
        return np.ma.MaskedArray(column.fill_null(0).to_numpy(zero_copy_only=False), ~there)
    if form == "h5":
        with h5py.File(path) as file:
            return np.ma.masked_equal(file[name][...], file[name].attrs["_FillValue"][0])
    if form.endswith("nc"):
        with netCDF4.Dataset(path) as file:
            file.set_always_mask(True)
            return file[name][...]
    with xarray.open_zarr(zarr.storage.ZipStore(path, mode="r"), mask_and_scale=False, consolidated=False) as found:
        return np.ma.masked_equal(found[name].values, found[name].attrs["_FillValue"])


def drawn(seed, shape=(7, 11), dtype="f8", part=0.4):
    """Return small numbers, some of which are missing."""
    draw = np.random.default_rng(seed)
    return np.ma.MaskedArray(draw.integers(-9, 9, shape).astype(dtype), draw.random(shape) < part)


def check(found, expected):
    """Check that two masked arrays lack the same elements, and have the same bits elsewhere."""
    mask = np.ma.getmaskarray(expected)
    np.testing.assert_array_equal(np.ma.getmaskarray(found), mask)
    assert found.data[~mask].tobytes() == expected.data[~mask].tobytes()
