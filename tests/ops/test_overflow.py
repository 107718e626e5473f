"""Overflow of sums and products: what is found, against numbers without a limit, and what becomes of it."""

import itertools
import random
import warnings

import numpy as np
import pytest
from command import refused, run, unchanged

import mpired
from mpired.errors import OverflowWarning

INTEGERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
COMBINE = {"sum": lambda lower, upper: lower + upper, "prod": lambda lower, upper: lower * upper}


def saved(folder, ranks):
    for rank, elements in enumerate(ranks):
        np.save(folder / f"r{rank}.npy", elements)
    return [folder / f"r{rank}.npy" for rank in range(len(ranks))]


def heard(function, *words, **options):
    """Return what a call gives, and the details of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*words, **options)
    assert all(each.category is OverflowWarning for each in caught)
    return result, [each.message.details for each in caught]


def drawn(draw, code, nranks, count):
    """Draw integers of which some overflow, and some are as near to that as can be."""
    low, high = int(np.iinfo(code).min), int(np.iinfo(code).max)
    half = 1 << (np.iinfo(code).bits // 2)
    values = [low, high, low + 1, high - 1, low // 2, high // 2, high // 2 + 1, half, half - 1, -half, 0, 1, 2, -1, 3]
    values = [value for value in values if low <= value <= high]
    weights = [1 if abs(value) > 3 else draw.choice([1, 20, 200]) for value in values]
    return [draw.choices(values, weights, k=count) for _ in range(nranks)]


def expected(op, code, ranks):
    """Return the folded elements, how many steps wrap, and the first of them: its element and its rank."""
    limits = np.iinfo(code)
    low, modulus = int(limits.min), 1 << limits.bits
    folded, wrapped = [], []
    for element, column in enumerate(zip(*ranks, strict=True)):
        running = column[0]
        for rank, number in enumerate(column[1:], 1):
            exact = COMBINE[op](running, number)
            running = (exact - low) % modulus + low
            if exact != running:
                wrapped.append((element, rank))
        folded.append(running)
    return folded, len(wrapped), min(wrapped, default=None)


@pytest.mark.parametrize("code", INTEGERS)
@pytest.mark.parametrize("op", COMBINE)
@pytest.mark.sampled(3)
def test_integers_that_wrap_are_found_exactly(op, code, tmp_path, cut_into):
    draw = random.Random(f"{op} {code}")
    seen = set()
    for nranks, count, block in itertools.product((1, 2, 5, 9), (1, 40, 333), (64, 1 << 20)):
        cut_into(block)
        ranks = drawn(draw, code, nranks, count)
        folded, times, first = expected(op, code, ranks)
        paths = saved(tmp_path, [np.array(rank, code) for rank in ranks])
        result, details = heard(mpired.reduce, paths, op, jobs=1)
        assert result.tolist() == folded
        assert [(each["count"], (each["element"], each["rank"])) for each in details] == [(times, first)][: bool(times)]
        assert [each["file"] for each in details] == [str(paths[first[1]])] if first else not details
        seen.add(bool(times))
    assert seen == {True, False}


def test_infinities_of_ranks_are_no_overflow_beside_one():
    """What overflows is a result that is infinite, of numbers that are not, as NumPy says of each."""
    most, inf = np.finfo("f8").max, np.inf
    ranks = np.array([[most, 1.0, inf, np.nan, -most, 2.0], [most, inf, 1.0, 1.0, -most, -inf]])
    for op, function in ("sum", np.add), ("prod", np.multiply):
        _, (details,) = heard(mpired.reduce, list(ranks), op)
        with np.errstate(over="ignore"):
            result = function.reduce(ranks)
        overflows = np.flatnonzero(np.isinf(result) & np.isfinite(ranks).all(axis=0))
        assert (details["count"], details["element"], details["rank"]) == (len(overflows), overflows[0], 1), op


WIDE = np.array([1, 100, 3], "i1")
RANKS = "r0.npy", "r1.npy", "r2.npy"
COMMANDS = {
    "reduce": ("reduce", "--op", "sum", *RANKS, "-o", "new.npy"),
    "reduce in place": ("reduce", "--op", "sum", *RANKS, "--in-place"),
    "allreduce": ("allreduce", "--op", "sum", *RANKS, "--in-place"),
    "scan": ("scan", "--op", "sum", *RANKS, "-o", "new{rank}.npy"),
    "exscan": ("exscan", "--op", "sum", *RANKS, "-o", "new{rank}.npy"),
    "reduce-scatter": ("reduce-scatter", "--op", "sum", "--counts", "1,2,0", *RANKS, "-o", "new{rank}.npy"),
    "reduce-scatter-block": ("reduce-scatter-block", "--op", "sum", *RANKS, "-o", "new{rank}.npy"),
    "reduce-local": ("reduce-local", "--op", "sum", "r0.npy", "r1.npy"),
    "accumulate": ("accumulate", "--op", "sum", *RANKS),
    "accumulate behind a journal": ("accumulate", "--op", "sum", "--commit", "journal", *RANKS),
    "get-accumulate": ("get-accumulate", "--op", "sum", "--fetch", "old.npy", "r0.npy", "r1.npy"),
    "fetch-and-op": ("fetch-and-op", "--op", "sum", "--target-disp", "1", "r0.npy", "100"),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.sampled(2)
def test_every_command_warns_and_refuses(words, tmp_path):
    """`--quiet` leaves the warning; what silences it says that the overflow is expected."""
    saved(tmp_path, [WIDE] * 3)
    with unchanged(tmp_path):
        outcome = run(words[0], "--overflow", "error", *words[1:], cwd=tmp_path)
        refused(outcome._replace(out=b""), 3, "mpired: MPI_SUM: overflowed ", "first in element ")
    silent = run(words[0], "-q", "--overflow", "wrap", *words[1:], cwd=tmp_path)
    assert (silent.status, silent.err) == (0, "")
    wrapped = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for path in tmp_path.iterdir():
        path.unlink()
    saved(tmp_path, [WIDE] * 3)
    outcome = run(words[0], "-q", *words[1:], cwd=tmp_path)
    assert (outcome.status, outcome.err.count("\n")) == (0, 1)
    assert outcome.err.startswith("mpired: warning: MPI_SUM overflowed ")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == wrapped
