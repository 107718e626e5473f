"""The processes that srun or mpiexec has started: rank 0 of MPI is the command, the others are its workers.

A loop over messages, not the executor of mpi4py: that one lets large messages wait, which costs three times the time.
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
_PATIENCE = 1.0  # seconds that a worker has to notice that its work is not wanted any more

# Parts of arguments that name several files: patterns, lists, ranges, objects of a store.
_SEVERAL = ("*", "?", "[", "{", "@", "%", "://", "--files-from")
_MOST_ARGUMENTS = 100  # more are not looked at in each process

_running: Mpi | None = None
_obstacle: UsageError | None = None


def main(command: Callable[[], int], ahead: Callable[[], object]) -> int:
    """Run the command in rank 0 of MPI, and a worker in the other ranks; return the status where there is no MPI."""
    # A worker calls `ahead` to import modules while the command inspects the files, unless the job looks so small that
    # the command does it alone.
    global _running, _obstacle  # noqa: PLW0603 - properties of the process
    if not ENGINES["mpi"].started:
        return command()  # it asks for a launcher
    try:
        import mpi4py  # noqa: PLC0415 - only under a launcher

        mpi4py.rc(thread_level="funneled", finalize=False)
        from mpi4py import MPI  # noqa: PLC0415 - which initialises MPI
        from mpi4py.util import pkl5  # noqa: PLC0415 - as above
    except ModuleNotFoundError:
        return command()  # its error names the missing package
    except (ImportError, RuntimeError) as error:
        _obstacle = _no_library(error)
        return command()
    world = pkl5.Intracomm(MPI.COMM_WORLD)
    if world.rank:
        prepare()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        if not _looks_small(sys.argv[1:]):
            with contextlib.suppress(ImportError, MemoryError):  # it fails again where that can be reported
                ahead()
        _serve(world)
        return _leave(MPI, 0)
    _running = Mpi(world)
    keep_freed_memory()  # results are received in it
    try:
        status = command()
    except BaseException:  # noqa: BLE001 - a bug; the others wait for messages
        traceback.print_exc()
        _abort(world, 1)
    if not _running.end_workers():
        _abort(world, status or 1)
    return _leave(MPI, status)


def _looks_small(words: Sequence[str]) -> bool:
    """Return whether the files among the arguments need no worker; a wrong guess costs only time."""
    if len(words) > _MOST_ARGUMENTS:
        return False
    nbytes = 0
    for word in words:
        if any(each in word for each in _SEVERAL):
            return False
        with contextlib.suppress(OSError, ValueError):  # an option, or a file that is not there yet
            status = os.stat(word)
            nbytes += status.st_size if stat.S_ISREG(status.st_mode) else SMALL_NBYTES
    return 0 < nbytes < SMALL_NBYTES


def _abort(world: Any, status: int) -> NoReturn:
    """End all processes. MPICH's launcher may drop unread bytes of their streams, so it is waited for."""
    flush_streams()
    until = time.monotonic() + _PATIENCE
    with contextlib.suppress(OSError):  # closed: bytes written to a file are there
        pipes = [stream for stream in (1, 2) if stat.S_ISFIFO(os.fstat(stream).st_mode)]
        while any(any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))) for pipe in pipes) and time.monotonic() < until:
            time.sleep(0.001)
    world.Abort(status)
    raise AssertionError  # which does not return


def _leave(mpi: Any, status: int) -> NoReturn:
    """End this process. MPICH takes leave of its launcher when the C library does, not before."""
    mpi.Finalize()
    ctypes.CDLL(None).exit(status)
    raise AssertionError  # which does not return


@contextlib.contextmanager
def connect(options: Mapping[str, Any]) -> Iterator[Mpi]:
    """Use the other processes; they end with the block."""
    engine: Mpi | None = _running
    if is_of_program := isinstance(options["engine"], Mpi):  # of a block in a program, which ends the others
        engine = options["engine"]
        if not engine.is_running:
            raise UsageError("`engine`", "is that of a block of `mpired.mpi` that has ended; use it in the block")
    else:
        if ENGINES["mpi"].started:
            import mpi4py  # noqa: F401, PLC0415 - to say that it is missing
        if _obstacle is not None:
            raise _obstacle
        if engine is None:
            reason = "mpi needs a launcher: `mpiexec -n 4 mpired ... --engine mpi`, or srun"
            raise UsageError("`engine`", f"{reason}; in Python use `with mpired.mpi() as engine:`")
        engine.check_launcher("mpired ...")
    before, timeout = engine.timeout, options["engine_timeout"]
    engine.timeout = math.inf if timeout is None else timeout
    try:
        yield engine
    finally:
        engine.timeout = before
        if not is_of_program:
            engine.end_workers()


def _no_library(error: Exception) -> UsageError:
    reason = f"mpi4py finds no library of MPI ({' '.join(str(error).split())})"
    return UsageError("`engine`", f"{reason}; install one with {installation('mpich')}")


