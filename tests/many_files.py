"""Four files that are written together: what they held, what they shall hold, and what is left beside them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

from mpired.storage import calls
from mpired.storage.together import Together

# Every call of the operating system by which a file system is changed.
CHANGING = (
    "chmod", "fchmod", "fsync", "ftruncate", "link", "mkdir", "open", "posix_fallocate", "pwrite", "replace", "rmdir",
    "symlink", "unlink",
)  # fmt: skip

FINISHED = "finished what an interrupted command had committed"


def old(number: int) -> bytes:
    return b"old %d" % number


def new(number: int) -> bytes:
    return b"new content of %d" % number


def write(paths: list[Path], *, overwrite: bool = True) -> None:
    """Write the new files together."""
    with Together([str(path) for path in paths], overwrite=overwrite) as outputs:
        for number, draft in enumerate(outputs.drafts):
            with draft.created(len(new(number))) as fd:
                calls.pwrite_all(fd, new(number), 0)
        outputs.commit()


def contents(paths: list[Path]) -> list[bytes | None]:
    return [path.read_bytes() if path.exists() else None for path in paths]


def litter(folder: Path) -> list[str]:
    return [name for _, folders, files in os.walk(folder) for name in [*folders, *files] if "mpired" in name]


OLD, NEW = [old(number) for number in range(4)], [new(number) for number in range(4)]


def in_child(function: Callable[[], object]) -> int:
    """Run a function in a child, and return how that ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            function()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def contents_of(folder: Path) -> list[bytes | None]:
    return contents([folder / str(number) for number in range(4)])
