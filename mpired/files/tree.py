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
    with calls.blaming(directory), ExitStack() as undo:
        if is_new:
            _make(directory, undo)
        for source in sources:
            _copy(source, os.path.join(directory, source.name), undo)
        _sync(directory)
        on_commit()
        undo.pop_all()


def _make(directory: str, undo: ExitStack) -> None:
    os.mkdir(directory)
    undo.callback(os.rmdir, directory)


def _copy(source: Path, target: str, undo: ExitStack) -> None:
    _make(target, undo)
    for each in sorted(source.iterdir()):
        to = os.path.join(target, each.name)
        if each.is_file():
            with os.fdopen(calls.open_new(to), "wb") as file:
                undo.callback(calls.unlink, to)
                file.write(each.read_bytes())
                file.flush()
                os.fchmod(file.fileno(), metadata.default_mode())
                calls.fsync(file.fileno())
        elif each.name != "__pycache__":
            _copy(each, to, undo)
    _sync(target)


def _sync(directory: str) -> None:
    dirfd = calls.open_directory(directory)
    try:
        calls.fsync_directory(dirfd)
    finally:
        calls.let_go(dirfd)
