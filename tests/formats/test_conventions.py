"""Attributes of CF and netCDF: arrays that describe others are carried; packed, unsigned and missing values."""

import json
import shutil

import netCDF4
import numpy as np
import pytest
import xarray as xr
from attributed import decoded, raw, suffix, write
from command import refused, run, succeeded
from rows import check_refusals, together

import mpired

pytestmark = pytest.mark.filterwarnings("ignore")

# Appendix A of CF 1.12, and its mesh topology variables: what an attribute of `{}` says, where it names a variable.
NAMES = {
    "bounds": "{}", "bounds_tie_points": "{}", "cell_measures": "volume: {}", "climatology": "{}",
    "coordinate_interpolation": "{}: plan", "coordinates": "none {}", "external_variables": "{}",
    "formula_terms": "p0: {}", "geometry": "{}", "grid_mapping": "{}: x y", "interior_ring": "{}",
    "interpolation_parameters": "ca: {} w: none", "node_coordinates": "none {}", "node_count": "{}", "nodes": "{}",
    "part_node_count": "{}", "quantization": "{}", "tie_point_mapping": "x: {} tp_x", "mesh": "{}",
    "location_index_set": "{}", "edge_coordinates": "{} none", "face_coordinates": "none {}",
    "volume_coordinates": "{}", "face_node_connectivity": "{}", "edge_node_connectivity": "{}",
    "face_edge_connectivity": "{}", "face_face_connectivity": "{}", "edge_face_connectivity": "{}",
    "boundary_node_connectivity": "{}", "volume_node_connectivity": "{}", "volume_edge_connectivity": "{}",
    "volume_face_connectivity": "{}", "volume_volume_connectivity": "{}",
}  # fmt: skip
# The other attributes of the appendix, none of which names a variable that has to be the same in all ranks.
OTHERS = {
    "actual_range": [0.0, 9.0], "ancillary_variables": "{}", "calendar": "noleap", "cell_methods": "time: {}",
    "comment": "{}", "computational_precision": "{}", "compress": "{}", "computed_standard_name": "{}",
    "Conventions": "{}", "dimensions": "{}", "featureType": "{}", "history": "{}", "institution": "{}",
    "interpolation_description": "{}", "leap_month": 2, "leap_year": 4, "long_name": "{}", "month_lengths": [31, 28],
    "positive": "up", "references": "{}", "source": "{}", "standard_error_multiplier": 2,
    "standard_name": "air_temperature", "title": "{}", "units": "K", "units_metadata": "{}", "axis": "TZYX",
}  # fmt: skip
# Attributes that make the variable itself one that describes others.
MARKS = {
    "cf_role": "timeseries_id", "flag_values": [0, 1], "flag_masks": [1, 2], "flag_meanings": "good bad",
    "sample_dimension": "obs", "instance_dimension": "station", "grid_mapping_name": "mercator",
    "geometry_type": "line", "interpolation_name": "linear", "axis": "Z", "units": "degrees_north",
}  # fmt: skip
UNITS = ["degree_north", "degree_N", "degrees_N", "degreeN", "degreesN", "degrees_east", "days since 2000-1-1"]
STANDARD = ["latitude", "longitude", "time", "grid_latitude", "projection_x_coordinate", "forecast_reference_time"]
DATA = {"units": ["degrees", "days", "s", "degrees_C", "m since"], "standard_name": ["latitude standard_error", "lon"]}

VALUES = np.arange(1.0, 4.0)


