"""Fixtures for the commands whose results go to the ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rankwise import NRANKS, numbers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four ranks as npy, and as raw files with a header and a trailer, in big-endian order."""
    for rank in range(NRANKS):
        array = numbers(rank)
        np.save(tmp_path / f"r{rank}.npy", array)
        (tmp_path / f"r{rank}.bin").write_bytes(b"head" + array.astype(">i8").tobytes() + b"tail %d" % rank)
    return tmp_path
