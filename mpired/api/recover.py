"""The Python function of recovery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpired.api.signatures import with_options
from mpired.buffers.memory import path_at_hand
from mpired.context import Context
from mpired.errors import MpiredError
from mpired.log import notice
from mpired.options import RECOVER, PathLike, checked
from mpired.storage.recovering import Recovered, recover_files


@with_options(*RECOVER)
def recover(files: PathLike | Sequence[PathLike], *, context: Context, **options: Any) -> list[Recovered]:
    """Finish interrupted updates of files, and remove their leftovers.

    Every call that opens a file does this first; this is for programs that know nothing of mpired.

    Parameters
    ----------
    files
        A file, or several. One that cannot be recovered does not keep the others from it.
    **options
        Those of `mpired recover`.

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
    names = [path_at_hand(file, "files") for file in given]
    done: list[Recovered] = []
    try:
        recover_files(names, checked(RECOVER, options), context, done.append)
    except (MpiredError, OSError):
        for each in done:  # which nobody else would tell of
            if each.changed:
                notice([each.file], ", ".join(each.words))
        raise
    return done
