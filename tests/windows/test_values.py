"""Elements that are written out on the command line or are numbers of Python."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from command import refused, run, unchanged

import mpired
from mpired.errors import MpiredError


@pytest.mark.parametrize(
    ("type_", "op", "value", "old", "new"),
    [
        ("int8_t", "sum", "-5", b"0\n", -5),
        ("uint64_t", "bor", "0xffffffffffffffff", b"0\n", 2**64 - 1),
        ("double", "replace", "1e-300", b"0.0\n", 1e-300),
        ("c_bool", "lor", "true", b"0\n", 1),
        ("c_double_complex", "sum", "2-1j", b"0.0 0.0\n", 2 - 1j),
    ],
)
def test_values_on_the_command_line(type_, op, value, old, new, tmp_path):
    form = mpired.datatypes.parse(type_)[0].form
    (tmp_path / "t.bin").write_bytes(np.zeros(3, form).tobytes())
    words = ("fetch-and-op", "--type", type_, "--op", op, "--target-disp", "1", "t.bin", value)
    assert run(*words, cwd=tmp_path) == (0, old, "")
    assert np.fromfile(tmp_path / "t.bin", form).tolist() == [0, new, 0]


def test_pairs_on_the_command_line(tmp_path):
    np.save(tmp_path / "t.npy", np.array([(1.5, 3)], np.dtype([("v", "f8"), ("i", "i4")], align=True)))
    assert run("fetch-and-op", "--op", "minloc", "t.npy", "1.5,2", cwd=tmp_path) == (0, b"1.5 3\n", "")
    assert run("fetch-and-op", "--op", "no_op", "t.npy", cwd=tmp_path) == (0, b"1.5 2\n", "")


@pytest.mark.parametrize("value", ["300", "x", "1.5", "", "1,2"])
def test_values_that_are_none(value, tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3, np.int8))
    with unchanged(tmp_path):
        refused(run("fetch-and-op", "--op", "sum", "t.npy", value, cwd=tmp_path), 2, "MPI_INT8_T")


@pytest.mark.parametrize("value", ["\u0661", "1_0", "\uff11"])
def test_values_are_in_ascii_digits(value, tmp_path):
    for dtype in np.int32, np.float64, np.complex128:
        np.save(tmp_path / "t.npy", np.zeros(3, dtype))
        with unchanged(tmp_path):
            refused(run("fetch-and-op", "--op", "sum", "t.npy", value, cwd=tmp_path), 2, "is not an element of")


def test_quiet_is_taken_where_there_is_no_summary(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3, np.int32))
    assert run("fetch-and-op", "-q", "--op", "sum", "t.npy", "-5", cwd=tmp_path) == (0, b"0\n", "")
    assert run("compare-and-swap", "--quiet", "t.npy", "-5", "7", cwd=tmp_path) == (0, b"-5\n", "")


@pytest.mark.parametrize("words", [("fetch-and-op", "--op", "sum", "--bogus", "t.npy", "1"),
                                   ("fetch-and-op", "--op", "sum", "t.npy", "-x"),
                                   ("compare-and-swap", "-z", "t.npy", "1", "2"),
                                   ("compare-and-swap", "t.npy", "1", "--verbose")])  # fmt: skip
def test_an_unknown_option_is_no_value(words, tmp_path):
    np.save(tmp_path / "t.npy", np.array([3, 4]))
    with unchanged(tmp_path):
        refused(run(*words, cwd=tmp_path), 2, "No such option")


@pytest.mark.parametrize("option", ["--exact", "--nulls", "--ddof", "--weights", "--accumulate-in", "--missing"])
def test_an_option_of_reductions_is_refused_with_the_reason(option, tmp_path):
    np.save(tmp_path / "t.npy", np.array([3, 4]))
    with unchanged(tmp_path):
        outcome = run("accumulate", "--op", "sum", "t.npy", "t.npy", option, "1", cwd=tmp_path)
    refused(outcome, 2, f"No such option '{option}'; it is for reduce, allreduce, ", "a window keeps only its elements")


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("i4", 1.9), ("i4", np.float64(3.0)), ("i4", "1.5"), ("i4", 2**31), ("u1", -1), ("i8", [1]), ("i4", 1j),
        ("f4", 1e39), ("f4", "1e39"), ("f2", 70000), ("f8", "1e400"), ("f8", 10**400), ("f8", 1j), ("c8", 1e39),
        ("c8", "1e39"),
    ],
)  # fmt: skip
def test_a_number_that_the_elements_cannot_hold(dtype, value, tmp_path):
    np.save(tmp_path / "t.npy", np.ones(2, dtype))
    window = mpired.Window(tmp_path / "t.npy")
    with unchanged(tmp_path), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MpiredError, match="is not an element of MPI_"):
            window.fetch_and_op(value, "sum")
        if dtype[0] in "iu":
            with pytest.raises(MpiredError, match="is not an element of MPI_"):
                window.compare_and_swap(value, 1)


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("f4", 0.1, np.float32(0.1)), ("f4", "0.1", np.float32("0.1")), ("f8", "0.1", 0.1), ("f4", "inf", np.inf),
        ("f8", np.float32(0.1), float(np.float32(0.1))), ("g", "0.1", np.longdouble("0.1")), ("c16", 1 + 2j, 1 + 2j),
        ("i4", np.int64(-7), -7), ("i4", True, 1), ("u1", np.uint8(255), 255), ("f8", 2**53 + 1, float(2**53)),
    ],
)  # fmt: skip
def test_a_number_is_rounded_once(dtype, value, expected, tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(2, dtype))
    mpired.Window(tmp_path / "t.npy").fetch_and_op(value, "replace")
    assert np.load(tmp_path / "t.npy")[0] == expected
