"""Files on file systems of other machines are looked at several at a time; files that change while they are opened."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import mpired
from mpired.errors import RanksError
from mpired.sources.local import LocalSource

NRANKS = 100
TOTAL = NRANKS * (NRANKS - 1) // 2


@pytest.fixture
def far(tmp_path, monkeypatch):
    """Return ranks of which the kernel says that other machines have them."""
    monkeypatch.setattr("mpired.files.mounts.is_remote", lambda _: True)
    ranks = [tmp_path / f"{rank:03}.npy" for rank in range(NRANKS)]
    for rank, path in enumerate(ranks):
        np.save(path, np.arange(5) + rank)
    return ranks


def test_several_are_looked_at_at_once(far, monkeypatch):
    """As many threads as wait here for one another have to come."""
    barrier, of_status = threading.Barrier(8, timeout=60), LocalSource.of_status
    seen = []

    def waiting(*args):
        if threading.current_thread() is not threading.main_thread() and len(seen) < 8:
            seen.append(args[0])
            barrier.wait()
        return of_status(*args)

    monkeypatch.setattr(LocalSource, "of_status", waiting)
    before = set(threading.enumerate())
    assert mpired.reduce(far, "sum").tolist() == [TOTAL + NRANKS * element for element in range(5)]
    assert len(seen) >= 8
    until = time.monotonic() + 60
    while set(threading.enumerate()) - before:  # those that read ahead are told to end, and not waited for
        assert time.monotonic() < until
        time.sleep(0.01)
    assert mpired.reduce([*far, far[3], far[3]], "last").tolist() == [3, 4, 5, 6, 7]


def test_what_is_wrong_is_told_in_order(far):
    far[7].unlink()
    with pytest.warns(mpired.errors.SkippedWarning, match="1 of 100 ranks"):
        assert mpired.reduce(far, "sum", skip_bad=True).tolist()[0] == TOTAL - 7
    far[50].write_bytes(b"\x93NUMPY\x01\x00")
    np.save(far[90], np.arange(6))
    with pytest.raises(RanksError, match="3 of 100 ranks") as caught:
        mpired.reduce(far, "sum")
    places = [str(caught.value).index(far[rank].name) for rank in (7, 50, 90)]
    assert places == sorted(places)


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
