"""`progress=`: a function that takes a range and yields its items shows how far the work is."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from command import unchanged
from tqdm import tqdm

import mpired
from mpired.errors import UsageError

MEGABYTES = 3


class Bar:
    """Notes what it shows, as a bar does after each item."""

    def __init__(self) -> None:
        self.total = 0
        self.shown: list[int] = []
        self.closed = False

    def __call__(self, steps):
        self.total = len(steps)
        try:
            for step in steps:
                self.shown.append(step)
                yield
        finally:
            self.closed = True


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch, cut_into) -> list[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mpired.collectives.fold.PERIOD", 0)
    for rank in range(2):
        np.save(f"r{rank}.npy", np.arange(1_500_000 // 8, dtype="f8"))
    return ["r0.npy", "r1.npy"]


CALLS = {
    "reduce": lambda ranks, show: mpired.reduce(ranks, "sum", progress=show),
    "reduce to a file": lambda ranks, show: mpired.reduce(ranks, "sum", output="sum.npy", progress=show),
    "scan": lambda ranks, show: mpired.scan(ranks, "sum", progress=show),
    "accumulate": lambda ranks, show: mpired.Window(ranks[0]).accumulate(ranks[1], "max", progress=show),
    "get_accumulate": lambda ranks, show: mpired.Window(ranks[0]).get_accumulate(ranks[1], "max", progress=show),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_bar_gets_an_item_for_each_megabyte(name, ranks):
    bar = Bar()
    CALLS[name](ranks, bar)
    assert bar.shown == list(range(bar.total))
    assert bar.total in {2, 3}
    assert bar.closed


def test_tqdm_fits(ranks, capsys):
    assert np.array_equal(mpired.reduce(ranks, "sum", progress=tqdm), mpired.reduce(ranks, "sum"))
    assert f"{MEGABYTES}/{MEGABYTES}" in capsys.readouterr().err
    mpired.reduce(ranks, "sum", output="sum.npy", progress=lambda steps: tqdm(steps, unit="MB", leave=False))
    assert "MB/s" in capsys.readouterr().err


def test_one_that_ends_early_or_goes_on_for_ever_changes_nothing(ranks):
    expected = mpired.reduce(ranks, "sum")
    assert np.array_equal(mpired.reduce(ranks, "sum", progress=lambda steps: iter(())), expected)
    assert np.array_equal(mpired.reduce(ranks, "sum", progress=lambda steps: [1, 2]), expected)
    assert np.array_equal(mpired.reduce(ranks, "sum", progress=lambda steps: itertools.count()), expected)


def test_an_error_in_it_ends_the_call(ranks, tmp_path):
    def show(steps):
        yield
        raise KeyError("enough")

    with unchanged(tmp_path), pytest.raises(KeyError, match="enough"):
        mpired.reduce(ranks, "sum", output="sum.npy", progress=show)
    for show, words in ((5, "5 is not a function"), (len, "returned int; it takes a range and yields its items")):
        with unchanged(tmp_path), pytest.raises(UsageError, match=f"`progress`: {words}"):
            mpired.reduce(ranks, "sum", output="sum.npy", progress=show)


def test_a_bar_is_closed_when_the_call_fails(ranks, tmp_path):
    bar = Bar()

    def failing(invec, inoutvec):
        raise ValueError("no")

    with unchanged(tmp_path), pytest.raises(mpired.errors.UserOpError):
        mpired.reduce(ranks, failing, progress=bar)
    assert bar.closed
    assert bar.shown == [0]