@pytest.mark.parametrize("form", ["NETCDF3_CLASSIC", "NETCDF4", "HDF5"])
def test_what_is_carried(tmp_path, form):
    """By the attributes of appendix A, of the array itself, of the file, and by names; all others are combined."""
    arrays = {name: {} for name in ("gw", "area", "date", "datesec", "n", "t", "alone", "a", "pressure")}
    arrays["level"] = {"formula_terms": "a: a ps: pressure"}  # of which the pressure is a field
    for attribute, value in (NAMES | OTHERS).items():
        named = value.format(f"of_{attribute}") if isinstance(value, str) else value
        arrays |= {f"has_{attribute}": {attribute: named}, f"of_{attribute}": {}}
    marks = {f"mark_{attribute}": {attribute: value} for attribute, value in MARKS.items()}
    marks |= {f"unit_{number}": {"units": unit} for number, unit in enumerate(UNITS)}
    marks |= {f"standard_{number}": {"standard_name": each} for number, each in enumerate(STANDARD)}
    data = {f"{key}_{number}": {key: each} for key, values in DATA.items() for number, each in enumerate(values)}
    arrays |= marks | data
    carried = {f"of_{attribute}" for attribute in NAMES} | {"has_formula_terms", "level", "a", "alone"} | marks.keys()
    if form != "HDF5":  # without names of dimensions
        carried |= {"gw", "area", "date", "datesec", "n"}
    else:
        carried -= {"mark_axis"}
    content = {name: (["n"], VALUES, own) for name, own in arrays.items()}
    attributes = {"coordinates": "alone none"}  # as xarray writes them
    paths = [write(tmp_path / f"a{suffix(form)}", form, content, attributes)] * 2
    found = mpired.reduce(paths, "sum")
    assert found.keys() == arrays.keys()
    assert {name for name, values in found.items() if np.array_equal(values, VALUES)} == carried
    assert {name for name, values in found.items() if np.array_equal(values, 2 * VALUES)} == arrays.keys() - carried
    chosen = mpired.reduce(paths, "sum", columns=["mark_cf_role", "of_bounds"])  # these are combined
    assert all(np.array_equal(chosen[name], 2 * VALUES) for name in ("mark_cf_role", "of_bounds"))
    if suffix(form) == ".nc":
        with xr.open_dataset(paths[0], decode_coords="all", decode_times=False) as opened:
            assert len(opened.coords) > 9
            assert opened.coords.keys() <= carried | {"pressure"}


every_format = pytest.mark.parametrize("form", ["NETCDF3_CLASSIC", "NETCDF4", "ZARR3"])


def written(path, form, arrays, chunk=None):
    """Write arrays, each (values, attributes), with an unlimited dimension x, and return the name."""
    content = {name: (["x"], values, own) for name, (values, own) in arrays.items()}
    path = path.with_name(path.name + suffix(form))
    write(path, form, content, unlimited=True, chunk=chunk)
    return path.name


@every_format
def test_a_scale_of_one_and_an_offset_of_zero_pack_no_numbers_of_floating_point(tmp_path, form):
    plain = {"scale_factor": np.float32(1), "add_offset": np.float32(0)}
    arrays = {"t": (np.array([1, 2, 3], "f4"), plain), "u": (np.array([4, 5, 6], "f8"), {"add_offset": np.float64(0)})}
    name, result = written(tmp_path / "a", form, arrays), f"r{suffix(form, result=True)}"
    succeeded(run("reduce", "-q", "--op", "sum", name, name, "-o", result, cwd=tmp_path))
    found = raw(tmp_path / result, form)
    for each, (values, own) in arrays.items():
        np.testing.assert_array_equal(found[each][0], values * 2)
        assert found[each][0].dtype == values.dtype
        assert own.items() <= found[each][1].items()
    name = written(tmp_path / "i", form, {"t": (np.array([1, 2], "i2"), plain)})  # these stand for such numbers
    refused(run("reduce", "--op", "sum", name, name, "-f", "-o", "f.npy", cwd=tmp_path), 3, "--unpack")


UNSIGNED = {
    "byte": (np.array([1, 100, 200, 255, 7], "u1"), 255),
    "short": (np.array([1, 40000, 65535, 9, 65534], "u2"), 65535),
    "int": (np.array([1, 2**32 - 1, 2**31, 5, 6], "u4"), 2**32 - 1),
}


@every_format
def test_unsigned_elements_that_the_file_has_as_signed_ones(tmp_path, form):
    """Elements and fill values are read without a sign, and results of the same type are stored as in the file."""
    ranks = []
    for i in range(2):
        arrays = {}
        for name, (values, fill) in UNSIGNED.items():
            signed = f"i{values.itemsize}"
            own = {"_Unsigned": "true", "_FillValue": np.array(fill, values.dtype).view(signed)[()]}
            arrays[name] = np.roll(values, i).view(signed), own
        ranks.append(written(tmp_path / str(i), form, arrays, chunk=(2,) if i else None))
    for op in ("max", "mean"):
        result = tmp_path / f"{op}{suffix(form, result=True)}"
        succeeded(run("reduce", "-q", "--op", op, "--nulls", "ignore", *ranks, "-o", result.name, cwd=tmp_path))
        new, read = raw(result, form), decoded(result, form)
        for name, (values, fill) in UNSIGNED.items():
            both = np.ma.masked_equal(np.stack([np.roll(values, i) for i in range(2)]), fill)
            found, own = new[name]
            if op == "max":
                expected = both.max(0).filled(fill)
                assert (found.dtype, own["_Unsigned"], own["_FillValue"]) == (f"i{values.itemsize}", "true", -1)
                np.testing.assert_array_equal(found.view(values.dtype), expected)
                np.testing.assert_array_equal(read[name], expected.astype("f8"))
            else:
                assert "_Unsigned" not in own
                np.testing.assert_array_equal(found, both.mean(0).filled(np.nan))


