"""Masked arrays of a program as ranks and origins, compared with numpy.ma."""

from __future__ import annotations

import numpy as np
import pytest

import mpired

SHAPE = (5, 7)


def masked(number: int, order: str) -> np.ma.MaskedArray:
    rng = np.random.default_rng(number)
    numbers, mask = rng.standard_normal(SHAPE), rng.random(SHAPE) < 0.3
    return np.ma.MaskedArray(np.asarray(numbers, order=order), mask=np.asarray(mask, order=order))


@pytest.mark.parametrize("orders", ["CCCC", "FFFF", "CFFC", "FCCF"])
def test_ranks(orders):
    ranks = [masked(number, order) for number, order in enumerate(orders)]
    whole = np.ma.stack([np.ma.MaskedArray(each.data, each.mask, order="C") for each in ranks])
    for op, expected in {"sum": whole.sum(axis=0), "mean": whole.mean(axis=0), "max": whole.max(axis=0)}.items():
        for jobs in (1, 2):
            found = mpired.reduce(ranks, op, nulls="ignore", jobs=jobs)
            assert np.array_equal(np.ma.getmaskarray(found), np.ma.getmaskarray(expected)), op
            assert np.allclose(found.compressed(), expected.compressed(), rtol=1e-12), op
    propagated = mpired.reduce(ranks, "sum", nulls="propagate")
    assert np.array_equal(propagated.mask, whole.mask.any(axis=0))
    assert mpired.locate(ranks, "maxloc", nulls="ignore").value == whole.max()


@pytest.mark.parametrize("orders", ["CF", "FC"])
def test_origins_in_the_other_order_than_the_window(orders, tmp_path):
    origin = masked(0, orders[0])
    np.save(tmp_path / "target.npy", np.zeros(SHAPE, order=orders[1]))
    mpired.Window(tmp_path / "target.npy").accumulate([origin], "sum", nulls="ignore")
    assert np.array_equal(np.load(tmp_path / "target.npy"), origin.filled(0))
