"""Shared parts of engines with remote workers: their places, and the work on a task."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import resource
import threading
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeAlias

from mpired.context import RESERVED
from mpired.engines.table import Limits
from mpired.engines.worker import keep_freed_memory, portable, results
from mpired.errors import MpiredError

Answer: TypeAlias = tuple[list[Any], BaseException | None]
"""The results of an item, and the error that ended them."""

_ONE = threading.Lock()


class WorkerPlace(NamedTuple):
    """The place of a worker: its number, its machine, and its limit of open files."""

    number: int
    host: str
    descriptors: int


def place(number: int) -> WorkerPlace:
    """Return where this process is, the worker of a number."""
    return WorkerPlace(number, os.uname().nodename, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def limits(places: Collection[WorkerPlace], workers: int, threads: int = 1) -> Limits:
    """Return what workers at these places may use: as many files as the one that may open fewest."""
    # As many of them as `threads` may be one process.
    of_all = (each.descriptors - RESERVED for each in places if each.descriptors != resource.RLIM_INFINITY)
    finite = [RESERVED + each // threads for each in of_all]
    return Limits(workers, min(finite, default=resource.RLIM_INFINITY), len({each.host for each in places}))


def portable_error(error: BaseException) -> BaseException:
    """Return an error that can be sent to another machine; one of a file also says which machine it is of."""
    where = f" (on {os.uname().nodename})"
    if isinstance(error, MpiredError):
        error.reason += where
        error.args = error.subject, error.reason
    elif isinstance(error, OSError) and error.strerror is not None:
        error.strerror += where
    return portable(error)


def work(sent: Callable[[Any], Any] | bytes, item: Any, alone: bool) -> Answer:  # noqa: FBT001 - of a task, which has no keywords
    """Apply a function, pickled or not, to an item; `alone` is what may run in one thread of a process at a time."""
    found: list[Any] = []
    try:
        with _ONE if alone else contextlib.nullcontext():
            found.extend(results(_loaded_last(sent) if isinstance(sent, bytes) else sent, item))
    except BaseException as error:  # noqa: BLE001 - raised again by the command
        return found, portable_error(error)
    return found, None


def loaded(octets: bytes) -> Callable[[Any], Any]:
    """Return a function that was pickled for a run."""
    keep_freed_memory()
    function: Callable[[Any], Any] = pickle.loads(octets)  # noqa: S301 - made by the command, of the same user
    return function


_loaded_last = functools.lru_cache(maxsize=1)(loaded)
