"""HDF5: groups of arrays, of which each is a buffer. h5py knows the format, in a worker.

The elements of a contiguous dataset are read where they lie. Those in chunks are decoded by the library, in rows of
chunks. A result is modelled on the first rank's file: its groups, attributes, dimension scales, chunks and filters.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from mpired import installed
from mpired.context import NO_LIMITS, Context
from mpired.errors import DatatypeError
from mpired.formats import arrays
from mpired.formats.array import Array
from mpired.formats.arrays import Library
from mpired.formats.decoding import apart, look_apart
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import ArrayLayout, MarkingLayout
from mpired.formats.rank import Cells, Model, RankFile
from mpired.formats.streamed import DECODED_NBYTES, errors_of
from mpired.sources.source import Source

ERRORS = (ValueError, KeyError, RuntimeError, TypeError, IndexError, OverflowError, AttributeError, EOFError)
"""Exceptions of h5py for damaged files, besides the usual ones."""
_LIBRARY, _RESULTS = "hierarchy", "hdf5_results"  # the modules that import h5py


@functools.cache
def _imported(name: str) -> Any:
    with installed.importing("h5py"):
        return importlib.import_module(f"mpired.formats.{name}")


def check_installed(subject: str, extra: str, context: Context) -> None:
    """Raise `UsageError` unless h5py is installed, which an extra of mpired installs."""
    installed.check(subject, "HDF5", "h5py", extra)
    if context.worker is None or not context.worker.is_there:  # so that no worker that is forked then has to
        _imported(_RESULTS)


def _open(source: Source, memory: int = DECODED_NBYTES, *, outside: bool) -> Any:
    return _imported(_LIBRARY).HdfFile(source, memory, outside=outside)


def _do(subject: Source | Hdf5Plan, module: str, function: str, *args: Any) -> Any:
    """Call a function of a module that imports h5py for a file, or for the plan of one."""
    with errors_of(subject.name, ERRORS, writes=module == _RESULTS):
        return getattr(_imported(module), function)(subject, *args)


def inspect(source: Source, inputs: InputOptions, extra: str = "hdf5") -> RankFile:
    """Describe an HDF5 file by its datasets, each a buffer or carried along."""
    context = inputs.context
    check_installed(source.name, extra, context)
    found = look_apart(context, _do, source, _LIBRARY, "look", inputs._replace(context=NO_LIMITS))
    opener = functools.partial(_open, outside=inputs.follow_links)
    return arrays.inspect(source, inputs, found, Library(opener, ERRORS, context))


class Hdf5Plan(NamedTuple):
    """A file of results: its arrays, the file that it is modelled on, and the arrays carried over from that."""

    buffers: tuple[Array, ...]  # the arrays that are combined
    source: Source | None  # the file of the first rank; None if that is of another format
    kept: tuple[str, ...]  # the names of the arrays that are carried
    line: str  # what the history gets
    has_history: bool  # whether there is one if the first rank has none
    jobs: int  # the most threads that compress; 0 for as many as there are cores
    cells: Cells  # changes of coordinates and attributes

    @property
    def name(self) -> str:
        """The file that errors are of."""
        return "the result" if self.source is None else self.source.name


def prepare(model: Model, *, has_history: bool = False) -> ArrayLayout | MarkingLayout:
    """Lay out results like `model`, with arrays in one piece or in chunks like those of its file."""
    context = model.context
    check_installed("`to='hdf5'`" if model.source is None else model.source.name, "hdf5", context)
    if any(buffer.fortran_order for buffer in model.buffers):
        raise DatatypeError("arrays in Fortran order", "have no form in HDF5; use `to='npy'` or `to='npz'`")
    kept = tuple(model.kept.names if model.kept else ())
    plan = Hdf5Plan(model.buffers, model.source, kept, context.history(), has_history, context.jobs, model.cells)
    stored, missing = apart(context, plan.name, _do, plan, _RESULTS, "forms")
    if stored is None:
        return MarkingLayout(functools.partial(_write, plan, context, "encode"), missing)
    return ArrayLayout(functools.partial(_write, plan, context, "lay"), stored, missing=missing)


def _write(plan: Hdf5Plan, context: Context, function: str, *args: Any) -> Any:
    """Let a worker call a function that writes to a file, whose descriptor is the last argument."""
    *results, fd = args
    return apart(context, plan.name, _do, plan, _RESULTS, function, *results, f"/proc/{os.getpid()}/fd/{fd}")


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write a file again with new elements in some arrays: a copy, in which the library changes them."""
    _do(source, _RESULTS, "rewrite", changed, fd)
