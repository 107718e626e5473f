"""The Python functions of packing: pack and unpack."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mpired.api.outcome import shaped
from mpired.api.signatures import as_path, with_options
from mpired.attempts import carry_out, repeated
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
    """Take the elements of a datatype out of a raw file and put them one after another (MPI_Pack; MPI-4.1, 5.2).

    Parameters
    ----------
    file
        The records.
    output
        The file to write; None returns the elements.

    Returns
    -------
    array or PackSummary
        The elements in native byte order: one value each, or a row of them. If they were written, a `PackSummary`.

    Examples
    --------
    >>> import mpired
    >>> mpired.pack("sample_data/maxloc_1.bin", type="resized(0,16,double)")[:3]
    array([0., 1., 2.])
    """
    file = as_path(file, "file")
    if output is not None:
        plan = partial(plan_pack, file, as_path(output, "output"), options)
        return summarise_packing(repeated(partial(carry_out, plan, [file]), [file], context))
    if options["to"] or options["datarep"]:
        raise UsageError("`to` and `datarep`", "are for a file; name one with `output`")
    plan = partial(plan_pack, file, "-", {**options, "to": ARRAY.name})
    return repeated(partial(_array, plan), [file], context)


def _array(plan_of: Callable[[Context], Packing], context: Context) -> np.ndarray:
    """Do a packing whose result is an array."""
    plan = plan_of(context)
    with Scratch() as scratch:
        result = plan.gather(scratch, context.progress)
        check_unchanged(plan.sources)
        return shaped(result, plan.shape, fortran_order=False)


@with_options(*UNPACK, "progress")
def unpack(
    packed: PathLike, *, output: PathLike | None = None, into: PathLike | None = None, context: Context, **options: Any
) -> PackSummary:
    """Put packed elements where a datatype says (MPI_Unpack; MPI-4.1, 5.2).

    Parameters
    ----------
    packed
        The file with the elements.
    output
        The new file to write, with zeros between the elements; or
    into
        an existing file, whose other bytes stay. It is replaced in one step.

    Returns
    -------
    PackSummary
        The unpacking in figures.

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
    return summarise_packing(repeated(partial(carry_out, plan, files), files, context))
