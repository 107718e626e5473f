"""HDF5: groups of arrays, each of which is a buffer. The library h5py reads and writes the format in a worker.

Elements of a contiguous dataset are read at their offset; the library decodes chunks. A result has the groups,
attributes, dimension scales, chunks and filters of the first rank's file.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

from mpired import installed, log
from mpired.context import Context
from mpired.errors import InputWarning
from mpired.formats.array import Array
from mpired.formats.arrays import Library, inspect_by
from mpired.formats.decoding import call_in_worker, write_in_worker
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import ArrayLayout, Encoder
from mpired.formats.rank import Model, RankFile, and_others
from mpired.formats.streamed import DECODED_NBYTES, errors_of
from mpired.sources.source import Source

ERRORS = (ValueError, KeyError, RuntimeError, TypeError, IndexError, OverflowError, AttributeError, EOFError)
"""Exceptions of h5py for damaged files, besides the usual ones."""


@functools.cache
def _import(name: str) -> Any:
    """Import a module of mpired that imports h5py."""
    with installed.import_library("h5py"):
        return importlib.import_module(f"mpired.formats.{name}")


def check_installed(subject: str, extra: str, context: Context) -> None:
    """Raise `UsageError`, with the extra to install, if h5py is missing."""
    installed.check(subject, "HDF5", "h5py", extra)
    if context.worker is None or context.worker.answers is None:  # workers that are forked later need no import
        _import("hdf5_results")


def _open(source: Source, memory: int = DECODED_NBYTES, *, outside: bool) -> Any:
    return _import("hierarchy").HdfFile(source, memory, outside=outside)


def _call(subject: str, function: str, *args: Any) -> Any:
    """Call a function of `hdf5_results`; its errors are those of the subject."""
    with errors_of(subject, ERRORS, writes=True):
        return getattr(_import("hdf5_results"), function)(*args)


def inspect(source: Source, inputs: InputOptions, extra: str = "hdf5") -> RankFile:
    """Describe an HDF5 file by its datasets, each of which is a buffer or kept in results."""
    check_installed(source.name, extra, inputs.context)
    opener = functools.partial(_open, outside=inputs.follow_links)
    return inspect_by(Library(opener, ERRORS, inputs.context), source, inputs)


def prepare(model: Model) -> ArrayLayout | Encoder:
    """Lay out results like `model`, contiguous or in chunks like the arrays of its file."""
    context, subject = model.context, model.subject
    model = model._replace(provenance=None)  # which workers do not need
    check_installed("`to='hdf5'`" if model.source is None else subject, "hdf5", context)
    stored, missing, lost = call_in_worker(context, subject, _call, subject, "forms", model)
    if lost:
        names = list(lost)
        reason = f"attribute {names[0]!r}{and_others(names[1:])} is left out: it {lost[names[0]]}"
        log.warn(InputWarning(f"{subject}: {reason}"))
    write = functools.partial(
        write_in_worker, context, subject, _call, subject, "write", model, context.history(), context.jobs
    )
    if stored is None:
        return Encoder(write, missing)
    return ArrayLayout(functools.partial(write, None), stored, missing=missing)


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write a copy of a file, in which the library changes some arrays."""
    _call(source.name, "rewrite", source, changed, fd)
