"""What `help`, editors and type checkers see of the Python API."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import mpired
from mpired.options import AccumulateOptions, ReduceOptions, rows

FUNCTIONS = [
    mpired.reduce, mpired.allreduce, mpired.scan, mpired.exscan, mpired.reduce_scatter, mpired.reduce_scatter_block,
    mpired.reduce_local, mpired.pack, mpired.unpack, mpired.info, mpired.Window.accumulate,
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


USER = """
import numpy as np
import mpired

total = mpired.reduce(["a.npy", "b.npy"], op="sum", jobs=2, overwrite=False)
window = mpired.Window("t.npy", commit="journal")
count: int = window.accumulate(np.ones(3), "sum", target_disp=4, at=None)
try:
    mpired.scan(["a.npy"], op="max", output="out_{rank}.npy", in_place=False)
except mpired.errors.CountError as error:
    print(error.subject)

mpired.reduce(["a.npy"], "sum", jobs="2")
mpired.reduce(["a.npy"], "sum", overwrit=False)
mpired.Window("t.npy", commit=3)
count = window.fetch_and_op(1, "sum", target_disp=None, once=True)
"""


def test_a_type_checker_on_a_program_of_a_user(tmp_path):
    """What is right passes, and each of the last lines is an error."""
    (tmp_path / "user.py").write_text(USER)
    words = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "user.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    first = USER.splitlines().index('mpired.reduce(["a.npy"], "sum", jobs="2")') + 1
    assert lines == [first, first + 1, first + 2, first + 3], done.stdout
    assert all(f'"{name}"' in done.stdout for name in ("jobs", "overwrit", "commit", "once")), done.stdout
