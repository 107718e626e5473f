"""The one-sided calls: from options to a request with checked origins (MPI-4.1, 12.3)."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mpired import datatypes, log, ops
from mpired.context import Context
from mpired.datatypes import Datatype, Group, value_index
from mpired.datatypes.dtypes import BY_NAME
from mpired.errors import DatatypeError, MpiredError, MpiredWarning, OpError, RanksError, UsageError, with_others
from mpired.files.places import check_are_data, inode
from mpired.formats import Array, InputOptions, Model, open_rank
from mpired.formats.input_options import ORDERS
from mpired.formats.memory import ArrayRank
from mpired.log import step
from mpired.ops.rules import holds, real_type
from mpired.options import INPUTS, PLACES, RANKING, WINDOW_VALUES, Options, PathLike, checked, part
from mpired.ranks.opening import OpenedRanks, check_alike, check_formats, skipped_warning
from mpired.ranks.order import path_of
from mpired.sources.directory import check_one_file
from mpired.windows.once import Key, keys_of
from mpired.windows.origin import Origin, OriginLike, file_of, open_origin
from mpired.windows.placement import NO_ORIGIN, OriginShape, Placement
from mpired.windows.value import element_of


@dataclass(frozen=True)
class WindowRequest:
    """A call on windows, with all checks done that need no lock."""

    windows: Sequence[str]  # the files, one for each rank of the window
    op: ops.Op
    inputs: InputOptions  # options that describe the files
    placement: Placement
    commit: str = "auto"  # "rename", "journal" or "auto"
    durable: bool = True  # whether the disk must confirm a change
    origins: Sequence[Sequence[Origin]] = ()  # the arrays of each origin; a file with columns has several
    whole: bool = False  # whether all elements of the origins are combined
    origin_shape: OriginShape = NO_ORIGIN  # if no origin is read
    keys: Mapping[Key, Sequence[int]] = field(default_factory=dict)  # to record, with the numbers of their origins
    fetch: bool = False  # whether the old elements are returned
    create: Model | None = None  # of missing targets; `None` if these are an error
    expected: np.ndarray | None = None  # the element without which nothing changes (MPI_Compare_and_swap)
    # adds the elements of the call when the datatype of the windows is known; `None` if they are there
    complete: Callable[[WindowRequest, Datatype], WindowRequest] | None = None
    warnings: Sequence[MpiredWarning] = ()
    accumulate_in: Datatype | None = None  # the datatype of the windows, if origins may have narrower ones


def plan_accumulate(
    windows: Sequence[PathLike], origins: Sequence[OriginLike], op: ops.OpLike, options: Options, context: Context
) -> WindowRequest:
    """Check the options and the origins of an accumulate, and return the request."""
    if not origins:
        raise UsageError("ORIGIN", "there is none; name at least one file after the target")
    if options["once_key"] == "":
        raise UsageError("`once_key`", "'' is not a key; give a string such as 'run 5'")
    return _request(windows, origins, _resolve(op, ops.Use.ACCUMULATE, options), options, context, options)


def plan_get_accumulate(
    windows: Sequence[PathLike], origin: OriginLike | None, op: ops.OpLike, options: Options, context: Context
) -> WindowRequest:
    """Check a get_accumulate, and return the request; NO_OP ignores the origin (MPI-4.1, 12.3.4)."""
    row = _resolve(op, ops.Use.FETCH, options)
    if origin is None and row.origin:
        raise UsageError("ORIGIN", f"{row} needs an origin, which is missing (MPI-4.1, 12.3.4)")
    request = _request(windows, [] if origin is None else [origin], row, options, context)
    return replace(request, fetch=True)


def _check_names(windows: Sequence[PathLike], indices: object = None) -> list[str]:
    """Return the paths of windows, checked to be different files of data."""
    check_are_data([*windows, indices])
    errors: list[MpiredError] = []
    for window in windows:
        try:
            check_one_file(os.fspath(window))
        except MpiredError as error:
            errors.append(error)
    if errors:
        raise with_others(errors[0], errors[1:])
    identities: set[object] = set()
    for window in windows if len(windows) > 1 else ():
        try:
            identities.add(inode(os.stat(window)))
        except OSError:  # a missing file
            identities.add(os.path.realpath(window))
    if len(identities) not in {0, len(windows)}:
        raise UsageError("`windows`", "names one file twice; each window is a file of its own")
    return [os.fspath(window) for window in windows]


def plan_fetch_and_op(
    windows: Sequence[PathLike], value: object, op: ops.OpLike, options: Options, context: Context
) -> WindowRequest:
    """Check a fetch_and_op on one element, and return the request; NO_OP is an atomic read."""
    row = _resolve(op, ops.Use.FETCH, options)
    if value is None and row.origin:
        raise UsageError("VALUE", f"{row} needs a value, which is missing (MPI-4.1, 12.3.5)")
    values = [] if value is None else [value]
    request = _element_request(windows, values, row, options, context)
    return request if options["create"] is None else _with_create(request, options)


def plan_compare_and_swap(
    windows: Sequence[PathLike], compare: object, value: object, options: Options, context: Context
) -> WindowRequest:
    """Check a compare_and_swap, and return the request: `value` replaces an element with the bits of `compare`."""
    row = ops.with_rules(ops.COMPARE_AND_SWAP, part(WINDOW_VALUES, options), window=True)
    return _element_request(windows, [value], row, options, context, compare=compare)


def _element_request(
    windows: Sequence[PathLike],
    values: Sequence[object],
    op: ops.Op,
    options: Options,
    context: Context,
    *,
    compare: object = None,
) -> WindowRequest:
    """Return the request of a call on one element; `values` has the operand, if any."""
    operands = values if op.origin else ()
    windows = _check_names(windows)
    inputs = InputOptions.of(part(INPUTS, options), context)._replace(op_groups=op.groups)
    inputs = inputs._replace(nullable=op.rules.nulls != "error")
    places = checked(PLACES, options)
    if places["at"] is None:
        places |= {"target_disp": places["target_disp"] or 0, "target_count": 1}

    def complete(request: WindowRequest, datatype: Datatype) -> WindowRequest:
        ops.check_buffers(op, [("", datatype)], ops.Use.FETCH)
        is_swap = op.name == ops.COMPARE_AND_SWAP.name
        expected = element_of(compare, datatype, "COMPARE", inputs) if is_swap else None
        typed_inputs = inputs._replace(datatype=datatype, type_order=None)
        ranks = [ArrayRank("VALUE", element_of(value, datatype, "VALUE", inputs)) for value in operands]
        origins = [[Origin(open_rank(rank, typed_inputs).only_buffer(), context)] for rank in ranks]
        warnings = log.unused_warnings(op, values[len(operands) :])
        return replace(request, origins=origins, expected=expected, complete=None, warnings=warnings)

    # Without `type` the datatype is that of the file, which is read under the lock.
    placement = Placement.of(places, len(windows), context)
    request = WindowRequest(
        windows, op, inputs, placement, options["commit"], options["durability"] == "full",
        origin_shape=OriginShape("VALUE", 1), fetch=True, complete=complete,
    )  # fmt: skip
    return request if inputs.datatype is None else complete(request, inputs.datatype)


_ALL: Options = checked(RANKING, {})
_ORIGIN_HINTS = {"number": "", "count": "", "shape": ""}  # for `check_alike`: origins may differ otherwise


def _request(
    windows: Sequence[PathLike],
    origins: Sequence[OriginLike],
    op: ops.Op,
    options: Options,
    context: Context,
    ranking: Options = _ALL,
) -> WindowRequest:
    """Open the origins, and return the request; `ranking` has the options for the order of origins."""
    names = _check_names(windows, options["map"])
    warnings: Sequence[MpiredWarning] = (
        log.same_file_warnings(names, list(map(path_of, origins)), options["map"])
        if op.origin
        else log.unused_warnings(op, origins)
    )
    inputs = InputOptions.of(options, context)
    type_name = options["accumulate_in"]
    wide = None if type_name is None else real_type(type_name, "accumulate_in")
    component, target, derived = inputs.datatype, None, None
    if any(options[name] is not None for name in ("types", "target_type", "origin_type")):
        common, target, derived = _derived_types(options, component if wide is None else wide)
        component = common if wide is None else component
    inputs = inputs._replace(datatype=component, op_groups=op.groups, nullable=op.rules.nulls != "error")
    placement = Placement.of(options, len(names), context, target)
    # With `skip_bad`, origins with another datatype than the first are skipped; else only that of the target counts.
    datatype_hint = "" if ranking["skip_bad"] and wide is None else None

    def inspect(opened: OpenedRanks, origin: OriginLike, inputs: InputOptions, _number: int) -> list[Origin]:
        arrays = open_origin(origin, inputs, options, derived)
        for array in arrays:
            if wide is not None and not holds(wide, array.datatype):
                reason = f"has datatype {array.datatype.label}, of which {wide.label} does not hold all values"
                raise DatatypeError(array.name, f"{reason}; convert it first")
        if opened.files:
            first = file_of(opened.files[0])
            labels, file = ("", repr(first.source.name)), file_of(arrays).in_order_of(first)
            check_alike(file, first.buffers, labels, _ORIGIN_HINTS, lambda _: datatype_hint)
        return arrays

    with step("opening and checking the origins"):
        lenient = inputs._replace(nullable=True)  # elements that the call does not combine may be missing
        try:
            opened = OpenedRanks(origins if op.origin else (), lenient, ranking, inspect, "origins")
        except (DatatypeError, RanksError):  # its hint is of no use if a target has an error, too
            _check_targets(names, lenient)
            raise
    if opened.skipped:
        warnings = [skipped_warning(opened.skipped, len(opened.files) + len(opened.skipped), "origins"), *warnings]
    is_whole = not (options["origin_disp"] or options["origin_type"]) and options["origin_count"] is None
    request = WindowRequest(
        names, op, inputs, placement, options["commit"], options["durability"] == "full",
        origins=opened.files, whole=is_whole, accumulate_in=wide, warnings=warnings,
    )  # fmt: skip
    if inputs.is_particular:  # `offset` and `count` describe origins only; targets are checked later
        formats = {origin.format for arrays in opened.files for origin in arrays if origin.format}
        check_formats(InputOptions(offset=inputs.offset, count=inputs.count), formats)
    if options.get("once") or options.get("once_key") is not None:
        request = replace(request, keys=keys_of(opened.files, opened.arguments, op, options, placement.indices))
    return request if options["create"] is None else _with_create(request, options)


def _check_targets(names: Sequence[str], inputs: InputOptions) -> None:
    """Raise the error of a target, if there is one that needs no lock."""
    target_inputs = InputOptions(columns=inputs.columns, window=True, nullable=True, context=inputs.context)
    with contextlib.suppress(OSError, UsageError):
        for name in names:
            open_rank(name, target_inputs).check(inputs.op_groups)


def _with_create(request: WindowRequest, options: Options) -> WindowRequest:
    """Return the request with the model of missing windows."""
    create: Any = options["create"]
    inputs, first = request.inputs, next(iter(request.origins), ())
    declared = request.accumulate_in or inputs.datatype
    if declared is None and not first:
        if request.complete is not None and all(map(os.path.exists, request.windows)):
            return request  # existing files have the datatype
        raise UsageError("`create`", "needs `type`, the type of the elements")
    if create is True and not first:
        raise UsageError("`create`", "makes a target like an origin, and there is none; give a count or a shape")
    if create is True:
        models = [origin.model(whole=request.whole) for origin in first]
        source = models[0].source if len({model.source for model in models}) == 1 else None
        buffers = [array for model in models for array in model.buffers]
        if (wide := request.accumulate_in) is not None:
            # The header of the origin has another datatype, so that the target cannot begin as its copy.
            buffers, source = [array.of_datatype(wide) for array in buffers], None
        model = models[0]._replace(buffers=tuple(buffers), source=source)
    else:
        datatype, order = declared or first[0].datatype, ORDERS[inputs.byte_order or inputs.type_order]
        model = Model(None, (Array.of_result(datatype, math.prod(create), create, order),))
    for array in model.buffers:
        ops.neutral(request.op, array.datatype)  # raises if the op has no identity
    return replace(request, create=model)


def _resolve(op: ops.OpLike, use: ops.Use, options: Options) -> ops.Op:
    """Return a predefined op; one-sided calls have no user-defined ops (MPI-4.1, 12.3.4)."""
    if (row := ops.resolve(op, use=use)) is None:
        raise OpError("`op`", "one-sided calls take predefined ops only (MPI-4.1, 12.3.4), no function")
    if use not in row.uses:
        raise ops.use_error(row, use)
    return ops.with_rules(row, part(WINDOW_VALUES, options), window=True)


def _derived_types(
    options: Options, declared: Datatype | None
) -> tuple[Datatype | None, Datatype | None, Datatype | None]:
    """Return the predefined type of all components, and the derived types of target and origin (MPI-4.1, 12.3.4)."""
    # A derived type is None for contiguous elements.
    types = options["types"]
    defined = None if types is None else datatypes.definitions(os.fspath(types))
    declared_by = "`type`" if options["accumulate_in"] is None else "`accumulate_in`"
    components = {} if declared is None else {declared_by: declared}
    derived: list[Datatype | None] = []
    for option in ("target_type", "origin_type"):
        datatype = None
        if (text := options[option]) is not None:
            datatype, order = datatypes.parse(text, defined)
            if order is not None:
                raise UsageError(f"`{option}`", f"{text!r} says a byte order; `byte_order` says that of raw files")
            component = component_of(datatype)
            if component is not None:
                components[f"`{option}`"] = component
            datatype = None if component is datatype else datatype
        derived.append(datatype)
    first, common = next(iter(components.items()), ("", None))
    for option, component in components.items():
        if component is not common:
            label, first_label = (datatype.label if datatype else "nothing" for datatype in (component, common))
            reason = f"has components of {label}, but {first} of {first_label}; both need the same (MPI-4.1, 12.3.4)"
            raise DatatypeError(option, reason)
    return common, derived[0], derived[1]


def component_of(datatype: Datatype) -> Datatype | None:
    """Return the predefined datatype of all components, with pairs as components; None without components."""
    if datatype.structure is None and datatype.group is not Group.DERIVED:
        return datatype
    components = (part for part in datatype.typemap.inside(lambda part: part.is_component) if part.is_component)
    types = {tuple(entry.name for entry in component.walk()) for component in components}
    if not types:
        return None
    if len(types) > 1:
        labels = ", ".join(sorted("+".join(names) for names in types))
        reason = f"has components of {len(types)} types ({labels}); all have to be of one (MPI-4.1, 12.3.4)"
        raise DatatypeError(f"{datatype}", reason)
    names = tuple(name.upper() for name in types.pop())
    if len(names) == 1:
        return BY_NAME[names[0]]
    pair = value_index(*(BY_NAME[name] for name in names))
    assert pair is not None  # noqa: S101 - the components come from the pair
    return pair
