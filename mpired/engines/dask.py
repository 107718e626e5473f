"""The workers of a Dask scheduler that runs, on any machines."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, cast

from mpired import interrupts
from mpired.engines.futures import Futures
from mpired.engines.table import Limits
from mpired.engines.worker import Answer, answer_of, limits_at, loaded, place
from mpired.errors import UsageError, WorkerError

_TIMEOUT = 120.0
_LOOK = 5.0  # seconds between two looks at the workers while none has done anything
_PATIENCE = 1.0  # seconds to cancel tasks and to close a connection, which may fail


@contextlib.contextmanager
def connect(options: Mapping[str, Any]) -> Iterator[Dask]:
    """Connect to the scheduler, or use the client in `options`, which stays open."""
    engine, timeout = options["engine"], options["engine_timeout"] or _TIMEOUT
    if not isinstance(engine, str):
        if options["scheduler"] is not None:
            raise UsageError("`scheduler`", "is that of the client already; leave it out")
        yield Dask(engine, str(engine.scheduler.address), timeout)
        return
    import distributed  # noqa: PLC0415 - only for this engine
    from dask import config  # noqa: PLC0415 - as above

    address = options["scheduler"] or config.get("scheduler-address", None)
    if address is None:
        hint = "start one by `dask scheduler`, and name its address, such as tcp://host:8786"
        raise UsageError("`scheduler`", f"is missing; {hint}")
    for name in [each for each in logging.root.manager.loggerDict if each.partition(".")[0] == "distributed"]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # our own messages say the same
    where = {"scheduler_file": address} if os.path.isfile(address) else {"address": address}
    try:
        client = cast("Any", distributed.Client)(**where, timeout=timeout, name="mpired", set_as_default=False)
    except (OSError, TimeoutError) as error:
        reason = f"does not answer within {timeout:g} s ({' '.join(str(error).split()) or type(error).__name__})"
        raise WorkerError(f"dask scheduler {address}", reason) from None
    except ValueError as error:  # as an address of a protocol that there is not
        reason = f"{address!r} is neither the address of one, such as tcp://host:8786, nor the file that it writes"
        raise UsageError("`scheduler`", f"{reason} ({' '.join(str(error).split())})") from None
    try:
        yield Dask(client, address, timeout)
    finally:
        with contextlib.suppress(Exception):  # it may be gone
            client.close(_PATIENCE)


class Dask(Futures):
    """The workers of a scheduler."""

    def __init__(self, client: Any, name: str, timeout: float) -> None:
        self._client = client
        self._name = f"dask scheduler {name}"
        self._timeout = timeout  # seconds to wait for workers, and for one that does not answer
        self._addresses: list[str] = []  # of each worker, and then again for each thread that it has besides the first
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._keys: list[str] = []
        self._pinned: dict[str, str] = {}
        self._last_seen: dict[str, tuple[float, float]] = {}
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
        """Return what the workers may use; each thread of one is one here."""
        workers = self._workers()
        threads = [each["nthreads"] for each in workers.values()]
        return limits_at(self.everywhere(place), sum(threads), max(threads, default=1))

    def everywhere(self, function: Callable[[int], Any]) -> list[Any]:
        """Apply the function once in each worker."""
        threads = {address: each["nthreads"] for address, each in sorted(self._workers().items())}
        turns = range(max(threads.values(), default=0))
        self._addresses = [address for turn in turns for address, count in threads.items() if turn < count]
        self._nworkers = len(threads)
        return super().everywhere(function)

    def begin(self, octets: bytes) -> Any:
        """Return the function as the result of a task, which can be made again where a worker is lost."""
        self._keys = []
        return self._client.submit(loaded, octets, pure=False)

    def submit(self, function: Any, item: Any, *, alone: bool, worker: int | None = None, only: bool = False) -> Any:
        """Hand over a task. Left alone the scheduler lets the one worker that has the function do the first ones."""
        where: dict[str, Any] = {}
        if worker is not None and self._addresses:
            where = {"workers": [self._addresses[worker % len(self._addresses)]], "allow_other_workers": not only}
        future = self._client.submit(answer_of, function, item, alone, pure=False, **where)
        if only:
            self._pinned[future.key] = where["workers"][0]
        self._keys.append(future.key)
        future.add_done_callback(self._done.put)
        return future

    def run(
        self, function: Callable[[Any], Any], items: Iterable[Any], jobs: int, *, isolated: bool = False
    ) -> Generator[Any, None, None]:
        """Apply the function to every item, at most `jobs` at a time; yield the results as they come."""
        yield from super().run(function, items, jobs, isolated=isolated)
        if not self._workers().keys() >= set(self._addresses):  # one is gone: the scheduler remembers what began again
            story = self._ask(self._client.scheduler.get_story, keys_or_stimuli=self._keys)
            begun = Counter(key for key, before, after, *_ in story if before != after == "processing")
            self.repeated += sum(begun[key] > 1 for key in self._keys)

    def wait(self, futures: Collection[Any]) -> Collection[Any]:
        """Wait until one of the futures is done; meanwhile look whether scheduler and workers are there."""
        self._last_worker = time.monotonic()
        self._last_seen.clear()
        while True:
            try:
                future = interrupts.interruptible(partial(self._done.get, timeout=min(_LOOK, self._timeout / 4)))
            except queue.Empty:
                self._check_alive(futures)
                continue
            if future in futures:  # not one of a run before
                return [future]

    def answer(self, future: Any, *, alone: bool) -> Answer:
        """Return what came of a task."""
        from distributed.scheduler import KilledWorker  # noqa: PLC0415 - only for this engine

        self._pinned.pop(future.key, None)
        try:
            return cast("Answer", self._client.gather(future, direct=True))
        except KilledWorker as error:
            if alone:  # workers that do not come back had an end of their own, and the op is not to blame
                time.sleep(_PATIENCE)
                self.wait_for_workers()
            times = f"{error.allowed_failures + 1} times; nothing was written"
            reason = f"a task has ended the process of its worker, {times}"
            raise WorkerError(self._name, reason, 1 if alone else None) from None
        except CancelledError:
            raise WorkerError(self._name, "was lost, or has forgotten the tasks; nothing was written") from None
        except Exception as error:  # noqa: BLE001 - whatever keeps a worker from loading mpired
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise WorkerError(self._name, f"a worker cannot do its task ({what}); nothing was written") from None

    def cancel(self, futures: Collection[Any]) -> None:
        """Cancel waiting tasks; the results of running ones are ignored."""
        if futures and self._client.status == "running":
            with contextlib.suppress(Exception):  # it may be gone by now
                self._client.cancel(list(futures), force=True)

    def _check_alive(self, futures: Collection[Any]) -> None:
        """Raise `WorkerError` if the worker of a task has been silent for long, or there is no worker."""
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
        gone = {self._pinned[key] for key in keys & self._pinned.keys()} - workers.keys()
        given = self._ask(self._client.scheduler.processing, workers=None) if silent else {}
        for address in [*gone, *(each for each in silent if keys & set(given.get(each, ())))]:
            reason = f"the worker {address} does not answer for {self._timeout:g} s"
            raise WorkerError(self._name, f"{'a worker is lost' if address in gone else reason}; nothing was written")

    def _workers(self) -> dict[str, Any]:
        """Return what the scheduler knows of its workers."""
        return cast("dict[str, Any]", self._ask(self._client.scheduler.identity, n_workers=-1)["workers"])

    def _ask(self, function: Callable[..., Any], **keywords: Any) -> Any:
        try:
            return self._client.sync(function, **keywords, callback_timeout=self._timeout)
        except (OSError, TimeoutError) as error:
            reason = f"does not answer ({' '.join(str(error).split()) or type(error).__name__}); nothing was written"
            raise WorkerError(self._name, reason) from None
