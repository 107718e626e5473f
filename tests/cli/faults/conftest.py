"""Folders for runs that are interrupted or get too little."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import MEBIBYTE, OLD


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A rank of 64 MiB that takes no space, and an old result."""
    with open(tmp_path / "rank.bin", "wb") as file:
        file.truncate(64 * MEBIBYTE)
    (tmp_path / "out").write_bytes(OLD)
    return tmp_path
