"""The engine `executor`: an executor of a program with the interface of `concurrent.futures`, such as Parsl's.

Each task has the function and one item, and the executor chooses the worker.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, ThreadPoolExecutor, wait
from typing import Any

from mpired import interrupts
from mpired.context import usable_cores
from mpired.engines.table import Limits
from mpired.engines.worker import Answer, answer_of, limits_at, place
from mpired.errors import WorkerError


@contextlib.contextmanager
def connect(options: Mapping[str, Any]) -> Iterator[Futures]:
    """Use the executor in `options`, which is not shut down."""
    yield Futures(options["engine"])


class Futures:
    """The tasks of an executor."""

    repeated = 0  # tasks that were repeated because their worker was lost; 0 if the engine does not count them

    def __init__(self, executor: Any) -> None:
        self._client = executor
        self._nworkers = getattr(executor, "_max_workers", None) or usable_cores()

    def limits(self) -> Limits:
        """Return the limits of the workers."""
        threads = self._nworkers if isinstance(self._client, ThreadPoolExecutor) else 1
        return limits_at(self.everywhere(place), self._nworkers, threads)

    def everywhere(self, function: Callable[[int], Any]) -> list[Any]:
        """Apply the function to the number of each worker, in the worker itself if the engine can choose workers."""
        return list(Futures.run(self, function, range(self._nworkers), self._nworkers, pinned=True))

    def send_function(self, octets: bytes) -> Any:
        """Return the argument of tasks for the pickled function of a run."""
        return octets

    def submit(
        self, function: Any, item: Any, *, isolated: bool, worker: int | None = None, pinned: bool = False
    ) -> Any:
        """Return the future of a task for any worker, but preferably `worker`; if `pinned`, for no other."""
        del worker, pinned
        with _worker_errors():
            return self._client.submit(answer_of, function, item, isolated)

    def wait(self, futures: Collection[Any]) -> Collection[Any]:
        """Wait until at least one future is done, and return the futures that are done; or raise `WorkerError`."""
        return interrupts.interruptible(wait, futures, None, FIRST_COMPLETED).done

    def answer(self, future: Any, *, isolated: bool) -> Answer:
        """Return the results of a future that is done, or raise `WorkerError`."""
        del isolated
        with _worker_errors():
            answer: Answer = future.result()
            return answer

    def cancel(self, futures: Collection[Any]) -> None:
        """Cancel the tasks that no worker has started."""
        for future in futures:
            future.cancel()

    def run(
        self, function: Callable[[Any], Any], items: Iterable[Any], jobs: int, *, isolated: bool = False,
        pinned: bool = False,  # whether each of the first items is for one worker alone
    ) -> Generator[Any, None, None]:  # fmt: skip
        """Apply the function to every item, at most `jobs` at a time; yield the results as they arrive."""
        queue = iter(items)
        task = self.send_function(pickle.dumps(function, 5))
        first = enumerate(itertools.islice(queue, jobs))
        pending = {self.submit(task, item, isolated=isolated, worker=i, pinned=pinned) for i, item in first}
        try:
            while pending:
                for future in self.wait(pending):
                    pending.discard(future)
                    results, error = self.answer(future, isolated=isolated)
                    pending.update(self.submit(task, item, isolated=isolated) for item in itertools.islice(queue, 1))
                    yield from results
                    if error is not None:
                        raise error
        finally:
            self.cancel(pending)


@contextlib.contextmanager
def _worker_errors() -> Iterator[None]:
    """Turn the errors of an executor that has lost a worker into `WorkerError`."""
    try:
        yield
    except (BrokenExecutor, CancelledError, RuntimeError) as error:
        raise WorkerError("executor", f"a worker was lost ({str(error) or 'cancelled'}); nothing was written") from None
