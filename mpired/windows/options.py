"""What may be said of a one-sided call, and what it means."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np

from mpired import datatypes, ops
from mpired.buffers import Declared, RankBuffer, open_rank
from mpired.datatypes import DATATYPES, Datatype, Group, value_index
from mpired.datatypes.typemap.typemap import TypeMap
from mpired.errors import DatatypeError, OpError, UsageError
from mpired.options import Inputs, PathLike, check_word, integer
from mpired.storage.lock import with_timeout
from mpired.windows.origin import whole
from mpired.windows.placement import Placement
from mpired.windows.target import Policy

_NAMED = {row.name: row for row in DATATYPES}
_NAMED_PAIRS = {tuple(part.name for part in row.parts): row for row in DATATYPES if row.parts}


class Where(TypedDict, total=False):
    """What may be said of where elements go and come from."""

    target_disp: int | None
    disp_unit: int | None
    target_count: int | None
    target_type: str | None
    origin_disp: int
    origin_count: int | None
    origin_type: str | None
    at: str | int | slice | tuple[int | slice, ...] | None
    map: PathLike | np.ndarray | Sequence[int] | None
    target_rank: int | None


class How(TypedDict, total=False):
    """What may be said of the transaction."""

    commit: str
    durability: str
    lock_timeout: float | None
    overflow: str | None


class FetchOptions(Inputs, Where, How, total=False):
    """What may be said of a call that fetches."""

    create: str | int | Sequence[int] | None


class AccumulateOptions(FetchOptions, total=False):
    """What may be said of an accumulate."""

    once: bool
    once_key: str | None


class ElementOptions(How, total=False):
    """What may be said of a call on one element."""

    type: str | None
    byte_order: str | None
    columns: Sequence[str]
    target_disp: int | None
    disp_unit: int | None
    at: str | int | slice | tuple[int | slice, ...] | None
    target_rank: int | None
    create: str | int | Sequence[int] | None


def resolve(op: str, use: ops.Use, options: How) -> ops.Op:
    """Return the predefined op of that name; the one-sided calls take no other (MPI-4.1, 12.3.4).

    Raises
    ------
    UnknownOpError, OpError
        If there is none, or it is not for this use.
    UsageError
        If the options do not say what overflow is to be.
    """
    chosen = ops.meant(op)
    if chosen is None and not isinstance(op, str):
        raise OpError("--op", "one-sided calls take predefined ops only (MPI-4.1, 12.3.4), no function")
    if chosen is None and ":" in op:
        raise OpError(op, "user-defined ops are for reductions only (MPI-4.1, 12.3.4); use a predefined op")
    chosen = chosen or ops.resolve(op)
    ops.check_use(chosen, use)
    return ops.with_overflow(chosen, options.get("overflow"))


def policy(options: Mapping[str, Any]) -> Policy:
    """Return how a target is changed.

    Raises
    ------
    UsageError
        If a word or the time makes no sense.
    """
    commit, durability = options.get("commit", "auto"), options.get("durability", "full")
    check_word("--commit", commit, ("auto", "rename", "journal"))
    check_word("--durability", durability, ("full", "process", "none"))
    return Policy(commit, durability == "full", with_timeout(options.get("lock_timeout")))


class Sides(NamedTuple):
    """The datatypes of the two sides; None for an ordinary run of elements."""

    component: Datatype | None
    target: Datatype | None
    origin: Datatype | None


def sides(options: Mapping[str, Any], said: Declared) -> Sides:
    """Return the datatypes of both sides, which must be made of one predefined type (MPI-4.1, 12.3.4).

    Raises
    ------
    DatatypeError
        If they are not.
    """
    types = options.get("types")
    defined = None if types is None else datatypes.definitions(os.fspath(types))
    components = {} if said.datatype is None else {"--type": said.datatype}
    made: dict[str, Datatype | None] = {"--target-type": None, "--origin-type": None}
    for option in made:
        text = options.get(option[2:].replace("-", "_"))
        if text is None:
            continue
        datatype, order = datatypes.parse(text, defined)
        if order is not None:
            raise UsageError(option, f"{text!r} says a byte order; --byte-order says that of raw files")
        component = component_of(datatype)
        if component is not None:
            components[option] = component
        if component is not datatype:
            made[option] = datatype
    first, common = next(iter(components.items()), ("", None))
    for option, other in components.items():
        if other is not common:
            reason = f"has components of {other}, but {first} of {common}; both need the same (MPI-4.1, 12.3.4)"
            raise DatatypeError(option, reason)
    return Sides(common, made["--target-type"], made["--origin-type"])


def component_of(datatype: Datatype) -> Datatype | None:
    """Return the predefined datatype that all components of a datatype are; a pair counts as one component.

    None if it has no components: with such a type a call does nothing.

    Raises
    ------
    DatatypeError
        If they are of several.
    """
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


def place(options: Mapping[str, Any], nwindows: int, target: Datatype | None = None) -> Placement:
    """Return where elements go; `target` is the datatype of the target, if it is derived.

    Raises
    ------
    MpiredError
        If the words contradict each other.
    """
    path = options.get("map")
    numbers = {
        name: None if options.get(name) is None else integer(f"--{name.replace('_', '-')}", options[name])
        for name in ("target_disp", "disp_unit", "target_count", "target_rank")
    }
    if options.get("target_type") is not None and numbers["target_disp"] is None:
        numbers["target_disp"] = 0
    placement = Placement(
        disp=numbers["target_disp"],
        unit=numbers["disp_unit"],
        count=numbers["target_count"],
        typemap=None if target is None else target.typemap,
        box=_index_text(options.get("at")),
        indices=None if path is None else read_map(path),
        rank=numbers["target_rank"],
    )
    placement.check(nwindows)
    return placement


def _index_text(at: Any) -> str | None:
    """Return an index as on the command line; in Python it may be what stands in brackets behind an array."""
    if at is None or isinstance(at, str):
        return at
    parts = at if isinstance(at, tuple | list) else [at]
    return ",".join(_slice_text(part) if isinstance(part, slice) else str(integer("--at", part)) for part in parts)


def _slice_text(part: slice) -> str:
    bounds = [part.start, part.stop] + ([] if part.step is None else [part.step])
    return ":".join("" if bound is None else str(integer("--at", bound)) for bound in bounds)


def _opened_map(name: str) -> RankBuffer:
    """Open a map, which says itself what it holds."""
    try:
        return open_rank(name, Declared()).only_buffer()
    except UsageError as error:
        raise UsageError(
            "--map", f"{name} {error.reason.partition(';')[0]}; a map is npy, or parquet or arrow with one column"
        ) from None


def read_map(path: PathLike | np.ndarray | Sequence[int]) -> np.ndarray:
    """Return the indices that a file, or an array, of integers holds.

    Raises
    ------
    DatatypeError
        If it holds something else.
    """
    if not isinstance(path, str | os.PathLike):
        name, indices = "map", np.asarray(path).ravel()
        held = str(indices.dtype)
    else:
        name = os.fspath(path)
        buffer = _opened_map(name)
        indices = whole(buffer)
        held = str(buffer.datatype)
        if buffer.datatype.group is Group.LOGICAL:
            indices = indices != 0
    if indices.dtype.kind not in "iu" and indices.size:
        raise DatatypeError(name, f"holds elements of {held}, and a map is of integers")
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(2**63 - 1))
    return indices.astype(np.int64)
