"""HDF5: groups of arrays, of which each is a buffer. h5py knows the format, in a worker.

The elements of a contiguous dataset are read where they lie. Those in chunks are decoded by the library, in rows of
chunks. A result is modelled on the first rank's file: its groups, attributes, dimension scales, chunks and filters.
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
from mpired.formats.rank import Model, RankFile, also
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
    if context.worker is None or context.worker.answers is None:  # so that no worker that is forked then has to
        _imported(_RESULTS)


def _open(source: Source, memory: int = DECODED_NBYTES, *, outside: bool) -> Any:
    return _imported(_LIBRARY).HdfFile(source, memory, outside=outside)


def _do(name: str, function: str, *args: Any) -> Any:
    """Call a function that writes results; `name` is the file that errors are of."""
    with errors_of(name, ERRORS, writes=True):
        return getattr(_imported(_RESULTS), function)(*args)


def inspect(source: Source, inputs: InputOptions, extra: str = "hdf5") -> RankFile:
    """Describe an HDF5 file by its datasets, each a buffer or carried along."""
    check_installed(source.name, extra, inputs.context)
    opener = functools.partial(_open, outside=inputs.follow_links)
    return inspect_by(Library(opener, ERRORS, inputs.context), source, inputs)


def prepare(model: Model) -> ArrayLayout | Encoder:
    """Lay out results like `model`, with arrays in one piece or in chunks like those of its file."""
    context, name = model.context, model.subject
    model = model._replace(provenance=None)  # workers need none
    check_installed("`to='hdf5'`" if model.source is None else name, "hdf5", context)
    stored, missing, lost = call_in_worker(context, name, _do, name, "forms", model)
    if lost:
        (first, reason), *others = lost.items()
        attributes = f"attribute {first!r}{also([attribute for attribute, _ in others])}"
        log.warn(InputWarning(f"{name}: {attributes} is left out: it {reason}"))
    write = functools.partial(
        write_in_worker, context, name, _do, name, "write", model, context.history(), context.jobs
    )
    if stored is None:
        return Encoder(write, missing)
    return ArrayLayout(functools.partial(write, None), stored, missing=missing)


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write a file again with new elements in some arrays: a copy, in which the library changes them."""
    _do(source.name, "rewrite", source, changed, fd)
