"""Files on file systems of other machines are looked at several at a time; files that change while they are opened."""

from __future__ import annotations

import numpy as np

import mpired
from mpired.sources.local import LocalSource


def test_files_that_are_replaced_together_are_of_one_state(tmp_path, monkeypatch):
    """Two files are replaced together when the first of them is inspected: each alone would be whole."""
    paths = [tmp_path / "p.npy", tmp_path / "q.npy"]
    inspected: list[str] = []

    def replace(value: int) -> None:
        for path in paths:
            np.save(tmp_path / "new.npy", np.full(3, value))
            (tmp_path / "new.npy").replace(path)

    def inspect(name, *args, original=LocalSource.inspected):
        source = original(name, *args)
        inspected.append(name)
        if len(inspected) == 1:
            replace(5)
        return source

    replace(6)
    monkeypatch.setattr(LocalSource, "inspected", inspect)
    assert mpired.reduce(paths, "bxor", jobs=1).tolist() == [0, 0, 0]
    assert len(inspected) == 4
