"""Folders in which many files are written together: before, committed, and half renamed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from many_files import NEW, OLD, contents_of, in_child, old, write


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Four old files in two folders; the third is reached by a link."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = [tmp_path / "a" / "0", tmp_path / "a" / "1", tmp_path / "b" / "link", tmp_path / "b" / "3"]
    (tmp_path / "b" / "link").symlink_to("2")
    for number, path in enumerate(found):
        path.write_bytes(old(number))
    return found


@pytest.fixture
def committed(paths: list[Path], tmp_path: Path) -> list[Path]:
    """A commit of which nothing is in place; return the staging directories."""

    def dies() -> None:
        os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        write(paths)

    assert in_child(dies) == -signal.SIGKILL
    return [next((tmp_path / folder).glob(".*.mpired-together")) for folder in "ab"]


@pytest.fixture
def half_done(tmp_path: Path) -> Path:
    """A folder with four files, of which two are in place."""
    folder = tmp_path / "A"
    folder.mkdir()
    for number in range(4):
        (folder / str(number)).write_bytes(old(number))

    def dies() -> None:
        original, count = os.replace, iter(range(100))

        def replace(*arguments: object, **settings: object) -> None:
            if next(count) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            original(*arguments, **settings)

        os.replace = replace
        write([folder / str(number) for number in range(4)])

    assert in_child(dies) == -signal.SIGKILL
    assert contents_of(folder) == [*NEW[:2], *OLD[2:]]
    return folder
