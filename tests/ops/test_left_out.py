"""Elements that are left out, NaNs or a missing value, as NumPy's masked arrays leave them out; and the bits of NaN."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import reference

import mpired
from mpired.collectives import plan as planning
from mpired.errors import UsageError

NAN = np.nan
RANKS = np.array([[NAN, 1, NAN, -0.0], [2, NAN, NAN, 4], [3, 5, NAN, NAN]])
MASKED = np.ma.masked_invalid(RANKS)


def test_a_product_leaves_out_nan_as_masked_arrays_do():
    """Where all ranks are left out there is no result, which is NaN."""
    expected = np.ma.prod(MASKED, axis=0).filled(NAN)
    np.testing.assert_array_equal(mpired.reduce(list(RANKS), "prod", nan="ignore"), expected)


def test_what_is_left_out_is_neither_counted_nor_the_first():
    assert mpired.reduce(list(RANKS), "count", nan="ignore").tolist() == MASKED.count(axis=0).tolist()
    firsts = [column.compressed()[:1].tolist() for column in MASKED.T]
    found = mpired.reduce(list(RANKS), "first", nan="ignore").tolist()
    assert [[] if number != number else [number] for number in found] == firsts  # noqa: PLR0124 - which is NaN


def test_a_complex_number_is_left_out_if_a_part_of_it_is_nan():
    for code in "c8", "c16":
        ranks = np.array([[1 + 2j, 3, complex(1, NAN)], [complex(NAN, 1), 4j, 5], [complex(1, NAN), 1, 7j]], code)
        expected = np.ma.masked_invalid(ranks).sum(axis=0)
        assert mpired.reduce(list(ranks), "sum", nan="ignore").tolist() == expected.tolist()


def test_a_missing_value_has_the_precision_of_the_elements():
    """As fill values in files have, which users write with fewer digits."""
    for missing, code in itertools.product((-999.9, 0.1, 1e20), ("f4", "f8")):
        ranks = np.array([[missing, 1, 2], [3, missing, 4], [5, 6, 7]], code)
        masked = np.ma.masked_equal(ranks, np.array(missing, code)[()])
        assert mpired.reduce(list(ranks), "sum", missing=missing).tolist() == masked.sum(axis=0).tolist()
    assert mpired.reduce([np.array([1.0]), np.array([NAN])], "sum", missing=NAN).tolist() == [1]


def test_few_or_many_nans_left_out():
    """For each there is a quicker way."""
    ops = ("median", "mean", "max", "min", "sum", "var", "std")
    for op, share in itertools.product(ops, (0.05, 0.6)):
        rng = np.random.default_rng(5)
        ranks = rng.integers(-50, 50, (4, 200)).astype("f8")
        ranks[rng.random(ranks.shape) < share] = NAN
        ranks[0, np.isnan(ranks).all(axis=0)] = 1
        found = mpired.reduce(list(ranks), op, nan="ignore")
        np.testing.assert_allclose(found, getattr(np, f"nan{op}")(ranks, axis=0), 1e-13, err_msg=f"{op} {share}")


def test_counts_go_with_the_results_of_several_ranks(tmp_path, monkeypatch):
    """Of many elements that are left out, and where an engine sends both back."""
    monkeypatch.setattr(planning, "SMALL_NBYTES", 0)
    ranks = [np.where(np.random.default_rng(rank).random(200) < 0.5, NAN, 1.0) for rank in range(3)]
    paths = [tmp_path / f"r{rank}.npy" for rank in range(3)]
    for path, array in zip(paths, ranks, strict=True):
        np.save(path, array)
    files = {"output": str(tmp_path / "s{rank}.npy"), "count_valid": tmp_path / "n{rank}.npy", "overwrite": True}
    with ThreadPoolExecutor(2) as threads:
        for engine in (None, threads):
            mpired.scan(paths, "sum", nan="ignore", engine=engine, **files)
            found = [np.load(tmp_path / f"n{rank}.npy").tolist() for rank in range(3)]
            assert found == np.cumsum(~np.isnan(ranks), axis=0).tolist(), engine
    with pytest.raises(UsageError, match="beside the result"):
        mpired.reduce(list(ranks), "sum", count_valid=tmp_path / "n.npy")
    with pytest.raises(UsageError):
        mpired.reduce(list(ranks), "sum", output=tmp_path / "n.npy", count_valid=tmp_path / "n.npy")
    assert not (tmp_path / "n.npy").exists()


def test_nan_in_a_window(tmp_path):
    target = tmp_path / "t.npy"
    for op, nan, expected in (
        ("sum", "ignore", [3, 3, NAN, 4]),
        ("max", "ignore", [2, 3, NAN, 4]),
        ("min", "propagate", [1, NAN, NAN, NAN]),
        ("max", "mpi", [2, 3, NAN, NAN]),  # as MPICH has it: the kernel's lower operand is the origin
    ):
        np.save(target, [1, NAN, NAN, 4])
        mpired.Window(target).accumulate(np.array([2, 3, NAN, NAN]), op, nan=nan)
        assert repr(np.load(target).tolist()) == repr(np.array(expected, float).tolist()), (op, nan)


def test_the_nan_of_several_ranks_is_the_quiet_one():
    """Whatever the NaNs of the ranks carry; that of an element that is copied stays."""
    nans = np.array([0xFFF8 << 48 | 1, 0x7FF0 << 48 | 2, 0x7FF8 << 48 | 3], "u8").view("f8")
    ranks = [np.array([1, nan, 2, nan, np.inf, -np.inf] * 7) for nan in nans]
    ranks[0][::6], ranks[1][2::6] = nans[0], nans[1]
    for op in ("sum", "prod", "max", "min", "mean", "var", "std", "rms", "absmax", "absmin", "range", "median"):
        found = mpired.reduce(ranks, op)
        assert {*found[np.isnan(found)].view("u8").tolist()} == {0x7FF8 << 48}, op
        assert np.isnan(found[:4]).all(), op
    for op, rank in ("first", 0), ("last", 2):
        assert mpired.reduce(ranks, op).tobytes() == ranks[rank].tobytes()


def test_a_complex_number_that_no_rank_has_is_nan(directory):
    for name in ("COMPLEX4", "C_COMPLEX", "C_DOUBLE_COMPLEX", "C_LONG_DOUBLE_COMPLEX"):
        code = reference.FORMS[name][0][0][0]
        one, zero = (reference.encode(code, np.longdouble(number)) for number in (1, 0))
        nan = reference.QUIET_NAN[code]
        paths = [directory / f"none{name}{rank}.bin" for rank in range(2)]
        for path in paths:
            path.write_bytes(reference.assemble(name, [one, nan]) + reference.assemble(name, [one, one]))
        for op in ("sum", "prod", "mean", "first"):
            found = mpired.reduce(paths, op, type=name, nan="ignore")
            assert reference.elements(name, found.tobytes())[0] == reference.assemble(name, [nan, zero]), (op, name)
