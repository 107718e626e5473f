"""Attributes of arrays by the conventions of netCDF and of climate and forecast data (CF).

They name missing values, units, packing, and the arrays without measured values: coordinates, their bounds, times.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from mpired.formats.arrays import ArrayHeader
from mpired.formats.input_options import InputOptions
from mpired.formats.missing import Missing, NullsError
from mpired.formats.rank import dtype_text

Attribute: TypeAlias = np.ndarray | str  # the value of an attribute: numbers in one dimension, or a text
Attributes: TypeAlias = Mapping[str, Attribute]

FILL, MISSING, RANGE, LEAST, GREATEST = "_FillValue", "missing_value", "valid_range", "valid_min", "valid_max"
LIMITS = (RANGE, LEAST, GREATEST)
ACTUAL = "actual_range"  # of the values in the array, which those of a result seldom have
OF_THE_TYPE = (FILL, MISSING, *LIMITS)  # the attributes whose values are of the type of the array
DIMENSIONS = "_ARRAY_DIMENSIONS"  # of xarray in Zarr
SCALE, OFFSET, UNSIGNED = "scale_factor", "add_offset", "_Unsigned"
_SIGNS = {("i", "true"): "u", ("u", "false"): "i"}
# Attributes that name variables, of CF (appendix A) and UGRID. A word with a colon is the role of the name after it, or
# a name, too, where the value here is True. What `ancillary_variables` names is data, which changes as its array does.
_PARTS = ("node", "edge", "face", "volume")
_NAMING = dict.fromkeys(
    (
        "coordinates", "bounds", "bounds_tie_points", "climatology", "cell_measures", "external_variables", "geometry",
        "interior_ring", "node_count", "nodes", "part_node_count", "formula_terms", "interpolation_parameters",
        "tie_point_mapping", "quantization", "aggregated_data", "mesh", "location_index_set",
        *(f"{part}_coordinates" for part in _PARTS),
        *(f"{one}_{other}_connectivity" for one in (*_PARTS, "boundary") for other in _PARTS),
    ), False,
) | {"grid_mapping": True, "coordinate_interpolation": True}  # fmt: skip
_CHANGING = ("eta", "ps")  # terms of formulas that are fields: the surface of the sea, the pressure at the ground
# Attributes of arrays that describe others, and of flags.
_MARKS = (
    "flag_values", "flag_masks", "flag_meanings", "cf_role", "sample_dimension", "instance_dimension", "formula_terms",
    "grid_mapping_name", "geometry_type", "interpolation_name",
)  # fmt: skip
# What the values of attributes have to be that tell coordinates.
_TELLING = {
    "axis": re.compile(r"[XYZT]", re.IGNORECASE),
    "standard_name": re.compile(
        r"(grid_)?(latitude|longitude)|time|forecast_(reference_time|period)|projection_[xy]_(angular_)?coordinate"
    ),
    "units": re.compile(r"\s*(\w+\s+since\s.*|degrees?_?(north|east|N|E)\s*)", re.IGNORECASE | re.DOTALL),
}
_NAMES = ("gw", "area", "date", "datesec")  # of weights, areas and dates of models that say so in no attribute
PLACES = (
    "coordinates", "grid_mapping", "cell_measures", "coordinate_interpolation", "geometry", "mesh", "location",
    "location_index_set", DIMENSIONS, "_Netcdf4Coordinates", "DIMENSION_LABELS",
)  # fmt: skip
"""The attributes that say where the elements of an array are, whatever their values mean."""
METHODS, ANCILLARY = "cell_methods", "ancillary_variables"
DTYPE = "dtype"  # of xarray: the type of the values, such as bool, which are stored as others
MEANING = (
    *OF_THE_TYPE, ACTUAL, SCALE, OFFSET, *_NAMING, *_MARKS, *_TELLING, "calendar", UNSIGNED, METHODS, ANCILLARY, DTYPE,
)  # fmt: skip
"""All attributes that mean something here."""
# Strings that describe a coordinate, or name those of an array.
_DESCRIBING = (
    "units", "calendar", "standard_name", "axis", "bounds", "climatology", "coordinates", METHODS, ANCILLARY, DTYPE,
)  # fmt: skip
_FACTOR = re.compile(r"([^\W\d¹²³⁰⁴-⁹]+)(-?\d+)?")  # of a unit: a name and its power
_NO_UNITS = ("", "1", "-", "none", "no unit", "no units", "unitless", "dimensionless")
# netCDF's own, of elements that were never written.
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
    """The values that elements stand for: themselves times a scale, plus an offset."""

    scale: np.ndarray  # of the form of the values, as the offset
    offset: np.ndarray
    missing: Missing | None  # which elements are missing; None if none is
    form: np.dtype  # the form that the elements are read in
    wrong: str = ""  # the attribute that is not one number, so that nothing can be unpacked; "" if both are

    def unpacked(self, values: np.ndarray, *, nullable: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the values of elements, and which are valid; None if all are, which they have to be."""
        values = values.astype(self.form, copy=False)
        there = None if self.missing is None else self.missing.present(values)
        if there is not None and not nullable:
            raise NullsError(int(np.count_nonzero(~there)))
        with np.errstate(over="ignore", invalid="ignore"):  # as in the arithmetic of the ops
            return values.astype(self.scale.dtype) * self.scale + self.offset, there


