"""netCDF files among the ranks: results of every form and datatype have the dimensions, coordinates and history."""

import h5py
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray
from attributed import suffix, write
from command import refused, run, succeeded
from rows import each

FORMS = ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA", "NETCDF4", "NETCDF4_CLASSIC"]
SETTINGS = {"SOURCE_DATE_EPOCH": "86400"}
MEASURED = {"tas", "odd", "soil", "w"}
VALUES = np.arange(25.0).reshape(5, 5)


def make(path, form, seed, times=3):
    """Write measures of several types, whose dimensions differ and have equal lengths, and what describes them."""
    draw = np.random.default_rng(seed)
    zipped = {"zlib": True, "chunksizes": (1, 5, 5)} if form.startswith("NETCDF4") else {}
    with netCDF4.Dataset(path, "w", format=form) as file:
        for name, length in {"time": None, "lat": 5, "lon": 5, "bnds": 2}.items():
            file.createDimension(name, length)
        for name, dims in {"time": ("time",), "time_bnds": ("time", "bnds"), "lat": ("lat",), "lon": ("lon",)}.items():
            shape = [times if dim == "time" else len(file.dimensions[dim]) for dim in dims]
            file.createVariable(name, "f8", dims)[:] = np.arange(np.prod(shape)).reshape(shape)
        file["time"].units, file["time"].bounds = "days since 2000-01-01", "time_bnds"
        values = np.ma.array(draw.standard_normal((times, 5, 5)).astype("f4"), mask=draw.random((times, 5, 5)) < 0.2)
        values[0, 0, 0] = np.ma.masked if seed < 3 else 1
        tas = file.createVariable("tas", "f4", ("time", "lat", "lon"), fill_value=np.float32(1e20), **zipped)
        tas[:] = values
        tas.setncatts({"units": "K", "coordinates": "height lat2d", "grid_mapping": "crs"})
        file.createVariable("height", "f8", ())[...] = 2
        file.createVariable("crs", "i4", ())[...] = 1
        file.createVariable("lat2d", "f8", ("lat", "lon"))[:] = VALUES
        file.createVariable("odd", "i2", ("time", "lon"))[:] = draw.integers(-9, 9, (times, 5))
        file.createVariable("soil", "f8", ("lon", "lat"))[:] = draw.random((5, 5))
        file.createVariable("label", "S1", ("bnds",))[:] = np.array([b"a", b"b"])
        file.title, file.history = "a run", "made"
        if form == "NETCDF4":
            group = file.createGroup("g")
            file.createDimension("u", None)
            group.createDimension("y", 3)
            group.createVariable("y", "f8", ("y",))[:] = [7, 8, 9]
            group.createVariable("w", "f8", ("u", "y", "time"))[:] = draw.integers(0, 9, (2, 3, times))
    return str(path)


def all_of(path):
    with netCDF4.Dataset(path) as file:
        return {name: (variable[:], {key: variable.getncattr(key) for key in variable.ncattrs()}, variable.dimensions)
                for name, variable in file.variables.items()}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_result_is_like_the_first_file(tmp_path, form):
    names = [make(tmp_path / f"m{i}.nc", form, i) for i in range(3)]
    ranks = [all_of(name) for name in names]
    for nulls in ("ignore", "propagate"):
        words = ("reduce", "-qf", "--op", "max", "--nulls", nulls, "-o", "r.nc", *names)
        succeeded(run(*words, cwd=tmp_path, env=SETTINGS))
        new = all_of(tmp_path / "r.nc")
        assert list(new) == list(ranks[0])
        for name, (values, attributes, dims) in new.items():
            each = [rank[name][0] for rank in ranks]
            assert (attributes, dims, values.dtype) == (*ranks[0][name][1:], each[0].dtype)
            stacked = np.ma.stack(each)
            expected = stacked.max(0) if name in MEASURED else each[0]
            if nulls == "propagate" and name in MEASURED:
                expected = np.ma.array(expected, mask=np.ma.getmaskarray(stacked).any(0))
            np.testing.assert_array_equal(np.ma.getmaskarray(values), np.ma.getmaskarray(expected))
            fill = b"7" if name == "label" else 7
            np.testing.assert_array_equal(np.ma.filled(values, fill), np.ma.filled(expected, fill))
    with netCDF4.Dataset(tmp_path / "r.nc") as file:
        assert file.data_model.replace("_OFFSET", "") == form.replace("_OFFSET", "")
        assert file.dimensions["time"].isunlimited()
        line, before = file.history.split("\n")
        assert line.startswith("Fri Jan  2 00:00:00 1970: mpired reduce -qf --op max")
        assert (before, file.title) == ("made", "a run")
    with xarray.open_dataset(tmp_path / "r.nc") as opened:
        assert opened["tas"].dims == ("time", "lat", "lon")
        assert str(opened["time"].values[1]).startswith("2000-01-02")
    longer = make(tmp_path / "longer.nc", form, 1, times=4)
    reason = f"rank 1 has count 100 in 'tas', but rank 0 ({names[0]!r}) has 75; "
    outcome = run("reduce", "--op", "sum", "--nulls", "ignore", "-o", "n.nc", names[0], longer, cwd=tmp_path)
    refused(outcome, 3, f"longer.nc: {reason}")


