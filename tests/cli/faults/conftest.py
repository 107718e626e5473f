"""Folders for runs that are interrupted or get too little."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from running import MEBIBYTE, OLD


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A rank of 64 MiB that takes no space, and an old result; beside the folder a rank of 256 MiB."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for path, size in ((folder / "rank.bin", 64 * MEBIBYTE), (tmp_path / "large.bin", 256 * MEBIBYTE)):
        path.touch()
        os.truncate(path, size)
    (folder / "out").write_bytes(OLD)
    return folder
