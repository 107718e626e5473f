"""Dimensions by their names: ranks are combined by them, and results of any datatype have them and the coordinates."""

from __future__ import annotations

import h5py
import netCDF4
import numpy as np
import pytest
import xarray
from attributed import suffix, write
from command import refused, run, succeeded
from rows import together

VALUES = np.arange(9.0).reshape(3, 3)


def write_t(folder, name, form, dims, units="K"):
    """Write an array with names of dimensions, in HDF5 by scales, and return the name of the file."""
    path = folder / f"{name}_{form}{suffix(form)}"
    write(path, form, {"t": (dims, VALUES, {"units": units})})
    for axis, dim in enumerate(dims if form == "HDF5" else ()):
        with h5py.File(path, "a") as file:
            file[f"axis{dim}"] = np.arange(3.0)
            file[f"axis{dim}"].make_scale(dim)
            file["t"].dims[axis].attach_scale(file[f"axis{dim}"])
    return path.name


def test_dimensions_in_another_order_are_refused(tmp_path):
    """By position the two are of one shape: xarray adds them by their names. Without names they are combined."""
    words = ("reduce", "-q", "-f", "--op", "sum", "--columns", "t", "--to", "npy", "-o", "out.npy")
    for form in ("NETCDF3_CLASSIC", "NETCDF4", "HDF5", "ZARR3"):
        first, other = (write_t(tmp_path, dims[0], form, dims) for dims in (["lat", "lon"], ["lon", "lat"]))
        refused(run(*words, first, other, cwd=tmp_path), 3, other, "lat", "lon", "write all in one order")
        assert not (tmp_path / "out.npy").exists()
        succeeded(run(*words, first, first, cwd=tmp_path))
        assert np.array_equal(np.load(tmp_path / "out.npy"), 2 * VALUES)
        (tmp_path / "out.npy").unlink()
    first, other = "lat_NETCDF4.nc", "lon_NETCDF4.nc"
    with xarray.open_dataset(tmp_path / first) as one, xarray.open_dataset(tmp_path / other) as two:
        assert not np.array_equal((one.t + two.t).values, 2 * VALUES)
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


FORMS = ["NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA", "NETCDF4", "NETCDF4_CLASSIC"]
PAIRS = ("--op", "maxloc", "--index", "rank", "--split", "v.EXT,r.EXT")
KINDS = {
    "index": PAIRS,
    "global index": ("--op", "minloc", "--index", "global", "--split", "v.EXT,r.EXT"),
    "values": ("--op", "maxloc", "--index", "rank", "--split", "r.EXT,i.EXT"),
    "count": ("--op", "count", "-o", "r.EXT"),
    "count-valid": ("--op", "sum", "--nulls", "ignore", "--count-valid", "r.EXT", "-o", "o.EXT"),
    "mean": ("--op", "mean", "-o", "r.EXT"),
    "type": ("--op", "sum", "--result-type", "double", "-o", "r.EXT"),
}
DIMENSIONS = {"time": None, "lat": 3, "lon": 3, "z": 3, "bnds": 2}  # of equal lengths
MEASURES = {"t": ("f4", "time", "lat", "lon"), "k": ("i4", "time", "z"), "q": ("f8", "lon", "z", "lat"), "s": ("f8",)}
CARRIED = {
    "time": ("f8", "time"), "time_bnds": ("f8", "time", "bnds"), "lat": ("f8", "lat"), "lon": ("f8", "lon"),
    "lat2d": ("f8", "lat", "lon"), "height": ("f8",), "crs": ("i4",),
}  # fmt: skip


