"""A worker: a process that applies a function to one item after another; here, or on another machine.

It imports little, because a worker of a process with threads is a new interpreter: what the function needs is imported
with it, where an error can be reported.
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

Answer: TypeAlias = tuple[list[Any], BaseException | None]
"""The results of an item, and the error that ended them."""

_LIBC = ctypes.CDLL(None)
_C_STDOUT = ctypes.c_void_p.in_dll(_LIBC, "stdout")  # the stream of the C library
_PR_SET_PDEATHSIG = 1
_IOLBF = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_SIZE_NBYTES = 8  # before each object
_PIPE_NBYTES = 1 << 20  # the most that every user may have
_KEPT_BYTES = 2 << 20  # more than a page of parquet as it is written most often, 1 MiB and its header
_ONE = threading.Lock()


class Channel:
    """One end of the connection between a process and its worker: objects, one after another, through two pipes."""

    # Not a connection of `multiprocessing`: its imports, sockets first, take as long as the start of the workers.

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming, self.outgoing = incoming, outgoing

    def send(self, value: Any) -> None:
        """Send an object, and wait until the other end has taken what the pipe does not hold."""
        octets = pickle.dumps(value, 5)
        calls.write_all(self.outgoing, len(octets).to_bytes(_SIZE_NBYTES, "little"))
        calls.write_all(self.outgoing, octets)

    def recv(self) -> Any:
        """Wait for an object, and return it."""
        nbytes = int.from_bytes(self._read(_SIZE_NBYTES), "little")
        return pickle.loads(self._read(nbytes))  # noqa: S301 - of a process of this one

    def close(self) -> None:
        """Close both pipes."""
        os.close(self.incoming)
        os.close(self.outgoing)

    def _read(self, nbytes: int) -> bytearray:
        content = bytearray(nbytes)
        view = memoryview(content)
        while view:
            got = os.readv(self.incoming, [view])
            if not got:
                raise EOFError
            view = view[got:]
        return content


def channel() -> tuple[Channel, Channel]:
    """Return both ends of a new one."""
    there, back = os.pipe(), os.pipe()
    with contextlib.suppress(PermissionError):  # the pipes of this user are full-sized already
        for _, writing in (there, back):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_NBYTES)
    return Channel(back[0], there[1]), Channel(there[0], back[1])


def work(parent: int, connection: Channel, function: Callable[[Any], Any] | None = None) -> NoReturn:
    """Be a worker of the process `parent` until that kills this one; without a function it comes first."""
    # What goes wrong is the parent's to tell. Where even the connection fails this process ends without a word.
    try:
        with contextlib.suppress(PermissionError):
            os.setpgid(0, 0)
        prepare()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no worker outlives the parent
        if os.getppid() != parent:  # it ended before the line above
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
    """Apply the function to an item, and return its result: or its results, if it yields some."""
    result = function(item)
    return result if isinstance(result, Generator) else (result,)


def start() -> NoReturn:
    """Be a worker in an interpreter of its own; the words are its parent, and the descriptors of its channel."""
    parent, *ends = (int(sys.argv.pop(1)) for _ in range(3))
    for end in ends:
        os.set_inheritable(end, False)  # noqa: FBT003 - it takes no keyword
    work(parent, Channel(*ends))


def portable(error: BaseException) -> BaseException:
    """Return an error with its traceback as a note, or one with its text if it cannot be sent to another process."""
    # It leaves its causes and frames behind: libraries teach pickle to send those too, and with them come classes and
    # modules that are an op's, which only this process has loaded.
    import traceback  # noqa: PLC0415 - only for an error

    frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    error.__cause__ = error.__context__ = None
    error = error.with_traceback(None)
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    except Exception:  # noqa: BLE001 - whatever its class does
        error = RuntimeError("".join(traceback.format_exception_only(error)).strip())
    if not isinstance(error, OSError):  # whose notes are for users
        error.add_note(frames)
    return error


def prepare() -> None:
    """Prepare a process that runs ops: their output goes to standard error, and ctrl-C is the command's matter."""
    redirect_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    keep_freed_memory()


