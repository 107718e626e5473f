"""The folder of the tests with several commands at one target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shared_target import COUNT, reset
from values import folder_in_memory


@pytest.fixture
def folder() -> Iterator[Path]:
    """A target of zeros in a folder of its own, and origins of ones and of powers of 16."""
    with folder_in_memory() as outside:
        (outside / "targets").mkdir()
        for number in (1, 16):
            np.save(outside / f"add{number}.npy", np.full(COUNT, number))
        reset(outside)
        yield outside
