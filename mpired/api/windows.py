"""One-sided calls and recovery in Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mpired.api.signatures import as_numpy, as_path, as_rank, in_shape, with_options
from mpired.attempts import retry
from mpired.context import Context
from mpired.errors import MpiredError, UsageError
from mpired.files.recovery import Recovered, recover_files
from mpired.formats import RankObject
from mpired.formats.memory import masks_of
from mpired.log import notice
from mpired.ops import OpLike
from mpired.options import ACCUMULATE, FETCH, FETCH_ELEMENT, RECOVER, SWAP, WINDOW, MpiDatatype, PathLike, Rank
from mpired.ranks.order import rank_list
from mpired.windows.call import (
    WindowRequest,
    plan_accumulate,
    plan_compare_and_swap,
    plan_fetch_and_op,
    plan_get_accumulate,
)
from mpired.windows.transaction import transact


class Window:
    """A target file, or a file for each rank, into which several processes combine their data (MPI-4.1, 12.3).

    Each call is a transaction. It locks the files; each file changes completely, or not at all, even after a crash.
    Between the calls no file is open.

    Parameters
    ----------
    paths
        The file, or the files of the ranks in order.
    type
        The MPI datatype or NumPy code of an element; raw files need it.
    byte_order
        The byte order of raw files, "little" or "big".
    **options
        Options of `mpired accumulate` for all calls.

    Examples
    --------
    >>> import mpired, numpy as np
    >>> np.save("total.npy", np.zeros(4))
    >>> window = mpired.Window("total.npy")
    >>> window.accumulate(np.arange(4.0), op="sum")
    1
    >>> window.get_accumulate(np.ones(2), op="max", target_disp=0)
    array([0., 1.])
    >>> window.fetch_and_op(10, op="replace", target_disp=3)
    np.float64(3.0)
    >>> np.load("total.npy")
    array([ 1.,  1.,  2., 10.])
    """

    @with_options(*WINDOW)
    def __init__(
        self,
        *paths: PathLike,
        type: str | MpiDatatype | None = None,  # noqa: A002 - the option's name
        byte_order: str | None = None,
        **options: Any,
    ) -> None:
        if not paths:
            raise UsageError("Window", "needs a path, or one for each rank")
        self.paths = tuple(as_path(path, "paths") for path in paths)
        self._options: dict[str, Any] = {"type": type, "byte_order": byte_order, **options}

    def __repr__(self) -> str:
        return f"Window({', '.join(map(repr, self.paths))})"

    @with_options(*ACCUMULATE, "progress")
    def accumulate(self, origin: Rank | Sequence[Rank], op: OpLike, *, context: Context, **options: Any) -> int:
        """Combine an origin into the window: `target = target op origin` (MPI_Accumulate; MPI-4.1, 12.3.4).

        Parameters
        ----------
        origin
            A path, an array, which may be masked, or an open file; or a list of these, which are combined in order in
            one transaction.
        op
            A predefined op or its name, or "replace".

        Returns
        -------
        int
            The number of combined origins. It does not include origins that were applied before, with `once` or
            `once_key`, and bad origins, with `skip_bad`.
        """
        items: Any = origin if isinstance(origin, list | tuple) else [origin]
        origins = rank_list([as_rank(item, f"origin {number}") for number, item in enumerate(items)], options)
        plan = partial(plan_accumulate, self.paths, origins, op, options)
        result = retry(lambda context: transact(plan(context)), origins, context)
        return len(result.request.origins) - len(result.skipped)

    @with_options(*FETCH, "progress")
    def get_accumulate(self, origin: Rank | None, op: OpLike, *, context: Context, **options: Any) -> np.ndarray:
        """Combine an origin into the window, and return the old elements (MPI_Get_accumulate; MPI-4.1, 12.3.4).

        Parameters
        ----------
        origin
            A path, an array or an open file; may be None for the op "no_op", which only reads the window.
        op
            As for `accumulate`, or "no_op".

        Returns
        -------
        array
            The old elements in native byte order, with the shape of the window if all of it is read; a masked array
            if `nulls` allows missing elements.
        """
        argument = None if origin is None else as_rank(origin, "origin")
        return _fetch(partial(plan_get_accumulate, self.paths, argument, op, options), context, argument)

    @with_options(*FETCH_ELEMENT)
    def fetch_and_op(self, value: object, op: OpLike, *, context: Context, **options: Any) -> Any:
        """Combine a value into an element, and return the old element (MPI_Fetch_and_op; MPI-4.1, 12.3.4).

        Parameters
        ----------
        value
            A number, a pair such as (30.5, 2), `numpy.ma.masked`, or the path of a file with one element; may be None
            for the op "no_op".
        op
            As for `get_accumulate`.
        """
        plan = partial(plan_fetch_and_op, self.paths, value, op, options)
        return _first(_fetch(plan, context, value))

    @with_options(*SWAP)
    def compare_and_swap(self, compare: object, value: object, *, context: Context, **options: Any) -> Any:
        """Replace an element by `value` if it equals `compare`, and return the old one (MPI_Compare_and_swap; 12.3.5).

        Parameters
        ----------
        compare, value
            As the value of `fetch_and_op`. Elements are integers, truth values or bytes, and are equal if their bits
            are. A missing element equals `numpy.ma.masked` only.
        """
        plan = partial(plan_compare_and_swap, self.paths, compare, value, options)
        return _first(_fetch(plan, context, compare, value))


def _first(elements: np.ndarray) -> Any:
    with np.errstate(over="ignore"):  # NumPy's fill value, 1e20, overflows elements of 16 bits
        return elements.flat[0]


def _fetch(plan: Callable[[Context], WindowRequest], context: Context, *origins: object) -> np.ndarray:
    """Carry out a call whose origins are files or values, and return the old elements."""
    inputs = [os.fspath(origin) if isinstance(origin, os.PathLike) else origin for origin in origins]
    ranks = [origin for origin in inputs if isinstance(origin, str | RankObject)]
    result = retry(lambda context: transact(plan(context)), ranks, context)
    assert result.fetched is not None  # noqa: S101 - the request has `fetch`
    (model,) = result.fetched_model.buffers
    elements = as_numpy(np.ma.getdata(result.fetched), model.datatype, model.form)
    mask = masks_of(result.fetched) if isinstance(result.fetched, np.ma.MaskedArray) else None
    return in_shape(elements, mask, model.shape, fortran_order=model.fortran_order)


@with_options(*RECOVER)
def recover(files: PathLike | Sequence[PathLike], *, context: Context, **options: Any) -> list[Recovered]:
    """Finish interrupted updates of files, and remove their leftovers.

    Each call of mpired recovers the files that it opens. This function is for files that other programs open next.

    Parameters
    ----------
    files
        A file, or several files. All others are recovered if one of them cannot be.

    Returns
    -------
    list of Recovered
        For each file in order its name, the actions, or with `only_list` the leftovers, and whether anything changed.

    Raises
    ------
    mpired.errors.RanksError
        If several files could not be recovered. The actions on the other files are logged.
    mpired.errors.MpiredError, OSError
        If one file could not be recovered.

    Examples
    --------
    >>> import mpired
    >>> mpired.recover("sample_data/counts_0.npy")
    [Recovered(file='sample_data/counts_0.npy', words=(), changed=False)]
    """
    items = files if isinstance(files, Sequence) and not isinstance(files, str | bytes) else [files]
    results: list[Recovered] = []
    try:
        recover_files([as_path(item, "files") for item in items], options, context, results.append)
    except (MpiredError, OSError):
        for result in results:  # the error does not report the recovered files
            if result.changed:
                notice([result.file], ", ".join(result.words))
        raise
    return results
