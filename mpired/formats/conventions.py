"""CF and netCDF attributes: fill values, packing, units, and names of auxiliary arrays.

Auxiliary arrays have no measured values: coordinates, their bounds, times, weights, flags. Results keep them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from mpired.formats.arrays import ArrayHeader
from mpired.formats.input_options import InputOptions
from mpired.formats.missing import Missing
from mpired.formats.rank import dtype_text

Attribute: TypeAlias = np.ndarray | str  # the value of an attribute: numbers in one dimension, or a string
Attributes: TypeAlias = Mapping[str, Attribute]

FILL, MISSING, RANGE, MINIMUM, MAXIMUM = "_FillValue", "missing_value", "valid_range", "valid_min", "valid_max"
LIMITS = (RANGE, MINIMUM, MAXIMUM)
ACTUAL_RANGE = "actual_range"  # the range of the values in the array; a result seldom has the same
OF_THE_TYPE = (FILL, MISSING, *LIMITS)  # attributes whose values have the type of the array
DIMENSIONS = "_ARRAY_DIMENSIONS"  # of xarray in Zarr
SCALE, OFFSET, UNSIGNED = "scale_factor", "add_offset", "_Unsigned"
_SIGNS = {("i", "true"): "u", ("u", "false"): "i"}
# Attributes of CF (appendix A) and UGRID that name variables, and whether a word with a colon is a name, too: else it
# is the role of the next name. `ancillary_variables` names measured values, and is not here.
_PARTS = ("node", "edge", "face", "volume")
_NAMING = dict.fromkeys(
    (
        "coordinates", "bounds", "bounds_tie_points", "climatology", "cell_measures", "external_variables", "geometry",
        "interior_ring", "node_count", "nodes", "part_node_count", "formula_terms", "interpolation_parameters",
        "tie_point_mapping", "quantization", "aggregated_data", "mesh", "location_index_set",
        *(f"{part}_coordinates" for part in _PARTS),
        *(f"{first}_{second}_connectivity" for first in (*_PARTS, "boundary") for second in _PARTS),
    ), False,
) | {"grid_mapping": True, "coordinate_interpolation": True}  # fmt: skip
_MEASURED_TERMS = ("eta", "ps")  # of formulas: sea surface height, surface pressure
# Attributes of auxiliary arrays and of flags.
_AUXILIARY = (
    "flag_values", "flag_masks", "flag_meanings", "cf_role", "sample_dimension", "instance_dimension", "formula_terms",
    "grid_mapping_name", "geometry_type", "interpolation_name",
)  # fmt: skip
# Attributes whose values show that an array is a coordinate.
_COORDINATE_PATTERNS = {
    "axis": re.compile(r"[XYZT]", re.IGNORECASE),
    "standard_name": re.compile(
        r"(grid_)?(latitude|longitude)|time|forecast_(reference_time|period)|projection_[xy]_(angular_)?coordinate"
    ),
    "units": re.compile(r"\s*(\w+\s+since\s.*|degrees?_?(north|east|N|E)\s*)", re.IGNORECASE | re.DOTALL),
}
_AUXILIARY_NAMES = ("gw", "area", "date", "datesec")  # of weights, areas and dates that models write without attributes
# Attributes with the positions of elements, which do not depend on the meaning of the values.
_POSITIONS = (
    "coordinates", "grid_mapping", "cell_measures", "coordinate_interpolation", "geometry", "mesh", "location",
    "location_index_set", DIMENSIONS, "_Netcdf4Coordinates", "DIMENSION_LABELS",
)  # fmt: skip
METHODS, ANCILLARY = "cell_methods", "ancillary_variables"
DTYPE = "dtype"  # of xarray: the type of the values, such as bool, if the elements have another type
MEANING = (
    *(*OF_THE_TYPE, ACTUAL_RANGE, SCALE, OFFSET, *_NAMING, *_AUXILIARY, *_COORDINATE_PATTERNS),
    *("calendar", UNSIGNED, METHODS, ANCILLARY, DTYPE),
)
"""All attributes that mpired reads."""
# The string attributes of an `ArrayHeader`.
_DESCRIPTIVE = (
    "units", "calendar", "standard_name", "axis", "bounds", "climatology", "coordinates", METHODS, ANCILLARY, DTYPE,
)  # fmt: skip
_FACTOR = r"([^\W\d¹²³⁰⁴-⁹]+)(-?\d+)?"  # of a unit: a name and its power
_NO_UNITS = ("", "1", "-", "none", "no unit", "no units", "unitless", "dimensionless")
_NETCDF_NAME = re.compile(r"([A-Za-z0-9_]|[^\x00-\x7f])([^\x00-\x1f/\x7f]*[^\x00-\x20/\x7f])?")
_MAX_NAME_NBYTES = 256
# netCDF's fill values of elements that were never written.
_FILLS = {
    "i1": -127, "i2": -32767, "i4": -2147483647, "i8": -9223372036854775806, "u1": 255, "u2": 65535, "u4": 4294967295,
    "u8": 18446744073709551614, "f4": 9.969209968386869e36, "f8": 9.969209968386869e36,
}  # fmt: skip


class Variable(NamedTuple):
    """An array, or a group, with the names of its dimensions and its attributes."""

    name: str
    dims: tuple[str, ...]
    attributes: Attributes


class Packed(NamedTuple):
    """The packing of elements, whose values are scale * element + offset."""

    scale: np.ndarray  # of the dtype of the values
    offset: np.ndarray  # of the dtype of the values
    missing: Missing | None  # the rule for missing elements; None without one
    form: np.dtype  # of the elements, in native byte order
    bad_attribute: str = ""  # the name of the attribute that is not one number; "" if elements can be unpacked

    def unpack(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the values of elements, and the mask of valid elements, or None if all are valid."""
        values = values.astype(self.form, copy=False)
        valid = None if self.missing is None else self.missing.valid_mask(values)
        with np.errstate(over="ignore", invalid="ignore"):  # as in the arithmetic of the ops
            return values.astype(self.scale.dtype) * self.scale + self.offset, valid


