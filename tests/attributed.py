"""Files of arrays with attributes in netCDF, HDF5 and Zarr."""

import warnings

import h5py
import netCDF4
import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import xarray as xr
    import zarr


def suffix(form, *, result=False):
    """Return the suffix of a format; a result in Zarr is an archive."""
    if form == "ZARR3":
        return ".zarr.zip" if result else ".zarr"
    return ".h5" if form == "HDF5" else ".nc"


def write(path, form, arrays, attributes=(), *, unlimited=False, chunk=None):
    """Write arrays, each (dims, values, attributes), where the dimensions have names, if the format has such."""
    if form == "HDF5":
        with h5py.File(path, "w") as file:
            file.attrs.update(attributes)
            for name, (_, values, own) in arrays.items():
                file.create_dataset(name, data=values, chunks=chunk).attrs.update(own)
    elif form == "ZARR3":
        root = zarr.open_group(path, mode="w", attributes=dict(attributes))
        for name, (dims, values, own) in arrays.items():
            plain = {key: np.asarray(value).tolist() for key, value in own.items()}
            fill = plain.get("_FillValue", 0)
            made = root.create_array(name, data=np.asarray(values), fill_value=fill, dimension_names=dims)
            made.update_attributes(plain)
    else:
        with netCDF4.Dataset(path, "w", format=form) as file:
            file.set_auto_maskandscale(False)
            file.setncatts(dict(attributes))
            for name, (dims, values, own) in arrays.items():
                for dim, length in zip(dims, np.shape(values), strict=True):
                    if dim not in file.dimensions:
                        file.createDimension(dim, None if unlimited else length)
                made = file.createVariable(name, np.asarray(values).dtype, dims, fill_value=own.get("_FillValue"))
                made.set_auto_maskandscale(False)
                made[...] = values
                for key, value in own.items():
                    if key != "_FillValue":
                        made.setncattr(key, np.int32(value) if isinstance(value, int) else value)
    return str(path)


def _store(path):
    return zarr.storage.ZipStore(path, mode="r") if path.suffix == ".zip" else path


def raw(path, form):
    """Return the elements and attributes of all arrays, as they lie in the file."""
    if form == "HDF5":
        with h5py.File(path) as file:
            return {name: (each[:], dict(each.attrs)) for name, each in file.items()}
    if form == "ZARR3":
        return {name: (each[:], dict(each.attrs)) for name, each in zarr.open_group(_store(path), mode="r").arrays()}
    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        return {name: (each[:], {key: each.getncattr(key) for key in each.ncattrs()})
                for name, each in file.variables.items()}  # fmt: skip


def decoded(path, form):
    """Return what xarray reads."""
    if form == "ZARR3":
        return xr.open_zarr(_store(path), consolidated=False).load()
    with xr.open_dataset(path, engine="netcdf4") as found:
        return found.load()
