"""What a worker sends of an error."""

from __future__ import annotations

import copyreg
import operator
import os
import subprocess
import sys
import time

import pytest
from command import in_child

from mpired.engines import pool
from mpired.errors import WorkerError


class _WorkersOwnError(Exception):
    """A cause that only a worker can make again: a class of a module that an op has loaded there."""

    def __reduce__(self):
        return _made_in, (os.getpid(),)


def _made_in(process: int) -> _WorkersOwnError:
    assert process == os.getpid()
    return _WorkersOwnError()


def _with_its_cause(args: tuple[str, str], cause: BaseException | None) -> WorkerError:
    error = WorkerError(*args)
    error.__cause__ = cause
    return error


def _fail() -> None:
    raise WorkerError("op", "has failed") from _WorkersOwnError()


def test_an_error_leaves_its_causes_behind(monkeypatch):
    """Libraries teach pickle to send causes too, as distributed does when it is imported."""

    def call() -> None:
        with pytest.raises(WorkerError, match="has failed"):
            list(pool.run(operator.call, [_fail, _fail], 2))

    monkeypatch.setitem(
        copyreg.dispatch_table, WorkerError, lambda error: (_with_its_cause, (error.args, error.__cause__))
    )
    in_child(call)


ABORT = """
import os, sys
from mpired.engines import mpi
class World:
    def Abort(self, status):
        os._exit(status)
mpi._PATIENCE = 60
print("why", file=sys.stderr)
open("written", "x").close()
mpi._abort(World(), 7)
"""


def test_processes_of_mpi_end_after_the_launcher_has_read_the_error(tmp_path, monkeypatch):
    """MPICH's launcher drops what is in the pipe when it hears of MPI_Abort."""
    monkeypatch.chdir(tmp_path)
    with subprocess.Popen([sys.executable, "-c", ABORT], stderr=subprocess.PIPE) as started:
        while not os.path.exists("written"):
            time.sleep(0.01)
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(0.3)
        assert os.read(started.stderr.fileno(), 100) == b"why\n"
        assert started.wait(60) == 7
