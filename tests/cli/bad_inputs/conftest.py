"""The folder of all tests of bad inputs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_files import furnish
from values import folder_in_memory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Good ranks of three doubles in each format, and an old result."""
    return furnish(tmp_path)


@pytest.fixture(scope="module")
def furnished() -> Iterator[Path]:
    """The same for all tests of a file, in memory."""
    with folder_in_memory() as outside:
        yield furnish(outside)
