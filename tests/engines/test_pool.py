"""The pool of this machine: how workers start, what they send of an error, and that none is left."""

import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from command import children, in_child

from mpired.engines import pool
from mpired.engines.worker import Channel
from mpired.errors import WorkerError


def start_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


@pytest.fixture(params=["one thread", "threads"])
def within(request) -> Callable[[Callable[[], object]], object]:
    """A process to call a function in: with one thread, which may fork, and with two, which may not."""

    def beside_a_thread(function: Callable[[], object]) -> object:
        return in_child(lambda: (start_thread(), function())[1])

    return in_child if request.param == "one thread" else beside_a_thread


def call_all(*functions: Callable[[], object], jobs: int = 2) -> list[object]:
    """Call functions in workers."""
    return list(pool.run(operator.call, functions, jobs))


def test_start_depends_on_the_threads(monkeypatch):
    """A process with threads must not fork: what another thread holds is held for ever in the child."""

    def forks() -> int:
        made = []
        monkeypatch.setattr(os, "fork", lambda: made.append(fork()) or made[-1])
        assert call_all(*[os.getppid] * 4) == [os.getpid()] * 4
        return len(made)

    fork = os.fork
    assert in_child(forks) == 2
    assert in_child(lambda: (start_thread(), forks())[1]) == 0


ENDS = {f"status {status}": partial(os._exit, status) for status in (0, 3)} | {"SIGABRT": os.abort}
ENDS |= {number.name: partial(signal.raise_signal, number) for number in (signal.SIGKILL, signal.SIGSEGV)}


def test_worker_that_dies(within):
    """The error says how, and no other worker is left."""

    def errors() -> list[object]:
        found = []
        for how, end in ENDS.items():
            try:
                call_all(os.getpid, end, *[os.getpid] * 10)
            except WorkerError as error:
                text = error.reason
                portable_error = "died" in text and how in text and "nothing was written" in text
                found.append([error.exit_status, error.mpi_class, error.subject, portable_error, children(os.getpid())])
        return found

    assert within(errors) == [[8, "MPI_ERR_INTERN", "worker pool", True, []]] * len(ENDS)


def close_connection() -> None:
    """Close what a worker is connected by."""
    os.closerange(3, 1 << 16)


class UnsendableError(Exception):
    """An error that cannot be made again from its pickle."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def raise_unsendable() -> None:
    raise UnsendableError("one", "two")


@pytest.mark.parametrize("broken", ["closed", "kept"])
@pytest.mark.parametrize(("function", "error"), [
    (close_connection, "worker pool: a worker died: it ended with status 1; nothing was written"),
    (raise_unsendable, "UnsendableError: one and two"),
])  # fmt: skip
def test_workers_say_nothing_themselves(function, error, broken):
    """Whatever fails in a worker is told by its parent, once, wherever standard error goes."""

    def portable_error() -> list[str]:
        where = os.memfd_create("err") if broken == "kept" else -1
        if broken == "closed":
            os.close(2)
        else:
            os.dup2(where, 2)
        sys.stderr = os.fdopen(2, "w", closefd=False) if broken == "kept" else None
        try:
            call_all(function, os.getpid)
        except (RuntimeError, WorkerError) as caught:
            text = str(caught).rpartition("test_pool.")[2]
        return [text, os.pread(where, 9999, 0).decode() if where >= 0 else ""]

    assert in_child(portable_error) == [error, ""]


def test_a_connection_that_fails_while_the_worker_lives(within, monkeypatch):
    """The command waits for no worker that it cannot hear."""

    def portable_error() -> str:
        def fail(_connection: object) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(Channel, "recv", fail)
        monkeypatch.setattr("mpired.engines.pool._PATIENCE", 0.05)
        try:
            list(pool.run(time.sleep, [0, 60], 2))
        except WorkerError as caught:
            return caught.reason
        return ""

    assert "lost ([Errno 5]" in within(portable_error)


@pytest.mark.parametrize(
    ("function", "kind"), [(partial(int, "x"), ValueError), (partial(bytearray, 2**62), MemoryError)]
)
def test_errors_of_a_worker_arrive(function, kind, within):
    def error() -> list[object]:
        try:
            call_all(os.getpid, function, *[os.getpid] * 10)
        except (ValueError, MemoryError) as caught:
            return [type(caught).__name__, children(os.getpid())]
        return []

    assert within(error) == [kind.__name__, []]
