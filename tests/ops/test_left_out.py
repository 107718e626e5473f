"""Elements that are left out, beside NumPy's masked arrays, which leave out the same."""

from __future__ import annotations

import numpy as np
import pytest

import mpired

NAN = np.nan
RANKS = np.array([[NAN, 1, NAN, -0.0], [2, NAN, NAN, 4], [3, 5, NAN, NAN]])
MASKED = np.ma.masked_invalid(RANKS)
FUNCTIONS = {
    "sum": np.ma.sum,
    "prod": np.ma.prod,
    "max": np.ma.max,
    "min": np.ma.min,
    "mean": np.ma.mean,
    "var": np.ma.var,
    "std": np.ma.std,
    "median": np.ma.median,
    "range": np.ma.ptp,
}


@pytest.mark.parametrize("op", sorted(FUNCTIONS))
def test_nan_is_left_out_as_masked_arrays_do(op):
    """Where all ranks are left out there is no result, which is NaN."""
    expected = FUNCTIONS[op](MASKED, axis=0).filled(NAN)
    np.testing.assert_array_equal(mpired.reduce(list(RANKS), op, nan="ignore"), expected)


def test_what_is_left_out_is_neither_counted_nor_the_first():
    assert mpired.reduce(list(RANKS), "count", nan="ignore").tolist() == MASKED.count(axis=0).tolist()
    firsts = [column.compressed()[:1].tolist() for column in MASKED.T]
    found = mpired.reduce(list(RANKS), "first", nan="ignore").tolist()
    assert [[] if number != number else [number] for number in found] == firsts  # noqa: PLR0124 - which is NaN


@pytest.mark.parametrize("code", ["c8", "c16"])
def test_a_complex_number_is_left_out_if_a_part_of_it_is_nan(code):
    ranks = np.array([[1 + 2j, 3, complex(1, NAN)], [complex(NAN, 1), 4j, 5], [complex(1, NAN), 1, 7j]], code)
    expected = np.ma.masked_invalid(ranks).sum(axis=0)
    assert mpired.reduce(list(ranks), "sum", nan="ignore").tolist() == expected.tolist()


@pytest.mark.parametrize("missing", [-999.9, 0.1, 1e20])
@pytest.mark.parametrize("code", ["f4", "f8"])
def test_a_missing_value_has_the_precision_of_the_elements(code, missing):
    """As fill values in files have, which users write with fewer digits."""
    ranks = np.array([[missing, 1, 2], [3, missing, 4], [5, 6, 7]], code)
    masked = np.ma.masked_equal(ranks, np.array(missing, code)[()])
    assert mpired.reduce(list(ranks), "sum", missing=missing).tolist() == masked.sum(axis=0).tolist()
