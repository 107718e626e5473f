"""The folder of all tests of bad inputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from bad_files import furnish


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Good ranks of three doubles in each format, and an old result."""
    return furnish(tmp_path)
