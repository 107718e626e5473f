"""A working directory that is gone, odd environments, and the command that is installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from bad_files import THREE, covers, npy_of
from command import COMMAND, installed, reduce, refused, succeeded, unchanged


@covers(82)
def test_working_directory_that_is_gone(folder):
    gone = folder / "gone"
    gone.mkdir()
    words = ("--op", "sum", str(folder / "good.npy"), "-o", str(folder / "new.npy"))
    succeeded(reduce(*words, cwd=gone, setup=gone.rmdir))
    np.testing.assert_array_equal(np.load(folder / "new.npy"), THREE)
    gone.mkdir()
    with unchanged(folder):
        pass
    refused(reduce("--op", "sum", "good.npy", cwd=gone, setup=gone.rmdir), 4, "good.npy")


@covers(82)
@pytest.mark.parametrize(
    "env",
    [
        {"HOME": None, "USER": None, "LOGNAME": None, "PATH": None},
        {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": None},
        {"LANG": None, "LC_ALL": None},
        {"TMPDIR": None},
        {"TMPDIR": "/does/not/exist"},
        {"TMPDIR": ""},
        {"PYTHONHASHSEED": "0"},
        {"PYTHONHASHSEED": "4294967295"},
        {"PYTHONOPTIMIZE": "2"},
        {"PYTHONWARNINGS": "error"},
        {"COLUMNS": "1"},
        {"OMP_NUM_THREADS": "junk", "SLURM_CPUS_PER_TASK": "junk"},
        {"_MPIRED_COMPLETE": None, "NO_COLOR": "1"},
    ],
    ids=str,
)
@pytest.mark.parametrize("to", ["npy", "table"])
def test_environment(env, to, folder):
    (folder / "ö.npy").write_bytes(npy_of(THREE))
    environment = {name: value for name, value in (os.environ | env).items() if value is not None}
    outcome = installed("reduce", "-q", "--op", "sum", "good.npy", "ö.npy", "--to", to, cwd=folder, env=environment)
    expected = npy_of(2 * THREE) if to == "npy" else b"element  value\n      0    2.0\n      1    4.0\n      2    6.0\n"
    assert outcome == (0, expected, "")


def test_installed_command_is_that_of_this_python():
    assert Path(COMMAND).parent == Path(sys.executable).parent
