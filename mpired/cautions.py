"""Warnings: given by calls to Python's `warnings`, or collected by the command line."""

from __future__ import annotations

import contextlib
import inspect
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import TypeVar

from mpired.errors import (
    HardLinkWarning,
    InputWarning,
    MaskedWarning,
    MpiredWarning,
    OrderWarning,
    ProcessorWarning,
    SameContentWarning,
    SameFileWarning,
    UnusedWarning,
    number,
    shortened,
)

Listener = Callable[[MpiredWarning], None]
_FEW = 3
_W = TypeVar("_W", bound=MpiredWarning)


def warn(caution: MpiredWarning) -> None:
    """Warn the caller of this package by `warnings`; a filter may make an error of it, which ends the call."""
    names = [str(each.frame.f_globals.get("__name__")) for each in inspect.stack(0)]
    level = max(level for level, name in enumerate(names) if name.startswith("mpired."))
    warnings.warn(caution, stacklevel=level + 2)


_listener: ContextVar[Listener] = ContextVar("_listener", default=warn)


def tell(*cautions: MpiredWarning) -> None:
    """Warn of something, before anything has changed."""
    for caution in cautions:
        _listener.get()(caution)


@contextlib.contextmanager
def collect_warnings(also: Listener) -> Iterator[list[MpiredWarning]]:
    """Collect the warnings of the block, which only `also` gets as well."""
    found: list[MpiredWarning] = []

    def listen(caution: MpiredWarning) -> None:
        found.append(caution)
        also(caution)

    token = _listener.set(listen)
    try:
        yield found
    finally:
        _listener.reset(token)


def of_kind(cautions: Iterable[MpiredWarning], kind: type[_W]) -> list[_W]:
    """Return the warnings of one category."""
    return [each for each in cautions if isinstance(each, kind)]


def masked(count: int, name: str, values: str, way_out: str = "") -> MaskedWarning:
    """Warn of elements of a result with values that mean that elements are missing, in words."""
    # `way_out` says how they can be written to another format, "" if they cannot.
    what = f"{number(count, 'element')} of {name} came out {values}, so that readers of the result take them as missing"
    ways = f"give its attributes other values{way_out and ', or '}{way_out}"
    return MaskedWarning(f"{what}; {ways}", {"buffer": name, "count": count})


def unset(count: int, name: str, way_out: str) -> InputWarning:
    """Warn of inputs with netCDF's value of elements that were never written, which no attribute declares."""
    what = f"{number(count, 'element')} of {name} {'has' if count == 1 else 'have'}"
    return InputWarning(f"{what} netCDF's default fill value, which no attribute names, and is combined; {way_out}")


def units(this: str, unit: str, like: str, other: str, name: str) -> InputWarning:
    """Warn of two ranks whose values have different units."""
    what = f"{this} has {name} in {unit!r}, but {like} has it in {other!r}"
    return InputWarning(f"{what}, and the numbers are combined as they are; convert one of them if the units differ")


def times(name: str) -> InputWarning:
    """Warn of ranks whose times cannot be averaged."""
    what = f"{name!r} has lengths, units or calendars in the ranks of which no mean can be made"
    return InputWarning(f"{what}; the result has the times of its model, and no method in `cell_methods`")


def times_of_one(time: str, name: str, op: str) -> InputWarning:
    """Warn of a result that has the times of its model alone, though it is of several times."""
    what = f"{time!r} has the times of one rank, and {name!r} is of all ranks"
    return InputWarning(f"{what}; `cell_methods` do not say so, because CF has no method for {op}")


def order(first: str, second: str, where: str) -> OrderWarning:
    """Warn of two neighbours among the ranks whose numbers are in the other order."""
    return OrderWarning(
        f"{first} came before {second}, and the order shows in the {where}; `sort='natural'` sorts by number"
    )


def hard_links(paths: Iterable[str]) -> list[HardLinkWarning]:
    """Warn of files that have other names than the one that is replaced."""
    return [HardLinkWarning(f"{path} is a hard link; its other names keep the old content") for path in paths]


def processors(op: object, workers: Sequence[tuple[str, frozenset[str]]]) -> list[ProcessorWarning]:
    """Warn of a user-defined op on real numbers if workers, of a machine with a processor each, have different ones."""
    every = frozenset[str]().union(*(features for _, features in workers))
    for host, there in workers:
        if lacking := sorted(every - there):
            what = f"the processor on {host} lacks {', '.join(lacking[:_FEW])}{', ...' if len(lacking) > _FEW else ''}"
            return [
                ProcessorWarning(f"{what}, which another worker's has: {shortened(str(op))} may round otherwise there")
            ]
    return []


def same_files(targets: Sequence[object], origins: Sequence[object], indices: object = None) -> list[SameFileWarning]:
    """Warn of each origin, and the map, that is the target or another of them: a slip, most often."""
    named = [("target", targets), ("origin", origins), ("map", [indices])]
    known: dict[tuple[int, int], str] = {}
    found = []
    for what, name in ((what, name) for what, names in named for name in names):
        if not isinstance(name, str | os.PathLike):
            continue
        with contextlib.suppress(OSError):  # `-`, or an origin that is refused elsewhere
            status = os.stat(name)
            inode = status.st_dev, status.st_ino
            if what != "target" and inode in known and stat.S_ISREG(status.st_mode):
                found.append(SameFileWarning(f"the {what} {os.fspath(name)} is the same file as the {known[inode]}"))
            known.setdefault(inode, f"{what} {os.fspath(name)}")
    return found


def known_content(names: Sequence[str]) -> list[SameContentWarning]:
    """Warn of origins that `once` counts, though the same content was combined before, from other places."""
    if not names:
        return []
    shown = f"{', '.join(names[:_FEW])}{f' and {len(names) - _FEW} more' if len(names) > _FEW else ''}"
    what = "has the content of an origin that was applied before from another place, and is counted"
    if len(names) > 1:
        what = "have the content of origins that were applied before from other places, and are counted"
    return [SameContentWarning(f"{shown} {what}")]


def unread(op: object, origins: Iterable[object]) -> list[UnusedWarning]:
    """Warn of origins of an op that reads none (MPI-4.1, 12.3.4)."""
    words = (str(origin) if isinstance(origin, str | os.PathLike | int | float) else "the origin" for origin in origins)
    return [UnusedWarning(f"{shortened(word)} is not used: {op} only reads the target") for word in words]
