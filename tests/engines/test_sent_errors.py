"""What a worker sends of an error."""

from __future__ import annotations

import copyreg
import operator
import os

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
