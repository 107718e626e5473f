"""Elements that are written out on the command line or are numbers of Python."""

import warnings

import numpy as np
from command import run, unchanged
from rows import check_refusals

import mpired
from mpired.errors import MpiredError

LINE = [
    ("int8_t", "sum", "-5", b"0\n", -5),
    ("uint64_t", "bor", "0xffffffffffffffff", b"0\n", 2**64 - 1),
    ("double", "replace", "1e-300", b"0.0\n", 1e-300),
    ("c_bool", "lor", "true", b"0\n", 1),
    ("c_double_complex", "sum", "2-1j", b"0.0 0.0\n", 2 - 1j),
]


def test_values_on_the_command_line(tmp_path):
    found = []
    for type_, op, value, *_ in LINE:
        form = mpired.datatypes.parse(type_)[0].form
        (tmp_path / "t.bin").write_bytes(np.zeros(3, form).tobytes())
        words = ("fetch-and-op", "--type", type_, "--op", op, "--target-disp", "1", "t.bin", value)
        status, out, err = run(*words, cwd=tmp_path)
        assert (status, err) == (0, ""), words
        before, new, after = np.fromfile(tmp_path / "t.bin", form).tolist()
        assert (before, after) == (0, 0)
        found.append((type_, op, value, out, new))
    assert found == LINE
    np.save(tmp_path / "t.npy", np.array([(1.5, 3)], np.dtype([("v", "f8"), ("i", "i4")], align=True)))
    assert run("fetch-and-op", "--op", "minloc", "t.npy", "1.5,2", cwd=tmp_path) == (0, b"1.5 3\n", "")
    assert run("fetch-and-op", "--op", "no_op", "t.npy", cwd=tmp_path) == (0, b"1.5 2\n", "")


def test_what_is_no_value(tmp_path):
    for code in ("i1", "i4", "f8", "c16"):
        np.save(tmp_path / f"{code}.npy", np.zeros(3, code))
    options = ("--exact", "--ddof", "--weights")
    add = ("fetch-and-op", "--op", "sum")
    check_refusals(tmp_path, [
        *(((*add, "i1.npy", value), 2, "MPI_INT8_T") for value in ("300", "x", "1.5", "", "1,2")),
        # Digits are those of ASCII.
        *(((*add, f"{code}.npy", value), 2, "is not an element of")
          for code in ("i4", "f8", "c16") for value in ("\u0661", "1_0", "\uff11")),
        ((*add, "--bogus", "i4.npy", "1"), 2, "No such option"),
        ((*add, "i4.npy", "-x"), 2, "No such option"),
        ("compare-and-swap -z i4.npy 1 2", 2, "No such option"),
        ("compare-and-swap i4.npy 1 --verbose", 2, "No such option"),
        *((f"accumulate --op sum i4.npy i4.npy {option} 1", 2, f"No such option '{option}'") for option in options),
    ])  # fmt: skip


UNFIT = [
    ("i4", 1.9), ("i4", np.float64(3.0)), ("i4", "1.5"), ("i4", 2**31), ("u1", -1), ("i8", [1]), ("i4", 1j),
    ("f4", 1e39), ("f4", "1e39"), ("f2", 70000), ("f8", "1e400"), ("f8", 10**400), ("f8", 1j), ("c8", 1e39),
    ("c8", "1e39"),
]  # fmt: skip


def test_a_number_that_the_elements_cannot_hold(tmp_path):
    taken = []
    for dtype, value in UNFIT:
        np.save(tmp_path / "t.npy", np.ones(2, dtype))
        window = mpired.Window(tmp_path / "t.npy")
        for call in (window.fetch_and_op, *([window.compare_and_swap] if dtype[0] in "iu" else [])):
            with unchanged(tmp_path), warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    call(value, "sum" if call == window.fetch_and_op else 1)
                    taken.append((dtype, value, call.__name__))
                except MpiredError as error:
                    assert "is not an element of MPI_" in str(error)  # noqa: PT017 - one of two ends
    assert taken == []
