"""Fixtures of the tests of what only looks at files."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mpired.collectives import plan


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let small data be read in blocks of so many bytes, and in as many segments as a plan can have, each in pieces."""

    def small(nbytes: int) -> None:
        for name in ("_BLOCK_BYTES", "_STREAMED_BLOCK_BYTES", "_SEGMENT_BYTES"):
            monkeypatch.setattr(plan, name, nbytes)
        monkeypatch.setattr(plan, "SMALL_NBYTES", 0)
        monkeypatch.setattr("mpired.progress.PERIOD", 0)

    return small
