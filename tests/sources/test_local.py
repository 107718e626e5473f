"""Files that are replaced while they are opened, one after another."""

from __future__ import annotations

import numpy as np

import mpired
from mpired import attempts
from mpired.sources import open as opening


def test_files_that_stay_open_are_of_one_state(tmp_path, monkeypatch):
    """Two files are replaced together when the first of them is open: each alone would be whole."""
    paths = [tmp_path / "p.npy", tmp_path / "q.npy"]
    opened: list[str] = []

    def replace(value: int) -> None:
        for path in paths:
            np.save(tmp_path / "new.npy", np.full(3, value))
            (tmp_path / "new.npy").replace(path)

    def held(name, context, original=opening.held_source):
        source = original(name, context)
        opened.append(name)
        if len(opened) == 1:
            replace(5)
        return source

    replace(6)
    monkeypatch.setattr(attempts, "_LIGHT_ATTEMPTS", 0)
    monkeypatch.setattr(opening, "held_source", held)
    assert mpired.reduce(paths, "bxor", jobs=1).tolist() == [0, 0, 0]
    assert len(opened) == 4
