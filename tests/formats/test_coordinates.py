"""Coordinates that differ between ranks: those that may, tolerances, and ranks that are different times (CF, 7.3)."""

import itertools
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray
import zarr
from command import run, succeeded
from rows import check_refusals, together

import mpired
from mpired.errors import BufferFileError, InputWarning
from mpired.formats.conventions import unit_power

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
                    succeeded(run("reduce", "-q", *words, "--keep", "time,time_bnds", "-o", "k.npz", cwd=folder))
                    with np.load(folder / "k.npz") as kept:
                        assert (kept["time"].tolist(), kept["time_bnds"].tolist()) == ([mean], [bounds])
                    np.testing.assert_array_equal(data["tas"], [[2, 5]])


def test_results_of_several_ranks(tmp_path):
    """Each has the times of the ranks that are in it, in its own units; nothing is said of equal times."""
    for number, name in enumerate(MONTHS):
        month(number, since=number).to_netcdf(tmp_path / name)
    words = ("--op", "mean", "--ignore-coordinates", "time", "-q")
    combined = {
        "scan": lambda rank: rank + 1,
        "exscan": lambda rank: rank,
        "reduce-scatter --counts 1,0,1": lambda _: 3,
    }
    for number, (line, nranks) in enumerate(combined.items()):
        succeeded(run(*line.split(), *words, *MONTHS, "-o", f"s{number}_{{rank}}.nc", cwd=tmp_path))
        for rank in range(1 if line == "exscan" else 0, 3):
            data = read(tmp_path / f"s{number}_{rank}.nc", decode_times=False)
            mean, bounds = expected(range(nranks(rank)), rank)
            assert data["time"].values.tolist() == [mean], (line, rank)
            assert data["time_bnds"].values.tolist() == [bounds], (line, rank)
            assert data["tas"].attrs.get("cell_methods") == ("time: mean" if nranks(rank) > 1 else None), (line, rank)
            assert data["tas"].dims == (("time", "lat") if number < 2 else (f"dim_{rank % 2 == 0:d}",)), (line, rank)
    succeeded(run("reduce", *words, "--root", "2", *MONTHS, "-o", "r.nc", cwd=tmp_path))
    data = read(tmp_path / "r.nc", decode_times=False)
    assert (data["time"].values.tolist(), data["time_bnds"].values.tolist()) == ([-14], [[-59, 31]])
    succeeded(run("reduce", *words, "m0.nc", "m0.nc", "-o", "same.nc", cwd=tmp_path))
    assert "cell_methods" not in read(tmp_path / "same.nc")["tas"].attrs
    succeeded(run("reduce", *words, "--in-place", *MONTHS, cwd=tmp_path))
    data = read(tmp_path / "m0.nc", decode_times=False)
    assert (data["time_bnds"].values.tolist(), data["tas"].attrs["cell_methods"]) == ([[0, 90]], "time: mean")


def test_parts_of_arrays_have_their_attributes(tmp_path):
    """But not those of the positions of elements."""
    for suffix, write in WRITERS.items():
        data = month(0)
        data["tas"].attrs["grid"], data["tas"].encoding = "g", {"_FillValue": -9.0, "coordinates": "lat"}
        write(data, tmp_path / f"p.{suffix}")
        words = ("--op", "first", "--nulls", "ignore", "--columns", "tas", "--counts", "1,1", *[f"p.{suffix}"] * 2)
        out = f"p{{rank}}.{suffix}{'.zip' * (suffix == 'zarr')}"
        succeeded(run("reduce-scatter", "-q", *words, "-o", out, cwd=tmp_path))
        part = read(tmp_path / out.format(rank=1), mask_and_scale=False, decode_coords=False)["tas"]
        assert (part.values.tolist(), part.attrs) == ([2.5], {"units": "K", "grid": "g", "_FillValue": -9}), suffix


def test_times_without_a_mean(tmp_path):
    """Whole days are rounded; without one calendar the first time stays."""
    for number in range(2):
        month(number, form="i8").to_netcdf(tmp_path / f"whole{number}.nc")
        month(number, calendar=("noleap", "360_day")[number]).to_netcdf(tmp_path / f"other{number}.nc")
    whole = [tmp_path / f"whole{number}.nc" for number in range(2)]
    mpired.reduce(whole, op="mean", output=tmp_path / "a.nc", ignore_coordinates=["time"])
    assert read(tmp_path / "a.nc", decode_times=False)["time"].values.tolist() == [30]  # of 15 and 45
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


