"""What the options of a one-sided call mean."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from mpired import datatypes, ops
from mpired.context import BASE_NBYTES, Context
from mpired.datatypes import DATATYPES, Datatype, Group, value_index
from mpired.datatypes.typemap.typemap import TypeMap
from mpired.errors import DatatypeError, OpError, UsageError
from mpired.formats import InputOptions, open_rank
from mpired.formats.rank import element_text
from mpired.options import Indices, Options, integer
from mpired.windows.origin import whole
from mpired.windows.placement import Placement
from mpired.windows.runs import held_of_map
from mpired.windows.target import Policy

_NAMED = {row.name: row for row in DATATYPES}
_NAMED_PAIRS = {tuple(part.name for part in row.parts): row for row in DATATYPES if row.parts}


def resolve(op: ops.OpLike, use: ops.Use, values: Options) -> ops.Op:
    """Return the predefined op that is meant; the one-sided calls take no other (MPI-4.1, 12.3.4)."""
    chosen = ops.meant(op)
    if chosen is None:
        if not isinstance(op, str):
            raise OpError("`op`", "one-sided calls take predefined ops only (MPI-4.1, 12.3.4), no function")
        if ":" in op and not ops.with_parameter(op):
            raise OpError(op, "user-defined ops are for reductions only (MPI-4.1, 12.3.4); use a predefined op")
        chosen = ops.resolve(op, use=use)
    ops.check_use(chosen, use)
    return ops.with_policies(chosen, values, window=True)


def policy(options: Options) -> Policy:
    """Return how a target is changed."""
    return Policy(options["commit"], options["durability"] == "full")


class Sides(NamedTuple):
    """The datatypes of the two sides; None for an ordinary run of elements."""

    component: Datatype | None
    target: Datatype | None
    origin: Datatype | None


def sides(options: Options, inputs: InputOptions) -> Sides:
    """Return the datatypes of both sides, which must be made of one predefined type (MPI-4.1, 12.3.4)."""
    types = options["types"]
    defined = None if types is None else datatypes.definitions(os.fspath(types))
    components = {} if inputs.datatype is None else {"`type`": inputs.datatype}
    texts: dict[str, Any] = {"`target_type`": options["target_type"], "`origin_type`": options["origin_type"]}
    made: dict[str, Datatype | None] = dict.fromkeys(texts)
    for option, text in texts.items():
        if text is None:
            continue
        datatype, order = datatypes.parse(text, defined)
        if order is not None:
            raise UsageError(option, f"{text!r} says a byte order; `byte_order` says that of raw files")
        component = component_of(datatype)
        if component is not None:
            components[option] = component
        if component is not datatype:
            made[option] = datatype
    first, common = next(iter(components.items()), ("", None))
    for option, other in components.items():
        if other is not common:
            theirs, mine = (each.label if each else "nothing" for each in (common, other))
            reason = f"has components of {mine}, but {first} of {theirs}; both need the same (MPI-4.1, 12.3.4)"
            raise DatatypeError(option, reason)
    return Sides(common, made["`target_type`"], made["`origin_type`"])


def component_of(datatype: Datatype) -> Datatype | None:
    """Return the predefined datatype that all components of a datatype are; a pair counts as one component."""
    # None if it has no components: with such a type a call does nothing.
    if datatype.structure is None and datatype.group is not Group.DERIVED:
        return datatype
    leaves = _leaves(datatype.typemap)
    if not leaves:
        return None
    if len(leaves) > 1:
        found = ", ".join(sorted("+".join(leaf) for leaf in leaves))
        reason = f"has components of {len(leaves)} types ({found}); all have to be of one (MPI-4.1, 12.3.4)"
        raise DatatypeError(f"{datatype}", reason)
    names = tuple(name.upper() for name in leaves.pop())
    if len(names) == 1:
        return _NAMED[names[0]]
    pair = _NAMED_PAIRS.get(names) or value_index(*(_NAMED[name] for name in names))
    assert pair is not None  # noqa: S101 - there is a datatype that has it
    return pair


def _leaves(typemap: TypeMap) -> set[tuple[str, ...]]:
    components = (of for of in typemap.inside(lambda of: of.is_component) if of.is_component)
    return {tuple(entry.name for entry in of.walk()) for of in components}


def place(options: Options, nwindows: int, context: Context, target: Datatype | None = None) -> Placement:
    """Return where elements go; `target` is the datatype of the target, if it is derived."""
    path, disp = options["map"], options["target_disp"]
    placement = Placement(
        disp=0 if disp is None and options["target_type"] is not None else disp,
        unit=options["disp_unit"],
        count=options["target_count"],
        typemap=None if target is None else target.typemap,
        box=_index_text(options["at"]),
        indices=None if path is None else read_map(path, context),
        rank=options["target_rank"],
        context=context,
    )
    placement.check(nwindows)
    return placement


def _index_text(at: Any) -> str | None:
    """Return an index as on the command line; in Python it may be what stands in brackets behind an array."""
    if at is None or isinstance(at, str):
        return at
    parts = at if isinstance(at, tuple | list) else [at]
    return ",".join(_slice_text(part) if isinstance(part, slice) else str(integer("`at`", part)) for part in parts)


def _slice_text(part: slice) -> str:
    bounds = [part.start, part.stop] + ([] if part.step is None else [part.step])
    return ":".join("" if bound is None else str(integer("`at`", bound)) for bound in bounds)


def read_map(path: Indices, context: Context) -> np.ndarray:
    """Return the indices that a file, or an array, of integers holds."""
    if not isinstance(path, str | os.PathLike):
        name, indices = "map", np.asarray(path).ravel()
        held = element_text(indices.dtype)
    else:
        name = os.fspath(path)
        try:
            buffer = open_rank(name, InputOptions(context=context)).only_buffer()
        except UsageError as error:
            reason = f"{name} {error.reason.partition(';')[0]}; a map is npy, or parquet or arrow with one column"
            raise UsageError("`map`", reason) from None
        context.check_memory(BASE_NBYTES + held_of_map(buffer.count))
        indices = whole(buffer, context)
        held = buffer.datatype.label
        if buffer.datatype.group is Group.LOGICAL:
            indices = indices != 0
    if indices.dtype.kind not in "iu" and indices.size:
        raise DatatypeError(name, f"holds elements of {held}, and a map is of integers")
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(2**63 - 1))
    return indices.astype(np.int64)
