"""The folder of the tests of pack and unpack."""

import pytest
from records import records


@pytest.fixture
def folder(tmp_path):
    """A folder with one file of records."""
    (tmp_path / "rank0.rec").write_bytes(records().tobytes())
    return tmp_path