@every_format
def test_missing_and_packed_values(tmp_path, form):
    """Packed values are refused, or unpacked and not packed again; they are never updated."""
    fill = {"_FillValue": np.int16(-9)}
    packing = {"scale_factor": np.float32(0.5), "add_offset": np.float32(100)}
    names = []
    for i, values in enumerate([[1, 2, -9, 4], [1, -9, -9, 5]]):
        arrays = {"plain": (np.array(values, "i2"), fill), "packed": (np.array(values, "i2"), {**fill, **packing})}
        names.append(written(tmp_path / str(i), form, arrays, chunk=(2,) if i else None))
    result = f"r{suffix(form, result=True)}"
    words = ("reduce", "-f", "--op", "sum", "-o", result, *names)
    refused(run(*words, cwd=tmp_path), 3, "'packed' is packed by `scale_factor` and `add_offset`", "--unpack")
    for name in ("plain", "packed"):
        refused(run(*words, "--unpack", "--columns", name, cwd=tmp_path), 3, "--nulls ignore")
    outcome = run(*words, "--unpack", "--nulls", "ignore", cwd=tmp_path)
    assert (outcome.status, "packed unpacked and not packed again, " in outcome.err) == (0, True), outcome.err
    both = ("--op", "mean,maxloc", "--index", "rank", "--json"), ("--op", "maxloc", "--index", "rank")
    outputs = [run(*words, "--unpack", "--nulls", "ignore", "--columns", "packed", *own, cwd=tmp_path) for own in both]
    assert json.loads(outputs[0].out)["op"] == "mean,maxloc"
    assert " packed unpacked and not packed again, " in outputs[1].err
    succeeded(run(*words, "-q", "--unpack", "--nulls", "ignore", cwd=tmp_path))
    new, read = raw(tmp_path / result, form), decoded(tmp_path / result, form)
    assert new["plain"][0].tolist() == [2, 2, -9, 9]
    assert new["packed"][0].dtype == ("f8" if form.startswith("ZARR") else "f4")  # in Zarr, attributes have no types
    assert not packing.keys() & new["packed"][1].keys()
    np.testing.assert_array_equal(read["packed"], [201.0, 101.0, np.nan, 204.5])
    outcome = run(*words, "--json", "--columns", "packed", "--unpack", "--nulls", "ignore", cwd=tmp_path)
    assert json.loads(outcome.out)["buffers"][0]["unpacked"] == "int16"
    text = run("info", names[0], cwd=tmp_path).out.decode()
    assert "  packed: 4 x packed MPI_INT16_T (int16), shape (4,)" in text
    assert "; unpack it with --unpack, and skip missing values with --nulls ignore, no op takes it as it is" in text
    if form.startswith("ZARR"):
        shutil.make_archive(tmp_path / names[0], "zip", tmp_path / names[0])
        names[0] += ".zip"
    for origin, more in ((result, ()), (result, ("--unpack",)), (names[1], ())):
        words = ("accumulate", "--op", "sum", "--columns", "packed", *more, names[0], origin)
        reasons = ("'packed' is packed", "not updated; update a file", "reduce --op first --u")
        refused(run(*words, cwd=tmp_path), 3, *reasons)


