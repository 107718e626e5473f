"""Messages during a call: warnings, notices, steps with their times, and progress.

The Python API passes warnings to `warnings` and notices to `logging`; the command line collects them.
"""

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
"""A handler of notices; it gets the paths of the files, and the text."""
Progress: TypeAlias = Callable[[Iterable[int], int], Iterable[int]]
"""A watcher of progress; it gets the bytes done in each step, and the total, and yields these bytes again."""
PERIOD = 0.1
"""Seconds between two reports of a worker, because each report wakes the main process."""
_STEP_NBYTES = 1_000_000
_MAX_NAMES = 3  # in a warning
_T = TypeVar("_T")

_listeners: list[NoticeListener] = []


@contextlib.contextmanager
def notices_to(listener: NoticeListener) -> Iterator[None]:
    """Give the notices of the block to a handler, in place of the logger `mpired`."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def notice(paths: Sequence[str], text: str, level: str = "WARNING") -> None:
    """Log a message about files. A recovery is a warning: a repetition of the interrupted call would count twice."""
    if _listeners:
        _listeners[-1](paths, text)
        return
    import logging  # noqa: PLC0415 - few calls have notices

    logging.getLogger("mpired").log(getattr(logging, level), "%s: %s", paths[0], text)


class _Steps(NamedTuple):
    """The plans and steps of a call in order."""

    plans: list[str]
    seconds: dict[str, float]  # of each step, without its inner steps
    inner: list[float]  # seconds of the inner steps of each running step


collected: dict[int, _Steps] = {}  # by thread; empty unless steps are collected


@contextlib.contextmanager
def collect_steps(write: Callable[[str], object] | None) -> Iterator[None]:
    """Collect the steps of this thread in the block, and write their lines; an inner call adds to the outer steps."""
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
    steps.inner.append(0.0)
    started = time.monotonic()
    try:
        yield
    finally:
        seconds = time.monotonic() - started
        steps.seconds[name] += seconds - steps.inner.pop()
        steps.inner[-1] += seconds


def plan(text: str) -> None:
    """Note the plan of the work, if steps are collected."""
    steps = collected.get(threading.get_ident())
    if steps is not None and text not in steps.plans:
        steps.plans.append(text)


def log_steps() -> contextlib.AbstractContextManager[None]:
    """Log the steps of the block with the logger `mpired`, if the program has enabled its level INFO."""
    logging = sys.modules.get("logging")  # imported by a program that has enabled it
    logger = logging.getLogger("mpired") if logging else None
    if logger is None or not logger.isEnabledFor(20):  # INFO
        return contextlib.nullcontext()
    return collect_steps(functools.partial(logger.info, "%s"))


def track(items: Iterable[_T], _total: int = 0) -> Iterator[_T]:
    """Iterate over items without a display; ctrl-C can end the work between two items."""
    for item in items:
        interrupts.raise_pending()
        yield item


no_progress: Progress = track


def progress_from(show: Callable[[range], Iterable[object]]) -> Progress:
    """Return the progress that a function such as `tqdm` shows; it gets a range with an item for each megabyte."""
    if not callable(show):
        raise UsageError(
            "`progress`", f"{show!r} is not a function such as tqdm.tqdm, which takes a range and yields its items"
        )

    def watch(done: Iterable[int], total: int) -> Generator[int, None, None]:
        count = max(1, -(-total // _STEP_NBYTES))
        iterable: object = show(range(count))
        if not isinstance(iterable, Iterable):
            reason = f"returned {type(iterable).__name__}; it takes a range and yields its items, as tqdm does"
            raise UsageError("`progress`", reason)
        items = iter(iterable)
        try:
            next(items, None)
            total_done = steps = 0
            for nbytes in track(done):
                total_done += nbytes
                while steps < min(count - 1, total_done // _STEP_NBYTES):
                    next(items, None)
                    steps += 1
                yield nbytes
            for _ in zip(range(count - steps), items, strict=False):  # to the end, so that a bar shows 100 %
                pass
        finally:
            getattr(items, "close", int)()  # closes a generator after an error

    return watch


def warn_caller(warning: MpiredWarning) -> None:
    """Warn the caller of this package by `warnings`; a filter may raise the warning, which ends the call."""
    names = [str(info.frame.f_globals.get("__name__")) for info in inspect.stack(0)]
    level = max(level for level, name in enumerate(names) if name.startswith("mpired."))
    warnings.warn(warning, stacklevel=level + 2)


_listener: ContextVar[Listener] = ContextVar("_listener", default=warn_caller)


def warn(*new_warnings: MpiredWarning) -> None:
    """Issue warnings; no file has changed yet, because a handler may raise an error."""
    for warning in new_warnings:
        _listener.get()(warning)


@contextlib.contextmanager
def collect_warnings(also: Listener) -> Iterator[list[MpiredWarning]]:
    """Collect the warnings of the block, and pass them to `also` instead of the caller."""
    collected_warnings: list[MpiredWarning] = []

    def listen(warning: MpiredWarning) -> None:
        collected_warnings.append(warning)
        also(warning)

    token = _listener.set(listen)
    try:
        yield collected_warnings
    finally:
        _listener.reset(token)


def masked_warning(count: int, name: str, values: str, hint: str = "") -> MaskedWarning:
    """Return the warning of valid elements of a result that are equal to a fill value; `hint` names other formats."""
    text = f"{number(count, 'element')} of {name} came out {values}, so that readers of the result take them as missing"
    hint = f"give its attributes other values{hint and ', or '}{hint}"
    return MaskedWarning(f"{text}; {hint}", {"buffer": name, "count": count})


def unset_warning(count: int, name: str, hint: str) -> InputWarning:
    """Return the warning of input elements that are equal to netCDF's default fill value, which no attribute names."""
    subject = f"{number(count, 'element')} of {name} {'has' if count == 1 else 'have'}"
    return InputWarning(f"{subject} netCDF's default fill value, which no attribute names, and is combined; {hint}")


