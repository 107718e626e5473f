"""The one-sided calls: from their options to a request (MPI-4.1, 12.3)."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from mpired.ranks.opening import OpenedRanks, check_formats, skipped_warning
from mpired.ranks.order import path_of
from mpired.sources.directory import check_one_file
from mpired.windows.once import Key, keys_of
from mpired.windows.origin import Origin, OriginLike, check_like, open_origin
from mpired.windows.placement import NO_ORIGIN, OriginShape, Placement
from mpired.windows.value import element_of


@dataclass(frozen=True)
class WindowRequest:
    """A call on windows that has passed all checks that need no lock."""

    windows: Sequence[str]  # the files, one a rank of the window
    op: ops.Op
    inputs: InputOptions  # options that describe the files
    placement: Placement
    commit: str = "auto"  # "rename", "journal" or "auto"
    durable: bool = True  # whether the disk has to confirm a change
    origins: Sequence[Sequence[Origin]] = ()  # the arrays of each, of which a file with columns has several
    whole: bool = False  # whether the origins are whole files
    origin_shape: OriginShape = NO_ORIGIN  # if no origin is read
    keys: Mapping[Key, Sequence[int]] = field(default_factory=dict)  # to remember, each with the numbers of its origins
    fetch: bool = False  # whether the old elements are returned
    create: Model | None = None  # of targets that are missing; they are whole files like it if the origins are
    expected: np.ndarray | None = None  # the element that there has to be, or nothing changes (MPI_Compare_and_swap)
    # returns it with its elements, when the datatype of the windows is known; `None` if it has them
    complete: Callable[[WindowRequest, Datatype], WindowRequest] | None = None
    doubts: Sequence[MpiredWarning] = ()
    within: Datatype | None = None  # the datatype of the windows, if origins may have others that it holds


def plan_accumulate(
    windows: Sequence[PathLike], origins: Sequence[OriginLike], op: ops.OpLike, options: Options, context: Context
) -> WindowRequest:
    """Check an accumulate as far as possible without the lock: options, and every origin, applied in order."""
    if not origins:
        raise UsageError("ORIGIN", "there is none; name at least one file after the target")
    if options["once_key"] == "":
        raise UsageError("`once_key`", "'' is not a key; give a string such as 'run 5'")
    return _request(windows, origins, _resolve(op, ops.Use.ACCUMULATE, options), options, context, options)


def plan_get_accumulate(
    windows: Sequence[PathLike], origin: OriginLike | None, op: ops.OpLike, options: Options, context: Context
) -> WindowRequest:
    """Check a get_accumulate, like `plan_accumulate`; NO_OP ignores the origin (MPI-4.1, 12.3.4)."""
    chosen = _resolve(op, ops.Use.FETCH, options)
    if origin is None and chosen.origin:
        raise UsageError("ORIGIN", f"{chosen} needs an origin, which is missing (MPI-4.1, 12.3.4)")
    request = _request(windows, [] if origin is None else [origin], chosen, options, context)
    return replace(request, fetch=True)


def _names(windows: Sequence[PathLike], indices: object = None) -> list[str]:
    """Return the names of windows, which are different files of data; those of origins were checked by the caller."""
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
        except OSError:  # it does not exist yet
            identities.add(os.path.realpath(window))
    if len(identities) not in {0, len(windows)}:
        raise UsageError("`windows`", "names one file twice; each window is a file of its own")
    return [os.fspath(window) for window in windows]


def plan_fetch_and_op(
    windows: Sequence[PathLike], value: object, op: ops.OpLike, options: Options, context: Context
) -> WindowRequest:
    """Check a fetch_and_op on one element, like `plan_accumulate`; NO_OP is an atomic read."""
    chosen = _resolve(op, ops.Use.FETCH, options)
    if value is None and chosen.origin:
        raise UsageError("VALUE", f"{chosen} needs a value, which is missing (MPI-4.1, 12.3.5)")
    values = [] if value is None else [value]
    request = _on_one_element(windows, values, chosen, options, context)
    return request if options["create"] is None else _with_create(request, options)


def plan_compare_and_swap(
    windows: Sequence[PathLike], compare: object, value: object, options: Options, context: Context
) -> WindowRequest:
    """Check a compare_and_swap: the element becomes `value` if it is `compare`, bit by bit (MPI-4.1, 12.3.5)."""
    chosen = ops.with_policies(ops.COMPARE_AND_SWAP, part(WINDOW_VALUES, options), window=True)
    return _on_one_element(windows, [value], chosen, options, context, compare=compare)


def _on_one_element(
    windows: Sequence[PathLike],
    values: Sequence[object],
    op: ops.Op,
    options: Options,
    context: Context,
    *,
    compare: object = None,
) -> WindowRequest:
    read = values if op.origin else ()
    windows = _names(windows)
    inputs = InputOptions.of(part(INPUTS, options), context)._replace(taken=op.groups)
    inputs = inputs._replace(nullable=op.rules.nulls != "error")
    where = checked(PLACES, options)
    if where["at"] is None:
        where |= {"target_disp": where["target_disp"] or 0, "target_count": 1}

    def complete(request: WindowRequest, datatype: Datatype) -> WindowRequest:
        ops.check_buffers(op, [("", datatype)], ops.Use.FETCH)
        is_swap = op.name == ops.COMPARE_AND_SWAP.name
        expected = element_of(compare, datatype, "COMPARE", inputs) if is_swap else None
        own = inputs._replace(datatype=datatype, type_order=None)
        ranks = [ArrayRank("VALUE", element_of(value, datatype, "VALUE", inputs)) for value in read]
        origins = [[Origin(open_rank(rank, own).only_buffer(), context)] for rank in ranks]
        doubts = log.unread(op, values[len(read) :])
        return replace(request, origins=origins, expected=expected, complete=None, doubts=doubts)

    # Without --type the file has the datatype, which is read under the lock.
    placement = Placement.of(where, len(windows), context)
    request = WindowRequest(
        windows, op, inputs, placement, options["commit"], options["durability"] == "full",
        origin_shape=OriginShape("VALUE", 1), fetch=True, complete=complete,
    )  # fmt: skip
    return request if inputs.datatype is None else complete(request, inputs.datatype)


_ALL: Options = checked(RANKING, {})


def _request(
    windows: Sequence[PathLike],
    origins: Sequence[OriginLike],
    op: ops.Op,
    options: Options,
    context: Context,
    ranking: Options = _ALL,
) -> WindowRequest:
    """Open the origins that the op reads, and say where they go."""
    names = _names(windows, options["map"])
    doubts: Sequence[MpiredWarning] = ()
    if op.origin:
        doubts = log.same_files(names, list(map(path_of, origins)), options["map"])
    else:
        doubts = log.unread(op, origins)
    inputs = InputOptions.of(options, context)
    accumulate_in = options["accumulate_in"]
    within = None if accumulate_in is None else real_type(accumulate_in, "accumulate_in")
    component, target, derived = inputs.datatype, None, None
    if any(options[each] is not None for each in ("types", "target_type", "origin_type")):
        common, target, derived = _sides(options, component if within is None else within)
        component = common if within is None else component
    inputs = inputs._replace(datatype=component, taken=op.groups, nullable=op.rules.nulls != "error")
    placement = Placement.of(options, len(names), context, target)

    def inspect(opened: OpenedRanks, origin: OriginLike, inputs: InputOptions, _number: int) -> list[Origin]:
        arrays = open_origin(origin, inputs, options, derived)
        for each in arrays:
            if within is not None and not holds(within, each.datatype):
                reason = f"has datatype {each.datatype.label}, of which {within.label} does not hold all values"
                raise DatatypeError(each.name, f"{reason}; convert it first")
        if opened.files:
            check_like(arrays, opened.files[0], datatypes=ranking["skip_bad"] and within is None)
        return arrays

    with step("opening and checking the origins"):
        lenient = inputs._replace(nullable=True)  # elements that the call does not combine may be missing
        with _check_targets_first(names, lenient):
            opened = OpenedRanks(origins if op.origin else (), lenient, ranking, inspect, "origins")
    if opened.skipped:
        doubts = [skipped_warning(opened.skipped, len(opened.files) + len(opened.skipped), "origins"), *doubts]
    is_whole = not (options["origin_disp"] or options["origin_type"]) and options["origin_count"] is None
    request = WindowRequest(
        names, op, inputs, placement, options["commit"], options["durability"] == "full",
        origins=opened.files, whole=is_whole, within=within, doubts=doubts,
    )  # fmt: skip
    if inputs.is_particular:  # these two describe origins alone
        formats = {origin.format for arrays in opened.files for origin in arrays if origin.format}
        check_formats(InputOptions(offset=inputs.offset, count=inputs.count), formats)
    if options.get("once") or options.get("once_key") is not None:
        request = replace(request, keys=keys_of(opened.files, opened.words, op, options, placement.indices))
    return request if options["create"] is None else _with_create(request, options)


@contextlib.contextmanager
def _check_targets_first(names: Sequence[str], inputs: InputOptions) -> Iterator[None]:
    """Raise the error of a target, if there is one, instead of the error of an origin, whose hint would not help."""
    try:
        yield
    except (DatatypeError, RanksError):
        target_inputs = InputOptions(columns=inputs.columns, window=True, nullable=True, context=inputs.context)
        with contextlib.suppress(OSError, UsageError):
            for name in names:
                open_rank(name, target_inputs).check(inputs.taken)
        raise


def _with_create(request: WindowRequest, options: Options) -> WindowRequest:
    """Return a request that makes its windows if they are missing."""
    create: Any = options["create"]
    inputs, first = request.inputs, next(iter(request.origins), ())
    declared = request.within or inputs.datatype
    if declared is None and not first:
        if request.complete is not None and all(map(os.path.exists, request.windows)):
            return request  # which says itself what its elements are
        raise UsageError("`create`", "needs `type`, the type of the elements")
    if create is True and not first:
        raise UsageError("`create`", "makes a target like an origin, and there is none; give a count or a shape")
    if create is True:
        models = [origin.model(whole=request.whole) for origin in first]
        source = models[0].source if len({each.source for each in models}) == 1 else None
        model = models[0]._replace(buffers=tuple(array for each in models for array in each.buffers), source=source)
        if (wide := request.within) is not None:  # the header of the origin names its own datatype
            model = model._replace(buffers=tuple(each.of_datatype(wide) for each in model.buffers), source=None)
    else:
        datatype, order = declared or first[0].datatype, ORDERS[inputs.byte_order or inputs.type_order]
        model = Model("", (Array.of_result(datatype, math.prod(create), create, order),))
    for array in model.buffers:
        ops.neutral(request.op, array.datatype)  # raises if there is none
    return replace(request, create=model)


def _resolve(op: ops.OpLike, use: ops.Use, options: Options) -> ops.Op:
    """Return a predefined op; the one-sided calls take no other (MPI-4.1, 12.3.4)."""
    if (chosen := ops.resolve(op, use=use)) is None:
        raise OpError("`op`", "one-sided calls take predefined ops only (MPI-4.1, 12.3.4), no function")
    if use not in chosen.uses:
        raise ops.wrong_use(chosen, use)
    return ops.with_policies(chosen, part(WINDOW_VALUES, options), window=True)


def _sides(options: Options, declared: Datatype | None) -> tuple[Datatype | None, Datatype | None, Datatype | None]:
    """Return the predefined type that both sides must be made of, and the derived types of target and origin."""
    # MPI-4.1, 12.3.4; `None` for an ordinary run of elements.
    types = options["types"]
    defined = None if types is None else datatypes.definitions(os.fspath(types))
    name = "`type`" if options["accumulate_in"] is None else "`accumulate_in`"
    components = {} if declared is None else {name: declared}
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
    for option, other in components.items():
        if other is not common:
            theirs, mine = (each.label if each else "nothing" for each in (common, other))
            reason = f"has components of {mine}, but {first} of {theirs}; both need the same (MPI-4.1, 12.3.4)"
            raise DatatypeError(option, reason)
    return common, derived[0], derived[1]


def component_of(datatype: Datatype) -> Datatype | None:
    """Return the predefined datatype that all components of a datatype are; a pair counts as one component."""
    # None if it has no components: with such a type a call does nothing.
    if datatype.structure is None and datatype.group is not Group.DERIVED:
        return datatype
    components = (of for of in datatype.typemap.inside(lambda of: of.is_component) if of.is_component)
    leaves = {tuple(entry.name for entry in of.walk()) for of in components}
    if not leaves:
        return None
    if len(leaves) > 1:
        found = ", ".join(sorted("+".join(leaf) for leaf in leaves))
        reason = f"has components of {len(leaves)} types ({found}); all have to be of one (MPI-4.1, 12.3.4)"
        raise DatatypeError(f"{datatype}", reason)
    names = tuple(name.upper() for name in leaves.pop())
    if len(names) == 1:
        return BY_NAME[names[0]]
    pair = value_index(*(BY_NAME[name] for name in names))
    assert pair is not None  # noqa: S101 - there is a datatype that has it
    return pair
