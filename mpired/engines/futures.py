"""Any executor of `concurrent.futures` that a program hands over: Python's own, or one of Parsl or of a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from typing import Any

from mpired import interrupts
from mpired.engines import cores, far
from mpired.engines.table import Limits
from mpired.errors import WorkerError


@contextlib.contextmanager
def connect(options: Mapping[str, Any]) -> Iterator[Futures]:
    """Use the executor in `options`, which stays the caller's."""
    yield Futures(options["engine"])


class Futures(far.Tasks):
    """An executor, which gets the function with each item."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._workers = getattr(executor, "_max_workers", None) or cores.usable_cores()

    def limits(self) -> Limits:
        """Return what the workers may use."""
        threads = self._workers if isinstance(self._executor, ThreadPoolExecutor) else 1
        return far.limits(self.everywhere(far.place), self._workers, threads)

    def everywhere(self, function: Callable[[int], Any]) -> list[Any]:
        """Apply the function as often as there are workers: an executor chooses the worker itself."""
        return self.each(function, self._workers)

    def begin(self, octets: bytes) -> bytes:
        """Return the pickled function: it goes with each item."""
        return octets

    def submit(
        self, function: Any, item: Any, *, alone: bool, worker: int | None = None, only: bool = False
    ) -> Future[far.Answer]:
        """Hand over a task, to the worker that the executor chooses."""
        del worker, only
        with _blaming():
            return self._executor.submit(far.work, function, item, alone)

    def wait(self, futures: Collection[Any]) -> Collection[Any]:
        """Wait until one of the futures is done at least."""
        return interrupts.waited(wait, futures, None, FIRST_COMPLETED).done

    def answer(self, future: Any, *, alone: bool) -> far.Answer:
        """Return what came of a future that is done."""
        del alone
        with _blaming():
            answer: far.Answer = future.result()
            return answer

    def cancel(self, futures: Collection[Any]) -> None:
        """Cancel what has not begun."""
        for future in futures:
            future.cancel()


@contextlib.contextmanager
def _blaming() -> Iterator[None]:
    """Turn what an executor says of lost workers into one error."""
    try:
        yield
    except (BrokenExecutor, CancelledError, RuntimeError) as error:
        raise WorkerError("executor", f"a worker was lost ({str(error) or 'cancelled'}); nothing was written") from None
