"""Packing in Python: pack and unpack."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mpired.api.signatures import as_path, shaped, with_options
from mpired.attempts import retry
from mpired.context import Context
from mpired.errors import UsageError
from mpired.files.scratch import Scratch
from mpired.formats import ARRAY
from mpired.options import PACK, UNPACK, PathLike
from mpired.packing import Packing, plan_pack, plan_unpack
from mpired.report import PackSummary, summarise_packing
from mpired.sources.open import check_unchanged


@with_options(*PACK, "progress")
def pack(
    file: PathLike, *, output: PathLike | None = None, context: Context, **options: Any
) -> np.ndarray | PackSummary:
    """Extract the elements of a datatype from a raw file, and store them without gaps (MPI_Pack; MPI-4.1, 5.2).

    Parameters
    ----------
    file
        The raw file with records.
    output
        The file to write; None returns the elements.

    Returns
    -------
    array or PackSummary
        The elements in native byte order. An element is a value, or a row of values. If a file was written, a
        `PackSummary`.

    Examples
    --------
    >>> import mpired
    >>> mpired.pack("sample_data/maxloc_1.bin", type="resized(0,16,double)")[:3]
    array([0., 1., 2.])
    """
    file = as_path(file, "file")
    if output is not None:
        plan = partial(plan_pack, file, as_path(output, "output"), options)
        return summarise_packing(retry(plan, [file], context, runs=True))
    if options["to"] or options["datarep"]:
        raise UsageError("`to` and `datarep`", "are for a file; name one with `output`")
    plan = partial(plan_pack, file, "-", {**options, "to": ARRAY.name})
    return retry(partial(_packed_array, plan), [file], context)


def _packed_array(make_plan: Callable[[Context], Packing], context: Context) -> np.ndarray:
    """Pack into an array."""
    plan = make_plan(context)
    with Scratch() as scratch:
        result = plan.gather(scratch, context.progress)
        check_unchanged(plan.sources)
        return shaped(result, plan.shape, fortran_order=False)


@with_options(*UNPACK, "progress")
def unpack(
    packed: PathLike, *, output: PathLike | None = None, into: PathLike | None = None, context: Context, **options: Any
) -> PackSummary:
    """Write packed elements to the places of a datatype in a raw file (MPI_Unpack; MPI-4.1, 5.2).

    Parameters
    ----------
    packed
        The file with the packed elements.
    output
        A new file to write, with zeros between the elements. Give either `output` or `into`.
    into
        An existing file, whose other bytes stay. It is replaced in one step.

    Returns
    -------
    PackSummary
        The figures of the call.

    Examples
    --------
    >>> import mpired
    >>> _ = mpired.pack("sample_data/maxloc_1.bin", type="resized(0,16,double)", output="values.npy")
    >>> mpired.unpack("values.npy", type="resized(0,24,double)", output="spread.rec").format
    'raw'
    >>> mpired.pack("spread.rec", type="resized(0,24,double)")[:3]
    array([0., 1., 2.])
    """
    if output is None and into is None:
        raise UsageError("output", "is missing; name a new file, or with into an existing one")
    packed = as_path(packed, "packed")
    into = None if into is None else as_path(into, "into")
    plan = partial(plan_unpack, packed, "-" if output is None else as_path(output, "output"), into, options)
    files = [packed] if into is None else [packed, into]
    return summarise_packing(retry(plan, files, context, runs=True))
