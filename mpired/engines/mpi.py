"""The engine `mpi`: processes that srun or mpiexec has started.

Rank 0 of MPI is the command, and the other ranks are its workers. They exchange messages themselves: the executor of
mpi4py delays large messages, and takes three times as long.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import math
import os
import pickle
import signal
import stat
import sys
import termios
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, cast

from mpired.engines import messages, pool
from mpired.engines.table import ENGINES, SMALL_NBYTES, Limits, Lines, not_installed
from mpired.engines.worker import (
    WorkerPlace,
    flush_streams,
    keep_freed_memory,
    limits_at,
    place,
    portable_error,
    prepare,
    redirect_streams,
    results,
)
from mpired.errors import UsageError, WorkerError, installation

_FUNCTION, _ITEM, _RESULT, _DONE, _ERROR, _END = "function", "item", "result", "done", "error", "end"
_PATIENCE = 1.0  # seconds that a worker has to stop

# Signs of arguments that may name several files: patterns, lists, ranges, objects of a store.
_SEVERAL = ("*", "?", "[", "{", "@", "%", "://", "--files-from")
_MAX_ARGUMENTS = 100  # the files of more arguments are not examined

_running: Mpi | None = None  # the processes of the launcher
_import_error: UsageError | None = None  # of mpi4py


def main(command: Callable[[], int], preload: Callable[[], object]) -> int:
    """Run the command in rank 0 of MPI, and a worker in the other ranks; return the status if MPI is missing.

    A worker calls `preload` to import modules while the command inspects the files, unless the command looks so small
    that it needs no worker.
    """
    global _running, _import_error  # noqa: PLW0603 - properties of the process
    if not ENGINES["mpi"].started:
        return command()  # which raises an error that asks for a launcher
    try:
        mpi, pkl5 = _import_mpi(thread_level="funneled", finalize=False)
    except UsageError as error:
        _import_error = error  # raised by `connect`
        return command()
    world = pkl5.Intracomm(mpi.COMM_WORLD)
    if world.rank:
        prepare()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        if not _looks_small(sys.argv[1:]):
            with contextlib.suppress(ImportError, MemoryError):  # raised again by the first task, which reports it
                preload()
        _serve(world)
        return _leave(mpi, 0)
    _running = Mpi(mpi, world)
    keep_freed_memory()  # for received results
    try:
        status = command()
    except BaseException:  # noqa: BLE001 - a bug, and the workers wait for messages
        traceback.print_exc()
        _abort(world, 1)
    if not _running.end_workers():
        _abort(world, status or 1)
    return _leave(mpi, status)


def _looks_small(arguments: Sequence[str]) -> bool:
    """Return whether the files among the arguments need no worker; a wrong guess costs only time."""
    if len(arguments) > _MAX_ARGUMENTS:
        return False
    nbytes = 0
    for argument in arguments:
        if any(sign in argument for sign in _SEVERAL):
            return False
        with contextlib.suppress(OSError, ValueError):  # an option, or a new file
            status = os.stat(argument)
            nbytes += status.st_size if stat.S_ISREG(status.st_mode) else SMALL_NBYTES
    return 0 < nbytes < SMALL_NBYTES


def _abort(world: Any, status: int) -> NoReturn:
    """End all processes; first wait for MPICH's launcher, which may drop unread bytes of their streams."""
    flush_streams()
    end = time.monotonic() + _PATIENCE
    with contextlib.suppress(OSError):  # a closed stream
        pipes = [stream for stream in (1, 2) if stat.S_ISFIFO(os.fstat(stream).st_mode)]
        while any(any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))) for pipe in pipes) and time.monotonic() < end:
            time.sleep(0.001)
    world.Abort(status)
    raise AssertionError  # Abort does not return


def _leave(mpi: Any, status: int) -> NoReturn:
    """End this process by `exit` of the C library, in which MPICH disconnects from its launcher."""
    mpi.Finalize()
    ctypes.CDLL(None).exit(status)
    raise AssertionError  # exit does not return