@contextlib.contextmanager
def ended_after(seconds: int) -> Iterator[None]:
    """Let SIGXCPU end this process if the block takes more than `seconds` of processor time: a library may hang."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    end = math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (min({soft, hard, end} - {resource.RLIM_INFINITY}), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


@functools.cache
def be_quiet() -> None:
    """Let a library that ends this worker print nothing: the parent says that in a line of its own."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)


class _StandardError(io.FileIO):
    """Standard error for what an op prints: where that cannot be written it is lost, and the op goes on."""

    def write(self, data: Any) -> int:
        """Write data if that is possible."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def redirect_streams() -> None:
    """Send what an op prints to standard error, line by line: it must not mix with a result, nor get lost."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.fstat(2)
    except OSError:  # closed: a file of an op must not get its number
        os.dup2(nothing, 2)
    os.dup2(2, 1)
    if nothing > 2:  # noqa: PLR2004 - the number of standard error
        os.close(nothing)
    text = io.TextIOWrapper(
        io.BufferedWriter(_StandardError(2, "w", closefd=False)), errors="backslashreplace", line_buffering=True
    )
    sys.stdout = sys.stderr = text
    _LIBC.setvbuf(_C_STDOUT, None, _IOLBF, 0)


def flush_streams() -> None:
    """Write out printed text without an end of line: before a fork, and in a worker, which will be killed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # an op may have done anything to them
            stream.flush()
    _LIBC.fflush(_C_STDOUT)


def keep_freed_memory() -> None:
    """Let the C library keep what a kernel's temporaries free, instead of faulting it in for every block."""
    # By default glibc maps arrays from 128 KiB on afresh, which costs a kernel up to half its speed.
    with contextlib.suppress(AttributeError):  # a C library without mallopt
        _LIBC.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        _LIBC.mallopt(_M_TRIM_THRESHOLD, 4 * _KEPT_BYTES)


class WorkerPlace(NamedTuple):
    """The place of a worker: its number, its machine, and its limit of open files."""

    number: int
    host: str
    descriptors: int


def place(number: int) -> WorkerPlace:
    """Return where this process is, the worker of a number."""
    return WorkerPlace(number, os.uname().nodename, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def limits_at(places: Collection[WorkerPlace], workers: int, threads: int = 1) -> Limits:
    """Return what workers at these places may use: as many files as the one that may open fewest."""
    # As many of them as `threads` may be one process.
    of_all = (each.descriptors - RESERVED for each in places if each.descriptors != resource.RLIM_INFINITY)
    finite = [RESERVED + each // threads for each in of_all]
    return Limits(workers, min(finite, default=resource.RLIM_INFINITY), len({each.host for each in places}))


def portable_error(error: BaseException) -> BaseException:
    """Return an error that can be sent to another machine; one of a file also says which machine it is of."""
    where = f" (on {os.uname().nodename})"
    if isinstance(error, MpiredError):
        error.reason += where
        error.args = error.subject, error.reason
    elif isinstance(error, OSError) and error.strerror is not None:
        error.strerror += where
    return portable(error)


def answer_of(sent: Callable[[Any], Any] | bytes, item: Any, alone: bool) -> Answer:  # noqa: FBT001 - of a task, which has no keywords
    """Apply a function, pickled or not, to an item; `alone` is what may run in one thread of a process at a time."""
    found: list[Any] = []
    try:
        with _ONE if alone else contextlib.nullcontext():
            found.extend(results(_loaded_last(sent) if isinstance(sent, bytes) else sent, item))
    except BaseException as error:  # noqa: BLE001 - raised again by the command
        return found, portable_error(error)
    return found, None


def loaded(octets: bytes) -> Callable[[Any], Any]:
    """Return a function that was pickled for a run."""
    keep_freed_memory()
    function: Callable[[Any], Any] = pickle.loads(octets)  # noqa: S301 - made by the command, of the same user
    return function


_loaded_last = functools.lru_cache(maxsize=1)(loaded)