def text_of(octets: bytes) -> str:
    """Return a name as text."""
    return octets.decode("utf-8", "surrogateescape")


def octets_of(text: str) -> bytes:
    """Return the bytes of a name."""
    return text.encode("utf-8", "surrogateescape")


def text(attributes: Attributes, name: str) -> str:
    """Return an attribute that is a text; "" for none."""
    found = attributes.get(name, "")
    return found if isinstance(found, str) else ""


def numbers(attributes: Attributes, name: str, count: int | None = None) -> list[float]:
    """Return an attribute of `count` numbers; [] if it is another one."""
    found = attributes.get(name, "")
    if isinstance(found, str) or found.dtype.kind not in "iuf":
        return []
    values = found.reshape(-1).tolist()
    return values if count in (None, len(values)) else []


def marks(attributes: Attributes) -> list[float]:
    """Return the values that mean that an element is missing, of which a result takes the first; [] if none does."""
    return numbers(attributes, FILL) + numbers(attributes, MISSING)


def missing(attributes: Attributes, dtype: np.dtype) -> Missing | None:
    """Return which values of an array mean that an element is missing; None if none does."""
    if dtype.kind not in "iuf":
        return None
    each_mark = dict.fromkeys(marks(attributes))
    values = tuple(float(each) if dtype.kind == "f" else each for each in each_mark if each == each)  # noqa: PLR0124 - no NaN
    least, greatest = (numbers(attributes, name, 1) for name in (LEAST, GREATEST))
    limits = numbers(attributes, RANGE, 2)
    low, high = limits or (least[0] if least else None, greatest[0] if greatest else None)
    return Missing(values, low, high) if values or (low, high) != (None, None) else None


def viewed(attributes: Attributes, dtype: np.dtype) -> tuple[Attributes, np.dtype]:
    """Return attributes and the form of elements as `_Unsigned` says, whether integers of the file have a sign."""
    kind = _SIGNS.get((dtype.kind, text(attributes, UNSIGNED).lower()))
    if kind is None:
        return attributes, dtype
    form = np.dtype(f"{dtype.byteorder}{kind}{dtype.itemsize}")
    own = {key: value for key, value in attributes.items() if key in OF_THE_TYPE and isinstance(value, np.ndarray)}
    return {**attributes, **{key: value.astype(form) for key, value in own.items() if value.dtype.kind in "iu"}}, form


def packing(attributes: Attributes, dtype: np.dtype) -> Packed | None:
    """Return how an array is packed; None if it is not, or if numbers of floating point stand for themselves."""
    keys = [key for key in (SCALE, OFFSET) if key in attributes]
    if dtype.kind not in "iuf" or not keys:
        return None
    given = {key: np.asarray(attributes[key]).reshape(()) for key in keys if numbers(attributes, key, 1)}
    wrong = next((key for key in keys if key not in given), "")
    form = np.result_type(*[value.dtype for value in given.values()] or [np.dtype("f8")]).newbyteorder("=")
    form = form if form.kind == "f" else np.dtype("f8")
    scale, offset = (np.asarray(given.get(key, default), form) for key, default in ((SCALE, 1), (OFFSET, 0)))
    if dtype.kind == "f" and scale == 1 and offset == 0 and not wrong:
        return None
    return Packed(scale, offset, missing(attributes, dtype), dtype.newbyteorder("="), wrong)


def header(
    name: str, shape: tuple[int, ...], attributes: Attributes, dtype: np.dtype | None, inputs: InputOptions, what: str
) -> ArrayHeader:
    """Describe an array by its attributes and the form of its elements, None if these are not numbers."""
    strings = {key: value for key in _DESCRIBING if isinstance(value := attributes.get(key), str)}
    if ACTUAL in attributes:
        strings[ACTUAL] = ACTUAL  # only that it is there matters
    unit = " ".join(text(attributes, "units").split())[:80]
    found = ArrayHeader(name, dtype, shape, unit=unit, attributes=strings)
    if dtype is None:
        return found
    packed, default = packing(attributes, dtype), default_fill(dtype)
    rule = missing(attributes, dtype)
    if inputs.any_type and any(each != each for each in marks(attributes)):  # noqa: PLR0124 - a NaN
        rule = (rule or Missing())._replace(nan=True)  # elements are only compared, so `nan` decides nothing
        packed = packed and packed._replace(missing=rule)
    found = found._replace(missing=rule, packing=packed)
    if not (default is None or dtype.itemsize == 1 or {FILL, MISSING} & attributes.keys() or found.missing):
        unset = default if packed is None else packed.unpacked(default, nullable=True)[0]
        found = found._replace(unset=unset.item())
    if packed is None:
        return found
    if inputs.unpack and not inputs.window and not packed.wrong:
        return found._replace(dtype=packed.scale.dtype)
    reason = f"{what} is packed by {' and '.join(f'`{key}`' for key in (SCALE, OFFSET) if key in attributes)}"
    lacks = ", and skip missing values with `nulls='ignore'`" if packed.missing is not None else ""
    hint = f"unpack it with `unpack`{lacks}"
    if packed.wrong:
        reason, hint = f"{reason}, and `{packed.wrong}` is not a number", ""
    elif inputs.window:
        reason = f"{reason}, and packed elements are not updated"
        hint = "update a file with its values instead, which `reduce --op first --unpack` writes"
    return found._replace(dtype=None, label=dtype_text(dtype), reason=reason, hint=hint)