def test_bounds_and_methods_that_are_true(tmp_path):
    """Several steps keep the bounds of rank 0, a method of years stays, and a warning tells of lacking bounds."""
    over_years = "time: mean within days time: mean over years"
    for rank in range(2):
        months = [month(number, since=rank, method=over_years) for number in (rank, rank + 1)]
        xarray.concat(months, "time", data_vars="minimal").to_netcdf(tmp_path / f"long{rank}.nc")
    methods = {
        "mean": over_years,
        "max": f"{over_years} time: maximum",
        "minloc --index rank": f"{over_years} time: minimum",
    }
    for op, method in methods.items():
        words = ("--op", *op.split(), "--ignore-coordinates", "time", "long0.nc", "long1.nc", "-fo", "o.nc")
        succeeded(run("reduce", "-q", *words, cwd=tmp_path))
        data, first = (read(tmp_path / name, decode_times=False) for name in ("o.nc", "long0.nc"))
        assert data[["time", "time_bnds"]].equals(first[["time", "time_bnds"]])
        assert data["tas"].attrs["cell_methods"] == method
    for rank in range(2):  # the Januaries and Februaries of two years each
        data = xarray.concat([month(number, method=over_years) for number in (0, 1)], "time", data_vars="minimal")
        data["time_bnds"][:] = [[year, year + 400] for year in (1000 * rank, 1000 * rank + 31)]
        data["time"].attrs["climatology"] = data["time"].attrs.pop("bounds")
        data.assign_coords(time=data["time"] + 1000 * rank).assign_attrs(of=rank).to_netcdf(tmp_path / f"c{rank}.nc")
    for op, method in {"mean": over_years, "max": f"{over_years} time: maximum over years"}.items():
        words = ("--op", op, "--ignore-coordinates", "time", "c0.nc", "c1.nc", "-fo", "o.nc")
        succeeded(run("reduce", "-q", *words, cwd=tmp_path))
        data = read(tmp_path / "o.nc", decode_times=False)
        assert data["tas"].attrs["cell_methods"] == method
        assert [data[name].values.tolist() for name in ("time", "time_bnds")] == [[515.5, 545], [[0, 1400], [31, 1431]]]
    month(0).to_netcdf(tmp_path / "a.nc")
    bare = month(1).drop_vars("time_bnds")
    del bare["time"].attrs["bounds"]
    bare.to_netcdf(tmp_path / "b.nc")
    with pytest.warns(InputWarning, match="'time' has bounds in some of the ranks only; the result has"):
        mpired.reduce([tmp_path / f"{n}.nc" for n in "ab"], "mean", output=tmp_path / "c.nc", ignore_coordinates="time")


def test_ops_without_a_method_of_cells(tmp_path):
    """They are of all times too; the first and the last value are of their own."""
    for number, name in enumerate(MONTHS):
        month(number, since=number, method="area: mean").to_netcdf(tmp_path / name)
        long = month(number).isel(time=[0, 0]).drop_vars("time_bnds")
        del long["time"].attrs["bounds"]
        long.to_netcdf(tmp_path / f"long{name}")
    for op in ("prod", "quantile:0.5", "first", "last"):
        months = {"first": range(1), "last": range(2, 3)}.get(op, range(3))
        words = ("--op", op, "--ignore-coordinates", "time", "-f", "-o", "out.nc")
        succeeded(run("reduce", "-q", *words, *MONTHS, cwd=tmp_path))
        data = read(tmp_path / "out.nc", decode_times=False)
        mean, bounds = expected(months)
        assert (data["time"].values.tolist(), data["time_bnds"].values.tolist()) == ([mean], [bounds]), op
        assert data["tas"].attrs["cell_methods"] == "area: mean", op
        warned = run("reduce", *words, *(f"long{name}" for name in MONTHS), cwd=tmp_path).err
        assert ("'time' has the times of one rank, and 'tas' is of all ranks" in warned) == (
            op in {"prod", "quantile:0.5"}
        ), op
    words = ("reduce", "--op", "last,max,first", "--ignore-coordinates", "time", "-o")
    assert "'time' is not the time of 'tas_last'," in run(*words, "a.nc", *MONTHS, cwd=tmp_path).err
    assert run(*words, "{op}.nc", *MONTHS, cwd=tmp_path).err.count("warning") == 0
    succeeded(run("reduce", "-q", "--root", "2", *words[1:], "2{op}.nc", *MONTHS, cwd=tmp_path))
    found = {name: read(tmp_path / f"{name}.nc", decode_times=False)["time"].item() for name in ("a", "first", "last")}
    assert found == {"a": expected(range(3))[0], "first": 15.5, "last": 74.5}
    assert read(tmp_path / "2first.nc", decode_times=False)["time"].item() == 15.5 - DAYS[2]


