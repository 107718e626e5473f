"""The pictures that a query draws."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved, the last one at the end."""
    saved, save = [], Figure.savefig

    def keep(figure: Figure, *words: object, **settings: object) -> None:
        save(figure, *words, **settings)
        saved.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved
