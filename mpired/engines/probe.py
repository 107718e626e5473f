"""Questions that workers answer before the work.

A worker of this machine loads the code of a user-defined op, which never runs in this process. Workers on other
machines answer which versions they have, which files they can read, and whether the files that they write arrive.
"""

from __future__ import annotations

import contextlib
import operator
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from mpired import __version__, log, ops
from mpired.datatypes import Datatype, Group
from mpired.engines import pool
from mpired.engines.table import Runner
from mpired.errors import MpiredError, UsageError, UserOpError, WorkerError, parts
from mpired.files import calls
from mpired.ops import Op
from mpired.sources.source import Source

if TYPE_CHECKING:  # few ops are user-defined
    from mpired.ops.user import UserKernel

_NSAMPLES = 8  # ranks that each worker inspects
_MARKER_NBYTES = 16
properties = operator.methodcaller("properties")  # of the kernel of a user-defined op, called in a worker
# Datatypes with real numbers, on which results of an op may depend on the processor.
_ROUNDED = Group.FLOATING_POINT | Group.COMPLEX | Group.PAIR | Group.DERIVED


def load(op: Op, *, commute: bool | None = None) -> Op:
    """Return a user-defined op with its properties, which a worker finds out."""
    return ops.with_properties(op, in_worker(properties, op.kernel, op), commute=commute)


def in_worker(function: Callable[[Any], Any], item: Any, op: Op) -> Any:
    """Apply a function to an item in a worker; an error of the op if that ends the worker."""
    try:
        (result,) = pool.run(function, [item], 1, isolated=True)
    except WorkerError as error:
        if op.isolated and pool.is_crash(error):
            raise crash_error(op, error) from None
        raise
    return result


def crash_error(op: Op, error: WorkerError) -> UserOpError:
    """Return the error of a user-defined op that has ended its worker."""
    kernel, reason = cast("UserKernel", op.kernel), error.reason
    if error.exitcode == -signal.SIGALRM and kernel.timeout is not None:
        reason = f"took longer than {kernel.timeout:g} s; nothing was written"
    elif (explain := getattr(kernel.load, "explained", None)) is not None:
        reason = explain(kernel.file, reason)
    return UserOpError(str(op), reason)


class WorkerReport(NamedTuple):
    """The properties of a worker, and the faults that it has found."""

    host: str
    versions: dict[str, str]  # that must be the same in all workers, by the names of programs
    files: tuple[str, ...] = ()  # the fault of each inspected file; "" for a good one
    op: str = ""  # the fault of the file of the op; "" for a good one
    features: frozenset[str] = frozenset()  # of the processor, by NumPy's names


def inspect(sources: Sequence[Source], kernel: Any, _number: int) -> WorkerReport:
    """Return the report of this worker on some files, and on the file of a user-defined op's kernel."""
    fault = ""
    try:
        if kernel is not None:
            kernel.check_file()
    except UserOpError as error:
        fault = error.reason
    # The features that NumPy has detected: its kernels, and those of libraries of C, depend on them.
    from numpy._core import _multiarray_umath  # type: ignore[attr-defined]  # noqa: PLC0415 - not of its interface

    cpu_features: dict[str, bool] = getattr(_multiarray_umath, "__cpu_features__", {})
    features = frozenset(name for name, is_usable in cpu_features.items() if is_usable)
    return WorkerReport(os.uname().nodename, versions(), tuple(map(_fault, sources)), fault, features)


def versions() -> dict[str, str]:
    """Return the versions and properties that must be the same in all workers."""
    double = np.finfo(np.longdouble)
    return {
        "mpired": __version__,
        "NumPy": np.__version__,
        "the byte order": sys.byteorder,
        "long double": f"{double.dtype.itemsize} bytes, {double.nmant} bits",
    }


def _fault(source: Source) -> str:
    """Return the fault of a file; "" if it can be read, and is the file that the command has inspected."""
    path = getattr(source.packed or source, "path", "")
    with contextlib.suppress(MpiredError, OSError):
        source.check_unchanged()
        if path and os.access(path, os.R_OK):
            return ""
    # This machine may have cached an old status of the file; to open it gets the new one.
    try:
        source.open().close()
    except (MpiredError, OSError) as error:
        return parts(error)[1]
    return ""


def check(runner: Runner, op: Op, sources: Sequence[Source], datatypes: Iterable[Datatype]) -> None:
    """Let every worker inspect some ranks; raise an error for other versions or files.

    Different processors of the workers cause a warning if a user-defined op combines real numbers.
    """
    last = len(sources) - 1
    ranks = sorted({last * sample // (_NSAMPLES - 1) for sample in range(_NSAMPLES)})
    expected = versions()
    processors: list[tuple[str, frozenset[str]]] = []
    for report in runner.everywhere(
        partial(inspect, [sources[rank] for rank in ranks], op.kernel if op.user else None)
    ):
        for program, version in expected.items():
            if (remote_version := report.versions.get(program)) != version:
                reason = f"{program} is {remote_version} in the worker on {report.host}, and {version} here"
                raise UsageError("`engine`", f"{reason}; let all have the same")
        for rank, fault in zip(ranks, report.files, strict=True):
            if fault:
                sources[rank].check_unchanged()
                reason = f"rank {rank} is not the same file for the worker on {report.host} ({fault})"
                raise UsageError(sources[rank].name, f"{reason}; put the ranks where all workers see them")
        if report.op:
            raise UserOpError(str(op), f"{report.op} (on {report.host})")
        processors.append((report.host, report.features))
    if op.user and any(datatype.group & _ROUNDED for datatype in datatypes):
        log.warn(*log.processor_warnings(op, processors))


def _mark(files: Sequence[tuple[calls.SharedFile, int]], number: int) -> bytes:
    """Write a marker of this worker behind the end of files with these sizes; return it, or b"" after an error."""
    marker = os.urandom(_MARKER_NBYTES)
    try:
        for file, nbytes in files:
            fd = file.open()
            try:
                calls.pwrite_all(fd, marker, nbytes + number * _MARKER_NBYTES)
                calls.fsync(fd)
            finally:
                os.close(fd)
    except OSError:
        return b""
    return marker


def all_write(runner: Runner, files: Sequence[calls.SharedFile]) -> bool:
    """Return whether bytes that each worker writes into files of this command arrive; the files keep their sizes."""
    # Equal paths do not show that: a machine may have mounted a layer of its own over a shared directory (overlayfs).
    fds = [file.open() for file in files]
    sizes = [os.fstat(fd).st_size for fd in fds]
    try:
        markers = runner.everywhere(partial(_mark, list(zip(files, sizes, strict=True))))
    finally:
        for fd in fds:
            os.close(fd)
    have_arrived = all(markers)
    for file, nbytes in zip(files, sizes, strict=True):
        fd = file.open()  # opened again, because NFS shows bytes of other machines at an open
        try:
            content = calls.pread_some(fd, len(markers) * _MARKER_NBYTES, nbytes)
            offsets = range(0, len(content), _MARKER_NBYTES)
            arrived = {content[offset : offset + _MARKER_NBYTES] for offset in offsets}
            have_arrived = have_arrived and arrived == set(markers)
        finally:
            calls.set_size(fd, nbytes)
            os.close(fd)
    return have_arrived
