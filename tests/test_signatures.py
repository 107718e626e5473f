"""What `help`, editors and type checkers see of the Python API."""

import inspect
import operator
import re
import subprocess
import sys

import numpy as np
import pytest
from needs import needs

import mpired
from mpired.options import ACCUMULATE, REDUCE, rows

FUNCTIONS = [
    mpired.reduce, mpired.allreduce, mpired.scan, mpired.exscan, mpired.reduce_scatter, mpired.reduce_scatter_block,
    mpired.reduce_local, mpired.pack, mpired.unpack, mpired.info, mpired.show, mpired.diff, mpired.locate,
    mpired.recover, mpired.Window.accumulate, mpired.Window.get_accumulate, mpired.Window.fetch_and_op,
    mpired.Window.compare_and_swap,
]  # fmt: skip


def test_every_keyword_has_a_default_and_a_line_of_documentation():
    for function in FUNCTIONS:
        parameters = inspect.signature(function).parameters
        named = inspect.getdoc(function).partition("Parameters\n")[2].partition("\nR")[0]
        for name, each in parameters.items():
            case = f"{function.__name__} {name}"
            assert each.kind is not each.VAR_KEYWORD, case
            if each.kind is each.KEYWORD_ONLY and name not in {"output", "into"}:
                assert f"\n{name}" in named, case
                assert each.default is not each.empty or name in {"counts", "type"}, case


def test_signatures_are_those_of_the_rows():
    for function, known in ((mpired.reduce, REDUCE), (mpired.Window.accumulate, ACCUMULATE)):
        found = {name: each.default for name, each in inspect.signature(function).parameters.items()}
        assert {name: row.default for name, row in rows(known).items()}.items() <= found.items()
    assert "--max-memory" in inspect.getdoc(mpired.reduce)


def test_types_are_shown_as_they_are_written():
    for function in FUNCTIONS:
        shown = str(inspect.signature(function))
        assert "ForwardRef" not in shown
        assert "'" not in re.sub(r"= '\w+'", "", shown)  # but in defaults
        assert "collections.abc" not in shown


def test_an_unknown_keyword_is_answered_with_what_is_meant():
    window = mpired.Window("a")
    answers = [
        (lambda: mpired.scan([], "sum", outputs="a"), "scan() has no keyword 'outputs'; did you mean 'output'?"),
        (lambda: mpired.reduce([], "sum", force=True), "reduce() has no keyword 'force'; did you mean 'overwrite'?"),
        (lambda: mpired.Window("a", comit="journal"), "Window() has no keyword 'comit'; did you mean 'commit'?"),
        (
            lambda: window.compare_and_swap(1, 2, xyz=3),
            "Window.compare_and_swap() has no keyword 'xyz'; the keywords are",
        ),
        (lambda: mpired.reduce([], "sum", link=True), "reduce() has no keyword 'link'; the keywords are ranks, op, "),
    ]
    for call, reason in answers:
        with pytest.raises(TypeError) as error:
            call()
        assert str(error.value).startswith(reason)
        if "the keywords are" in reason:
            named = str(error.value).partition("the keywords are ")[2].split(", ")
            function = operator.attrgetter(reason.partition("(")[0])(mpired)
            assert set(named) == set(inspect.signature(function).parameters) - {"self"}


def test_names_of_the_package():
    assert dir(mpired) == sorted(mpired.__all__)
    assert {"reduce", "Window", "errors", "datatypes", "OPS"} <= set(dir(mpired))
    program = "import mpired; print(mpired.errors.CountError.__name__)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "CountError\n"


def test_what_is_no_path_is_answered_with_what_to_give():
    answers = [
        (lambda array: mpired.info([array]), "path: is of the type list; a rank is the path of a file, an array, or"),
        (mpired.show, "`path`: is of the type ndarray; give the path of a file"),
        (mpired.Window, "`paths`: is of the type ndarray; give"),
        (mpired.recover, "`files`: is of the type ndarray; give"),
        (lambda array: mpired.recover([array]), "`files`: is of the type ndarray; give"),
        (lambda array: mpired.pack(array, type="int"), "`file`: is of the type ndarray; give"),
        (lambda array: mpired.unpack(array, type="int", output="x"), "`packed`: is of the type ndarray; give"),
        (lambda array: mpired.reduce_local(array, array, "sum"), "`inoutvec`: is of the type ndarray; give"),
        (lambda array: mpired.reduce_local([array], "x.npy", "sum"), "invec: is of the type list; a rank is"),
    ]
    for call, reason in answers:
        with pytest.raises(mpired.MpiredError) as error:
            call(np.zeros(3))
        assert str(error.value).startswith(reason)