def make(path, form, seed):
    draw = np.random.default_rng(seed)
    with netCDF4.Dataset(path, "w", format=form) as file:
        for name, length in DIMENSIONS.items():
            file.createDimension(name, length)
        for name, (dtype, *dims) in {**CARRIED, **MEASURES}.items():
            variable = file.createVariable(name, dtype, dims, fill_value=99 if name in "tk" else None)
            shape = tuple(DIMENSIONS[dim] or 4 for dim in dims)
            variable[...] = draw.integers(0, 9, shape) if name in MEASURES else np.arange(np.prod(shape)).reshape(shape)
        file["time"].setncatts({"units": "days since 2000-01-01", "bounds": "time_bnds"})
        places = {"coordinates": "height lat2d", "grid_mapping": "crs"}
        file["t"].setncatts({**places, "units": "K", "valid_max": np.float32(98)})
        file["k"].coordinates = "height"
        if form == "NETCDF4":
            group = file.createGroup("g")
            file.createDimension("u", None)
            group.createDimension("y", 3)
            group.createVariable("y", "f8", ("y",))[:] = [7, 8, 9]
            group.createVariable("w", "f8", ("u", "y", "time"))[:] = draw.integers(0, 9, (2, 3, 4))
            group["w"].coordinates = "height"
    return str(path)


def members(folder, form):
    return [make(folder / f"m{i}.nc", form, i) for i in range(2)]


def words_of(kind, suffix):
    return ("reduce", "-q", "-f", *(word.replace("EXT", suffix) for word in KINDS[kind]))


def dimensions(path):
    """Return the dimensions of each variable, whether they are unlimited and how long, as netCDF4 reads them."""
    with netCDF4.Dataset(path) as file:
        return {
            f"{group.path}:{name}": [
                (dim.name, dim.isunlimited(), len(dim), dim.group().path) for dim in each.get_dims()
            ]
            for group in (file, *file.groups.values())
            for name, each in group.variables.items()
        }


def coordinates(dataset):
    return {name: (variable.dims, set(variable.coords)) for name, variable in dataset.items()}


def of_model(found, kind, carried):
    """Return the model's, of measures by the names that the results have."""
    if "index" not in kind:
        return found
    return {name if name.rpartition(":")[2] in carried else f"{name}_index": each for name, each in found.items()}


@pytest.mark.parametrize("form", FORMS)
def test_results_of_every_datatype(tmp_path, form):
    """In the most usual forms of each library; in the others two."""
    with together(tmp_path) as case:
        for kind in KINDS if form in {"NETCDF3_CLASSIC", "NETCDF4"} else ("index", "mean"):
            with case(kind) as folder:
                names = members(folder, form)
                succeeded(run(*words_of(kind, "nc"), *names, cwd=folder))
                _compare_results(folder, form, kind, names)


def _compare_results(folder, form, kind, names):
    paths = list(folder.glob("[iorv].nc"))
    assert paths
    for path in paths:
        what = kind if path.name == "r.nc" else "index" if path.name == "i.nc" else ""
        assert dimensions(path) == of_model(dimensions(names[0]), what, {*CARRIED, "y"})
        for group in (None, "g") if form == "NETCDF4" else (None,):
            with xarray.open_dataset(path, group=group) as new, xarray.open_dataset(names[0], group=group) as old:
                assert coordinates(new) == of_model(coordinates(old), what, CARRIED)
        with netCDF4.Dataset(path) as file:
            variable = file["t_index" if "index" in what else "t"]
            assert (variable.coordinates, variable.grid_mapping) == ("height lat2d", "crs")
            assert ("units" in variable.ncattrs()) == ("index" not in what)
    if kind in {"index", "mean"}:
        ranks = []
        for name in names:
            with netCDF4.Dataset(name) as rank:
                ranks.append(rank["q"][:].data)
        with netCDF4.Dataset(folder / "r.nc") as file:
            found = file["q_index" if kind == "index" else "q"][:]
            np.testing.assert_array_equal(found, (np.argmax if kind == "index" else np.mean)(ranks, axis=0))


def test_indices_of_a_coordinate(tmp_path):
    """The dimension has no values then, because those of the ranks are combined."""
    for form in ("NETCDF3_CLASSIC", "NETCDF4"):
        names = members(tmp_path, form)
        succeeded(run(*words_of("index", "nc"), "--columns", "time,t", *names, cwd=tmp_path))
        found, model = dimensions(tmp_path / "r.nc"), dimensions(names[0])
        assert found["/:time_index"] == model["/:time"]
        assert found["/:t_index"] == model["/:t"]
        assert "/:time" not in found
