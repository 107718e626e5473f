"""Elements that netCDF never wrote are counted and warned of, where no attribute says that they are missing."""

from __future__ import annotations

import h5py
import netCDF4
import numpy as np
import pytest
from command import run, succeeded

FORMS = ["NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA", "NETCDF4"]
SIZE = 100_000


def written(path, form, dtype="f4", **attributes):
    """Write a variable without its first elements, and return how many netCDF4 masks."""
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.createDimension("x", SIZE)
        variable = file.createVariable("t", dtype, ("x",))
        variable.setncatts(attributes)
        variable.set_auto_maskandscale(False)
        variable[SIZE // 3 :] = np.arange(SIZE - SIZE // 3) % 100
    with netCDF4.Dataset(path) as file:
        return int(np.ma.count_masked(file["t"][:]))


def warning(count, way_out, name="t"):
    elements = "1 element" if count == 1 else f"{count} elements"
    verb = "has" if count == 1 else "have"
    reason = f"{elements} of {name} {verb} netCDF's default fill value, which no attribute names"
    return f"mpired: warning: {reason}, and is combined; {way_out}\n"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["i2", "i4", "f4", "f8"])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_as_many_as_netcdf4_masks(form, dtype, jobs, tmp_path):
    count = sum(written(tmp_path / name, form, dtype) for name in ("a.nc", "b.nc"))
    assert count == 2 * (SIZE // 3)
    outcome = run("reduce", "-q", "-j", jobs, "--op", "max", "-o", "out.npy", "a.nc", "b.nc", cwd=tmp_path)
    value = netCDF4.default_fillvals[dtype]
    assert outcome.status == 0
    assert outcome.err == warning(count, f"leave them out with --missing {value}")
    succeeded(run("reduce", "-q", "--op", "max", "--missing", str(value), "-o", "out.nc", "a.nc", "b.nc", cwd=tmp_path))


@pytest.mark.parametrize("form", FORMS)
def test_packed(form, tmp_path):
    packed = {"scale_factor": np.float32(0.5), "add_offset": np.float32(1)}
    count = written(tmp_path / "a.nc", form, "i2", **packed)
    outcome = run("reduce", "-q", "--unpack", "--op", "max", "-o", "out.npy", "a.nc", cwd=tmp_path)
    assert outcome.err == warning(count, "leave them out with --missing -16382.5")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        (["scan", "-o", "s_{rank}.npy"], "leave them out with --missing 9.969209968386869e+36"),
        (["reduce", "--to", "text", "-o", "-"], "leave them out with --missing 9.969209968386869e+36"),
        (["reduce-scatter-block", "-o", "r_{rank}.npy"], "leave them out with --missing 9.969209968386869e+36"),
        (["accumulate", "target.npy"], "give the origins a `_FillValue`"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_verbs(form, arguments, way_out, tmp_path):
    count = written(tmp_path / "a.nc", form)
    np.save(tmp_path / "target.npy", np.zeros(SIZE, "f4"))
    outcome = run(*arguments, "-q", "--op", "sum", "a.nc", cwd=tmp_path)
    assert outcome.status == 0
    assert outcome.err == warning(count, way_out)


@pytest.mark.parametrize("form", FORMS)
def test_an_extreme(form, tmp_path):
    written(tmp_path / "a.nc", form)
    outcome = run("locate", "--op", "maxloc", "a.nc", cwd=tmp_path)
    assert outcome.err == warning(1, "give the variable a `_FillValue`", "the result")


def test_what_is_declared_or_no_fill_value_is_not_warned_of(tmp_path):
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 3)
        file.createVariable("byte", "i1", ("x",))  # any value of a byte is a number
        file.createVariable("own", "f4", ("x",), fill_value=-1)[:] = netCDF4.default_fillvals["f4"]
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["t"] = np.full(3, netCDF4.default_fillvals["f4"], "f4")
    for arguments in (["--columns", "byte", "a.nc"], ["--columns", "own", "a.nc"], ["b.h5"]):
        assert run("reduce", "-qf", "--op", "max", "-o", "out.npy", *arguments, cwd=tmp_path).err == ""
