"""The one-sided verbs: from words to a window that has changed (MPI-4.1, 12.3)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

from mpired import cautions, ops
from mpired.context import Context
from mpired.datatypes import Datatype
from mpired.errors import MpiredWarning, UsageError
from mpired.files.names import check_are_data
from mpired.files.urls import check_are_files
from mpired.formats import Array, AtHand, InputOptions, Model
from mpired.formats.convert import Order
from mpired.formats.decoding import Decoder
from mpired.log import step
from mpired.options import INPUTS, PLACES, RANKING, TARGET, WINDOW_VALUES, Options, PathLike, checked, part
from mpired.ranks import RankWord, Skipped, check_formats, each_good, left_out, pieces
from mpired.windows.options import place, policy, read_map, resolve, sides
from mpired.windows.origin import ArrayOrigin, Origin
from mpired.windows.placement import Given
from mpired.windows.request import (
    Done,
    Keep,
    OriginLike,
    Request,
    check_like,
    element_of,
    is_whole,
    keys_of,
    open_origin,
)
from mpired.windows.target import Filling, Policy
from mpired.windows.transaction import DryRun, dry_run, transact
from mpired.windows.value import is_value


class Call(NamedTuple):
    """A request that has passed all checks that need no lock."""

    request: Request
    policy: Policy

    def run(self, context: Context, *, keep: Keep | None = None, replaced: Sequence[str] = ()) -> Done:
        """Lock the windows, and the files that `keep` replaces, check the rest, and change them."""
        with closing(self.request.decoder):
            return transact(self.request, self.policy, context, keep=keep, replaced=replaced)

    def dry_run(self) -> DryRun:
        """Check the rest without a lock, and return the plan."""
        with closing(self.request.decoder):
            return dry_run(self.request, self.policy)


def plan_accumulate(
    windows: Sequence[PathLike], origins: Sequence[OriginLike], op: ops.OpLike, options: Options, context: Context
) -> Call:
    """Check an accumulate as far as possible without the lock: options, and every origin, applied in order."""
    if not origins:
        raise UsageError("ORIGIN", "there is none; name at least one file after the target")
    if (key := options["once_key"]) == "":
        raise UsageError("`once_key`", f"{key!r} is not a key; give a string such as 'run 5'")
    chosen = resolve(op, ops.Use.ACCUMULATE, part(WINDOW_VALUES, options))
    check_are_data([*windows, *origins, options["map"]])
    check_are_files(windows)
    doubts: Sequence[MpiredWarning] = cautions.same_files(windows, list(map(_path, origins)), options["map"])
    if (where := options["map"]) is not None:  # once: what it holds is part of the key, and a stream gives it only once
        options = {**options, "map": read_map(where, context)}
    request, words, skipped = _request(windows, origins, chosen, options, context, options)
    doubts = [*left_out(skipped, len(request.origins) + len(skipped), "origins"), *doubts]
    request = replace(request, use=ops.Use.ACCUMULATE, keys=keys_of(request, words, options), doubts=doubts)
    return Call(_with_create(request, options), policy(options))


def plan_get_accumulate(
    windows: Sequence[PathLike], origin: OriginLike | None, op: ops.OpLike, options: Options, context: Context
) -> Call:
    """Check a get_accumulate, as `plan_accumulate`; NO_OP ignores the origin (MPI-4.1, 12.3.4)."""
    chosen = resolve(op, ops.Use.FETCH, part(WINDOW_VALUES, options))
    if origin is None and chosen.origin:
        raise UsageError("ORIGIN", f"{chosen} needs an origin, which is missing (MPI-4.1, 12.3.4)")
    origins = [origin] if chosen.origin and origin is not None else []
    request, _, _ = _request(windows, origins, chosen, options, context)
    doubts: Sequence[MpiredWarning] = cautions.same_files(windows, [_path(origin)], options["map"])
    if not chosen.origin:
        doubts = cautions.unread(chosen, [] if origin is None else [_path(origin)])
    return Call(_with_create(replace(request, fetch=True, doubts=doubts), options), policy(options))


def _path(origin: object) -> object:
    """Return the path of an origin, or what else it is."""
    return origin.path if isinstance(origin, AtHand) else origin


def plan_fetch_and_op(
    windows: Sequence[PathLike], value: object, op: ops.OpLike, options: Options, context: Context
) -> Call:
    """Check a fetch_and_op on one element, as `plan_accumulate`; NO_OP is an atomic read."""
    chosen = resolve(op, ops.Use.FETCH, part(WINDOW_VALUES, options))
    if value is None and chosen.origin:
        raise UsageError("VALUE", f"{chosen} needs a value, which is missing (MPI-4.1, 12.3.5)")
    values = [] if value is None else [value]
    return _on_one_element(windows, values, chosen, options, context)


def plan_compare_and_swap(
    windows: Sequence[PathLike], compare: object, value: object, options: Options, context: Context
) -> Call:
    """Check a compare_and_swap: the element becomes `value` if it is `compare`, bit by bit (MPI-4.1, 12.3.5)."""
    options = {**options, "overflow": None, "nan": "propagate", "create": None}
    return _on_one_element(windows, [value], ops.COMPARE_AND_SWAP, options, context, compare=compare)


def _on_one_element(
    windows: Sequence[PathLike],
    values: Sequence[object],
    op: ops.Op,
    options: Options,
    context: Context,
    *,
    compare: object = None,
) -> Call:
    if not windows:
        raise UsageError("TARGET", "is missing; name the file to change")
    read = values if op.origin else ()
    check_are_data([*windows, *read, compare])
    check_are_files(windows)
    inputs = InputOptions.of(part(INPUTS, options), context)._replace(taken=op.groups)
    where = checked(PLACES, part(TARGET, options) | {"at": options["at"]})
    if where["at"] is None:
        where |= {"target_disp": where["target_disp"] or 0, "target_count": 1}
    placement = place(where, len(windows), context)
    given = Given("VALUE", 1, (), whole=False)

    def complete(request: Request, datatype: Datatype) -> Request:
        ops.check(op, datatype, ops.Use.FETCH)
        expected = element_of(compare, datatype, "COMPARE", inputs) if op is ops.COMPARE_AND_SWAP else None
        origins = [[ArrayOrigin("VALUE", datatype, element_of(value, datatype, "VALUE", inputs))] for value in read]
        doubts: list[MpiredWarning] = [*cautions.unread(op, values[len(read) :])]
        for operand in (compare, *read):
            if not (isinstance(operand, str) and is_value(operand, datatype)):
                doubts += cautions.same_files(windows, [operand])
        return replace(request, origins=origins, expected=expected, complete=None, doubts=doubts)

    # Without --type the file says what an element is, and it says that under the lock.
    request = Request(
        windows=[os.fspath(window) for window in windows],
        target_options=_of_windows(inputs),
        op=op,
        use=ops.Use.FETCH,
        origins=[],
        place=lambda _buffer, buffers: placement.shares(buffers, given),
        fetch=True,
        inputs=inputs,
        complete=complete,
    )
    if inputs.datatype is not None:
        request = complete(request, inputs.datatype)
    return Call(_with_create(request, options), policy(options))


_ALL: Options = checked(RANKING, {})


def _request(
    windows: Sequence[PathLike],
    origins: Sequence[OriginLike],
    op: ops.Op,
    options: Options,
    context: Context,
    ranking: Options = _ALL,
) -> tuple[Request, Sequence[object], tuple[Skipped, ...]]:
    """Open the origins, and say where they go; also return the words for them, and those that are left out."""
    check_are_data([*windows, *origins, options["map"]])
    check_are_files(windows)
    inputs = InputOptions.of(options, context)
    component, target, derived = sides(options, inputs)
    inputs = inputs._replace(datatype=component, taken=op.groups)
    decoder = Decoder()
    first: list[Origin] = []

    def open_next(origin: OriginLike | RankWord, _: int, inputs: InputOptions) -> list[Origin]:
        buffers = open_origin(origin, inputs, options, derived, decoder)
        check_like(buffers, first or buffers, datatypes=ranking["skip_bad"])
        first.extend(() if first else buffers)
        return buffers

    with step("opening and checking the origins"):
        opened, words, skipped = each_good(pieces(origins, inputs, ranking), open_next, inputs, ranking, "origins")
    placement = place(options, len(windows), context, target)
    own = opened[0] if opened else []  # what all origins have in common
    given = [Given(each.name, each.count, each.shape, is_whole(options)) for each in own]
    named = {each.column: one for each, one in zip(own, given, strict=True)}
    if not given:  # as many elements as the target has, or as `target_count` says
        given = [Given("target", None, whole=False)]
    formats = frozenset(origin.format for buffers in opened for origin in buffers if origin.format)
    check_formats(InputOptions(offset=inputs.offset, count=inputs.count), formats)  # which describe origins alone
    request = Request(
        windows=[os.fspath(window) for window in windows],
        target_options=_of_windows(inputs),
        op=op,
        use=ops.Use.FETCH,
        origins=opened,
        inputs=inputs,
        formats=formats,
        decoder=decoder,
        by_shape=placement.by_shape and given[0].whole,
        place=lambda i, buffers: placement.shares(buffers, named.get(buffers[0].name, given[min(i, len(given) - 1)])),
    )
    return request, words, skipped


def _of_windows(inputs: InputOptions) -> InputOptions:
    """Return what the user says of the windows: the datatype, the columns, and of a raw one the byte order."""
    return inputs._replace(format=None, offset=0, count=None, pair=None, window=True)


def _with_create(request: Request, options: Options) -> Request:
    """Let a request make its windows if they are missing."""
    create: Any = options["create"]
    if create is None:
        return request
    datatype = request.target_options.datatype
    if datatype is None and not request.origins:
        if request.complete is not None and all(map(os.path.exists, request.windows)):
            return request  # which says itself what its elements are
        raise UsageError("`create`", "needs `type`, the type of the elements")
    if create is True and not request.origins:
        raise UsageError("`create`", "makes a target like an origin, and there is none; give a count or a shape")
    orders: dict[str | None, Order] = {"little": "<", "big": ">"}
    order = orders.get(request.target_options.byte_order or request.target_options.type_order, "=")
    if create is True:
        models = [origin.model(whole=is_whole(options)) for origin in request.origins[0]]
        model = models[0]._replace(buffers=tuple(buffer for each in models for buffer in each.buffers))
    else:
        datatype = datatype or request.origins[0][0].datatype
        model = Model("", (Array.of_result(datatype, math.prod(create), create, order),))
    elements = [ops.neutral(request.op, buffer.datatype).reshape(1) for buffer in model.buffers]
    whole = model.source is not None and is_whole(options)
    marked = [origin.marked for origin in request.origins[0]] if create is True else [None]
    filling = Filling(elements, model, order, request.target_options.datatype is not None, whole, marked)
    return replace(request, create=filling)
