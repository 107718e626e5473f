"""Coordinates that differ between ranks: those that may, tolerances, and ranks that are different times (CF, 7.3)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import xarray
import zarr
from command import run, succeeded
from rows import check_refusals, together

import mpired
from mpired.errors import BufferFileError, InputWarning

DAYS = [0, 31, 59, 90]  # on which the months of 2001 begin
MONTHS = ["m0.nc", "m1.nc", "m2.nc"]
WRITERS = {
    "n4.nc": lambda data, path: data.to_netcdf(path, unlimited_dims=["time"]),
    "n3.nc": lambda data, path: data.to_netcdf(path, format="NETCDF3_CLASSIC", unlimited_dims=["time"]),
    "h5": lambda data, path: data.to_netcdf(path, engine="netcdf4"),
    "zarr": lambda data, path: data.to_zarr(path, zarr_format=2),
}


def month(number: int, *, since: int = 0, method: str = "", form: str = "f8", **changes: object) -> xarray.Dataset:
    """Return a month of temperatures, whose time is in days since the first of another month."""
    begin, end = DAYS[number] - DAYS[since], DAYS[number + 1] - DAYS[since]
    units = {"units": f"days since 2001-{since + 1:02}-01", "calendar": "standard", "standard_name": "time"}
    units |= {"bounds": "time_bnds", **changes}
    data = xarray.Dataset(
        {
            "tas": (("time", "lat"), np.array([[1, 2.5]], "f4") * (number + 1), {"units": "K", "cell_methods": method}),
            "height": (("lat",), [2.0, 3], {"units": "m"}),
            "time_bnds": (("time", "nv"), np.array([[begin, end]], form)),
        },
        {
            "lat": ("lat", [10.0, 20], {"units": "degrees_north"}),
            "time": ("time", np.array([(begin + end) / 2], form), units),
        },
    )  # fmt: skip
    if not method:
        del data["tas"].attrs["cell_methods"]
    return data


def read(path: Path, **settings: object) -> xarray.Dataset:
    is_zarr = path.suffix == ".zip"
    where, engine = (zarr.storage.ZipStore(path), "zarr") if is_zarr else (path, "netcdf4")
    with xarray.open_dataset(where, engine=engine, **settings) as data:
        return data.load()


def expected(months: range, since: int = 0) -> tuple[float, list[int]]:
    """Return the mean of the times of months, and their bounds."""
    middles = [(DAYS[number] + DAYS[number + 1]) / 2 for number in months]
    return np.mean(middles) - DAYS[since], [DAYS[months[0]] - DAYS[since], DAYS[months[-1] + 1] - DAYS[since]]


def test_the_mean_of_months_in_each_format(tmp_path):
    """Times in different units too, as xarray writes them; height has no time, and so no method."""
    with together(tmp_path) as case:
        for suffix, write in WRITERS.items():
            for others in (False, True):
                with case(suffix, others) as folder:
                    names = [f"m{number}.{suffix}" for number in range(3)]
                    for number, name in enumerate(names):
                        write(month(number, since=number * others, method="area: mean"), folder / name)
                    out = f"out.{suffix}{'.zip' * (suffix == 'zarr')}"
                    words = ("--op", "mean", "--ignore-coordinates", "time", *names, "-o", out)
                    succeeded(run("reduce", "-q", *words, cwd=folder))
                    data = read(folder / out, decode_times=False)
                    mean, bounds = expected(range(3))
                    assert data["time"].values.tolist() == [mean]
                    assert data["time"].attrs["units"] == "days since 2001-01-01"
                    assert data["time_bnds"].values.tolist() == [bounds]
                    assert data["tas"].attrs["cell_methods"] == "area: mean time: mean"
                    assert "cell_methods" not in data["height"].attrs
                    np.testing.assert_array_equal(data["tas"], [[2, 5]])


@pytest.mark.needs("nces")
def test_ncra_has_the_same_mean(tmp_path):
    """Except for the bounds: ncra takes their mean, and CF wants the first and the last."""
    for op, method, theirs in (("mean", "mean", "avg"), ("max", "maximum", "max"), ("sum", "sum", "ttl")):
        for number, name in enumerate(MONTHS):
            month(number, method="time: mean").to_netcdf(tmp_path / name, unlimited_dims=["time"])
        subprocess.run(["ncra", "-O", "-y", theirs, *MONTHS, "ncra.nc"], cwd=tmp_path, check=True)
        words = ("--op", op, "--ignore-coordinates", "ti*", *MONTHS, "-f", "-o", "out.nc")
        succeeded(run("reduce", "-q", *words, cwd=tmp_path))
        ours, other = (read(tmp_path / name, decode_times=False) for name in ("out.nc", "ncra.nc"))
        for name in ("tas", "time", "lat"):
            np.testing.assert_array_equal(ours[name], other[name])
        last = "" if op == "mean" else f" time: {method}"
        assert ours["tas"].attrs["cell_methods"] == f"time: mean{last}"
        assert other["tas"].attrs["cell_methods"].endswith(f"time: {method}")


def test_results_of_several_ranks(tmp_path):
    """Each rank of a scan has its own times; of the root are the units; nothing is said of equal times."""
    for number, name in enumerate(MONTHS):
        month(number, since=number).to_netcdf(tmp_path / name)
    words = ("--op", "mean", "--ignore-coordinates", "time", "-q")
    succeeded(run("scan", *words, *MONTHS, "-o", "s{rank}.nc", cwd=tmp_path))
    for rank in range(3):
        data = read(tmp_path / f"s{rank}.nc", decode_times=False)
        mean, bounds = expected(range(rank + 1), rank)
        assert data["time"].values.tolist() == [mean]
        assert data["time_bnds"].values.tolist() == [bounds]
        assert data["tas"].attrs.get("cell_methods") == ("time: mean" if rank else None)
    succeeded(run("reduce", *words, "--root", "2", *MONTHS, "-o", "r.nc", cwd=tmp_path))
    data = read(tmp_path / "r.nc", decode_times=False)
    assert (data["time"].values.tolist(), data["time_bnds"].values.tolist()) == ([-14], [[-59, 31]])
    succeeded(run("reduce", *words, "m0.nc", "m0.nc", "-o", "same.nc", cwd=tmp_path))
    assert "cell_methods" not in read(tmp_path / "same.nc")["tas"].attrs
    succeeded(run("reduce", *words, "--in-place", *MONTHS, cwd=tmp_path))
    data = read(tmp_path / "m0.nc", decode_times=False)
    assert (data["time_bnds"].values.tolist(), data["tas"].attrs["cell_methods"]) == ([[0, 90]], "time: mean")


def test_times_without_a_mean(tmp_path):
    """Whole days are rounded; without one calendar, or an op that is a method of cells, the first time stays."""
    for number in range(2):
        month(number, form="i8").to_netcdf(tmp_path / f"whole{number}.nc")
        month(number, calendar=("noleap", "360_day")[number]).to_netcdf(tmp_path / f"other{number}.nc")
    whole = [tmp_path / f"whole{number}.nc" for number in range(2)]
    mpired.reduce(whole, op="mean", output=tmp_path / "a.nc", ignore_coordinates=["time"])
    assert read(tmp_path / "a.nc", decode_times=False)["time"].values.tolist() == [30]  # of 15 and 45
    mpired.reduce(whole, op="prod", output=tmp_path / "b.nc", check_coordinates=False)
    assert read(tmp_path / "b.nc", decode_times=False)["time"].values.tolist() == [15]
    undated = month(1)
    undated["time"].attrs["units"] = "days"
    undated.to_netcdf(tmp_path / "undated.nc")
    month(0).to_netcdf(tmp_path / "dated.nc")
    for names in (("other0.nc", "other1.nc"), ("dated.nc", "undated.nc")):
        ranks = [tmp_path / name for name in names]
        with pytest.warns(InputWarning, match="'time' has lengths, units or calendars in the ranks of which no mean"):
            mpired.reduce(ranks, op="mean", output=tmp_path / "c.nc", ignore_coordinates=["time"], overwrite=True)
        data = read(tmp_path / "c.nc", decode_times=False)
        assert (data["time"].values.tolist(), "cell_methods" in data["tas"].attrs) == ([15.5], False)


def test_tolerance(tmp_path):
    """Coordinates of another precision are close too; others may have no bounds at all."""
    for name, lat in (("a.nc", [10, 20.1]), ("b.nc", np.array([10, 20.1], "f4")), ("c.nc", [10, 20.2])):
        data = month(0).assign_coords(lat=("lat", lat, {"units": "degrees_north"}))
        data.to_netcdf(tmp_path / name)
    ranks = [tmp_path / "a.nc", tmp_path / "b.nc", tmp_path / "c.nc"]
    mpired.reduce(ranks[:2], op="sum", output=tmp_path / "ab.nc", coordinate_rtol=1e-6)
    assert read(tmp_path / "ab.nc")["lat"].values.tolist() == [10, 20.1]
    mpired.reduce(ranks, op="sum", output=tmp_path / "abc.nc", coordinate_rtol=0.01)
    for settings in ({}, {"coordinate_rtol": 1e-9}):
        with pytest.raises(BufferFileError, match="'lat' differs from that of rank 0"):
            mpired.reduce(ranks[:2], op="sum", output=tmp_path / "no.nc", **settings)
    with pytest.raises(BufferFileError, match="'lat' differs"):
        mpired.reduce(ranks, op="sum", output=tmp_path / "no.nc", coordinate_rtol=0.001)


def test_refusals(tmp_path):
    for number, name in enumerate(MONTHS):
        month(number).to_netcdf(tmp_path / name)
    np.save(tmp_path / "x.npy", np.zeros(3))
    ways = "take that of the first rank with --ignore-coordinates time_bnds,time, or of all with --no-check-coordinates"
    unknown = "no coordinate 'tme': m0.nc, m1.nc; its coordinates"
    rows = [
        (f"reduce --op mean {' '.join(MONTHS)} -o o.nc", 3, f"(also 'time'), and results carry it / {ways}"),
        ("reduce --op mean m0.nc m1.nc -o o.nc --ignore-coordinates lat", 3, "'time_bnds' differs"),
        ("reduce --op mean m0.nc m1.nc -o o.nc --ignore-coordinates tme", 3, unknown),
        ("reduce --op mean x.npy x.npy -o o.npy --ignore-coordinates time", 2, "only for files of arrays"),
        ("reduce --op mean m0.nc m1.nc -o o.nc --coordinate-rtol -1", 2, "--coordinate-rtol"),
    ]
    check_refusals(tmp_path, rows)


def test_a_time_without_a_dimension(tmp_path):
    """As xarray writes a scalar coordinate: units, and `coordinates` of the array."""
    for number in range(2):
        time = np.datetime64(f"200{number}-02-01", "ns")
        xarray.Dataset({"a": ("x", np.full(2, number, "f4"))}, {"time": time}).to_netcdf(tmp_path / f"{number}.nc")
    words = ("--op", "mean", "--ignore-coordinates", "time", "0.nc", "1.nc", "-o", "out.nc")
    succeeded(run("reduce", "-q", *words, cwd=tmp_path))
    data = read(tmp_path / "out.nc")
    assert (data["time"].values, data["a"].attrs["cell_methods"]) == (np.datetime64("2000-08-02"), "time: mean")
