"""Reports of a call that runs: warnings, notices, the steps with their times, and the progress."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple, TypeAlias, TypeVar

from mpired import interrupts
from mpired.errors import (
    InputWarning,
    MaskedWarning,
    MpiredWarning,
    OrderWarning,
    ProcessorWarning,
    SameContentWarning,
    SameFileWarning,
    UnusedWarning,
    UsageError,
    number,
    shortened,
)

Listener = Callable[[MpiredWarning], None]
NoticeListener = Callable[[Sequence[str], str], None]
"""Takes the paths that a notice is about, and its text."""
Progress: TypeAlias = Callable[[Iterable[int], int], Iterable[int]]
"""Watches the bytes as they are done, out of a total."""
PERIOD = 0.1
"""Seconds between two times that a worker tells how far it is: each wakes the process that shows it."""
_STEP_BYTES = 1_000_000
_FEW = 3
_T = TypeVar("_T")

_listeners: list[NoticeListener] = []


@contextlib.contextmanager
def notices_to(listener: NoticeListener) -> Iterator[None]:
    """Give the notices in the block to a function, not to the logger `mpired`."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def notice(paths: Sequence[str], text: str, level: str = "WARNING") -> None:
    """Log a message about files; a recovery is a warning, because to repeat the interrupted call would count twice."""
    if _listeners:
        _listeners[-1](paths, text)
        return
    import logging  # noqa: PLC0415 - few calls have notices

    logging.getLogger("mpired").log(getattr(logging, level), "%s: %s", paths[0], text)


class _Steps(NamedTuple):
    """The plans and the steps of a call, in their order."""

    plans: list[str]
    seconds: dict[str, float]  # of each step, without those of the steps within it
    within: list[float]  # of the steps within those that run


collected: dict[int, _Steps] = {}  # by thread; empty if no call's steps are collected


@contextlib.contextmanager
def collect_steps(write: Callable[[str], object] | None) -> Iterator[None]:
    """Collect the steps of this thread in the block, and write their lines; a call within another adds to its steps."""
    thread, started = threading.get_ident(), time.monotonic()
    if write is None or thread in collected:
        yield
        return
    collected[thread] = steps = _Steps([], {}, [0.0])
    try:
        yield
    finally:
        del collected[thread]
    if steps.seconds:
        lines = (f"{seconds:.3f} s {name}" for name, seconds in steps.seconds.items())
        for line in (*steps.plans, *lines, f"{time.monotonic() - started:.3f} s in all"):
            write(line)


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Measure the time of the block as a step, if steps are collected."""
    steps = collected.get(threading.get_ident())
    if steps is None:
        yield
        return
    steps.seconds.setdefault(name, 0.0)
    steps.within.append(0.0)
    started = time.monotonic()
    try:
        yield
    finally:
        seconds = time.monotonic() - started
        steps.seconds[name] += seconds - steps.within.pop()
        steps.within[-1] += seconds


def plan(text: str) -> None:
    """Note how the work is cut."""
    steps = collected.get(threading.get_ident())
    if steps is not None and text not in steps.plans:
        steps.plans.append(text)


def log_steps() -> contextlib.AbstractContextManager[None]:
    """Log the steps of the block as information of the logger `mpired`, if it is enabled for that."""
    logging = sys.modules.get("logging")  # the caller has set it up, and so has imported it
    logger = logging.getLogger("mpired") if logging else None
    if logger is None or not logger.isEnabledFor(20):  # INFO
        return contextlib.nullcontext()
    return collect_steps(functools.partial(logger.info, "%s"))


def track(things: Iterable[_T], _total: int = 0) -> Iterator[_T]:
    """Iterate over things, and show nothing; ctrl-C can end the work between them."""
    for thing in things:
        interrupts.raise_pending()
        yield thing


no_progress: Progress = track


def shown_by(show: Callable[[range], Iterable[object]]) -> Progress:
    """Return the progress that a caller in Python shows: of a range with an item for each megabyte, as tqdm takes."""
    if not callable(show):
        raise UsageError(
            "`progress`", f"{show!r} is not a function such as tqdm.tqdm, which takes a range and yields its items"
        )

    def watch(done: Iterable[int], total: int) -> Generator[int, None, None]:
        count = max(1, -(-total // _STEP_BYTES))
        given: object = show(range(count))
        if not isinstance(given, Iterable):
            reason = f"returned {type(given).__name__}; it takes a range and yields its items, as tqdm does"
            raise UsageError("`progress`", reason)
        shown = iter(given)
        try:
            next(shown, None)
            read = steps = 0
            for nbytes in track(done):
                read += nbytes
                while steps < min(count - 1, read // _STEP_BYTES):
                    next(shown, None)
                    steps += 1
                yield nbytes
            for _ in zip(range(count - steps), shown, strict=False):  # to its end, so that a bar shows that all is done
                pass
        finally:
            getattr(shown, "close", int)()  # of a generator, when the work fails

    return watch


def warn_caller(caution: MpiredWarning) -> None:
    """Warn the caller of this package by `warnings`; a filter may make an error of it, which ends the call."""
    names = [str(each.frame.f_globals.get("__name__")) for each in inspect.stack(0)]
    level = max(level for level, name in enumerate(names) if name.startswith("mpired."))
    warnings.warn(caution, stacklevel=level + 2)


_listener: ContextVar[Listener] = ContextVar("_listener", default=warn_caller)


def warn(*cautions: MpiredWarning) -> None:
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


def masked(count: int, name: str, values: str, hint: str = "") -> MaskedWarning:
    """Warn of elements of a result with values that mean that elements are missing, in words."""
    # `hint` says how they can be written to another format, "" if they cannot.
    what = f"{number(count, 'element')} of {name} came out {values}, so that readers of the result take them as missing"
    ways = f"give its attributes other values{hint and ', or '}{hint}"
    return MaskedWarning(f"{what}; {ways}", {"buffer": name, "count": count})


def unset(count: int, name: str, hint: str) -> InputWarning:
    """Warn of inputs with netCDF's value of elements that were never written, which no attribute declares."""
    what = f"{number(count, 'element')} of {name} {'has' if count == 1 else 'have'}"
    return InputWarning(f"{what} netCDF's default fill value, which no attribute names, and is combined; {hint}")


def order(first: str, second: str, where: str) -> OrderWarning:
    """Warn of two neighbours among the ranks whose numbers are in the other order."""
    return OrderWarning(
        f"{first} came before {second}, and the order shows in the {where}; `sort='natural'` sorts by number"
    )


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
