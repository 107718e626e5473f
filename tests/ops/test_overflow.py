"""Overflow of sums and products: what is found, against numbers without a limit, and what becomes of it."""

import itertools
import json
import random
import warnings

import numpy as np
import pytest
from command import refused, run, unchanged

import mpired
from mpired.errors import OverflowWarning, ResultOverflowError, UsageError

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


@pytest.mark.parametrize("op", COMBINE)
def test_the_same_is_found_by_any_number_of_workers(op, tmp_path, cut_into):
    cut_into(1 << 10)
    ranks = drawn(random.Random(5), "i4", 6, 20_000)
    folded, times, first = expected(op, "i4", ranks)
    paths = saved(tmp_path, [np.array(rank, "i4") for rank in ranks])
    for jobs in (1, 2, 3):
        result, (details,) = heard(mpired.reduce, paths, op, jobs=jobs)
        assert result.tolist() == folded
        assert (details["count"], (details["element"], details["rank"])) == (times, first)


MOST = {"f2": 65504.0, "f4": float(np.finfo("f4").max), "f8": float(np.finfo("f8").max)}
INF, NAN = float("inf"), float("nan")
# The elements of three ranks, and at which of them a step overflows.
FLOATS = [
    ("sum", lambda most: [1.0, 2.0, 3.0], []),
    ("sum", lambda most: [most, most, 1.0], [1]),
    ("sum", lambda most: [most, -most, most], []),
    ("sum", lambda most: [-most / 2, -most / 2, -most], [2]),
    ("sum", lambda most: [most, INF, most], []),
    ("sum", lambda most: [most, NAN, most], []),
    ("sum", lambda most: [INF, -INF, most], []),
    ("prod", lambda most: [most, 2.0, 0.0], [1]),
    ("prod", lambda most: [most, 0.5, 2.0], []),
    ("prod", lambda most: [0.0, INF, most], []),
]


@pytest.mark.parametrize(("code", "form"), [("f2", "f2"), ("f4", "f4"), ("f8", "f8"), ("f4", "c8"), ("f8", "c16")])
def test_infinities_out_of_finite_numbers_are_found(code, form):
    for op, column, overflows in FLOATS:
        values = column(MOST[code])
        if form[0] == "c" and op == "prod":
            continue  # its four products have infinities of their own
        # Enough others around it for the vector instructions.
        ranks = [np.array([1] * 7 + [value] + [1] * 9, form) for value in values]
        for overflow in ("warn", "wrap"):
            result, details = heard(mpired.reduce, ranks, op, overflow=overflow)
            found = [(each["count"], each["element"], each["rank"]) for each in details]
            assert found == ([(1, 7, rank) for rank in overflows] if overflow == "warn" else []), (op, values)
            assert np.isfinite(result[7]) == (np.isfinite(values).all() and not overflows)


def test_infinities_of_ranks_are_no_overflow_beside_one():
    """What overflows is a result that is infinite, of numbers that are not, as NumPy says of each."""
    most = MOST["f8"]
    ranks = np.array([[most, 1.0, INF, NAN, -most, 2.0], [most, INF, 1.0, 1.0, -most, -INF]])
    for op, function in ("sum", np.add), ("prod", np.multiply):
        _, (details,) = heard(mpired.reduce, list(ranks), op)
        with np.errstate(over="ignore"):
            result = function.reduce(ranks)
        overflows = np.flatnonzero(np.isinf(result) & np.isfinite(ranks).all(axis=0))
        assert (details["count"], details["element"], details["rank"]) == (len(overflows), overflows[0], 1), op


def test_complex_numbers_that_overflow_are_found():
    """A part of a sum by itself, whatever the other part is, because a sum does not mix them; and products."""
    parts = complex(1e308, np.inf), complex(-np.inf, 1e308), complex(np.nan, -1e308)
    calls = [("sum", [np.array([1j, part])] * 3) for part in parts]
    calls.append(("prod", [np.array([1, 1e300 + 1e300j]), np.array([1j, 1e300 - 1e300j])]))
    for op, ranks in calls:
        _, (details,) = heard(mpired.reduce, ranks, op)
        assert (details["count"], details["element"], details["rank"]) == (1, 1, 1), ranks


def test_what_does_not_overflow_is_not_found():
    """What comes near, of which the bounds alone could not tell; and ops that cannot."""
    most = np.iinfo("i8").max
    ranks = [np.array([most, -5]), np.array([-7, most]), np.array([7, -most]), np.array([0, 5])]
    result, details = heard(mpired.reduce, ranks, "sum")
    assert (result.tolist(), details) == ([most, 0], [])
    for op in ("max", "min", "band", "bor", "bxor", "land", "lor", "lxor"):
        assert heard(mpired.reduce, [np.array([127, -128], "i1")] * 3, op, overflow="error")[1] == [], op


# The commands