def test_truth_values_stay_truth_values(tmp_path):
    """In results, too; a sum of them would be read as true, whatever it is."""
    truths = np.array([True, False, True])
    mpired.reduce([truths, truths], "land", output=tmp_path / "c.nc")
    with xr.open_dataset(tmp_path / "c.nc") as new:
        assert (new["value"].dtype, new["value"].values.tolist()) == (bool, truths.tolist())
    for name in ("a.nc", "b.nc"):
        xr.Dataset({"m": ("x", np.array([True, False, True]))}).to_netcdf(tmp_path / name, engine="netcdf4")
    for words in ("accumulate --op sum a.nc b.nc", "fetch-and-op --op sum --at 0 a.nc 2"):
        refused(run(*words.split(), cwd=tmp_path), 3, "'m' has truth values by its attribute 'dtype'", "use land, lor")
    for words, expected in (("accumulate -q --op lxor", [False] * 3), ("reduce-local -q --op sum", [1, 0, 1])):
        paths = ("a.nc", "b.nc") if "lxor" in words else ("b.nc", "a.nc")
        succeeded(run(*words.split(), *paths, cwd=tmp_path))
        with xr.open_dataset(tmp_path / "a.nc") as found:
            assert (found.m.dtype, found.m.values.tolist()) == (bool if "lxor" in words else "i1", expected)


@every_format
def test_packed_elements_with_and_without_a_sign(tmp_path, form):
    own = {"scale_factor": np.float64(0.5), "add_offset": np.float64(-3)}
    own |= {"_Unsigned": "true", "_FillValue": np.int8(-1)}
    name = written(tmp_path / "a", form, {"t": (np.array([1, -56, -1, 127, -128], "i1"), own)})
    result = f"r{suffix(form, result=True)}"
    words = ("reduce", "-q", "--op", "max", "--unpack", "--nulls", "ignore", name, name, "-o", result)
    succeeded(run(*words, cwd=tmp_path))
    expected = np.array([1, 200, np.nan, 127, 128]) * 0.5 - 3
    for each in (name, result):
        np.testing.assert_array_equal(decoded(tmp_path / each, form)["t"], expected)
    assert "_Unsigned" not in raw(tmp_path / result, form)["t"][1]
    kind = "u1" if form != "NETCDF3_CLASSIC" else "i1"  # which has no others
    name = written(tmp_path / "s", form, {"t": (np.array([1, 250], "u1").view(kind), {"_Unsigned": "false"})})
    assert mpired.reduce([tmp_path / name] * 2, "min").tolist() == [1, -6]
    limits = {"scale_factor": np.float64(0.5), "valid_min": np.int16(-5), "valid_max": np.int16(5)}
    name = written(tmp_path / "v", form, {"v": (np.array([-6, -5, 1, 5, 6], "i2"), limits)})
    assert mpired.reduce([tmp_path / name], "count", nulls="ignore", unpack=True).tolist() == [0, 1, 1, 1, 0]


def test_an_attribute_that_is_not_a_number(tmp_path):
    wrong = {
        f"{attribute}{number}": {attribute: value}
        for attribute in ("add_offset", "scale_factor")
        for number, value in enumerate(("273.15", "", np.array([1.0, 2.0])))
    }
    arrays = {name: (np.array([1, 2], "i2"), own) for name, own in wrong.items()}
    rows = []
    for form in ("NETCDF3_CLASSIC", "ZARR3"):
        file = written(tmp_path / "a", form, {**arrays, "u": (np.array([1.0, 2.0]), {})})
        for number, (name, own) in enumerate(wrong.items()):
            line = f"reduce --op sum --columns {name} {file} -o r.npy{' --unpack' * (number % 2)}"
            rows.append((line, 3, f"`{next(iter(own))}` is not a number; choose with --columns u"))
    check_refusals(tmp_path, rows)


OUT_OF_RANGE = "of t came out outside of its valid range (from 0 to 330) or as its fill value (-9), so that readers"
AS_FILL = (
    "1 element of n came out as its fill value (",
    "as its fill value (6), so that readers of the result take them",
)