def text_of(octets: bytes) -> str:
    """Decode a name or a string; bytes that are not UTF-8 survive `octets_of`."""
    return octets.decode("utf-8", "surrogateescape")


def octets_of(text: str) -> bytes:
    """Encode a name or a string."""
    return text.encode("utf-8", "surrogateescape")


def text(attributes: Attributes, name: str) -> str:
    """Return an attribute if it is a string, else ""."""
    value = attributes.get(name, "")
    return value if isinstance(value, str) else ""


def numbers(attributes: Attributes, name: str, count: int | None = None) -> list[float]:
    """Return the numbers of an attribute; [] if it has no numbers, or not `count` of them."""
    value = attributes.get(name, "")
    if isinstance(value, str) or value.dtype.kind not in "iuf":
        return []
    values = value.reshape(-1).tolist()
    return values if count in (None, len(values)) else []


def fill_values(attributes: Attributes) -> list[float]:
    """Return the fill values of an array; missing elements of a result get the first."""
    return numbers(attributes, FILL) + numbers(attributes, MISSING)


def fill_of_result(attributes: Attributes, dtype: np.dtype) -> np.ndarray | None:
    """Return the value of missing elements of a result: its first fill value, else netCDF's, else None."""
    values = fill_values(attributes)
    return np.asarray(values[0]) if values else default_fill(dtype)


def missing(attributes: Attributes, dtype: np.dtype) -> Missing | None:
    """Return the rule for missing elements of an array; None without one."""
    if dtype.kind not in "iuf":
        return None
    fills = dict.fromkeys(value for value in fill_values(attributes) if value == value)  # noqa: PLR0124 - no NaN
    values = tuple(map(float, fills)) if dtype.kind == "f" else tuple(fills)
    low, high = (next(iter(numbers(attributes, name, 1)), None) for name in (MINIMUM, MAXIMUM))
    low, high = numbers(attributes, RANGE, 2) or (low, high)
    return Missing(values, low, high) if values or (low, high) != (None, None) else None


def keeps_attribute(key: str, *, same_shape: bool, same_meaning: bool) -> bool:
    """Return whether a result keeps an attribute of the array on which it is modelled."""
    return same_shape if key in _POSITIONS else same_meaning


