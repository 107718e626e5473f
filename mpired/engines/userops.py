"""User-defined ops: their code is loaded and runs in workers, never in this process."""

from __future__ import annotations

import operator
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

from mpired import ops
from mpired.datatypes.named import canonical
from mpired.engines import pool
from mpired.errors import MpiredError, UserOpError, WorkerError
from mpired.ops import user

_LISTING_TIMEOUT = 10.0  # seconds to load an op for a list of ops
_PROPERTIES = operator.methodcaller("properties")  # of a kernel, called in a worker


def load(op: ops.Op, *, commute: bool | None = None) -> ops.Op:
    """Return a user-defined op with its properties, which a worker finds out."""
    return ops.with_properties(op, _in_worker(_PROPERTIES, op.kernel, op), commute=commute)


def _in_worker(function: Callable[[Any], Any], item: Any, op: ops.Op) -> Any:
    try:
        (result,) = pool.run(function, [item], 1, isolated=True)
    except WorkerError as error:
        if op.isolated and pool.is_crash(error):
            raise crash_error(op, error) from None
        raise
    return result


def crash_error(op: ops.Op, error: WorkerError) -> UserOpError:
    """Return the error of a user-defined op that has ended its worker."""
    kernel, reason = cast("user.UserKernel", op.kernel), error.reason
    if error.exitcode == -signal.SIGALRM and kernel.timeout is not None:
        reason = f"took longer than {kernel.timeout:g} s; nothing was written"
    elif (explain := getattr(kernel.load, "explained", None)) is not None:
        reason = explain(kernel.file, reason)
    return UserOpError(str(op), reason)


def installed() -> Iterator[dict[str, Any]]:
    """Describe the installed user-defined ops; a broken package has an entry with its error."""
    predefined = {op.name for op in ops.OPS}
    for name, points in sorted(user.entry_points().items()):
        place = ", ".join(point.value for point in points)
        if canonical(name) in predefined:
            yield _description(name, place, error="hidden by the predefined op of that name")
            continue
        try:
            op = cast("ops.Op", ops.resolve(name, _LISTING_TIMEOUT))
            properties = _in_worker(_PROPERTIES, op.kernel, op)
        except MpiredError as error:
            yield _description(name, place, error=error.reason)
        else:
            yield _description(name, place, properties)


def in_file(path: str) -> Iterator[dict[str, Any]]:
    """Describe the ops that a Python file defines with `mpired.op`."""
    ops.check_file(path, path)
    file_op = ops.user_op(path, user.UserKernel(path, user.load, timeout=_LISTING_TIMEOUT))  # for errors
    for name, properties in _in_worker(partial(user.decorated_ops, timeout=_LISTING_TIMEOUT), path, file_op):
        yield _description(properties.name or name, f"{path}:{name}", properties)


def _description(
    name: str, place: str, properties: user.Properties | None = None, error: str | None = None
) -> dict[str, Any]:
    row = (properties or user.Properties())._replace(name=name)
    return {"name": name, "place": place} | row._asdict() | {"error": error}
