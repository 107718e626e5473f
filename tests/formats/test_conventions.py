"""Arrays that describe others by the conventions of CF and UGRID: they are carried, in every format, as in xarray."""

from __future__ import annotations

import warnings

import h5py
import netCDF4
import numpy as np
import pytest
from command import refused, run, succeeded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import xarray as xr
    import zarr

import mpired

pytestmark = pytest.mark.filterwarnings("ignore")
FORMATS = ["NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA", "NETCDF4", "HDF5", "ZARR2", "ZARR3"]
every_format = pytest.mark.parametrize("form", FORMATS)

# Appendix A of CF 1.12, and its mesh topology variables: what an attribute of `{}` says, where it names a variable.
NAMES = {
    "bounds": "{}", "bounds_tie_points": "{}", "cell_measures": "volume: {}", "climatology": "{}",
    "coordinate_interpolation": "{}: plan",
    "coordinates": "none {}", "external_variables": "{}", "formula_terms": "p0: {}", "geometry": "{}",
    "grid_mapping": "{}: x y", "interior_ring": "{}", "interpolation_parameters": "ca: {} w: none",
    "node_coordinates": "none {}",
    "node_count": "{}", "nodes": "{}", "part_node_count": "{}", "quantization": "{}", "tie_point_mapping": "x: {} tp_x",
    "mesh": "{}", "location_index_set": "{}", "edge_coordinates": "{} none", "face_coordinates": "none {}",
    "volume_coordinates": "{}", "face_node_connectivity": "{}", "edge_node_connectivity": "{}",
    "face_edge_connectivity": "{}",
    "face_face_connectivity": "{}", "edge_face_connectivity": "{}", "boundary_node_connectivity": "{}",
    "volume_node_connectivity": "{}", "volume_edge_connectivity": "{}", "volume_face_connectivity": "{}",
    "volume_volume_connectivity": "{}",
}  # fmt: skip
# The other attributes of the appendix, none of which names a variable that has to be the same in all ranks.
OTHERS = {
    "actual_range": [0.0, 9.0], "ancillary_variables": "{}", "calendar": "noleap", "cell_methods": "time: {}",
    "comment": "{}", "computational_precision": "{}", "compress": "{}", "computed_standard_name": "{}",
    "Conventions": "{}", "dimensions": "{}",
    "featureType": "{}",
    "history": "{}", "institution": "{}", "interpolation_description": "{}", "leap_month": 2, "leap_year": 4,
    "long_name": "{}", "month_lengths": [31, 28], "positive": "up", "references": "{}", "source": "{}",
    "standard_error_multiplier": 2, "standard_name": "air_temperature", "title": "{}", "units": "K",
    "units_metadata": "{}",
    "axis": "TZYX",
}  # fmt: skip
# Attributes that make the variable itself one that describes others.
MARKS = {
    "cf_role": "timeseries_id", "flag_values": [0, 1], "flag_masks": [1, 2], "flag_meanings": "good bad",
    "sample_dimension": "obs", "instance_dimension": "station", "grid_mapping_name": "mercator",
    "geometry_type": "line",
    "interpolation_name": "linear", "axis": "Z", "units": "degrees_north",
}  # fmt: skip
UNITS = ["degree_north", "degree_N", "degrees_N", "degreeN", "degreesN", "degrees_east", "days since 2000-1-1"]
STANDARD = ["latitude", "longitude", "time", "grid_latitude", "projection_x_coordinate", "forecast_reference_time"]
DATA = {"units": ["degrees", "days", "s", "degrees_C", "m since"], "standard_name": ["latitude standard_error", "lon"]}


def write(path, form, arrays, attributes=()):
    """Write arrays, each (dims, values, attributes), where the dimensions have names, if the format has such."""
    if form == "HDF5":
        with h5py.File(path, "w") as file:
            file.attrs.update(attributes)
            for name, (_, values, own) in arrays.items():
                file[name] = values
                file[name].attrs.update(own)
    elif form.startswith("ZARR"):
        root = zarr.open_group(path, mode="w", zarr_format=int(form[-1]), attributes=dict(attributes))
        for name, (dims, values, own) in arrays.items():
            named = {"dimension_names": dims} if form == "ZARR3" else {"attributes": {"_ARRAY_DIMENSIONS": dims, **own}}
            made = root.create_array(name, data=np.asarray(values), **named)
            made.update_attributes(own)
    else:
        with netCDF4.Dataset(path, "w", format=form) as file:
            file.setncatts(dict(attributes))
            for name, (dims, values, own) in arrays.items():
                for dim, length in zip(dims, np.shape(values), strict=True):
                    if dim not in file.dimensions:
                        file.createDimension(dim, length)
                made = file.createVariable(name, np.asarray(values).dtype, dims)
                made[...] = values
                made.setncatts(
                    {key: np.int32(value) if isinstance(value, int) else value for key, value in own.items()}
                )
    return str(path)


def suffix(form):
    return {"HDF5": "h5"}.get(form, "zarr" if form.startswith("ZARR") else "nc")


