"""The Python functions that only look at files."""

from __future__ import annotations

import os
from typing import Unpack

from mpired.buffers import Declared, RankFile, open_rank
from mpired.options import Inputs, PathLike, checked
from mpired.ranks import check_use
from mpired.storage import staging
from mpired.storage.recovery import check_are_data


def info(path: PathLike, **inputs: Unpack[Inputs]) -> RankFile:
    """Describe what a file holds, from its header.

    Returns
    -------
    RankFile
        The format, and of every buffer the name, datatype, count and shape.

    Raises
    ------
    MpiredError, OSError
        As `reduce` for one rank.
    """
    check_are_data([path])
    staging.recover([os.fspath(path)])
    return look(path, **inputs)


def look(path: PathLike, **inputs: Unpack[Inputs]) -> RankFile:
    """Describe a file as `info` does, in whose directory nothing is left to finish.

    Raises
    ------
    MpiredError, OSError
        As `info`.
    """
    said = Declared.of(checked(Inputs, inputs))
    file = open_rank(os.fspath(path), said)
    check_use(said, [file])
    return file
