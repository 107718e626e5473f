"""Arrays that describe others by the conventions of CF and UGRID: they are carried, in every format, as in xarray."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from attributed import suffix, write

import mpired

pytestmark = pytest.mark.filterwarnings("ignore")

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