@every_format
def test_elements_that_come_out_as_missing_ones_are_told_of(tmp_path, form):
    limits = {"_FillValue": np.float32(-9), "valid_range": np.array([0, 330], "f4")}
    n = np.arange(1, 6, dtype="i2"), {"missing_value": np.int16(6)}
    a, b, c = (
        written(tmp_path / name, form, {"t": (np.array(values, "f4"), limits), "n": n})
        for name, values in {
            "a": [100, 200, 300, 1, -9], "b": [100, 200, 100, -9, -9], "c": [100, 200, 300, 1, 2],
        }.items()
    )  # fmt: skip
    end, few = suffix(form, result=True), f"2 elements {OUT_OF_RANGE}"
    commands = [
        (f"reduce --op sum -o r{end} {a} {b} {a}", *AS_FILL),
        (f"reduce --op max -o q{end} {a} {b}",),
        (f"reduce --op sum -o r.csv {a} {b}",),
        (f"scan --op sum -o s{{rank}}{end} {a} {b} {a}", "2 elements of n"),
    ]
    if not form.startswith("ZARR"):
        commands += [
            (f"accumulate --op sum --columns t new{end} {c} {c} --create", few),
            (f"accumulate --op sum --columns t {c} {c}", few),
        ]
    with together(tmp_path) as case:
        for command, *expected in commands:
            with case(command):
                more = () if command.startswith("accumulate") else ("-f", "--nulls", "ignore")
                outcome = run(*command.split(), "-q", *more, cwd=tmp_path)
                assert (outcome.status, outcome.err == "") == (0, not expected), outcome.err
                assert [outcome.err.count(each) for each in expected] == [1] * len(expected), outcome.err
    assert raw(tmp_path / f"q{end}", form)["t"][0].tolist() == [100, 200, 300, 1, -9]
    words = f"reduce --json -f --nulls ignore --op sum -o r{end} {a} {b} {a}"
    warnings = json.loads(run(*words.split(), cwd=tmp_path).out)["warnings"]
    assert sorted(each.partition(" came out")[0] for each in warnings) == ["1 element of n"]


SIZE = 100_000
DEFAULT = "leave them out with --missing 9.969209968386869e+36"


def half_written(path, form, dtype="f4", **attributes):
    """Write a variable without its first elements, and return how many netCDF4 masks."""
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.createDimension("x", SIZE)
        variable = file.createVariable("t", dtype, ("x",))
        variable.setncatts(attributes)
        variable.set_auto_maskandscale(False)
        variable[SIZE // 3 :] = np.arange(SIZE - SIZE // 3) % 100
    with netCDF4.Dataset(path) as file:
        return int(np.ma.count_masked(file["t"][:]))


def warning(count, hint, name="t"):
    elements, verb = ("1 element", "has") if count == 1 else (f"{count} elements", "have")
    reason = f"{elements} of {name} {verb} netCDF's default fill value, which no attribute names"
    return f"mpired: warning: {reason}, and is combined; {hint}\n"


def test_as_many_elements_are_warned_of_as_netcdf4_masks(tmp_path):
    np.save(tmp_path / "target.npy", np.zeros(SIZE, "f4"))
    with together(tmp_path) as case:
        for form, jobs, dtype in (
            ("NETCDF3_64BIT_DATA", "1", "i2"), ("NETCDF4", "2", "i4"),
            ("NETCDF3_64BIT_DATA", "2", "f4"), ("NETCDF4", "1", "f8"),
        ):  # fmt: skip
            with case(form, dtype) as folder:
                count = sum(half_written(folder / name, form, dtype) for name in ("a.nc", "b.nc"))
                assert count == 2 * (SIZE // 3)
                value = netCDF4.default_fillvals[dtype]
                words = ("reduce", "-q", "-f", "-j", jobs, "--op", "max", "-o", "o.npy", "a.nc", "b.nc")
                outcome = run(*words, cwd=folder)
                assert (outcome.status, outcome.err) == (0, warning(count, f"leave them out with --missing {value}"))
                succeeded(run(*words, "--missing", str(value), cwd=folder))
        count = half_written(tmp_path / "a.nc", "NETCDF4")
        packing = {"scale_factor": np.float32(0.5), "add_offset": np.float32(1)}
        assert count == half_written(tmp_path / "p.nc", "NETCDF4", "i2", **packing)
        for words, expected in (
            ("scan -q --op sum -o s_{rank}.npy a.nc", warning(count, DEFAULT)),
            ("reduce -q --op sum --to text -o - a.nc", warning(count, DEFAULT)),
            ("reduce-scatter-block -q --op sum -o r_{rank}.npy a.nc", warning(count, DEFAULT)),
            ("accumulate -q --op sum target.npy a.nc", warning(count, "give the origins a `_FillValue`")),
            ("locate --op maxloc a.nc", warning(1, "give the variable a `_FillValue`", "the result")),
            ("reduce -q --unpack --op max -o o.npy p.nc", warning(count, "leave them out with --missing -16382.5")),
        ):
            with case(words):
                outcome = run(*words.split(), cwd=tmp_path)
                assert (outcome.status, outcome.err) == (0, expected)