def write_t(folder, name, form, dims, units="K"):
    """Write an array with names of dimensions, in HDF5 by scales, and return the name of the file."""
    path = folder / f"{name}_{form}{suffix(form)}"
    write(path, form, {"t": (dims, VALUES, {"units": units})})
    for axis, dim in enumerate(dims if form == "HDF5" else ()):
        with h5py.File(path, "a") as file:
            file[f"axis{dim}"] = np.arange(5.0)
            file[f"axis{dim}"].make_scale(dim)
            file["t"].dims[axis].attach_scale(file[f"axis{dim}"])
    return path.name


def test_dimensions_in_another_order_are_refused(tmp_path):
    """By position the two are of one shape: xarray adds them by their names. Without names they are combined."""
    words = ("reduce", "-q", "-f", "--op", "sum", "--columns", "t", "--to", "npy", "-o", "out.npy")
    for form in ("NETCDF3_CLASSIC", "NETCDF4", "HDF5", "ZARR3"):
        first, other = (write_t(tmp_path, dims[0], form, dims) for dims in (["lat", "lon"], ["lon", "lat"]))
        refused(run(*words, first, other, cwd=tmp_path), 3, other, "lat", "lon", "write all in one order")
        succeeded(run(*words, first, first, cwd=tmp_path))
        assert np.array_equal(np.load(tmp_path / "out.npy"), 2 * VALUES)
    write(tmp_path / "plain.h5", "HDF5", {"t": ((), VALUES, {})})
    for ranks in (("plain.h5", "plain.h5"), ("plain.h5", first), (first, "plain.h5")):
        succeeded(run(*words, *ranks, cwd=tmp_path))


def test_other_units_are_warned_of(tmp_path):
    words = ("reduce", "-q", "-f", "--op", "mean", "--to", "npy", "-o", "out.npy")
    for form in ("NETCDF3_CLASSIC", "NETCDF4"):
        first, other = (write_t(tmp_path, unit, form, ["lat", "lon"], unit) for unit in ("K", "degC"))
        outcome = run(*words, first, other, cwd=tmp_path)
        assert (outcome.status, outcome.err.count("\n")) == (0, 1)
        assert f"{other!r} has t in 'degC', but {first!r} has it in 'K'" in outcome.err
        succeeded(run(*words, first, first, cwd=tmp_path))


@each("name", ["a/b", "t ", " t", "t\t", "c\x01", "\x7f", "-x", "a b", "1x", "_", "é", "a\\b", "x" * 256, "é" * 129])
def test_names_are_those_of_the_library(name, tmp_path):
    pq.write_table(pa.table({name: [1.0]}), tmp_path / "t.parquet")
    outcome = run("reduce", "-qf", "--op", "max", "t.parquet", "t.parquet", "-o", "r.nc", cwd=tmp_path)
    with netCDF4.Dataset(tmp_path / "lib.nc", "w", format="NETCDF3_CLASSIC") as file:
        try:
            file.createVariable(name, "f8")
        except RuntimeError:
            refused(outcome, 3, f"{name!r}: is not a name in netCDF", "use --to hdf5 or --to npz")
        else:
            succeeded(outcome)
