"""A look at every worker on other machines before any work: has it the same programs, does it see the same files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mpired import __version__, log
from mpired.datatypes import Datatype, Group
from mpired.engines.table import Runner
from mpired.errors import MpiredError, UsageError, UserOpError, parts
from mpired.files import calls
from mpired.ops import Op
from mpired.sources.source import Source

_SAMPLES = 8
_MARKER_NBYTES = 16
# What may hold real numbers; an op on integers has no choice.
_ROUNDED = Group.FLOATING_POINT | Group.COMPLEX | Group.PAIR | Group.DERIVED


class Seen(NamedTuple):
    """A worker, and the files that it sees."""

    host: str  # the name of its machine
    versions: dict[str, str]  # what must be the same everywhere, by its name
    files: tuple[str, ...] = ()  # the fault of each file that it has inspected, "" for none
    op: str = ""  # the fault of the file of the op, "" for none
    features: frozenset[str] = frozenset()  # what its processor can do, by NumPy's names


def look(sources: Sequence[Source], kernel: Any, _number: int) -> Seen:
    """Return the record of this worker, which inspects the files, and that of a user-defined op's kernel."""
    wrong = ""
    try:
        if kernel is not None:
            kernel.check_file()
    except UserOpError as error:
        wrong = error.reason
    # What NumPy finds that this processor can do: its kernels, and those of libraries of C, depend on it.
    from numpy._core import _multiarray_umath  # type: ignore[attr-defined]  # noqa: PLC0415 - not of its interface

    features: dict[str, bool] = getattr(_multiarray_umath, "__cpu_features__", {})
    there = frozenset(name for name, has_it in features.items() if has_it)
    return Seen(os.uname().nodename, versions(), tuple(map(_wrong, sources)), wrong, there)


def versions() -> dict[str, str]:
    """Return what must be the same in all workers, by its name."""
    double = np.finfo(np.longdouble)
    return {
        "mpired": __version__,
        "NumPy": np.__version__,
        "the byte order": sys.byteorder,
        "long double": f"{double.dtype.itemsize} bytes, {double.nmant} bits",
    }


def _wrong(source: Source) -> str:
    """Return the fault of a file, "" if it is the one that the command has inspected."""
    # It is opened only if that does not show otherwise: a machine may remember an old status of it.
    path = getattr(source.packed or source, "path", "")
    with contextlib.suppress(MpiredError, OSError):
        source.check_unchanged()
        if path and os.access(path, os.R_OK):
            return ""
    try:
        source.open().close()
    except (MpiredError, OSError) as error:
        return parts(error)[1]
    return ""


def check(runner: Runner, op: Op, sources: Sequence[Source], datatypes: Iterable[Datatype]) -> None:
    """Let every worker look at some of the ranks, the first and the last among them."""
    # It is warned of a user-defined op on real numbers where workers have different processors.
    last = len(sources) - 1
    ranks = sorted({last * number // (_SAMPLES - 1) for number in range(_SAMPLES)})
    looking = partial(look, [sources[rank] for rank in ranks], op.kernel if op.user else None)
    own = versions()
    processors: list[tuple[str, frozenset[str]]] = []
    for seen in runner.everywhere(looking):
        for what, here in own.items():
            if (there := seen.versions.get(what)) != here:
                reason = f"{what} is {there} in the worker on {seen.host}, and {here} here"
                raise UsageError("`engine`", f"{reason}; let all have the same")
        for rank, wrong in zip(ranks, seen.files, strict=True):
            if wrong:
                sources[rank].check_unchanged()
                reason = f"rank {rank} is not the same file for the worker on {seen.host} ({wrong})"
                raise UsageError(sources[rank].name, f"{reason}; put the ranks where all workers see them")
        if seen.op:
            raise UserOpError(str(op), f"{seen.op} (on {seen.host})")
        processors.append((seen.host, seen.features))
    if op.user and any(datatype.group & _ROUNDED for datatype in datatypes):
        log.warn(*log.processors(op, processors))


def _mark(files: Sequence[tuple[calls.SharedFile, int]], number: int) -> bytes:
    """Write a marker of this worker behind the end of files with these sizes; return it, nothing if that fails."""
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
    """Return whether what each worker writes into files of this command arrives there, which are then as before."""
    # A name does not tell: over a directory that all machines share one may have a layer of its own (overlayfs).
    fds = [file.open() for file in files]
    sizes = [os.fstat(fd).st_size for fd in fds]
    try:
        markers = runner.everywhere(partial(_mark, list(zip(files, sizes, strict=True))))
    finally:
        for fd in fds:
            os.close(fd)
    have_arrived = all(markers)
    for file, nbytes in zip(files, sizes, strict=True):
        fd = file.open()  # again: it shows what others wrote
        try:
            content = calls.pread_some(fd, len(markers) * _MARKER_NBYTES, nbytes)
            found = {content[at : at + _MARKER_NBYTES] for at in range(0, len(content), _MARKER_NBYTES)}
            have_arrived = have_arrived and found == set(markers)
        finally:
            calls.set_size(fd, nbytes)
            os.close(fd)
    return have_arrived
