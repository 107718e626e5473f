"""Directories that are copied whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from mpired.errors import OutputExistsError
from mpired.files import calls, metadata


def copy_into(directory: str, sources: Sequence[Path], *, on_commit: Callable[[], None]) -> None:
    """Copy directories into one that is new or empty, bring them to the disk, and call `on_commit` then.

    What Python has compiled in them is left out.
    """
    is_new = not os.path.lexists(directory)
    if not is_new and (not os.path.isdir(directory) or os.listdir(directory)):
        raise OutputExistsError(directory, "already exists, and is not an empty directory; name a new one")
    folders = []
    with calls.blaming(directory), ExitStack() as undo:

        def make(folder: str) -> None:
            os.mkdir(folder)
            undo.callback(os.rmdir, folder)

        if is_new:
            make(directory)
        for source in sources:
            for each in (source, *sorted(source.rglob("*"))):
                target = os.path.join(directory, each.relative_to(source.parent))
                if each.is_dir() and "__pycache__" not in each.parts:
                    make(target)
                    folders.append(target)
                elif each.is_file() and "__pycache__" not in each.parts:
                    with os.fdopen(calls.open_new(target), "wb") as file:
                        undo.callback(calls.unlink, target)
                        file.write(each.read_bytes())
                        file.flush()
                        os.fchmod(file.fileno(), metadata.default_mode())
                        calls.fsync(file.fileno())
        for folder in (*folders, directory):
            with calls.directory(folder) as dirfd:
                calls.fsync_directory(dirfd)
        on_commit()
        undo.pop_all()