def summed(folder, form, arrays, attributes=()):
    """Return the names of the arrays that a sum of two such files leaves as they are, and of those that it doubles."""
    paths = [write(folder / f"{number}.{suffix(form)}", form, arrays, attributes) for number in range(2)]
    found = mpired.reduce(paths, "sum")
    carried = {name for name, (_, values, _) in arrays.items() if np.array_equal(found[name], values)}
    doubled = {name for name, (_, values, _) in arrays.items() if np.array_equal(found[name], np.multiply(2, values))}
    return carried, doubled


def numbered(dims=("x",)):
    return np.arange(1.0, 4.0).reshape((3,) * len(dims)) if dims else 4.0


def with_attribute(attribute, value):
    return (["x"], numbered(), {attribute: value})


@every_format
def test_the_attributes_of_appendix_a(tmp_path, form):
    arrays = {}
    for attribute, value in (NAMES | OTHERS).items():
        said = value.format(f"of_{attribute}") if isinstance(value, str) else value
        arrays[f"has_{attribute}"] = with_attribute(attribute, said)
        arrays[f"of_{attribute}"] = (["x"], numbered(), {})
    carried, doubled = summed(tmp_path, form, arrays)
    assert carried == {f"of_{attribute}" for attribute in NAMES} | {"has_formula_terms"}
    assert doubled == arrays.keys() - carried
    if suffix(form) == "nc":
        with xr.open_dataset(tmp_path / "0.nc", decode_coords="all", decode_times=False) as opened:
            assert len(opened.coords) > 9
            assert opened.coords.keys() <= carried


@every_format
def test_what_marks_a_coordinate(tmp_path, form):
    marks = {f"mark_{attribute}": with_attribute(attribute, value) for attribute, value in MARKS.items()}
    marks |= {f"unit_{number}": with_attribute("units", unit) for number, unit in enumerate(UNITS)}
    marks |= {f"standard_{number}": with_attribute("standard_name", each) for number, each in enumerate(STANDARD)}
    data = {f"{attribute}_{number}": with_attribute(attribute, each)
            for attribute, values in DATA.items() for number, each in enumerate(values)}  # fmt: skip
    carried, doubled = summed(tmp_path, form, marks | data)
    has_names = form != "HDF5"  # so that a direction is that of an axis
    assert carried == marks.keys() - (set() if has_names else {"mark_axis"})
    assert doubled == (marks.keys() | data.keys()) - carried


@every_format
def test_names_of_models_without_attributes(tmp_path, form):
    arrays = {name: (["x"], numbered(), {}) for name in ("gw", "area", "date", "datesec", "x", "t")}
    carried, _ = summed(tmp_path, form, arrays)
    assert carried == (set() if form == "HDF5" else set(arrays) - {"t"})


@every_format
def test_attributes_of_the_file_name_coordinates_as_xarray_writes_them(tmp_path, form):
    arrays = {name: (["x"], numbered(), {}) for name in ("alone", "t")}
    assert summed(tmp_path, form, arrays, {"coordinates": "alone none"}) == ({"alone"}, {"t"})


@every_format
def test_terms_of_a_formula_that_are_fields_are_combined(tmp_path, form):
    terms = "a: a b: b ps: pressure p0: p0 orog: hill"
    arrays = {name: (["x"], numbered(), {}) for name in ("a", "b", "pressure", "p0", "hill", "t")}
    arrays["level"] = (["x"], numbered(), {"formula_terms": terms})
    assert summed(tmp_path, form, arrays)[1] == {"pressure", "t"}


@every_format
def test_what_columns_name_is_combined(tmp_path, form):
    arrays = {"gw": (["x"], numbered(), {"cf_role": "profile_id"}), "t": (["x"], numbered(), {"bounds": "gw"})}
    paths = [write(tmp_path / f"{number}.{suffix(form)}", form, arrays) for number in range(2)]
    np.testing.assert_array_equal(mpired.reduce(paths, "sum", columns=["gw"]), 2 * numbered())


def mesh(path, form, shift=0):
    """Write an unstructured mesh of UGRID, with a field on its faces."""
    arrays = {
        "topology": ([], np.int32(0), {
            "cf_role": "mesh_topology", "topology_dimension": 2, "node_coordinates": "node_x node_y",
            "face_node_connectivity": "corners",
        }),
        "node_x": (["node"], np.arange(4.0), {}), "node_y": (["node"], np.arange(4.0) ** 2, {}),
        "corners": (["face", "three"], np.array([[0, 1, 2], [1, 2, 3]], "i4") + shift, {"start_index": shift}),
        "t": (["face"], np.array([280.0, 281.0]), {"mesh": "topology", "location": "face"}),
    }  # fmt: skip
    return write(path, form, arrays)


@every_format
def test_a_mesh_is_carried_and_has_to_be_equal(tmp_path, form):
    end = suffix(form)
    names = [mesh(tmp_path / f"{number}.{end}", form, number) for number in (0, 1)]
    result = f"r.{end}{'.zip' if end == 'zarr' else ''}"
    words = ("reduce", "-q", "--op", "sum", "-o", result, *names)
    refused(run(*words, cwd=tmp_path), 3, "'corners' differs from that of rank 0", "--columns")
    succeeded(run(*words[:-1], names[0], cwd=tmp_path))
    found = mpired.reduce([str(tmp_path / result)], "max")
    np.testing.assert_array_equal(found["corners"], [[0, 1, 2], [1, 2, 3]])
    np.testing.assert_array_equal(found["t"], [560.0, 562.0])