def test_units_of_results(tmp_path):
    """A count has no units, and a variance the square of those of its elements (CF, 3.1 and appendix E)."""
    units = {"var": "K2", "std": "K", "count": "1", "prod": "K3", "mean": "K"}
    with together(tmp_path) as case:
        for suffix, has_coordinates in itertools.product(WRITERS, (True, False)):
            with case(suffix, has_coordinates) as folder:
                write = WRITERS[suffix]
                for number in range(3):
                    data = month(0, method="area: mean")
                    data = data if has_coordinates else data["tas"].drop_vars(["lat", "time"]).to_dataset()
                    data["tas"].attrs |= {"standard_name": "air_temperature", "valid_range": np.array([0, 9], "f4")}
                    write(data, folder / f"{number}.{suffix}")
                end = ".zip" * (suffix == "zarr")
                names, out = [f"{number}.{suffix}" for number in range(3)], f"out.{suffix}{end}"
                words = ("reduce", "-q", "--columns", "tas", "--nan", "ignore", *names)
                succeeded(run(*words, "--op", ",".join(units), "-o", out, cwd=folder))
                counting = ("--count-valid", f"n.{suffix}{end}", "-o", f"v.{suffix}{end}")
                succeeded(run(*words, "--op", "var", *counting, cwd=folder))
                data = read(folder / out)
                assert {op: data[f"tas_{op}"].attrs["units"] for op in units} == units
                assert data["tas_count"].attrs["standard_name"] == "number_of_observations"
                assert not {"cell_methods", "valid_range"} & data["tas_count"].attrs.keys()
                assert "valid_range" in data["tas_mean"].attrs
                assert data["tas_var"].attrs["standard_name"] == "air_temperature"
                assert data["tas_var"].attrs["cell_methods"] == "area: mean"
                alone, counts = (read(folder / f"{name}.{suffix}{end}")["tas"] for name in "vn")
                assert (alone.attrs["units"], counts.attrs["units"]) == ("K2", "1")


WITHIN = ("max", "min", "mean", "median", "quantile:0.9", "first", "last")


@pytest.mark.parametrize("form", ["NETCDF4", "NETCDF3_CLASSIC"])
def test_no_result_is_out_of_the_range_that_it_declares(form, tmp_path):
    """As netCDF4 reads them: the limits of the elements are those of results of some ops only, as is their range."""
    values = np.array([[200, 250, 300], [210, 240, 330]], "f4")
    limits = {"valid_min": np.float32(180), "valid_max": np.float32(340), "actual_range": np.array([200, 330], "f4")}
    for number in range(2):
        with netCDF4.Dataset(tmp_path / f"{number}.nc", "w", format=form) as file:
            file.createDimension("x", 3)
            file.createVariable("t", "f4", "x")[:] = values[number]
            file["t"].setncatts(limits)
    paths = [tmp_path / f"{number}.nc" for number in range(2)]
    for op in (*WITHIN, "sum", "std", "var", "range", "rms", "absmax", "absmin", "count", "prod"):
        mpired.reduce(paths, op, output=tmp_path / "out.nc", overwrite=True, count_valid=tmp_path / "n.nc")
        with netCDF4.Dataset(tmp_path / "out.nc") as file, netCDF4.Dataset(tmp_path / "n.nc") as counts:
            assert not any(np.ma.is_masked(each["t"][:]) for each in (file, counts)), op
            kept = limits.keys() & {*file["t"].ncattrs()}
        limited = {"valid_min", "valid_max"} if op in WITHIN else set()
        assert kept == limited | ({"actual_range"} if op == "first" else set()), op


def test_names_of_arrays_beside_a_result(tmp_path):
    """`ancillary_variables` names what is in the file of a result (CF, 3.4), and an empty unit is none of a count."""
    data = month(0)
    data["tas"].attrs |= {"ancillary_variables": "err nobs", "units": ""}
    data["err"], data["nobs"] = data["tas"].copy(), data["tas"].copy()
    cases = {
        "tas_mean:err_mean,tas_count:err_count": "--op mean,count --columns tas,err",
        "tas:err": "--op mean --columns tas --keep err",
        "tas:": "--op maxloc --index rank --columns tas",
    }
    with together(tmp_path) as case:
        for suffix, write in WRITERS.items():
            with case(suffix) as folder:
                name, end = f"0.{suffix}", ".zip" * (suffix == "zarr")
                write(data, folder / name)
                for number, (named, words) in enumerate(cases.items()):
                    out = f"{number}.out.{suffix}{end}"
                    succeeded(run("reduce", "-q", *words.split(), name, name, "-o", out, cwd=folder))
                    result, pairs = read(folder / out), [each.split(":") for each in named.split(",")]
                    found = {name: result[name].attrs.get("ancillary_variables", "") for name, _ in pairs}
                    assert found == dict(pairs)
                    assert result.get("tas_count", xarray.DataArray(attrs={"units": "1"})).attrs["units"] == "1"


