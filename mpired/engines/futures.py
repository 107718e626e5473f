"""The engines that take single tasks: an executor of a program, and the workers of a running Dask scheduler.

An executor has the interface of `concurrent.futures`, such as that of Parsl. Each task has the function and one item;
an executor chooses the worker.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pickle
import queue
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, cast

from mpired import interrupts
from mpired.context import usable_cores
from mpired.engines.table import Limits, is_dask
from mpired.engines.worker import Answer, answer_of, limits_at, place, unpickle
from mpired.errors import UsageError, WorkerError

_TIMEOUT = 120.0  # seconds to wait for workers
_CHECK_PERIOD = 5.0  # seconds without a result after which the workers are checked
_PATIENCE = 1.0  # seconds to cancel tasks and to close a connection, which may fail


@contextlib.contextmanager
def connect(options: Mapping[str, Any]) -> Iterator[Futures]:
    """Connect to the scheduler, or use the client or the executor in `options`, which stays open."""
    engine, timeout = options["engine"], options["engine_timeout"] or _TIMEOUT
    if not isinstance(engine, str):
        if options["scheduler"] is not None:
            raise UsageError("`scheduler`", "is that of the client already; leave it out")
        yield Dask(engine, str(engine.scheduler.address), timeout) if is_dask(engine) else Futures(engine)
        return
    import distributed  # noqa: PLC0415 - only for this engine
    from dask import config  # noqa: PLC0415 - as above

    address = options["scheduler"] or config.get("scheduler-address", None)
    if address is None:
        hint = "start one by `dask scheduler`, and name its address, such as tcp://host:8786"
        raise UsageError("`scheduler`", f"is missing; {hint}")
    for name in [*logging.root.manager.loggerDict]:
        if name.partition(".")[0] == "distributed":  # our own messages report the same errors
            logging.getLogger(name).setLevel(logging.CRITICAL)
    placement = {"scheduler_file": address} if os.path.isfile(address) else {"address": address}
    try:
        client = cast("Any", distributed.Client)(**placement, timeout=timeout, name="mpired", set_as_default=False)
    except (OSError, TimeoutError) as error:
        reason = f"does not answer within {timeout:g} s ({' '.join(str(error).split()) or type(error).__name__})"
        raise WorkerError(f"dask scheduler {address}", reason) from None
    except ValueError as error:  # such as an unknown protocol in the address
        reason = f"{address!r} is neither the address of one, such as tcp://host:8786, nor the file that it writes"
        raise UsageError("`scheduler`", f"{reason} ({' '.join(str(error).split())})") from None
    try:
        yield Dask(client, address, timeout)
    finally:
        with contextlib.suppress(Exception):  # the scheduler may have ended
            client.close(_PATIENCE)


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
        # Not `self.run`, with which Dask counts the tasks that began again.
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
        waiting = iter(items)
        task = self.send_function(pickle.dumps(function, 5))
        first = enumerate(itertools.islice(waiting, jobs))
        pending = {self.submit(task, item, isolated=isolated, worker=i, pinned=pinned) for i, item in first}
        try:
            while pending:
                for future in self.wait(pending):
                    pending.discard(future)
                    results, error = self.answer(future, isolated=isolated)
                    pending.update(self.submit(task, item, isolated=isolated) for item in itertools.islice(waiting, 1))
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


class Dask(Futures):
    """The workers of a scheduler."""

    def __init__(self, client: Any, name: str, timeout: float) -> None:
        self._client = client
        self._name = f"dask scheduler {name}"
        self._timeout = timeout  # seconds to wait for workers, and for the answer of a worker
        self._addresses: list[str] = []  # first of each worker, then of each worker with a second thread, and so on
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()  # futures that are done
        self._keys: list[str] = []  # of the tasks of the run
        self._pinned: dict[str, str] = {}  # addresses of the workers of tasks for a single worker, by their keys
        self._last_seen: dict[str, tuple[float, float]] = {}  # of workers: time of the scheduler, and of this process
        self._last_worker = time.monotonic()
        self.wait_for_workers()

    def wait_for_workers(self) -> None:
        """Wait until there is a worker, or raise `WorkerError`."""
        end = time.monotonic() + self._timeout
        while not self._workers():
            if time.monotonic() > end:
                raise WorkerError(self._name, f"has had no worker for {self._timeout:g} s; start some by `dask worker`")
            time.sleep(min(0.1, self._timeout))

    def limits(self) -> Limits:
        """Return the limits of the workers; each thread of a Dask worker counts as a worker."""
        threads = [worker["nthreads"] for worker in self._workers().values()]
        return limits_at(self.everywhere(place), sum(threads), max(threads, default=1))

    def everywhere(self, function: Callable[[int], Any]) -> list[Any]:
        """Apply the function once in each worker."""
        threads = {address: worker["nthreads"] for address, worker in sorted(self._workers().items())}
        turns = range(max(threads.values(), default=0))
        self._addresses = [address for turn in turns for address, count in threads.items() if turn < count]
        self._nworkers = len(threads)
        return super().everywhere(function)

    def send_function(self, octets: bytes) -> Any:
        """Return the future of a task that unpickles the function; Dask repeats it if its worker is lost."""
        self._keys = []
        return self._client.submit(unpickle, octets, pure=False)

    def submit(
        self, function: Any, item: Any, *, isolated: bool, worker: int | None = None, pinned: bool = False
    ) -> Any:
        """Return the future of a task; without `worker` Dask prefers the worker that has the function."""
        placement: dict[str, Any] = {}
        if worker is not None and self._addresses:
            placement = {"workers": [self._addresses[worker % len(self._addresses)]], "allow_other_workers": not pinned}
        future = self._client.submit(answer_of, function, item, isolated, pure=False, **placement)
        if pinned:
            self._pinned[future.key] = placement["workers"][0]
        self._keys.append(future.key)
        future.add_done_callback(self._done.put)
        return future

    def run(
        self, function: Callable[[Any], Any], items: Iterable[Any], jobs: int, *, isolated: bool = False,
        pinned: bool = False,
    ) -> Generator[Any, None, None]:  # fmt: skip
        """Apply the function to every item, at most `jobs` at a time; yield the results as they arrive."""
        yield from super().run(function, items, jobs, isolated=isolated, pinned=pinned)
        if not self._workers().keys() >= set(self._addresses):  # a worker was lost: count the tasks that began again
            story = self._ask(self._client.scheduler.get_story, keys_or_stimuli=self._keys)
            starts = Counter(key for key, old, new, *_ in story if old != new == "processing")
            self.repeated += sum(starts[key] > 1 for key in self._keys)

    def wait(self, futures: Collection[Any]) -> Collection[Any]:
        """Wait until one of the futures is done; meanwhile check the scheduler and the workers."""
        self._last_worker = time.monotonic()
        self._last_seen.clear()
        period = min(_CHECK_PERIOD, self._timeout / 4)
        while True:
            try:
                future = interrupts.interruptible(partial(self._done.get, timeout=period))
            except queue.Empty:
                self._check_alive(futures)
                continue
            if future in futures:  # not of an earlier run
                return [future]

    def answer(self, future: Any, *, isolated: bool) -> Answer:
        """Return the results of a task that is done, or raise `WorkerError`."""
        from distributed.scheduler import KilledWorker  # noqa: PLC0415 - only for this engine

        self._pinned.pop(future.key, None)
        try:
            return cast("Answer", self._client.gather(future, direct=True))
        except KilledWorker as error:
            if isolated:  # if the workers do not come back, something else than the op has ended them
                time.sleep(_PATIENCE)
                self.wait_for_workers()
            times = f"{error.allowed_failures + 1} times; nothing was written"
            reason = f"a task has ended the process of its worker, {times}"
            raise WorkerError(self._name, reason, 1 if isolated else None) from None
        except CancelledError:
            raise WorkerError(self._name, "was lost, or has forgotten the tasks; nothing was written") from None
        except Exception as error:  # noqa: BLE001 - of a worker that cannot import mpired
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise WorkerError(self._name, f"a worker cannot do its task ({text}); nothing was written") from None

    def cancel(self, futures: Collection[Any]) -> None:
        """Cancel waiting tasks; the results of running ones are ignored."""
        if futures and self._client.status == "running":
            with contextlib.suppress(Exception):  # the scheduler may have ended
                self._client.cancel(list(futures), force=True)

    def _check_alive(self, futures: Collection[Any]) -> None:
        """Raise `WorkerError` without workers, or if the worker of a task is lost or has sent nothing for too long."""
        workers, now = self._workers(), time.monotonic()
        if workers:
            self._last_worker = now
        if now - self._last_worker > self._timeout:
            raise WorkerError(self._name, f"has had no worker for {self._timeout:g} s; nothing was written")
        for address, worker in workers.items():
            if self._last_seen.get(address, (0, 0))[0] != worker["last_seen"]:
                self._last_seen[address] = worker["last_seen"], now
        keys = {future.key for future in futures}
        silent = [address for address in workers if now - self._last_seen[address][1] > self._timeout]
        lost = {self._pinned[key] for key in keys & self._pinned.keys()} - workers.keys()
        tasks = self._ask(self._client.scheduler.processing, workers=None) if silent else {}
        for address in [*lost, *(worker for worker in silent if keys & set(tasks.get(worker, ())))]:
            reason = f"the worker {address} does not answer for {self._timeout:g} s"
            raise WorkerError(self._name, f"{'a worker is lost' if address in lost else reason}; nothing was written")

    def _workers(self) -> dict[str, Any]:
        """Return the scheduler's records of its workers, by their addresses."""
        return cast("dict[str, Any]", self._ask(self._client.scheduler.identity, n_workers=-1)["workers"])

    def _ask(self, function: Callable[..., Any], **keywords: Any) -> Any:
        try:
            return self._client.sync(function, **keywords, callback_timeout=self._timeout)
        except (OSError, TimeoutError) as error:
            reason = f"does not answer ({' '.join(str(error).split()) or type(error).__name__}); nothing was written"
            raise WorkerError(self._name, reason) from None