def joined() -> Mpi:
    """Return the processes that run this program, with messages apart from those of the program."""
    try:
        from mpi4py import MPI  # noqa: PLC0415 - of few programs
        from mpi4py.util import pkl5  # noqa: PLC0415 - as above
    except ModuleNotFoundError:
        raise UsageError("`engine`", not_installed(ENGINES["mpi"])) from None
    except (ImportError, RuntimeError) as error:
        raise _no_library(error) from None
    Mpi(MPI.COMM_WORLD).check_launcher(f"python {os.path.basename(sys.argv[0]) or 'FILE'}")
    return Mpi(pkl5.Intracomm(MPI.COMM_WORLD.Dup()))


class Mpi:
    """The processes of `MPI_COMM_WORLD`."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._workers = list(range(1, world.size))
        self.is_worker = bool(world.rank)  # this process carries out the requests of rank 0
        self.is_running = True  # its block has not ended
        self._stuck = False
        self._runs = 0
        self._stops: Counter[int] = Counter()
        self._places: dict[int, WorkerPlace] = {}
        self.timeout = math.inf  # seconds to wait for a worker that sends nothing

    def serve(self) -> None:
        """Carry out the requests of rank 0 until it leaves the block; then restore streams and signals."""
        self.is_running = False
        flush_streams()
        streams, kept = (sys.stdout, sys.stderr), [os.dup(number) for number in (0, 1)]
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        redirect_streams()
        keep_freed_memory()
        try:
            status = _serve(self._world)
        finally:
            flush_streams()
            sys.stdout, sys.stderr = streams
            for number, fd in enumerate(kept):
                os.dup2(fd, number)
                os.close(fd)
            signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
        if status is not None:
            raise SystemExit(status)
        self._world.Free()

    def leave(self, error: BaseException | None) -> None:
        """End the block in the other processes, with the error of this one if there is one."""
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

    def check_launcher(self, words: str) -> None:
        """Raise `UsageError` if nothing has started processes, or another MPI has: each would be the command."""
        sizes = {name: size for name, size in ENGINES["mpi"].started.items() if size.isdecimal()}
        if self._world.size > 1 or set(sizes.values()) == {"1"}:
            return
        if not sizes:
            reason = "mpi has one process, and no launcher has started it"
            raise UsageError("`engine`", f"{reason}; write `mpiexec -n 4 {words}`, or srun")
        from mpi4py import MPI  # noqa: PLC0415 - it is there

        name, size = next(iter(sizes.items()))
        library = MPI.Get_library_version().split("\n")[0].strip("\0 ")
        reason = f"the launcher has started {size} processes ({name}), and each is alone: mpi4py is for another MPI"
        raise UsageError("`engine`", f"{reason} ({library}); use the mpiexec of that one, or build mpi4py for this one")

    def limits(self) -> Limits:
        """Return what the workers may use; without others this process is the one."""
        if not self._workers:
            return pool.limits()._replace(workers=1)
        return limits_at(self._known_places().values(), len(self._workers))

    def _known_places(self) -> dict[int, WorkerPlace]:
        """Return where each worker is, which is asked for once."""
        if not self._places:
            places = self.run(place, self._workers, len(self._workers))  # the first of all have one each
            self._places = {each.number: each for each in places}
        return self._places

    def everywhere(self, function: Callable[[int], Any]) -> list[Any]:
        """Apply the function once in each worker."""
        return list(self.run(function, range(len(self._workers)), len(self._workers)))

    def run(
        self, function: Callable[[Any], Any], items: Iterable[Any], jobs: int, *, isolated: bool = False
    ) -> Generator[Any, None, None]:
        """Apply the function to every item with at most `jobs` workers; yield the results as they come."""
        if not self._workers:
            yield from pool.run(function, items, 1, isolated=isolated)
            return
        rest = iter(items)
        yield from self._send_items(function, zip(self._workers[:jobs], rest, strict=False), rest)

    def lines(self, jobs: int, most: int) -> Lines:
        """Return lines of workers, whose stages are the machines; or the workers, if these are on one."""
        if not self._workers:
            return ()
        places = self._known_places()
        return messages.lines_of([places[worker].host for worker in self._workers[:jobs]], most)

    def chain(
        self, function: Callable[[Any, messages.Link], Any], items: Sequence[Sequence[Iterable[Any]]], lines: Lines
    ) -> Generator[Any, None, None]:
        """Apply the function to the items of each stage of each line; yield the results as they come."""
        first = []
        for line, stages in zip(lines, items, strict=True):
            workers = [self._workers[number] for number in line]
            neighbours = zip([None, *workers[:-1]], [*workers[1:], None], strict=True)
            tasks = (messages.Task(tuple(own), *pair) for own, pair in zip(stages, neighbours, strict=True))
            first += list(zip(workers, tasks, strict=True))
        yield from self._send_items(function, first, iter(()))

    def _send_items(
        self, function: Callable[..., Any], first: Iterable[tuple[int, Any]], rest: Iterator[Any]
    ) -> Generator[Any, None, None]:
        """Send each worker its first item, and another one when it is done; yield the results as they come."""
        octets, reached = pickle.dumps(function, 5), list[int]()
        busy: dict[int, float] = {}  # workers, and the time of the last message of each
        self._runs += 1
        try:
            for worker, item in first:
                self._world.send((_FUNCTION, (self._runs, octets)), worker, messages.WORK)
                reached.append(worker)
                self._world.send((_ITEM, item), worker, messages.WORK)
                busy[worker] = time.monotonic()
            while busy:
                worker, (kind, value) = self._answer(busy)
                busy[worker] = time.monotonic()
                if kind == messages.WAITING:
                    continue
                if kind == _RESULT:
                    left = time.monotonic()
                    yield value
                    away = time.monotonic() - left  # in which no message could arrive
                    busy = {each: then + away for each, then in busy.items()}
                    continue
                del busy[worker]
                if kind == _ERROR:
                    raise value
                for item in rest:
                    self._world.send((_ITEM, item), worker, messages.WORK)
                    busy[worker] = time.monotonic()
                    break
        finally:
            self._stop(set(busy))
            for worker in reached:  # with the function it closes its open files
                self._world.send((_FUNCTION, (self._runs, b"")), worker, messages.WORK)

    def _answer(self, last_messages: Mapping[int, float]) -> tuple[int, tuple[str, Any]]:
        """Wait for a message of a worker; `last_messages` has the time of the last one of each busy worker."""
        silent = min(last_messages, key=lambda each: last_messages[each])
        try:
            return self._message(last_messages[silent] + self.timeout)
        except TimeoutError:
            where = f" on {self._places[silent].host}" if silent in self._places else ""
            reason = f"has sent nothing for {self.timeout:g} s; nothing was written"
            raise WorkerError(f"the worker of rank {silent}{where}", reason) from None

    def _message(self, until: float) -> tuple[int, tuple[str, Any]]:
        """Wait for a message of a worker, and return the worker and the message."""
        from mpi4py import MPI  # noqa: PLC0415 - it is there

        status = MPI.Status()
        messages.wait(lambda: self._world.Iprobe(MPI.ANY_SOURCE, messages.WORK, status), until)
        return status.source, self._world.recv(None, status.source, messages.WORK)

    def _stop(self, busy: set[int]) -> None:
        """Let workers stop their work, and wait a moment for them."""
        for worker in busy:
            self._world.send(self._runs, worker, messages.STOP)
            self._stops[worker] += 1
        until = time.monotonic() + _PATIENCE
        try:
            while busy:
                worker, (kind, _) = self._message(until)
                if kind in {_DONE, _ERROR}:
                    busy.discard(worker)
        except TimeoutError:
            self._stuck = True

    def end_workers(self, status: int | None = None) -> bool:
        """End the workers, with a status if they end as processes; return whether all ended: an op may go on."""
        while self._workers and not self._stuck:
            worker = self._workers.pop()
            self._world.send((_END, (self._stops[worker], status)), worker, messages.WORK)
        return not self._stuck


def _serve(world: Any) -> int | None:
    """Carry out the requests of rank 0 until the last one; return the exit status that comes with it."""
    octets, function, stops = b"", None, messages.Stops(world)
    while True:
        messages.wait(lambda: world.iprobe(0, messages.WORK))
        kind, value = world.recv(None, 0, messages.WORK)
        if kind == _END:
            sent, status = value
            for _ in range(sent - stops.received):  # MPI ends only when nothing is under way
                world.recv(None, 0, messages.STOP)
            return cast("int | None", status)
        if kind == _FUNCTION:
            (stops.number, octets), function = value, None
            continue
        last: tuple[str, Any] = _DONE, None
        sent_last = None
        link = messages.Link(world, value, stops) if isinstance(value, messages.Task) else None
        try:
            function = function or pickle.loads(octets)  # noqa: S301 - of rank 0, which the same user has started
            given = (value,) if link is None else value.items
            work = function if link is None else partial(function, link=link)
            for result in itertools.chain.from_iterable(results(work, item) for item in given):
                flush_streams()
                _wait_for(sent_last)
                sent_last = world.issend((_RESULT, result), 0, messages.WORK)  # taken while the next one is made
                if stops.stop_requested():
                    break
        except messages.Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by rank 0
            last = _ERROR, portable_error(error)
        flush_streams()
        _wait_for(sent_last)
        world.send(last, 0, messages.WORK)
        if link is not None:
            link.end()


def _wait_for(sent: Any) -> None:
    """Wait until a message is received."""
    if sent is not None:
        messages.wait(lambda: sent.test()[0])
