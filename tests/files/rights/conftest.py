"""The folder that all users can write to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def shared(as_root, open_folder) -> Path:
    """A folder that all users can write to, with a target of zeros and an origin of ones."""
    open_folder.chmod(0o777)
    np.save(open_folder / "t.npy", np.zeros(500))
    np.save(open_folder / "ones.npy", np.ones(500))
    return open_folder
