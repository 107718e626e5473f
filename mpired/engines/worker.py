"""A worker: a process on this or another machine that applies a function to one item after another.

This module imports little, because a worker may be a new interpreter. Unpickling the function imports the modules of
the function, and an error of these imports is reported like an error of the function.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import io
import math
import os
import pickle
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn, TypeAlias

from mpired.context import RESERVED
from mpired.engines.table import Limits
from mpired.errors import MpiredError
from mpired.files import calls

# The results of an item, and the error that ended its work.
Answer: TypeAlias = tuple[list[Any], BaseException | None]

_LIBC = ctypes.CDLL(None)
_C_STDOUT = ctypes.c_void_p.in_dll(_LIBC, "stdout")  # the stream of the C library
_PR_SET_PDEATHSIG = 1
_IOLBF = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_SIZE_NBYTES = 8  # before each object
_PIPE_NBYTES = 1 << 20  # the largest size that users may set
_MAX_KEPT_NBYTES = 2 << 20  # larger than the usual page of parquet, 1 MiB and its header
_isolated_lock = threading.Lock()  # held by an item that runs in one thread of a process at a time


class Channel:
    """One end of the connection between a process and its worker: two pipes of pickled objects."""

    # To import the connections of `multiprocessing` takes as long as to start the workers.

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming, self.outgoing = incoming, outgoing

    def send(self, value: Any) -> None:
        """Send an object; wait while the pipe is full."""
        octets = pickle.dumps(value, 5)
        calls.write_all(self.outgoing, len(octets).to_bytes(_SIZE_NBYTES, "little"))
        calls.write_all(self.outgoing, octets)

    def recv(self) -> Any:
        """Wait for an object and return it."""
        nbytes = int.from_bytes(self._read(_SIZE_NBYTES), "little")
        return pickle.loads(self._read(nbytes))  # noqa: S301 - sent by mpired

    def close(self) -> None:
        """Close both pipes."""
        os.close(self.incoming)
        os.close(self.outgoing)

    def _read(self, nbytes: int) -> bytearray:
        content = bytearray(nbytes)
        view = memoryview(content)
        while view:
            count = os.readv(self.incoming, [view])
            if not count:
                raise EOFError
            view = view[count:]
        return content


def channel() -> tuple[Channel, Channel]:
    """Return both ends of a new connection."""
    (task_reader, task_writer), (result_reader, result_writer) = os.pipe(), os.pipe()
    with contextlib.suppress(PermissionError):  # the pipes of this user have reached their limit
        for writer in (task_writer, result_writer):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_NBYTES)
    return Channel(result_reader, task_writer), Channel(task_reader, result_writer)


def work(parent: int, connection: Channel, function: Callable[[Any], Any] | None = None) -> NoReturn:
    """Work for the process `parent` until it kills this process; without a function, the first message has that."""
    # The parent reports errors. If the connection fails, this process ends and prints nothing.
    try:
        with contextlib.suppress(PermissionError):
            os.setpgid(0, 0)
        prepare()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no worker outlives the parent
        if os.getppid() != parent:  # which ended before the line above
            os._exit(1)
        while True:
            last: tuple[BaseException, None] | None = None
            try:
                if function is None:
                    function = connection.recv()
                for result in results(function, connection.recv()):
                    flush_streams()
                    connection.send((None, result))
            except BaseException as error:  # noqa: BLE001 - raised again by the parent
                last = portable(error), None
            flush_streams()
            connection.send(last)
    finally:
        os._exit(1)


def results(function: Callable[[Any], Any], item: Any) -> Iterable[Any]:
    """Apply the function to an item and return its results: one, or those that a generator function yields."""
    result = function(item)
    return result if isinstance(result, Generator) else (result,)


def start() -> NoReturn:
    """Run a worker in a new interpreter; the arguments are its parent and the descriptors of its channel."""
    parent, *ends = (int(sys.argv.pop(1)) for _ in range(3))
    for end in ends:
        os.set_inheritable(end, False)  # noqa: FBT003 - it takes no keyword
    work(parent, Channel(*ends))


def portable(error: BaseException) -> BaseException:
    """Return an error that can be pickled, with its traceback as a note; if it cannot be pickled, one with its text."""
    # Causes and frames are removed. Some libraries let pickle send them, and they may have classes and modules of an op
    # that only this process has loaded.
    import traceback  # noqa: PLC0415 - only for an error

    frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    error.__cause__ = error.__context__ = None
    error = error.with_traceback(None)
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled here
    except Exception:  # noqa: BLE001 - of the class of the error
        error = RuntimeError("".join(traceback.format_exception_only(error)).strip())
    if not isinstance(error, OSError):  # notes of an OSError are shown to users
        error.add_note(frames)
    return error


def prepare() -> None:
    """Prepare a process that runs ops: their output goes to standard error, and the parent handles ctrl-C."""
    redirect_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    keep_freed_memory()


@contextlib.contextmanager
def limit_cpu_time(seconds: int) -> Iterator[None]:
    """Let SIGXCPU end this process if a library in the block takes more than `seconds` of processor time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    end = math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (min({soft, hard, end} - {resource.RLIM_INFINITY}), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


@functools.cache
def be_quiet() -> None:
    """Discard standard error: if a library ends this worker, the parent prints the message."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    os.close(devnull)


class _StandardError(io.FileIO):
    """Standard error for the output of an op; output that cannot be written is lost, and the op continues."""

    def write(self, data: Any) -> int:
        """Write data, or drop it."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def redirect_streams() -> None:
    """Send the output of an op to standard error, line by line: standard output may be a result."""
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    try:
        os.fstat(2)
    except OSError:  # closed: a file that an op opens must not get its number
        os.dup2(devnull, 2)
    os.dup2(2, 1)
    if devnull > 2:  # noqa: PLR2004 - the number of standard error
        os.close(devnull)
    text = io.TextIOWrapper(
        io.BufferedWriter(_StandardError(2, "w", closefd=False)), errors="backslashreplace", line_buffering=True
    )
    sys.stdout = sys.stderr = text
    _LIBC.setvbuf(_C_STDOUT, None, _IOLBF, 0)


def flush_streams() -> None:
    """Flush the streams of Python and of C: before a fork, and in a worker, which will be killed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # an op may have replaced the stream
            stream.flush()
    _LIBC.fflush(_C_STDOUT)


def keep_freed_memory() -> None:
    """Let the C library keep the memory of a kernel's temporaries for the next block."""
    # By default glibc maps arrays from 128 KiB on anew, and the page faults cost a kernel up to half its speed.
    with contextlib.suppress(AttributeError):  # a C library without mallopt
        _LIBC.mallopt(_M_MMAP_THRESHOLD, _MAX_KEPT_NBYTES)
        _LIBC.mallopt(_M_TRIM_THRESHOLD, 4 * _MAX_KEPT_NBYTES)


class WorkerPlace(NamedTuple):
    """The machine and the limits of a worker."""

    number: int
    host: str
    descriptors: int  # limit of open files


def place(number: int) -> WorkerPlace:
    """Return the place of this process, the worker of a number."""
    return WorkerPlace(number, os.uname().nodename, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def limits_at(places: Collection[WorkerPlace], workers: int, threads: int = 1) -> Limits:
    """Return the limits of `workers` at these places; up to `threads` workers share the open files of a process."""
    limits = [worker.descriptors for worker in places if worker.descriptors != resource.RLIM_INFINITY]
    descriptors = RESERVED + (min(limits) - RESERVED) // threads if limits else resource.RLIM_INFINITY
    return Limits(workers, descriptors, len({worker.host for worker in places}))


def portable_error(error: BaseException) -> BaseException:
    """Return an error that can be sent to another machine, with the name of this machine in its message."""
    where = f" (on {os.uname().nodename})"
    if isinstance(error, MpiredError):
        error.reason += where
        error.args = error.subject, error.reason
    elif isinstance(error, OSError) and error.strerror is not None:
        error.strerror += where
    return portable(error)


def answer_of(function: Callable[[Any], Any] | bytes, item: Any, isolated: bool) -> Answer:  # noqa: FBT001 - tasks have no keywords
    """Apply a function, pickled or not, to an item; `isolated` lets one thread of a process do so at a time."""
    values: list[Any] = []
    try:
        with _isolated_lock if isolated else contextlib.nullcontext():
            values.extend(results(_unpickle_cached(function) if isinstance(function, bytes) else function, item))
    except BaseException as error:  # noqa: BLE001 - raised again by the command
        return values, portable_error(error)
    return values, None


def unpickle(octets: bytes) -> Callable[[Any], Any]:
    """Return a pickled function."""
    keep_freed_memory()
    function: Callable[[Any], Any] = pickle.loads(octets)  # noqa: S301 - pickled by the command of the same user
    return function


_unpickle_cached = functools.lru_cache(maxsize=1)(unpickle)  # the function of the last run
