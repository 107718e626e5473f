"""User-defined ops where their code may run: in workers."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from mpired import ops
from mpired.datatypes.grammar import canonical
from mpired.engines import pool
from mpired.errors import MpiredError, UserOpError, WorkerError
from mpired.ops import user

# Seconds after which a package that is only to be listed has to be loaded.
_LISTING_TIMEOUT = 20.0


def load(op: ops.Op, timeout: float | None = None, *, commute: bool | None = None) -> ops.Op:
    """Return a user-defined op with what it says of itself; a worker loads it to find out.

    Raises
    ------
    UserOpError
        If it cannot be loaded.
    """
    with deaths_explained(op, timeout):
        (said,) = pool.run(_properties, [op.kernel], 1)
    return ops.with_properties(op, said, commute=commute)


def _properties(kernel: Any) -> user.Properties:
    said: user.Properties = kernel.properties()
    return said


@contextmanager
def deaths_explained(op: ops.Op, timeout: float | None) -> Generator[None, None, None]:
    """Turn the death of a worker into an error of the user-defined op that ran there, unless the system killed it."""
    try:
        yield
    except WorkerError as error:
        if not op.isolated or error.exitcode == -signal.SIGKILL:
            raise
        reason = error.reason
        if error.exitcode == -signal.SIGALRM:
            reason = f"took longer than --op-timeout {timeout:g}; nothing was written"
        raise UserOpError(str(op), reason) from None


def installed() -> Iterator[dict[str, Any]]:
    """Describe the installed user-defined ops; a broken package is an entry with an error, and spoils nothing else."""
    predefined = {op.name for op in ops.OPS}
    for name, points in sorted(user.entry_points().items()):
        place = ", ".join(point.value for point in points)
        if canonical(name) in predefined:
            yield _listed(name, place, error="hidden by the predefined op of that name")
            continue
        try:
            op = load(ops.resolve(name, _LISTING_TIMEOUT), _LISTING_TIMEOUT)
        except MpiredError as error:
            yield _listed(name, place, error=error.reason)
        else:
            yield _listed(name, place, op=op)


def in_file(path: str) -> Iterator[dict[str, Any]]:
    """Describe the ops that a Python file defines with `mpired.op`; a worker loads it.

    Raises
    ------
    UserOpError
        If the file cannot be loaded.
    """
    place = ops.resolve(f"{path}:*")
    with deaths_explained(place, _LISTING_TIMEOUT):
        (names,) = pool.run(user.decorated, [path], 1)
    for name in names:
        yield _listed(name, f"{path}:{name}", op=load(ops.resolve(f"{path}:{name}", _LISTING_TIMEOUT)))


def _listed(name: str, place: str, *, op: ops.Op | None = None, error: str | None = None) -> dict[str, Any]:
    return {
        "name": op.name if op and op.name != place else name,
        "place": place,
        "doc": op.doc if op else "",
        "commute": op.commute if op else None,
        "datatypes": list(op.datatypes) if op else [],
        "identity": op.identity if op else None,
        "error": error,
    }
