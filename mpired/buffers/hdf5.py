"""HDF5: groups of arrays, of which each is a buffer. h5py knows the format, in a worker.

The elements of a contiguous dataset are read where they lie. Those in chunks are decoded by the library, in rows of
chunks. A result is modelled on the first rank's file: its groups, attributes, dimension scales, chunks and filters.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import platform
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpired import installed
from mpired.buffers import arrays
from mpired.buffers.arrays import KeptArrays, Library
from mpired.buffers.declared import Declared
from mpired.buffers.decoding import apart, look_apart
from mpired.buffers.flat import ArrayLayout, FlatBuffer, MarkingLayout
from mpired.buffers.model import BufferModel, Model
from mpired.buffers.rank import RankFile
from mpired.buffers.streamed import explaining
from mpired.context import Context
from mpired.engines.worker import ended_after
from mpired.errors import DatatypeError, UsageError, installation
from mpired.sources.source import Source

_LOOK_SECONDS = 600  # of the processor: more than 65,536 arrays with attributes take, and in some damaged files no end
ERRORS = (ValueError, KeyError, RuntimeError, TypeError, IndexError, OverflowError, AttributeError, EOFError)
"""What h5py raises for damaged files, besides the usual exceptions."""


_LIBRARY, _RESULTS = "mpired.buffers.hierarchy", "mpired.buffers.hdf5_results"


@functools.cache
def _imported(name: str) -> Any:
    with installed.importing("h5py"), _processor_unasked():
        return importlib.import_module(name)


@contextlib.contextmanager
def _processor_unasked() -> Iterator[None]:
    """Let Python not start the program `uname`, which takes as long as a fifth of the import of h5py."""
    # `platform.uname()` takes the machine out of it by its number, for which Python asks for the processor, too.
    known = getattr(platform.uname(), "__dict__", {})  # of the one object that the module has
    is_known = "processor" in known
    known.setdefault("processor", "")
    try:
        yield
    finally:
        if not is_known:
            known.pop("processor", None)


def load() -> None:
    """Load what reads and writes, so that no worker that is forked then has to; no file is opened here."""
    _imported(_RESULTS)


def check_installed(subject: str, extra: str, context: Context) -> None:
    """Raise `UsageError` unless h5py is installed, which an extra of mpired installs."""
    if importlib.util.find_spec("h5py") is None:
        reason = f"is HDF5, for which mpired needs h5py; install it with {installation(f'mpired[{extra}]')}"
        raise UsageError(subject, reason)
    if context.worker is None or not context.worker.is_there:  # else it has loaded it, or will
        load()


def _open(source: Source, memory: int, *, outside: bool) -> Any:
    return _imported(_LIBRARY).HdfFile(source, memory, outside=outside)


def _read(context: Context, source: Source, names: Sequence[str]) -> Any:
    return apart(context, source.name, _do, source, _LIBRARY, "read", source, tuple(names))


def _look(source: Source, *asked: bool) -> Any:
    with ended_after(_LOOK_SECONDS):
        return _do(source, _LIBRARY, "look", source, *asked)


def _do(model: Source | None, module: str, function: str, *args: Any) -> Any:
    """Call a function of a module that imports h5py, in a worker; the file that results are like is blamed."""
    with explaining(_subject(model), *ERRORS):
        return getattr(_imported(module), function)(*args)


def _subject(model: Source | None) -> str:
    return "the result" if model is None else model.name


def inspect(source: Source, declared: Declared, extra: str = "hdf5") -> RankFile:
    """Describe an HDF5 file by its datasets, each a buffer or carried along."""
    context = declared.context
    check_installed(source.name, extra, context)
    found = look_apart(context, _look, source, declared.follow_links, declared.unpack, declared.window)
    opener = functools.partial(_open, outside=declared.follow_links)
    library = Library(opener, ERRORS, functools.partial(_read, context))
    file = arrays.inspect(source, declared, found, library)
    is_decoded = any(buffer.isolated for buffer in file.buffers)
    if is_decoded and context.worker is not None and context.worker.is_looking_ahead:
        load()  # for the workers that will decode these
    return file


class New(NamedTuple):
    """An array of a result: its name, its form and shape, the byte order, and whether elements may be missing."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    order: str
    nullable: bool
    like: str  # the array that it is modelled on; another than its own if it has other values, such as indices

    @property
    def is_own(self) -> bool:
        """Whether it has values of the array that it is modelled on."""
        return self.like == self.name

    @classmethod
    def of(cls, buffer: BufferModel) -> New:
        """Return that of a buffer."""
        dtype = np.dtype(bool) if buffer.datatype.is_bool else buffer.form or buffer.datatype.form
        shape = (buffer.count,) if buffer.shape is None else buffer.shape
        name = buffer.name or "value"
        return cls(name, dtype, shape, buffer.byte_order, buffer.nullable, buffer.origin or name)


class Plan(NamedTuple):
    """What a file of results is: its arrays, the file that it is modelled on, and what is carried over from there."""

    new: tuple[New, ...]  # the arrays that are combined
    source: Source | None  # the file of the first rank; None if that is of another format
    kept: tuple[str, ...]  # the names of the arrays that are carried
    line: str  # what the history gets
    has_history: bool  # whether there is one if the first rank has none


def prepare(model: Model, *, has_history: bool = False) -> ArrayLayout | MarkingLayout:
    """Lay out results like `model`, whose arrays lie in one piece or in chunks as those of its file."""
    context = model.context
    check_installed("`to='hdf5'`" if model.source is None else model.source.name, "hdf5", context)
    for buffer in model.buffers:
        if buffer.fortran_order:
            raise DatatypeError("arrays in Fortran order", "have no form in HDF5; use `to='npy'` or `to='npz'`")
    kept = tuple(model.kept.names) if isinstance(model.kept, KeptArrays) else ()
    new = tuple(map(New.of, model.buffers))
    plan = Plan(new, model.source, kept, context.history(), has_history)
    stored, missing = _by_results(plan, context, "forms")
    if stored is None:
        return MarkingLayout(functools.partial(_encode, plan, context), missing)
    return ArrayLayout(functools.partial(_lay, plan, context), stored, missing=missing)


def _by_results(plan: Plan, context: Context, function: str, *args: Any) -> Any:
    """Let a worker call a function of the module that writes results."""
    return apart(context, _subject(plan.source), _do, plan.source, _RESULTS, function, plan, *args)


def _lay(plan: Plan, context: Context, fd: int) -> Any:
    """Write all but the elements; return where these begin."""
    return _by_results(plan, context, "lay", f"/proc/{os.getpid()}/fd/{fd}")


def _encode(plan: Plan, context: Context, results: Sequence[FlatBuffer], fd: int) -> None:
    """Write a file with its results."""
    _by_results(plan, context, "encode", tuple(results), f"/proc/{os.getpid()}/fd/{fd}", context.threads)


def rewrite(source: Source, changed: Sequence[FlatBuffer], fd: int) -> None:
    """Write a file again with new elements in some arrays: a copy, in which the library changes them."""
    with explaining(source.name, *ERRORS):
        _imported(_RESULTS).rewrite(source, changed, fd)