def test_truth_values_of_xarray(tmp_path):
    """Results of ops on truth values are some too, which xarray stores as integers; a sum or a mean is a number."""
    for number in range(2):
        xarray.Dataset({"flag": ("x", [True, number == 0])}).to_netcdf(tmp_path / f"{number}.nc")
    succeeded(run("reduce", "-q", "--op", "land,sum,mean", "0.nc", "1.nc", "-o", "out.nc", cwd=tmp_path))
    found = {name: each.values.tolist() for name, each in read(tmp_path / "out.nc").items()}
    assert repr(found) == "{'flag_land': [True, False], 'flag_sum': [2, 1], 'flag_mean': [1.0, 0.5]}"


def test_powers_of_units():
    for unit, squared in {
        "K": "K2", "m s-1": "m2 s-2", "1": "1", "": "", "m2": "m4", "degC": "degC2", "m/s": "(m/s)2", "%": "(%)2",
        "kg m**-2": "(kg m**-2)2", "days since 2000-01-01": "days2", "s-1": "s-2",
        "m²": "(m²)2", "W m⁻²": "(W m⁻²)2", "no units": "no units", "Unitless": "Unitless", "-": "-",
    }.items():  # fmt: skip
        assert unit_power(unit, 2) == squared
    assert [unit_power("m s-1", power) for power in (0, 1, 3)] == ["1", "m s-1", "m3 s-3"]
    assert [unit_power(unit, 0) for unit in ("", "no units", "m²")] == ["1"] * 3
    assert unit_power("m/s", 1) == "m/s"


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
        xarray.Dataset({"t": ("x", [1.0])}, {"x": [name]}).to_netcdf(tmp_path / f"x{name}")
    ways = "let it differ with --ignore-coordinates time_bnds,time, or all with --no-check-coordinates"
    unknown = "no coordinate 'tme': m0.nc, m1.nc; its coordinates"
    rows = [
        (f"reduce --op mean {' '.join(MONTHS)} -o o.nc", 3, f"(also 'time'), and results carry it / {ways}"),
        ("reduce-local --op mean m0.nc m1.nc", 3, f"(also 'time'), and results carry it / {ways}"),
        ("reduce --op mean m0.nc m1.nc -o o.nc --ignore-coordinates lat", 3, "'time_bnds' differs"),
        ("reduce --op mean m0.nc m1.nc -o o.nc --ignore-coordinates tme", 3, unknown),
        ("reduce --op mean m0.nc m1.nc -o o.nc --coordinate-rtol -1", 2, "--coordinate-rtol"),
        ("reduce --op mean m0.nc m1.nc -o o.nc --coordinate-rtol 1e-6", 3, f"{ways}, or combine it"),
        ("reduce --op sum xm0.nc xm1.nc -o o.nc", 3, "--ignore-coordinates x, or all with --no-check-coordinates\n"),
    ]
    check_refusals(tmp_path, rows)


@pytest.mark.parametrize("form", ["n4.nc", "n3.nc", "h5"])
def test_times_of_reduce_local(form, tmp_path):
    names = [f"r{number}.{form}" for number in range(2)]
    for number, name in enumerate(names):
        WRITERS[form](month(number), tmp_path / name)
    words = "reduce-local -q --op max --columns tas --ignore-coordinates time"
    succeeded(run(*words.split(), *names, cwd=tmp_path))
    found = read(tmp_path / names[1], decode_times=False)
    assert (found["time"].item(), found["time_bnds"].values[0].tolist()) == expected(range(2))
    assert found["tas"].attrs["cell_methods"] == "time: maximum"
    assert found["tas"].values.tolist() == [[2, 5]]
    assert found["height"].values.tolist() == [2, 3]


def test_a_time_without_a_dimension(tmp_path):
    """As xarray writes a scalar coordinate: units, and `coordinates` of the array."""
    for number in range(2):
        time = np.datetime64(f"200{number}-02-01", "ns")
        xarray.Dataset({"a": ("x", np.full(2, number, "f4"))}, {"time": time}).to_netcdf(tmp_path / f"{number}.nc")
    words = ("--op", "mean", "--ignore-coordinates", "time", "0.nc", "1.nc", "-o", "out.nc")
    succeeded(run("reduce", "-q", *words, cwd=tmp_path))
    data = read(tmp_path / "out.nc")
    assert (data["time"].values, data["a"].attrs["cell_methods"]) == (np.datetime64("2000-08-02"), "time: mean")
