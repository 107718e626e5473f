"""The one-sided verbs: from words to a window that has changed (MPI-4.1, 12.3)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np

from mpired import ops
from mpired.buffers import Declared, open_rank
from mpired.errors import CountError, DatatypeError, OpError, UsageError
from mpired.ranks import check_use
from mpired.storage.lock import Waiting
from mpired.storage.output import nothing
from mpired.verbs import Inputs, PathLike, check_names, check_word, declared, only_inputs
from mpired.windows import once
from mpired.windows.origin import FileOrigin
from mpired.windows.placement import Given, Placement
from mpired.windows.transaction import Done, Keep, Policy, Request, transact


class Where(TypedDict, total=False):
    """What may be said of where elements go and come from."""

    target_disp: int | None
    disp_unit: int | None
    target_count: int | None
    origin_disp: int
    origin_count: int | None
    at: str | None
    map: PathLike | None
    target_rank: int | None


class How(TypedDict, total=False):
    """What may be said of the transaction."""

    commit: str
    durability: str
    lock_timeout: float


class AccumulateOptions(Inputs, Where, How, total=False):
    """What may be said of an accumulate."""

    once: str | bool | None


class Accumulation(NamedTuple):
    """A request that has passed all checks that need no lock."""

    request: Request
    policy: Policy

    def run(self, on_commit: Callable[[], None] = nothing, keep: Keep | None = None) -> Done:
        """Lock the windows, check the rest, and change them."""
        return transact(self.request, self.policy, on_commit=on_commit, keep=keep)


def plan_accumulate(
    windows: Sequence[PathLike],
    origins: Sequence[PathLike],
    op: str,
    tell: Callable[[str], None] = lambda _name: None,
    **options: Unpack[AccumulateOptions],
) -> Accumulation:
    """Check an accumulate as far as that can be without the lock: words, and every origin.

    Parameters
    ----------
    windows
        The target, or several: the windows of the ranks, in order.
    origins
        What is combined into it, one after another.
    op
        The op's name.
    tell
        Called with the name of a window whose lock takes long to get.

    Raises
    ------
    MpiredError, OSError
        If the request makes no sense, or an origin cannot be used.
    """
    check_names(options, AccumulateOptions)
    chosen = resolve(op, ops.Use.ACCUMULATE)
    if not origins:
        raise UsageError("ORIGIN", "there is none; name at least one file after the target")
    said = declared(**only_inputs(options))
    opened = [_open_origin(os.fspath(origin), said, options) for origin in origins]
    placement, given = place(options, len(windows)), _given(opened, options)
    request = Request(
        windows=[os.fspath(window) for window in windows],
        declared=of_windows(said),
        op=chosen,
        use=ops.Use.ACCUMULATE,
        origins=opened,
        place=lambda buffers: placement.shares(buffers, given),
        keys=_keys(opened, str(chosen), options),
    )
    return Accumulation(request, policy(options, tell))


def resolve(op: str, use: ops.Use) -> ops.Op:
    """Return the predefined op of that name; the one-sided calls take no other (MPI-4.1, 12.3.4).

    Raises
    ------
    UnknownOpError, OpError
        If there is none, or it is not for this use.
    """
    if not isinstance(op, str):
        raise OpError("--op", "one-sided calls take predefined ops only (MPI-4.1, 12.3.4), no function")
    if ":" in op:
        raise OpError(op, "user-defined ops are for reductions only (MPI-4.1, 12.3.4); use a predefined op")
    chosen = ops.resolve(op)
    ops.check_use(chosen, use)
    return chosen


def of_windows(said: Declared) -> Declared:
    """Return what is said of the windows: the datatype, and of a raw one the byte order."""
    return replace(said, format=None, offset=0, count=None, columns=(), pair=None)


def policy(options: Mapping[str, Any], tell: Callable[[str], None]) -> Policy:
    """Return how a target is changed.

    Raises
    ------
    UsageError
        If a word or the time makes no sense.
    """
    commit, durability = options.get("commit", "auto"), options.get("durability", "full")
    check_word("--commit", commit, ("auto", "rename", "journal"))
    check_word("--durability", durability, ("full", "process", "none"))
    timeout = options.get("lock_timeout", 60.0)
    if not 0 <= timeout < math.inf:
        raise UsageError("--lock-timeout", f"{timeout} is not a time; give seconds, 0 to try once")
    return Policy(commit, durability == "full", Waiting(timeout, tell))


def place(options: Mapping[str, Any], nwindows: int) -> Placement:
    """Return where elements go.

    Raises
    ------
    MpiredError
        If the words contradict each other.
    """
    path = options.get("map")
    placement = Placement(
        disp=options.get("target_disp"),
        unit=options.get("disp_unit"),
        count=options.get("target_count"),
        box=options.get("at"),
        indices=None if path is None else read_map(os.fspath(path)),
        rank=options.get("target_rank"),
    )
    placement.check(nwindows)
    return placement


def read_map(path: str) -> np.ndarray:
    """Return the indices that a file of integers holds.

    Raises
    ------
    DatatypeError
        If it holds something else.
    """
    buffer = open_rank(path, Declared()).only_buffer("npy")
    if buffer.datatype.form.kind not in "iu":
        raise DatatypeError(path, f"holds {buffer.datatype}, and a map is of integers")
    indices = FileOrigin(buffer, 0, buffer.count).read(slice(0, buffer.count))
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(2**63 - 1))
    return indices.astype(np.int64)


def _open_origin(word: str, said: Declared, options: AccumulateOptions) -> FileOrigin:
    file = open_rank(word, said)
    check_use(said, [file])
    buffer = file.only_buffer(file.format)
    first, count = options.get("origin_disp", 0), options.get("origin_count")
    for name, number in (("--origin-disp", first), ("--origin-count", count or 0)):
        if number < 0:
            raise CountError(f"{name} {number}", "is negative")
    return FileOrigin(buffer, first, max(buffer.count - first, 0) if count is None else count)


def _given(origins: Sequence[FileOrigin], options: AccumulateOptions) -> Given:
    """Return what all origins have in common.

    Raises
    ------
    CountError
        If their counts or shapes differ.
    """
    first = origins[0]
    for origin in origins[1:]:
        if origin.count != first.count:
            raise CountError(origin.name, f"has {origin.count} elements, but {first.name!r} has {first.count}")
        if None not in (origin.buffer.shape, first.buffer.shape) and origin.buffer.shape != first.buffer.shape:
            raise CountError(
                origin.name, f"has shape {origin.buffer.shape}, but {first.name!r} has {first.buffer.shape}"
            )
    whole = not options.get("origin_disp") and options.get("origin_count") is None
    return Given(first.name, first.count, first.buffer.shape, first.buffer.fortran_order, whole)


def _keys(origins: Sequence[FileOrigin], op: str, options: AccumulateOptions) -> list[bytes]:
    """Return for each origin the key that the target is to remember; none without --once."""
    key = options.get("once")
    if key is None or key is False:
        return []
    if isinstance(key, str) and key:
        if len(origins) > 1:
            return [once.key_of(f"{key}\0{number}") for number in range(len(origins))]
        return [once.key_of(key)]
    where = {name: str(options.get(name)) for name in Where.__annotations__ if options.get(name) is not None}
    return [once.key_of_content(origin.buffer.source, f"{op} {sorted(where.items())}") for origin in origins]