WIDE = np.array([1, 100, 3], "i1")
NARROW = "r0.npy", "r1.npy", "r2.npy"
COMMANDS = {
    "reduce": ("reduce", "--op", "sum", *NARROW, "-o", "new.npy"),
    "reduce in place": ("reduce", "--op", "sum", *NARROW, "--in-place"),
    "allreduce": ("allreduce", "--op", "sum", *NARROW, "--in-place"),
    "scan": ("scan", "--op", "sum", *NARROW, "-o", "new{rank}.npy"),
    "exscan": ("exscan", "--op", "sum", *NARROW, "-o", "new{rank}.npy"),
    "reduce-scatter": ("reduce-scatter", "--op", "sum", "--counts", "1,2,0", *NARROW, "-o", "new{rank}.npy"),
    "reduce-scatter-block": ("reduce-scatter-block", "--op", "sum", *NARROW, "-o", "new{rank}.npy"),
    "reduce-local": ("reduce-local", "--op", "sum", "r0.npy", "r1.npy"),
    "accumulate": ("accumulate", "--op", "sum", *NARROW),
    "accumulate behind a journal": ("accumulate", "--op", "sum", "--commit", "journal", *NARROW),
    "get-accumulate": ("get-accumulate", "--op", "sum", "--fetch", "old.npy", "r0.npy", "r1.npy"),
    "fetch-and-op": ("fetch-and-op", "--op", "sum", "--target-disp", "1", "r0.npy", "100"),
}


@pytest.fixture
def narrow(tmp_path):
    saved(tmp_path, [WIDE] * 3)
    return tmp_path


def renew(folder):
    for path in folder.iterdir():
        path.unlink()
    saved(folder, [WIDE] * 3)


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_every_command_warns_and_refuses(words, narrow):
    """`--quiet` leaves the warning; what silences it says that the overflow is expected."""
    with unchanged(narrow):
        outcome = run(words[0], "--overflow", "error", *words[1:], cwd=narrow)
        refused(outcome._replace(out=b""), 3, "mpired: MPI_SUM: overflowed ", "first in element ")
    silent = run(words[0], "-q", "--overflow", "wrap", *words[1:], cwd=narrow)
    assert (silent.status, silent.err) == (0, "")
    wrapped = {path.name: path.read_bytes() for path in narrow.iterdir()}
    renew(narrow)
    outcome = run(words[0], "-q", *words[1:], cwd=narrow)
    assert (outcome.status, outcome.err.count("\n")) == (0, 1)
    assert outcome.err.startswith("mpired: warning: MPI_SUM overflowed ")
    assert {path.name: path.read_bytes() for path in narrow.iterdir()} == wrapped


def test_the_warning_says_how_often_and_where(narrow):
    np.save(narrow / "r1.npy", np.array([1, 100, 127], "i1"))
    lines = run("reduce", "--op", "sum", *NARROW, "-o", "new.npy", cwd=narrow).err.splitlines()
    warning = "mpired: warning: MPI_SUM overflowed 2 times, first in element 1 with rank 1 (r1.npy); "
    wider = "compute with --accumulate-in int64_t and --result-type int64_t; "
    assert lines[1] == warning + wider + "--overflow error refuses that, --overflow wrap expects it"
    # 100 + 100 wraps to -56, and 100 more is 44; 3 + 127 wraps to -126.
    assert np.load(narrow / "new.npy").tolist() == [3, 44, -123]


def test_the_report_has_it(narrow):
    for name, rank in ("reduce", 1), ("accumulate", 0):
        words = COMMANDS[name]
        report = json.loads(run(words[0], "--json", *words[1:], cwd=narrow).out)
        assert report["overflow"] == [{"count": 1, "element": 1, "rank": rank, "file": "r1.npy", "buffer": ""}], name


def test_a_window_in_python(narrow):
    window = mpired.Window(narrow / "r0.npy")
    _, (details,) = heard(window.accumulate, WIDE, op="sum")
    assert details["element"] == 1
    with unchanged(narrow), pytest.raises(ResultOverflowError, match="first in element 1"):
        window.accumulate(np.array([0, -128, 0], "i1"), op="sum", overflow="error")


def test_a_warning_that_is_made_an_error_comes_before_the_result(narrow):
    with unchanged(narrow), warnings.catch_warnings():
        warnings.simplefilter("error", OverflowWarning)
        with pytest.raises(OverflowWarning):
            mpired.reduce([narrow / name for name in NARROW], "sum", output=narrow / "new.npy")


def test_the_warning_is_where_the_caller_is():
    with pytest.warns(OverflowWarning) as caught:
        mpired.reduce([WIDE] * 3, "sum")
    assert [each.filename for each in caught] == [__file__]


def test_what_makes_no_sense():
    for op, word in ("sum", "ignore"), (np.add, "error"):
        with pytest.raises(UsageError, match="`overflow`"):
            mpired.reduce([WIDE] * 3, op, overflow=word)
