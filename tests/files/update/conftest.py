"""The folder of the tests of updates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target of zeros alone in a folder, and ones beside it."""
    (tmp_path / "here").mkdir()
    np.save(tmp_path / "ones.npy", np.ones(500))
    np.save(tmp_path / "here" / "t.npy", np.zeros(500))
    return tmp_path