def carried(variables: Sequence[Variable]) -> Collection[str]:
    """Return the names of the arrays, some of them in groups, that describe others and are copied into results."""
    found: set[str] = set()
    by_end: dict[str, list[Variable]] = {}
    for each in variables:
        attributes, last = each.attributes, each.name.rpartition("/")[2]
        by_end.setdefault(last, []).append(each)
        is_named = bool(last) and (last in each.dims or (last in _NAMES and any(each.dims)))
        # A plain array may say of the direction that it measures that it is an axis; not if names are dimensions.
        telling = (name for name in _TELLING.keys() & attributes.keys() if name != "axis" or all(each.dims))
        tells = any(_TELLING[name].fullmatch(text(attributes, name)) for name in telling)
        if is_named or tells or not attributes.keys().isdisjoint(_MARKS):
            found.add(each.name)
    for each in variables:
        for word in _named(each.attributes):
            found.update(named.name for named in by_end.get(word.rpartition("/")[2], ()) if named is not each)
    return found


def _named(attributes: Attributes) -> Iterator[str]:
    """Yield the words of attributes that may be names of variables, but for those of terms that change."""
    for name in _NAMING.keys() & attributes.keys():
        role = ""
        for word in text(attributes, name).replace(":", ": ").split():
            role = word[:-1] if word.endswith(":") else role
            if role not in _CHANGING and (_NAMING[name] or not word.endswith(":")):
                yield word.removesuffix(":")


def default_fill(dtype: np.dtype) -> np.ndarray | None:
    """Return netCDF's fill value for a form; None if it has none."""
    code = dtype.newbyteorder("=").str[1:]
    return np.asarray(_FILLS[code], dtype.newbyteorder("=")) if code in _FILLS else None


def converted(value: np.ndarray, dtype: np.dtype) -> np.ndarray | None:
    """Return the numbers of an attribute in another form; None if they have none there."""
    with np.errstate(all="ignore"):
        new = value.astype(dtype.newbyteorder("="))
        return new if np.array_equal(new.astype(value.dtype), value, equal_nan=value.dtype.kind in "fc") else None


def of_result(
    attributes: Attributes, stored: np.dtype, dtype: np.dtype, *, is_same: bool, nullable: bool
) -> tuple[dict[str, np.ndarray], Collection[str]]:
    """Return the attributes that a result has in its own form, and those of its model that it has not as they are."""
    unpacked = packing(attributes, stored) is not None
    if is_same and not unpacked and not nullable:
        return {}, ()
    found = {} if unpacked else {name: attributes[name] for name in OF_THE_TYPE if name in attributes}
    new = {name: converted(value, dtype) for name, value in found.items() if isinstance(value, np.ndarray)}
    own = {name: value for name, value in new.items() if value is not None}
    lacks = (FILL in attributes and FILL not in own) or (nullable and not {FILL, MISSING} & own.keys())
    if lacks and (default := default_fill(dtype)) is not None:
        own[FILL] = default.reshape(1)
    of_values = (SCALE, OFFSET) if unpacked else ()
    return own, {*OF_THE_TYPE, *of_values, *(() if is_same and not unpacked else (UNSIGNED,))}


def dimension_names(name: str, length: int) -> Iterator[str]:
    """Yield names for a new dimension, its own first: one may belong to a dimension of another length."""
    own = [name] if name and length and "/" not in name else []
    return itertools.chain(own, (f"dim_{length}{'_' * more}" for more in itertools.count()))


def powered(unit: str, power: int) -> str:
    """Return a power of a unit, as UDUNITS writes it: `m s-1` is squared as `m2 s-2`."""
    unit = unit.strip().partition(" since ")[0]
    if power == 0 or unit.lower() in _NO_UNITS:
        return unit if power else "1"
    factors = [_FACTOR.fullmatch(word) for word in unit.split()]
    if not all(factors):
        return unit if power == 1 else f"({unit}){power}"
    powers = [(found[1], int(found[2] or 1) * power) for found in factors if found is not None]
    return " ".join(name if number == 1 else f"{name}{number}" for name, number in powers)


def fill(attributes: Attributes, dtype: np.dtype) -> np.ndarray | None:
    """Return the value of missing elements of a result; None if there is none."""
    found = marks(attributes)
    return np.asarray(found[0]) if found else default_fill(dtype)