RIGHT = """\
from typing import Any, assert_type

import numpy as np
from mpi4py import MPI

import mpired

RANKS = ["a.npy", "b.npy"]
ONES = np.ones(3)
MANY = [ONES, ONES]

total = mpired.reduce(RANKS, op="sum", jobs=2, overwrite=False)
assert_type(total, Any)
assert_type(mpired.reduce(RANKS, "sum", output="t.npy"), mpired.Summary)
assert_type(mpired.reduce(RANKS, "maxloc", index="rank", split=("v.npy", "i.npy")), mpired.Summary)
assert_type(mpired.allreduce(RANKS, "sum"), list[Any])
assert_type(mpired.allreduce(RANKS, "sum", output="{rank}.npy", link=True), mpired.Summary)
for_a, for_b = mpired.allreduce(RANKS, "sum", group_b=["c.npy"])
assert_type(for_b, list[Any])
assert_type(mpired.scan(RANKS, op="max", output="out_{rank}.npy", in_place=False), mpired.Summary)
assert_type(mpired.exscan(RANKS, "sum"), list[Any])
assert_type(mpired.reduce_scatter(RANKS, "sum", [1, 2]), list[Any])
# Arrays give arrays, and what files give needs no cast.
mean: float = mpired.reduce([ONES, ONES], op="sum").mean()
assert_type(mpired.reduce((each for each in MANY), "sum"), np.ndarray)
assert_type(mpired.reduce({"a": ONES}.values(), "maxloc", index="rank", split=("v.npy", "i.npy")), mpired.Summary)
assert_type(mpired.allreduce(MANY, "sum"), list[np.ndarray])
assert_type(mpired.allreduce(MANY, "sum", group_b=iter(MANY)), tuple[list[np.ndarray], list[np.ndarray]])
assert_type(mpired.exscan(MANY, "sum"), list[np.ndarray | None])
assert_type(mpired.reduce_scatter(MANY, "sum", [1, 2]), list[np.ndarray])
mpired.reduce(["a.parquet"], "sum")["energy"].sum()
both: list[np.ndarray | str] = ["a.npy", ONES]
assert_type(mpired.reduce(both, "sum"), Any)
assert_type(mpired.reduce_local("a.npy", "b.npy", "sum").nbytes, int)
assert_type(mpired.pack("a.bin", type="double"), np.ndarray)
assert_type(mpired.pack("a.bin", type="double", output="p.npy"), mpired.PackSummary)
assert_type(mpired.unpack("p.npy", type="double", into="a.bin"), mpired.PackSummary)
assert_type(mpired.recover("a.npy")[0].words, tuple[str, ...])
assert_type(mpired.diff("a.npy", np.zeros(3), ulp=2).equal, bool)
assert_type(mpired.locate(RANKS, "maxloc").rank, int)
assert_type(mpired.locate(RANKS, mpired.MINLOC, top=2)[0].index, tuple[int, ...])
mpired.reduce(RANKS, MPI.SUM, type=MPI.DOUBLE)
mpired.Window("t.bin", type=MPI.FLOAT).accumulate("a.npy", MPI.MAX, target_type=MPI.FLOAT)
with open("a.npy", "rb") as file:
    mpired.reduce([np.zeros(3), "a.npy", file], mpired.MAX, progress=lambda steps: steps)
    window = mpired.Window("t.npy")
    window.accumulate([file, np.zeros(3)], mpired.REPLACE)
window = mpired.Window("t.npy", commit="journal")
with mpired.mpi() as engine:
    assert_type(mpired.reduce(MANY, "sum", engine=engine), np.ndarray)
try:
    print(mpired.info("a.npy").buffers[0].count)
    assert_type(mpired.show("a.npy", bins=3, png="a.png").buffers[0].count, int)
except mpired.errors.CountError as error:
    print(error.subject)


def either(path: str | None) -> np.ndarray | mpired.Summary:
    return mpired.reduce(MANY, "sum", output=path)
"""
# Each line is an error.
WRONG = """\
mpired.reduce(RANKS, "sum", jobs="2")
mpired.reduce(RANKS, "sum", overwrit=False)
mpired.reduce([ONES, ONES], "sum")["x"].nbites
mpired.exscan([ONES, ONES], "sum")[1].sum()
mpired.reduce(RANKS, "sum", output="t.npy")["x"]
mpired.reduce(RANKS, "sum", output="t.npy", in_place=True)
mpired.scan(RANKS, "sum", link=True)
mpired.reduce(RANKS, "maxloc", split=("v.npy", "i.npy"), output="t.npy")
mpired.reduce(RANKS, "maxloc", split=("v.npy", "i.npy"))["value"]
mpired.reduce(np.zeros(3), "sum")
mpired.reduce(RANKS, "sum", progress=3)
mpired.reduce(RANKS, 3)
mpired.reduce(RANKS, "sum", type=float)
mpired.reduce_scatter(RANKS, "sum")
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