def with_sign(attributes: Attributes, dtype: np.dtype) -> tuple[Attributes, np.dtype]:
    """Return attributes and the form of elements with the sign that `_Unsigned` declares for integers."""
    kind = _SIGNS.get((dtype.kind, text(attributes, UNSIGNED).lower()))
    if kind is None:
        return attributes, dtype
    form = np.dtype(f"{dtype.byteorder}{kind}{dtype.itemsize}")
    typed = {key: value for key, value in attributes.items() if key in OF_THE_TYPE and isinstance(value, np.ndarray)}
    return {**attributes, **{key: value.astype(form) for key, value in typed.items() if value.dtype.kind in "iu"}}, form


def packing(attributes: Attributes, dtype: np.dtype) -> Packed | None:
    """Return the packing of an array; None if its elements are the values."""
    keys = [key for key in (SCALE, OFFSET) if key in attributes]
    if dtype.kind not in "iuf" or not keys:
        return None
    scalars = {key: np.asarray(attributes[key]).reshape(()) for key in keys if numbers(attributes, key, 1)}
    bad_attribute = next((key for key in keys if key not in scalars), "")
    form = np.result_type(*[value.dtype for value in scalars.values()] or [np.dtype("f8")]).newbyteorder("=")
    form = form if form.kind == "f" else np.dtype("f8")
    scale, offset = (np.asarray(scalars.get(key, default), form) for key, default in ((SCALE, 1), (OFFSET, 0)))
    if dtype.kind == "f" and scale == 1 and offset == 0 and not bad_attribute:
        return None
    return Packed(scale, offset, missing(attributes, dtype), dtype.newbyteorder("="), bad_attribute)


def array_header(
    name: str, shape: tuple[int, ...], attributes: Attributes, dtype: np.dtype | None, inputs: InputOptions, label: str
) -> ArrayHeader:
    """Describe an array by its attributes and the form of its elements, None if these are not numbers."""
    strings = {key: value for key in _DESCRIPTIVE if isinstance(value := attributes.get(key), str)}
    if ACTUAL_RANGE in attributes:
        strings[ACTUAL_RANGE] = ACTUAL_RANGE  # its values are not used
    unit = " ".join(text(attributes, "units").split())[:80]
    header = ArrayHeader(name, dtype, shape, unit=unit, attributes=strings)
    if dtype is None:
        return header
    packed, rule, default = packing(attributes, dtype), missing(attributes, dtype), default_fill(dtype)
    if inputs.any_type and any(value != value for value in fill_values(attributes)):  # noqa: PLR0124 - a NaN
        rule = (rule or Missing())._replace(nan=True)  # elements are only compared, so the option `nan` has no effect
        packed = packed and packed._replace(missing=rule)
    header = header._replace(missing=rule, packing=packed)
    if not (default is None or dtype.itemsize == 1 or {FILL, MISSING} & attributes.keys() or rule):
        unset = default if packed is None else packed.unpack(default)[0]
        header = header._replace(unset=unset.item())
    if packed is None:
        return header
    if inputs.unpack and not inputs.window and not packed.bad_attribute:
        return header._replace(dtype=packed.scale.dtype)
    reason = f"{label} is packed by {' and '.join(f'`{key}`' for key in (SCALE, OFFSET) if key in attributes)}"
    may_lack = packed.missing is not None and not inputs.nullable
    skipping = ", and skip missing values with `nulls='ignore'`" if may_lack else ""
    hint = f"unpack it with `unpack`{skipping}"
    if packed.bad_attribute:
        reason, hint = f"{reason}, and `{packed.bad_attribute}` is not a number", ""
    elif inputs.window:
        reason = f"{reason}, and packed elements are not updated"
        hint = "update a file with its values instead, which `reduce --op first --unpack` writes"
    return header._replace(dtype=None, label=dtype_text(dtype), reason=reason, hint=hint)


