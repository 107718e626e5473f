"""The Python functions that only look at files."""

from __future__ import annotations

import os
from functools import partial
from typing import Unpack

from mpired import attempts
from mpired.api.signatures import with_options
from mpired.buffers import Declared, RankFile
from mpired.buffers import look as describe
from mpired.options import Inputs, PathLike, checked
from mpired.ranks import check_use


@with_options
def info(path: PathLike, **options: Unpack[Inputs]) -> RankFile:
    """Describe what a file holds, from its header.

    Parameters
    ----------
    path
        The file.
    **options
        Those of `mpired info`.

    Returns
    -------
    RankFile
        The format, and of every buffer the name, datatype, count and shape; in `others` what is no buffer, and in
        `obstacle` why a file of another kind has none.

    Raises
    ------
    MpiredError, OSError
        If the file is damaged, is not what is declared, or cannot be opened.
    """
    return attempts.repeated(partial(look, os.fspath(path), options), lambda file: file, lambda: [path])


def look(path: str, inputs: Inputs) -> RankFile:
    """Describe a file as `info` does, in whose directory nothing is left to finish.

    Raises
    ------
    MpiredError, OSError
        As `info`.
    """
    said = Declared.of(checked(Inputs, inputs))
    file = describe(path, said)
    if not file.obstacle:
        check_use(said, [file])
    return file
