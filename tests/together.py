"""Many cases in one test: each is tried, and those that fail are told of together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Case = Callable[..., contextlib.AbstractContextManager[Path]]


@contextlib.contextmanager
def together(tmp_path: Path) -> Iterator[Case]:
    """Give the context of a case: it takes the names of the case, and gives a new folder; there must be a case."""
    ncases, failed = 0, []

    @contextlib.contextmanager
    def case(*names: object) -> Iterator[Path]:
        nonlocal ncases
        folder = tmp_path / f"case{ncases}"
        folder.mkdir()
        ncases += 1
        try:
            yield folder
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - the other cases are tried too
            failed.append(f"{' '.join(map(str, names))}: {type(error).__name__}: {error}")

    yield case
    assert ncases > 0
    assert not failed, "\n\n".join([f"{len(failed)} of {ncases} cases failed", *failed])