def auxiliary_names(variables: Sequence[Variable]) -> Collection[str]:
    """Return the names, with groups, of auxiliary arrays."""
    names: set[str] = set()
    by_last: dict[str, list[Variable]] = {}
    for variable in variables:
        attributes, dims, last = variable.attributes, variable.dims, variable.name.rpartition("/")[2]
        by_last.setdefault(last, []).append(variable)
        is_named = bool(last) and (last in dims or (last in _AUXILIARY_NAMES and any(dims)))
        # Without names of dimensions, `axis` may be the direction in which values were measured.
        keys = (key for key in _COORDINATE_PATTERNS.keys() & attributes.keys() if key != "axis" or all(dims))
        is_coordinate = any(_COORDINATE_PATTERNS[key].fullmatch(text(attributes, key)) for key in keys)
        if is_named or is_coordinate or not attributes.keys().isdisjoint(_AUXILIARY):
            names.add(variable.name)
    for variable in variables:
        for name in _referenced_names(variable.attributes):
            others = by_last.get(name.rpartition("/")[2], ())
            names.update(other.name for other in others if other is not variable)
    return names


def _referenced_names(attributes: Attributes) -> Iterator[str]:
    """Yield the words of attributes that may be names of auxiliary arrays."""
    for name in _NAMING.keys() & attributes.keys():
        role = ""
        for word in text(attributes, name).replace(":", ": ").split():
            role = word[:-1] if word.endswith(":") else role
            if role not in _MEASURED_TERMS and (_NAMING[name] or not word.endswith(":")):
                yield word.removesuffix(":")


def default_fill(dtype: np.dtype) -> np.ndarray | None:
    """Return netCDF's fill value for a type; None without one."""
    code = dtype.newbyteorder("=").str[1:]
    return np.asarray(_FILLS[code], dtype.newbyteorder("=")) if code in _FILLS else None


def converted(value: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Return the numbers of an attribute in another type; None if the type cannot hold them."""
    with np.errstate(all="ignore"):
        new = value.astype(dtype.newbyteorder("="))
        return new if np.array_equal(new.astype(value.dtype), value, equal_nan=value.dtype.kind in "fc") else None


def result_attributes(
    attributes: Attributes, stored: np.dtype, dtype: np.dtype, *, is_same: bool, nullable: bool
) -> tuple[dict[str, np.ndarray], Collection[str]]:
    """Return attributes in the type of a result, and the names of attributes of its model that it does not keep."""
    is_packed = packing(attributes, stored) is not None
    if is_same and not is_packed and not nullable:
        return {}, ()
    typed = {} if is_packed else {name: attributes[name] for name in OF_THE_TYPE if name in attributes}
    candidates = {name: converted(value, dtype) for name, value in typed.items() if isinstance(value, np.ndarray)}
    new = {name: value for name, value in candidates.items() if value is not None}
    lacks_fill = (FILL in attributes and FILL not in new) or (nullable and not {FILL, MISSING} & new.keys())
    if lacks_fill and (default := default_fill(dtype)) is not None:
        new[FILL] = default.reshape(1)
    scaling = (SCALE, OFFSET) if is_packed else ()
    return new, {*OF_THE_TYPE, *scaling, *(() if is_same and not is_packed else (UNSIGNED,))}


def is_netcdf_name(name: str) -> bool:
    """Return whether the netCDF library allows a name for a new variable or dimension."""
    return bool(_NETCDF_NAME.fullmatch(name)) and len(name.encode("utf-8", "surrogateescape")) <= _MAX_NAME_NBYTES


def dimension_names(name: str, length: int) -> Iterator[str]:
    """Yield names for a new dimension, its own name first: a dimension of another length may have it."""
    names = [name] if length and is_netcdf_name(name) else []
    return itertools.chain(names, (f"dim_{length}{'_' * number}" for number in itertools.count()))


def unit_power(unit: str, power: int) -> str:
    """Return a power of a unit in the syntax of UDUNITS: the square of `m s-1` is `m2 s-2`."""
    unit = unit.strip().partition(" since ")[0]
    if power == 0 or unit.lower() in _NO_UNITS:
        return unit if power else "1"
    factors = [re.fullmatch(_FACTOR, factor) for factor in unit.split()]
    if not all(factors):
        return unit if power == 1 else f"({unit}){power}"
    powers = [(factor[1], int(factor[2] or 1) * power) for factor in factors if factor is not None]
    return " ".join(name if number == 1 else f"{name}{number}" for name, number in powers)
