"""Results of any datatype have the dimensions and coordinates of the ranks, as netCDF4 and xarray read them."""

from __future__ import annotations

import h5py
import netCDF4
import numpy as np
import pytest
import xarray
import zarr
from command import run, succeeded

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
        file["t"].setncatts(
            {"coordinates": "height lat2d", "grid_mapping": "crs", "units": "K", "valid_max": np.float32(98)}
        )
        file["k"].coordinates = "height"
        if form == "NETCDF4":
            group = file.createGroup("g")
            file.createDimension("u", None)
            group.createDimension("y", 3)
            group.createVariable("y", "f8", ("y",))[:] = [7, 8, 9]
            group.createVariable("w", "f8", ("u", "y", "time"))[:] = draw.integers(0, 9, (2, 3, 4))
            group["w"].coordinates = "height"
    return str(path)


def dimensions(path):
    """Return the dimensions of each variable, whether they are unlimited and how long, as netCDF4 reads them."""
    with netCDF4.Dataset(path) as file:
        each = [variable for group in (file, *file.groups.values()) for variable in group.variables.values()]
        return {
            f"{variable.group().path}:{variable.name}": [
                (dim.name, dim.isunlimited(), len(dim), dim.group().path) for dim in variable.get_dims()
            ]
            for variable in each
        }


def coordinates(path, group=None):
    with xarray.open_dataset(path, group=group) as file:
        return {name: (variable.dims, set(variable.coords)) for name, variable in file.items()}


def of_model(found, kind, carried):
    """Return the model's, of measures by the names that the results have."""
    if "index" not in kind:
        return found
    return {name if name.rpartition(":")[2] in carried else f"{name}_index": each for name, each in found.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_results_of_every_datatype(tmp_path, form, kind):
    names = [make(tmp_path / f"m{i}.nc", form, i) for i in range(2)]
    succeeded(run("reduce", "-q", *(word.replace("EXT", "nc") for word in KINDS[kind]), *names, cwd=tmp_path))
    for path in tmp_path.glob("[iorv].nc"):
        what = kind if path.name == "r.nc" else "index" if path.name == "i.nc" else ""
        assert dimensions(path) == of_model(dimensions(names[0]), what, {*CARRIED, "y"})
        for group in (None, "g") if form == "NETCDF4" else (None,):
            assert coordinates(path, group) == of_model(coordinates(names[0], group), what, CARRIED)
        with netCDF4.Dataset(path) as file:
            variable = file["t_index" if "index" in what else "t"]
            assert (variable.coordinates, variable.grid_mapping) == ("height lat2d", "crs")
            assert ("units" in variable.ncattrs()) == ("index" not in what)
    with netCDF4.Dataset(tmp_path / "r.nc") as file:
        ranks = []
        for name in names:
            with netCDF4.Dataset(name) as rank:
                rank.set_auto_mask(False)
                ranks.append(rank["q"][:])
        if kind == "index":
            np.testing.assert_array_equal(file["q_index"][:], np.argmax(ranks, axis=0))
        elif kind == "mean":
            np.testing.assert_array_equal(file["q"][:], np.mean(ranks, axis=0))


@pytest.mark.parametrize("form", FORMS)
def test_indices_of_a_coordinate(tmp_path, form):
    """The dimension has no values then, because those of the ranks are combined."""
    names = [make(tmp_path / f"m{i}.nc", form, i) for i in range(2)]
    words = (word.replace("EXT", "nc") for word in PAIRS)
    succeeded(run("reduce", "-q", *words, "--columns", "time,t", *names, cwd=tmp_path))
    found, model = dimensions(tmp_path / "r.nc"), dimensions(names[0])
    assert found["/:time_index"] == model["/:time"]
    assert found["/:t_index"] == model["/:t"]
    assert "/:time" not in found


def test_pairs_and_labels_in_hdf5(tmp_path):
    names = [make(tmp_path / f"m{i}.nc", "NETCDF4", i) for i in range(2)]
    succeeded(run("reduce", "-q", "--op", "maxloc", "--index", "rank", "-o", "pairs.nc", *names, cwd=tmp_path))
    found, model = dimensions(tmp_path / "pairs.nc"), dimensions(names[0])
    assert {name: found[f"/:{name},{name}_index"] for name in MEASURES} == {
        name: model[f"/:{name}"] for name in MEASURES
    }
    for i in range(2):
        with h5py.File(tmp_path / f"r{i}.h5", "w") as file:
            file["x"] = np.arange(3.0)
            dataset = file.create_dataset("a/v", (2, 3), "f8", maxshape=(None, 3), chunks=(1, 3), fillvalue=4)
            dataset[...] = i
            file["x"].make_scale("way")
            dataset.dims[1].attach_scale(file["x"])
            dataset.dims[0].label = "step"
    words = (word.replace("EXT", "h5") for word in PAIRS)
    succeeded(run("reduce", "-q", *words, "--columns", "a/v", "--keep", "x", "r0.h5", "r1.h5", cwd=tmp_path))
    with h5py.File(tmp_path / "r.h5") as file:
        new = file["a/v_index"]
        assert (new.maxshape, new.chunks, new.fillvalue) == ((None, 3), (1, 3), 0)
        assert (new.dims[0].label, [*new.dims[1].items()]) == ("step", [("way", file["x"])])
        np.testing.assert_array_equal(new[()], np.ones((2, 3)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [2, 3])
def test_results_in_zarr(tmp_path, version, kind):
    names = []
    for i in range(2):
        make(tmp_path / "m.nc", "NETCDF4_CLASSIC", i)
        names.append(str(tmp_path / f"m{i}.zarr"))
        with xarray.open_dataset(tmp_path / "m.nc") as file:
            plain = {key: {"_FillValue": None} for key in file.variables}
            file.drop_encoding().to_zarr(names[-1], zarr_format=version, consolidated=False, encoding=plain)
    words = (word.replace("EXT", "zarr.zip") for word in KINDS[kind])
    succeeded(run("reduce", "-q", *words, *names, cwd=tmp_path))
    store = zarr.storage.ZipStore(tmp_path / "r.zarr.zip", mode="r")
    found, model = (
        {name: (each.dims, set(each.coords)) for name, each in xarray.open_zarr(place, consolidated=False).items()}
        for place in (store, names[0])
    )
    assert found == of_model(model, kind, CARRIED)