@contextlib.contextmanager
def connect(options: Mapping[str, Any]) -> Iterator[Mpi]:
    """Use the other processes while the block runs; the processes of a launcher end with it."""
    engine: Mpi | None = _running
    if is_of_program := isinstance(options["engine"], Mpi):  # of a `with mpired.mpi()`, which ends them
        engine = options["engine"]
        if not engine.is_running:
            raise UsageError("`engine`", "is that of a block of `mpired.mpi` that has ended; use it in the block")
    else:
        if _import_error is not None:
            raise _import_error
        if engine is None:
            reason = "mpi needs a launcher: `mpiexec -n 4 mpired ... --engine mpi`, or srun"
            raise UsageError("`engine`", f"{reason}; in Python use `with mpired.mpi() as engine:`")
        engine.check_launcher("mpired ...")
    old_timeout, timeout = engine.timeout, options["engine_timeout"]
    engine.timeout = math.inf if timeout is None else timeout
    try:
        yield engine
    finally:
        engine.timeout = old_timeout
        if not is_of_program:
            engine.end_workers()


def _import_mpi(**settings: Any) -> tuple[Any, Any]:
    """Return the modules `MPI`, whose import initialises MPI, and `pkl5` of mpi4py, or raise `UsageError`."""
    try:
        import mpi4py  # noqa: PLC0415 - of few commands and programs

        mpi4py.rc(**settings)
        from mpi4py.util import pkl5  # noqa: PLC0415 - as above; it imports `mpi4py.MPI`
    except ModuleNotFoundError:
        raise UsageError("`engine`", not_installed(ENGINES["mpi"])) from None
    except (ImportError, RuntimeError) as error:
        reason = f"mpi4py finds no library of MPI ({' '.join(str(error).split())})"
        raise UsageError("`engine`", f"{reason}; install one with {installation('mpich')}") from None
    return mpi4py.MPI, pkl5


def joined() -> Mpi:
    """Return the processes of `MPI_COMM_WORLD` that run this program, with a communicator of their own."""
    mpi, pkl5 = _import_mpi()
    Mpi(mpi, mpi.COMM_WORLD).check_launcher(f"python {os.path.basename(sys.argv[0]) or 'FILE'}")
    return Mpi(mpi, pkl5.Intracomm(mpi.COMM_WORLD.Dup()))


