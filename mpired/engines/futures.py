"""Tasks one by one, for any executor of `concurrent.futures` of a program: Python's, Parsl's, a cluster's."""

from __future__ import annotations

import contextlib
import itertools
import pickle
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, ThreadPoolExecutor, wait
from typing import Any

from mpired import interrupts, machine
from mpired.engines.table import Limits
from mpired.engines.worker import Answer, answer_of, limits_at, place
from mpired.errors import WorkerError


@contextlib.contextmanager
def connect(options: Mapping[str, Any]) -> Iterator[Futures]:
    """Use the executor in `options`, which stays the caller's."""
    yield Futures(options["engine"])


class Futures:
    """The tasks of an executor, which gets the function with each item and chooses the worker itself."""

    repeated = 0
    """The number of tasks that were repeated because their worker was lost; 0 where an engine does not tell."""

    def __init__(self, executor: Any) -> None:
        self._client = executor
        self._nworkers = getattr(executor, "_max_workers", None) or machine.usable_cores()

    def limits(self) -> Limits:
        """Return what the workers may use."""
        threads = self._nworkers if isinstance(self._client, ThreadPoolExecutor) else 1
        return limits_at(self.everywhere(place), self._nworkers, threads)

    def everywhere(self, function: Callable[[int], Any]) -> list[Any]:
        """Apply the function to the number of each worker, in that worker if the engine can."""
        sent = self.begin(pickle.dumps(function, 5))
        numbers = range(self._nworkers)
        waiting = {self.submit(sent, number, alone=False, worker=number, only=True) for number in numbers}
        return list(self._results(waiting, iter(()), alone=False))

    def begin(self, octets: bytes) -> Any:
        """Return the pickled function of a run as tasks have it."""
        return octets

    def submit(self, function: Any, item: Any, *, alone: bool, worker: int | None = None, only: bool = False) -> Any:
        """Hand over a task, and return its future: to any worker, or to the one of a number first, or only to that."""
        del worker, only
        with _blaming():
            return self._client.submit(answer_of, function, item, alone)

    def wait(self, futures: Collection[Any]) -> Collection[Any]:
        """Wait until one of the futures is done at least; return those that are, or raise `WorkerError`."""
        return interrupts.interruptible(wait, futures, None, FIRST_COMPLETED).done

    def answer(self, future: Any, *, alone: bool) -> Answer:
        """Return what came of a future that is done, or raise `WorkerError`."""
        del alone
        with _blaming():
            answer: Answer = future.result()
            return answer

    def cancel(self, futures: Collection[Any]) -> None:
        """Cancel the tasks that no worker has begun."""
        for future in futures:
            future.cancel()

    def run(
        self, function: Callable[[Any], Any], items: Iterable[Any], jobs: int, *, isolated: bool = False
    ) -> Generator[Any, None, None]:
        """Apply the function to every item, at most `jobs` at a time; yield the results as they come."""
        rest = iter(items)
        sent = self.begin(pickle.dumps(function, 5))
        first = enumerate(itertools.islice(rest, jobs))
        waiting = {self.submit(sent, item, alone=isolated, worker=number) for number, item in first}
        more = (self.submit(sent, item, alone=isolated) for item in rest)
        yield from self._results(waiting, more, alone=isolated)

    def _results(self, waiting: set[Any], more: Iterator[Any], *, alone: bool) -> Generator[Any, None, None]:
        """Yield the results of the futures that are waited for, and of one more for each that is done."""
        try:
            while waiting:
                for future in self.wait(waiting):
                    waiting.discard(future)
                    found, error = self.answer(future, alone=alone)
                    waiting.update(itertools.islice(more, 1))
                    yield from found
                    if error is not None:
                        raise error
        finally:
            self.cancel(waiting)


@contextlib.contextmanager
def _blaming() -> Iterator[None]:
    """Turn what an executor says of lost workers into one error."""
    try:
        yield
    except (BrokenExecutor, CancelledError, RuntimeError) as error:
        raise WorkerError("executor", f"a worker was lost ({str(error) or 'cancelled'}); nothing was written") from None
