"""The tests of `dask_suite`, in a process of their own: Dask changes how exceptions are pickled and modules found."""

import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("dask_suite.py")


@pytest.mark.timeout(900)
def test_dask(long):
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *(["--long"] if long else [])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, SUITE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