class Mpi:
    """The processes of `MPI_COMM_WORLD`."""

    def __init__(self, mpi: Any, world: Any) -> None:
        self._mpi, self._world = mpi, world  # the module `MPI` of mpi4py, and a communicator
        self._workers = list(range(1, world.size))
        self.is_worker = bool(world.rank)  # whether this process carries out the requests of rank 0
        self.is_running = True  # whether its block has not ended
        self._is_stuck = False  # whether a worker did not stop in time
        self._nruns = 0
        self._stops: Counter[int] = Counter()  # requests to stop, sent to each worker
        self._places: dict[int, WorkerPlace] = {}
        self.timeout = math.inf  # seconds to wait for a worker that sends nothing

    def serve(self) -> None:
        """Carry out the requests of rank 0 until it leaves the block; then restore streams and signals."""
        self.is_running = False
        flush_streams()
        streams, descriptors = (sys.stdout, sys.stderr), [os.dup(number) for number in (0, 1)]
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        redirect_streams()
        keep_freed_memory()
        try:
            status = _serve(self._world)
        finally:
            flush_streams()
            sys.stdout, sys.stderr = streams
            for number, fd in enumerate(descriptors):
                os.dup2(fd, number)
                os.close(fd)
            signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
        if status is not None:
            raise SystemExit(status)
        self._world.Free()

    def leave(self, error: BaseException | None) -> None:
        """End the block in the other processes, with the exit status of an error of this process."""
        self.is_running = False
        status = None if error is None else 1
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if not self.end_workers(status):
            if error is not None:
                traceback.print_exception(error)
            _abort(self._world, status or 1)
        if status is None:
            self._world.Free()

    def check_launcher(self, command: str) -> None:
        """Raise `UsageError` without a launcher, or with that of another MPI, which makes each process a rank 0."""
        sizes = {name: size for name, size in ENGINES["mpi"].started.items() if size.isdecimal()}
        if self._world.size > 1 or set(sizes.values()) == {"1"}:
            return
        if not sizes:
            reason = "mpi has one process, and no launcher has started it"
            raise UsageError("`engine`", f"{reason}; write `mpiexec -n 4 {command}`, or srun")
        name, size = next(iter(sizes.items()))
        library = self._mpi.Get_library_version().split("\n")[0].strip("\0 ")
        reason = f"the launcher has started {size} processes ({name}), and each is alone: mpi4py is for another MPI"
        raise UsageError("`engine`", f"{reason} ({library}); use the mpiexec of that one, or build mpi4py for this one")

    def limits(self) -> Limits:
        """Return the limits of the workers; without workers, those of this process."""
        if not self._workers:
            return pool.limits()._replace(workers=1)
        return limits_at(self._known_places().values(), len(self._workers))

    def _known_places(self) -> dict[int, WorkerPlace]:
        """Return the places of the workers, which are requested once."""
        if not self._places:
            places = self.run(place, self._workers, len(self._workers))  # each worker gets its number as first item
            self._places = {worker.number: worker for worker in places}
        return self._places

    def everywhere(self, function: Callable[[int], Any]) -> list[Any]:
        """Apply the function once in each worker."""
        return list(self.run(function, range(len(self._workers)), len(self._workers)))

    def run(
        self, function: Callable[[Any], Any], items: Iterable[Any], jobs: int, *, isolated: bool = False
    ) -> Generator[Any, None, None]:
        """Apply the function to every item with at most `jobs` workers; yield the results as they arrive."""
        if not self._workers:
            yield from pool.run(function, items, 1, isolated=isolated)
            return
        queue = iter(items)
        yield from self._send_items(function, zip(self._workers[:jobs], queue, strict=False), queue)

    def lines(self, jobs: int, max_stages: int) -> Lines:
        """Return lines of at most `max_stages` stages: the machines, or the workers of a single machine."""
        if not self._workers:
            return ()
        places = self._known_places()
        return messages.lines_of([places[worker].host for worker in self._workers[:jobs]], max_stages)

    def chain(
        self, function: Callable[[Any, messages.Link], Any], items: Sequence[Sequence[Iterable[Any]]], lines: Lines
    ) -> Generator[Any, None, None]:
        """Apply the function to the items of each stage of each line; yield the results as they arrive."""
        first = []
        for line, stages in zip(lines, items, strict=True):
            workers = [self._workers[number] for number in line]
            neighbours = zip([None, *workers[:-1]], [*workers[1:], None], strict=True)
            tasks = (messages.Task(tuple(stage), *pair) for stage, pair in zip(stages, neighbours, strict=True))
            first += list(zip(workers, tasks, strict=True))
        yield from self._send_items(function, first, iter(()))

    def _send_items(
        self, function: Callable[..., Any], first: Iterable[tuple[int, Any]], queue: Iterator[Any]
    ) -> Generator[Any, None, None]:
        """Send each worker its first item, and items of the queue when it is free; yield the results as they arrive."""
        octets, started = pickle.dumps(function, 5), list[int]()
        busy: dict[int, float] = {}  # workers, and the time of the last message of each
        self._nruns += 1
        try:
            for worker, item in first:
                self._world.send((_FUNCTION, (self._nruns, octets)), worker, messages.WORK)
                started.append(worker)
                self._world.send((_ITEM, item), worker, messages.WORK)
                busy[worker] = time.monotonic()
            while busy:
                worker, (kind, value) = self._answer(busy)
                busy[worker] = time.monotonic()
                if kind == messages.WAITING:
                    continue
                if kind == _RESULT:
                    begin = time.monotonic()
                    yield value
                    pause = time.monotonic() - begin  # in which this process received no message
                    busy = {sender: last + pause for sender, last in busy.items()}
                    continue
                del busy[worker]
                if kind == _ERROR:
                    raise value
                for item in queue:
                    self._world.send((_ITEM, item), worker, messages.WORK)
                    busy[worker] = time.monotonic()
                    break
        finally:
            self._stop(set(busy))
            for worker in started:  # a worker that drops the function closes its open files
                self._world.send((_FUNCTION, (self._nruns, b"")), worker, messages.WORK)

    def _answer(self, last_messages: Mapping[int, float]) -> tuple[int, tuple[str, Any]]:
        """Return the next message of a worker, and the worker; `last_messages` has the times of the last ones."""
        silent = min(last_messages, key=lambda worker: last_messages[worker])
        try:
            return self._message(last_messages[silent] + self.timeout)
        except TimeoutError:
            where = f" on {self._places[silent].host}" if silent in self._places else ""
            reason = f"has sent nothing for {self.timeout:g} s; nothing was written"
            raise WorkerError(f"the worker of rank {silent}{where}", reason) from None

    def _message(self, end: float) -> tuple[int, tuple[str, Any]]:
        """Return the next message of a worker, and the worker; or raise `TimeoutError` at the time `end`."""
        status = self._mpi.Status()
        messages.wait(lambda: self._world.Iprobe(self._mpi.ANY_SOURCE, messages.WORK, status), end)
        return status.source, self._world.recv(None, status.source, messages.WORK)

    def _stop(self, busy: set[int]) -> None:
        """Stop busy workers, and wait a moment for their last messages."""
        for worker in busy:
            self._world.send(self._nruns, worker, messages.STOP)
            self._stops[worker] += 1
        end = time.monotonic() + _PATIENCE
        try:
            while busy:
                worker, (kind, _) = self._message(end)
                if kind in {_DONE, _ERROR}:
                    busy.discard(worker)
        except TimeoutError:
            self._is_stuck = True

    def end_workers(self, status: int | None = None) -> bool:
        """End the workers; `status` is an exit status for their processes. Return whether no worker hangs in an op."""
        while self._workers and not self._is_stuck:
            worker = self._workers.pop()
            self._world.send((_END, (self._stops[worker], status)), worker, messages.WORK)
        return not self._is_stuck


