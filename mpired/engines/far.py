"""What engines have in common whose workers may be on other machines: what such a worker does, and tasks one by one."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
import resource
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable
from typing import Any, NamedTuple, TypeAlias

from mpired.context import RESERVED
from mpired.engines.table import Limits
from mpired.engines.worker import keep_freed_memory, portable, results
from mpired.errors import MpiredError

Answer: TypeAlias = tuple[list[Any], BaseException | None]
"""The results of an item, and the error that ended them."""

_ONE = threading.Lock()


class Place(NamedTuple):
    """Where a worker is: the name of its machine, and how many files it may have open."""

    host: str
    descriptors: int


def place(_number: int) -> Place:
    """Return where this process is."""
    return Place(os.uname().nodename, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def limits(places: Collection[Place], workers: int, threads: int = 1) -> Limits:
    """Return what so many workers may use that are at these places: files as the one that may open fewest.

    As many of them as `threads` may be one process.
    """
    of_all = (each.descriptors - RESERVED for each in places if each.descriptors != resource.RLIM_INFINITY)
    finite = [RESERVED + each // threads for each in of_all]
    return Limits(workers, min(finite, default=resource.RLIM_INFINITY), len({each.host for each in places}))


def told(error: BaseException) -> BaseException:
    """Return an error that can be sent to another machine; one of a file also says which machine it is of."""
    where = f" (on {os.uname().nodename})"
    if isinstance(error, MpiredError):
        error.reason += where
        error.args = error.subject, error.reason
    elif isinstance(error, OSError) and error.strerror is not None:
        error.strerror += where
    return portable(error)


class Sent:
    """A pickled function, which a process loads once, and has as long as it has this."""

    def __init__(self, octets: bytes) -> None:
        self._octets, self._lock = octets, threading.Lock()
        self._function: Callable[[Any], Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Sent, (self._octets,)

    @property
    def function(self) -> Callable[[Any], Any]:
        """The function."""
        with self._lock:
            self._function = self._function or _loaded(self._octets)
            return self._function


def work(sent: Sent | bytes, item: Any, alone: bool) -> Answer:  # noqa: FBT001 - of a task, which has no keywords
    """Apply a pickled function to an item; `alone` is what may run in one thread of a process at a time."""
    found: list[Any] = []
    try:
        with _ONE if alone else contextlib.nullcontext():
            found.extend(results(sent.function if isinstance(sent, Sent) else _loaded_last(sent), item))
    except BaseException as error:  # noqa: BLE001 - raised again by the command
        return found, told(error)
    return found, None


def _loaded(octets: bytes) -> Callable[[Any], Any]:
    keep_freed_memory()
    function: Callable[[Any], Any] = pickle.loads(octets)  # noqa: S301 - made by the command, of the same user
    return function


_loaded_last = functools.lru_cache(maxsize=1)(_loaded)


class Tasks(ABC):
    """An engine that takes tasks one by one. `repeated` are those that were begun again, their worker being lost."""

    repeated = 0

    @abstractmethod
    def begin(self, octets: bytes) -> Any:
        """Return the pickled function of a run as tasks have it."""

    @abstractmethod
    def submit(self, function: Any, item: Any, *, alone: bool, worker: int | None = None, only: bool = False) -> Any:
        """Hand over a task, and return its future: to any worker, or to the one of a number first, or only to that."""

    @abstractmethod
    def wait(self, futures: Collection[Any]) -> Collection[Any]:
        """Wait until one of the futures is done at least; return those that are, or raise `WorkerError`."""

    @abstractmethod
    def answer(self, future: Any, *, alone: bool) -> Answer:
        """Return what came of a future that is done, or raise `WorkerError`."""

    @abstractmethod
    def cancel(self, futures: Collection[Any]) -> None:
        """Let no worker begin with what is not done."""

    def run(
        self, function: Callable[[Any], Any], items: Iterable[Any], jobs: int, *, isolated: bool = False
    ) -> Generator[Any, None, None]:
        """Apply the function to every item, at most `jobs` at a time; yield the results as they come."""
        rest = iter(items)
        sent = self.begin(pickle.dumps(function, 5))
        first = enumerate(itertools.islice(rest, jobs))
        waiting = {self.submit(sent, item, alone=isolated, worker=number) for number, item in first}
        try:
            while waiting:
                for future in self.wait(waiting):
                    waiting.discard(future)
                    found, error = self.answer(future, alone=isolated)
                    waiting.update(self.submit(sent, item, alone=isolated) for item in itertools.islice(rest, 1))
                    yield from found
                    if error is not None:
                        raise error
            self.repeated += self.repeats()
        finally:
            self.cancel(waiting)

    def repeats(self) -> int:
        """Return how many tasks of the run that ends were begun again; 0 where an engine does not tell."""
        return 0

    def each(self, function: Callable[[int], Any], workers: int) -> list[Any]:
        """Apply the function to the number of each of some workers, in that worker if the engine can."""
        sent = self.begin(pickle.dumps(function, 5))
        waiting = {self.submit(sent, number, alone=False, worker=number, only=True) for number in range(workers)}
        found: list[Any] = []
        try:
            while waiting:
                for future in self.wait(waiting):
                    waiting.discard(future)
                    values, error = self.answer(future, alone=False)
                    if error is not None:
                        raise error
                    found += values
        finally:
            self.cancel(waiting)
        return found
