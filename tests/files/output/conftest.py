"""The folder of a result, and the kinds of its temporary file: most tests run with both."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_result import NEW, OLD

from mpired.files import calls


@pytest.fixture(params=["unnamed", "named"])
def kind(request, monkeypatch) -> str:
    """The kind of temporary file; patched here, children inherit it."""
    if request.param == "named":
        monkeypatch.setattr(calls, "open_unnamed", lambda _dirfd: None)
    return request.param


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A rank, and a folder for the result alone."""
    (tmp_path / "rank.bin").write_bytes(NEW)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "out").write_bytes(OLD)
    return tmp_path
