"""What `help`, editors and type checkers see of the Python API."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from needs import needs

import mpired
from mpired.options import AccumulateOptions, ReduceOptions, rows

FUNCTIONS = [
    mpired.reduce, mpired.allreduce, mpired.scan, mpired.exscan, mpired.reduce_scatter, mpired.reduce_scatter_block,
    mpired.reduce_local, mpired.pack, mpired.unpack, mpired.info, mpired.recover, mpired.Window.accumulate,
    mpired.Window.get_accumulate, mpired.Window.fetch_and_op, mpired.Window.compare_and_swap,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_every_keyword_has_a_default_and_a_line_of_documentation(function):
    parameters = inspect.signature(function).parameters
    assert not any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    named = inspect.getdoc(function).partition("Parameters\n")[2].partition("\nR")[0]
    for name, each in parameters.items():
        if each.kind is each.KEYWORD_ONLY and name not in {"output", "into", "group_b"}:
            assert f"\n{name}" in named, name
            assert each.default is not each.empty or name in {"counts", "type"}


def test_signatures_are_those_of_the_rows():
    for function, known in ((mpired.reduce, ReduceOptions), (mpired.Window.accumulate, AccumulateOptions)):
        found = {name: each.default for name, each in inspect.signature(function).parameters.items()}
        assert {name: row.default for name, row in rows(known).items()}.items() <= found.items()
    assert "--max-memory" in inspect.getdoc(mpired.reduce)


def test_names_of_the_package():
    assert {"reduce", "Window", "errors", "datatypes", "OPS"} <= set(dir(mpired))
    program = "import mpired; print(mpired.errors.CountError.__name__)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "CountError\n"


def test_info_is_shown_on_a_line(monkeypatch):
    monkeypatch.chdir(Path(mpired.__file__).parent.parent)
    shown = repr(mpired.info("sample_data/counts_0.npy"))
    assert shown == "<npy file 'sample_data/counts_0.npy': 12 x MPI_INT32_T>"


RIGHT = """\
from typing import assert_type

import numpy as np
from mpi4py import MPI

import mpired

Arrays = np.ndarray | dict[str, np.ndarray]
RANKS = ["a.npy", "b.npy"]

total = mpired.reduce(RANKS, op="sum", jobs=2, overwrite=False)
assert_type(total, Arrays)
assert_type(mpired.reduce(RANKS, "sum", output="t.npy"), mpired.Summary)
assert_type(mpired.reduce(RANKS, "sum", root=1, in_place=True), mpired.Summary)
assert_type(mpired.reduce(RANKS, np.hypot, in_place=False), Arrays)
assert_type(mpired.allreduce(RANKS, "sum"), list[Arrays])
assert_type(mpired.allreduce(RANKS, "sum", output="{rank}.npy", link=True), mpired.Summary)
for_a, for_b = mpired.allreduce(RANKS, "sum", group_b=["c.npy"])
assert_type(for_b, list[Arrays])
assert_type(mpired.scan(RANKS, op="max", output="out_{rank}.npy", in_place=False), mpired.Summary)
assert_type(mpired.exscan(RANKS, "sum"), list[Arrays | None])
assert_type(mpired.reduce_scatter(RANKS, "sum", [1, 2]), list[Arrays])
assert_type(mpired.reduce_scatter_block(RANKS, "sum", in_place=True), mpired.Summary)
assert_type(mpired.reduce_local("a.npy", "b.npy", "sum").nbytes, int)
assert_type(mpired.pack("a.bin", type="double"), np.ndarray)
assert_type(mpired.pack("a.bin", type="double", output="p.npy"), mpired.PackSummary)
assert_type(mpired.unpack("p.npy", type="double", into="a.bin"), mpired.PackSummary)
assert_type(mpired.recover("a.npy")[0].words, tuple[str, ...])
mpired.reduce(RANKS, MPI.SUM, type=MPI.DOUBLE)
mpired.Window("t.bin", type=MPI.FLOAT).accumulate("a.npy", MPI.MAX, target_type=MPI.FLOAT)
with open("a.npy", "rb") as file:
    mpired.reduce([np.zeros(3), "a.npy", file], mpired.MAX, progress=lambda steps: steps)
    window = mpired.Window("t.npy")
    window.accumulate([file, np.zeros(3)], mpired.REPLACE)
window = mpired.Window("t.npy", commit="journal")
count: int = window.accumulate(np.ones(3), "sum", target_disp=4, at=None)
try:
    print(mpired.info("a.npy").buffers[0].count)
except mpired.errors.CountError as error:
    print(error.subject)


def either(path: str | None) -> Arrays | mpired.Summary:
    return mpired.reduce(RANKS, "sum", output=path)
"""
# Each line is an error.
WRONG = """\
mpired.reduce(RANKS, "sum", jobs="2")
mpired.reduce(RANKS, "sum", overwrit=False)
mpired.reduce(RANKS, "sum").shape
mpired.reduce(RANKS, "sum", output="t.npy")["x"]
mpired.reduce(RANKS, "sum", output="t.npy", in_place=True)
mpired.scan(RANKS, "sum", link=True)
mpired.reduce(np.zeros(3), "sum")
mpired.reduce(RANKS, "sum", progress=3)
mpired.reduce(RANKS, 3)
mpired.reduce(RANKS, "sum", type=float)
mpired.reduce_scatter(RANKS, "sum")
mpired.recover("a.npy", only_lists=True)
mpired.Window("t.npy", commit=3)
count = window.fetch_and_op(1, "sum", target_disp=None, once=True)
"""

CHECKERS = {
    "mypy": (["mypy", "--strict", "--cache-dir", "cache"], r"user\.py:(\d+): error:"),
    "pyright": (["pyright", "--pythonpath", sys.executable], r"user\.py:(\d+):\d+ - error:"),
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_on_a_program_of_a_user(checker, tmp_path):
    """What is right passes, and each line that is wrong is an error."""
    needs(checker)
    (tmp_path / "user.py").write_text(RIGHT + WRONG)
    words, error = CHECKERS[checker]
    done = subprocess.run(
        [sys.executable, "-m", *words, "user.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    first = RIGHT.count("\n") + 1
    assert set(map(int, re.findall(error, done.stdout))) == set(range(first, first + WRONG.count("\n"))), done.stdout