def _serve(world: Any) -> int | None:
    """Carry out the requests of rank 0, and return the exit status in the last one."""
    octets, function, stops = b"", None, messages.Stops(world)
    while True:
        messages.wait(lambda: world.iprobe(0, messages.WORK))
        kind, value = world.recv(None, 0, messages.WORK)
        if kind == _END:
            nstops, status = value
            for _ in range(nstops - stops.received):  # MPI ends only when all messages are received
                world.recv(None, 0, messages.STOP)
            return cast("int | None", status)
        if kind == _FUNCTION:
            (stops.run, octets), function = value, None
            continue
        last: tuple[str, Any] = _DONE, None
        request = None  # of the last result that was sent
        link = messages.Link(world, value, stops) if isinstance(value, messages.Task) else None
        try:
            function = function or pickle.loads(octets)  # noqa: S301 - sent by rank 0 of the same user
            items = (value,) if link is None else value.items
            work = function if link is None else partial(function, link=link)
            for result in itertools.chain.from_iterable(results(work, item) for item in items):
                flush_streams()
                _wait_for(request)
                request = world.issend((_RESULT, result), 0, messages.WORK)  # received during the next computation
                if stops.stop_requested():
                    break
        except messages.Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by rank 0
            last = _ERROR, portable_error(error)
        flush_streams()
        _wait_for(request)
        world.send(last, 0, messages.WORK)
        if link is not None:
            link.end()


def _wait_for(request: Any) -> None:
    """Wait until the message of a request is received."""
    if request is not None:
        messages.wait(lambda: request.test()[0])
