"""An engine for tests: interpreters of their own in another working directory, which stay from run to run."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from mpired.engines import Limits
from mpired.engines.worker import results
from mpired.errors import WorkerError

ELSEWHERE = "/"
# What the tests look at: the tasks as they were sent, and what was called before each run.
sent: list[bytes] = []
before: list[Callable[[], object]] = []
_executors: list[ProcessPoolExecutor] = []


def limits() -> Limits:
    return Limits(2, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def run(
    function: Callable[[Any], Any], items: Iterable[Any], jobs: int, *, isolated: bool = False
) -> Generator[Any, None, None]:
    del jobs, isolated  # there are two workers, and nothing ever runs in this process
    sent.append(pickle.dumps(function))
    for call in before:
        call()
    if not _executors:
        # Both start now: one that starts later may find the folder of this test gone.
        context = multiprocessing.get_context("spawn")
        _executors.append(ProcessPoolExecutor(2, context, initializer=_begin, initargs=(context.Barrier(2),)))
        for started in [_executors[0].submit(os.getpid) for _ in range(2)]:
            started.result()
    futures = [_executors[0].submit(_work, sent[-1], item) for item in items]
    try:
        for future in as_completed(futures):
            yield from future.result()
    except BrokenProcessPool:
        end()
        raise WorkerError("foreign engine", "a worker was lost; nothing was written") from None
    finally:
        for future in futures:
            future.cancel()


def _begin(both: Any) -> None:
    os.chdir(ELSEWHERE)
    both.wait(60)


def _work(function: bytes, item: Any) -> list[Any]:
    assert os.getcwd() == ELSEWHERE
    return list(results(pickle.loads(function), item))


def end() -> None:
    """End the workers."""
    while _executors:
        _executors.pop().shutdown(cancel_futures=True)
