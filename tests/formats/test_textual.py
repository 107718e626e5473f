"""Results as text: what readers of these formats make of elements with several components."""

import csv
import io
import json

import numpy as np
import pytest
from command import run, succeeded

MIXED = "struct([1,2],[0,8],[int,c_double_complex])"
FORM = np.dtype({"names": ["f0", "f1"], "formats": ["i4", ("c16", 2)], "offsets": [0, 8], "itemsize": 40})


@pytest.fixture
def folder(tmp_path):
    elements = np.zeros(3, FORM)
    elements["f0"] = [1, 2, 3]
    elements["f1"] = [[1 + 2j, -0.5j], [complex(np.nan, np.inf), 0], [1e300, -4]]
    elements.tofile(tmp_path / "three.bin")
    (tmp_path / "none.bin").touch()
    return tmp_path


def packed(folder, form, name="three.bin", text=MIXED):
    outcome = run("pack", "-q", "--type", text, name, "--to", form, cwd=folder)
    succeeded(outcome)
    return outcome.out.decode()


def test_complex_numbers_of_an_element_are_two_components_each(folder):
    (buffer,) = json.loads(packed(folder, "json"))["buffers"]
    assert buffer["data"] == [[1, 1.0, 2.0, -0.0, -0.5], [2, "nan", "inf", 0.0, 0.0], [3, 1e300, 0.0, -4.0, 0.0]]
    names, *lines = csv.reader(io.StringIO(packed(folder, "csv")))
    assert names == ["f0", "f1.real", "f1.imag", "f2.real", "f2.imag"]
    assert lines[0] == ["1", "1.0", "2.0", "-0.0", "-0.5"]
    assert packed(folder, "text").splitlines() == [" ".join(line) for line in lines]
    assert [line.split()[1:] for line in packed(folder, "table").splitlines()] == [names, *lines]


def test_no_elements(folder):
    for text in (MIXED, "double_int", "contiguous(2,int)", "resized(0,8,vector(3,1,4,double))"):
        assert json.loads(packed(folder, "json", "none.bin", text))["buffers"][0]["data"] == []
        assert packed(folder, "text", "none.bin", text) == ""
        for form in ("csv", "table"):
            assert packed(folder, form, "none.bin", text).count("\n") == 1
    words = ("reduce", "-q", "--op", "maxloc", "--type", "double_int", *["none.bin"] * 2, "--to", "table")
    outcome = run(*words, cwd=folder)
    assert outcome == (0, b"element  value  index\n", "")


def test_more_elements_than_a_block(tmp_path):
    """Python reads the numbers back, each with all its bits."""
    array = np.random.default_rng(3).standard_normal(20_000)
    np.save(tmp_path / "a.npy", array)
    for form in ("text", "csv"):
        outcome = run("reduce", "-q", "--op", "sum", "a.npy", "--to", form, cwd=tmp_path)
        succeeded(outcome)
        assert [float(line) for line in outcome.out.split()[form == "csv" :]] == array.tolist()
