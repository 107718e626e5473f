"""An old result, the new one that replaces it, and the ways to write it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from mpired.context import NO_LIMITS, Context
from mpired.files import calls
from mpired.files.output import open_output

OLD, NEW = b"the old result", np.arange(1000.0).tobytes()

WORDS = ("--op", "sum", "--type", "double", "rank.bin")


def write(path: Path | str, data: bytes = NEW, context: Context = NO_LIMITS, **settings: object) -> None:
    """Write `data` as a result."""
    with open_output(os.fspath(path), context=context, **settings) as output:
        output.allocate(len(data))
        calls.pwrite_all(output.fd, data, 0)
        output.commit(context.on_commit)