def order_warning(first: str, second: str, where: str) -> OrderWarning:
    """Return the warning of two adjacent ranks in descending order of their numbers."""
    return OrderWarning(
        f"{first} came before {second}, and the order shows in the {where}; `sort='natural'` sorts by number"
    )


def processor_warnings(op: object, workers: Sequence[tuple[str, frozenset[str]]]) -> list[ProcessorWarning]:
    """Return the warning of a user-defined op if workers (host, features of its processor) have different features."""
    all_features = frozenset[str]().union(*(features for _, features in workers))
    for host, features in workers:
        if missing := sorted(all_features - features):
            names = f"{', '.join(missing[:_MAX_NAMES])}{', ...' if len(missing) > _MAX_NAMES else ''}"
            text = f"the processor on {host} lacks {names}, which another worker's has"
            return [ProcessorWarning(f"{text}: {shortened(str(op))} may round otherwise there")]
    return []


def same_file_warnings(
    targets: Sequence[object], origins: Sequence[object], indices: object = None
) -> list[SameFileWarning]:
    """Return a warning for each origin or map that is also a target or another origin."""
    groups = [("target", targets), ("origin", origins), ("map", [indices])]
    first: dict[tuple[int, int], str] = {}
    same = []
    for role, name in ((role, name) for role, names in groups for name in names):
        if not isinstance(name, str | os.PathLike):
            continue
        with contextlib.suppress(OSError):  # `-`, or a missing file, which is refused later
            status = os.stat(name)
            inode = status.st_dev, status.st_ino
            if role != "target" and inode in first and stat.S_ISREG(status.st_mode):
                same.append(SameFileWarning(f"the {role} {os.fspath(name)} is the same file as the {first[inode]}"))
            first.setdefault(inode, f"{role} {os.fspath(name)}")
    return same


def same_content_warnings(names: Sequence[str]) -> list[SameContentWarning]:
    """Return the warning of origins that `once` counts although other origins had the same content."""
    if not names:
        return []
    subject = ", ".join(names[:_MAX_NAMES])
    if len(names) > _MAX_NAMES:
        subject += f" and {len(names) - _MAX_NAMES} more"
    predicate = "has the content of an origin that was applied before from another place, and is counted"
    if len(names) > 1:
        predicate = "have the content of origins that were applied before from other places, and are counted"
    return [SameContentWarning(f"{subject} {predicate}")]


def unused_warnings(op: object, origins: Iterable[object]) -> list[UnusedWarning]:
    """Return a warning for each origin of an op that does not use origins (MPI-4.1, 12.3.4)."""
    names = (str(origin) if isinstance(origin, str | os.PathLike | int | float) else "the origin" for origin in origins)
    return [UnusedWarning(f"{shortened(name)} is not used: {op} only reads the target") for name in names]
