"""The Python API of one-sided calls, and of recovery after them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mpired.api.outcome import as_numpy, in_shape
from mpired.api.signatures import as_path, as_rank, with_options
from mpired.attempts import repeated
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
    """A file, or one for each rank, that several processes combine their data into (MPI-4.1, 12.3).

    Each call is a transaction: it locks the files, and changes a file wholly or, whatever happens, not at all.
    Nothing is open between the calls.

    Parameters
    ----------
    paths
        The file, or the files of the ranks in order.
    type
        The MPI datatype or NumPy code of an element; raw files need it.
    byte_order
        "little" or "big", of raw files.
    **how
        As the options of `mpired accumulate`: commit, durability, lock_timeout.

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
        **how: Any,
    ) -> None:
        if not paths:
            raise UsageError("Window", "needs a path, or one for each rank")
        self.paths = tuple(as_path(path, "paths") for path in paths)
        self._options: dict[str, Any] = {"type": type, "byte_order": byte_order, **how}

    def __repr__(self) -> str:
        return f"Window({', '.join(map(repr, self.paths))})"

    @with_options(*ACCUMULATE, "progress")
    def accumulate(self, origin: Rank | Sequence[Rank], op: OpLike, *, context: Context, **options: Any) -> int:
        """Combine an origin into the window: `target = target op origin` (MPI_Accumulate; MPI-4.1, 12.3.4).

        Parameters
        ----------
        origin
            A path, an array, which may be masked, an open file, or a list of these, applied in order in one
            transaction.
        op
            A predefined op or its name, or "replace".

        Returns
        -------
        int
            How many origins were combined: fewer than given if `once` or `once_key` left out what had been applied
            before, or `skip_bad` what cannot be used.
        """
        given: Any = origin if isinstance(origin, list | tuple) else [origin]
        origins = rank_list([as_rank(each, f"origin {number}") for number, each in enumerate(given)], options)
        plan = partial(plan_accumulate, self.paths, origins, op, options)
        done = repeated(lambda context: transact(plan(context)), origins, context)
        return len(done.request.origins) - len(done.skipped)

    @with_options(*FETCH, "progress")
    def get_accumulate(self, origin: Rank | None, op: OpLike, *, context: Context, **options: Any) -> np.ndarray:
        """Combine an origin into the window, and return the old elements (MPI_Get_accumulate; MPI-4.1, 12.3.4).

        Parameters
        ----------
        origin
            A path, an array or an open file; may be None for the op "no_op", which only reads the window.
        op
            See `accumulate`; or "no_op".

        Returns
        -------
        array
            In native byte order, with the shape of the window if all of it is read; a masked array if `nulls` allows
            missing elements.
        """
        given = None if origin is None else as_rank(origin, "origin")
        return _fetched(partial(plan_get_accumulate, self.paths, given, op, options), context, given)

    @with_options(*FETCH_ELEMENT)
    def fetch_and_op(self, value: object, op: OpLike, *, context: Context, **options: Any) -> Any:
        """Combine a value into one element, and return the old one (MPI_Fetch_and_op; MPI-4.1, 12.3.4).

        Parameters
        ----------
        value
            A number, a pair as (value, index), `numpy.ma.masked`, or the path of a file with one element; may be None
            for "no_op".
        op
            A predefined op or its name, "replace" or "no_op".
        """
        plan = partial(plan_fetch_and_op, self.paths, value, op, options)
        return _first(_fetched(plan, context, value))

    @with_options(*SWAP)
    def compare_and_swap(self, compare: object, value: object, *, context: Context, **options: Any) -> Any:
        """Set one element to `value` if it is `compare`, and return the old one (MPI_Compare_and_swap; 12.3.4).

        Parameters
        ----------
        compare, value
            As the value of `fetch_and_op`; integers, truth values or bytes, compared bit by bit. A missing element is
            equal to `numpy.ma.masked` only.
        """
        plan = partial(plan_compare_and_swap, self.paths, compare, value, options)
        return _first(_fetched(plan, context, compare, value))


def _first(elements: np.ndarray) -> Any:
    with np.errstate(over="ignore"):  # see `missing.masked`
        return elements.flat[0]


def _fetched(plan: Callable[[Context], WindowRequest], context: Context, *origins: object) -> np.ndarray:
    """Carry out a call, of which some origins may be files, and return the old elements in their shape."""
    named = [os.fspath(origin) if isinstance(origin, os.PathLike) else origin for origin in origins]
    words = [word for word in named if isinstance(word, str | RankObject)]
    done = repeated(lambda context: transact(plan(context)), words, context)
    assert done.fetched is not None  # noqa: S101 - such a call fetches
    (like,) = done.fetched_model.buffers
    elements = as_numpy(np.ma.getdata(done.fetched), like.datatype, like.form)
    mask = masks_of(done.fetched) if isinstance(done.fetched, np.ma.MaskedArray) else None
    return in_shape(elements, mask, like.shape, fortran_order=like.fortran_order)


@with_options(*RECOVER)
def recover(files: PathLike | Sequence[PathLike], *, context: Context, **options: Any) -> list[Recovered]:
    """Finish interrupted updates of files, and remove their leftovers.

    Every call that opens a file does this first; this is for programs that know nothing of mpired.

    Parameters
    ----------
    files
        A file, or several. One that cannot be recovered does not keep the others from it.

    Returns
    -------
    list of Recovered
        For each file in order its name, the action in words, or with `only_list` the leftovers, and
        whether that changed anything.

    Raises
    ------
    mpired.errors.RanksError
        If several files could not be recovered. The actions on the others are logged.
    mpired.errors.MpiredError, OSError
        If one could not.

    Examples
    --------
    >>> import mpired
    >>> mpired.recover("sample_data/counts_0.npy")
    [Recovered(file='sample_data/counts_0.npy', words=(), changed=False)]
    """
    given = files if isinstance(files, Sequence) and not isinstance(files, str | bytes) else [files]
    names = [as_path(file, "files") for file in given]
    done: list[Recovered] = []
    try:
        recover_files(names, options, context, done.append)
    except (MpiredError, OSError):
        for each in done:  # nothing else reports these
            if each.changed:
                notice([each.file], ", ".join(each.words))
        raise
    return done
