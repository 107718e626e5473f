"""Ops of installed packages, most of which are broken."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import installed, refused, run, succeeded
from op_faults import DOUBLED, GOOD, RANKS, distribution, nothing_left, path_with, total
from rows import each
from setups import seeing


@each("op, expected", [("good", [3.0, 6.0, 9.0, 12.0]), ("./ops.py:add", [3.0, 6.0, 9.0, 12.0]),
                       ("sum", [3.0, 6.0, 9.0, 12.0]), ("MPI_PROD", [0.0, 6.0, 24.0, 60.0])])  # fmt: skip
def test_other_ops_work_beside_broken_packages(workshop, site, op, expected):
    """Predefined ones are not hidden by installed ones of their names."""
    outcome = run("reduce", "-q", "--op", op, "--to", "raw", *RANKS, cwd=workshop, setup=seeing(site))
    succeeded(outcome)
    assert total(outcome.out) == expected


def test_list_of_ops_beside_broken_packages(workshop, site):
    with nothing_left():
        outcome = run("ops", cwd=workshop, setup=seeing(site))
    assert outcome.status == 0
    assert outcome.err == "printed\n"
    listed = outcome.out.decode().partition("user-defined ops that are installed:\n")[2].splitlines()
    hidden = "hidden by the predefined op of that name"
    assert listed == [
        f"MPI_PROD (good_package:f): {hidden}",
        "absent (absent_package:f): raised ModuleNotFoundError: No module named 'absent_package'",
        "doubled (first:f, second:f): " + DOUBLED,
        "ending (ending_package:f): a worker died: it ended with status 0; nothing was written",
        "exiting (exiting_package:f): raised SystemExit: 0 (exiting_package.py, line 1)",
        "good (good_package:f): commutes, identity -inf, any datatype; Good.",
        "module (good_package): is module, not a function",
        "printing (printing:f): commutes, identity -inf, any datatype; Good.",
        "raising (raising_package:f): raised ValueError: at import (raising_package.py, line 1)",
        *[line for line in listed if line.startswith("senseless (3:::4): raised ")],
        f"sum (good_package:f): {hidden}",
    ]
    assert len(listed) == 11


def test_another_loader_of_packages(workshop, site):
    """Once a library has loaded importlib_metadata, that finds and loads entry points for everybody."""

    def setup() -> None:
        importlib.import_module("importlib_metadata")
        seeing(site)()

    outcome = run("reduce", "--op", "raising", "-o", "-", *RANKS, cwd=workshop, setup=setup)
    refused(outcome, 7, "raised ValueError: at import (raising_package.py, line 1)")


def test_list_of_ops_as_json_beside_broken_packages(workshop, site):
    outcome = run("ops", "--json", cwd=workshop, setup=seeing(site))
    listed = json.loads(outcome.out)
    rows = {row["name"]: row for row in listed}
    assert outcome.status == 0
    assert len(listed) == 14 + 12 + 11
    assert {tuple(row) for row in listed} == {tuple(rows["MPI_SUM"])}
    known = {"place": "good_package:f", "doc": "Good.", "commute": True, "identity": "-inf", "uses": ["reduce"]}
    assert rows["good"].items() >= (known | {"nan": None, "groups": [], "datatypes": [], "error": None}).items()
    assert rows["absent"]["error"].startswith("raised ModuleNotFoundError")
    assert rows["absent"]["commute"] is None


def test_a_package_that_hangs_is_left_out_of_the_list_in_time(workshop, tmp_path, monkeypatch):
    monkeypatch.setattr("mpired.engines.userops._LISTING_TIMEOUT", 0.3)
    distribution(tmp_path, "hanging", {"hanging": "hanging:f"}, hanging="import time; time.sleep(600)")
    with nothing_left():
        outcome = run("ops", cwd=workshop, setup=seeing(tmp_path))
    assert outcome.status == 0
    assert b"hanging (hanging:f): took longer than 0.3 s" in outcome.out


@each("words", ["--help", "reduce --help", "ops --help", "types"])
def test_no_package_is_loaded_where_none_is_asked_for(workshop, tmp_path, words):
    marker, site = tmp_path / "loaded", tmp_path / "site"
    shutil.rmtree(site, ignore_errors=True)
    text = f"open({str(marker)!r}, 'w').close()\nraise ValueError"
    distribution(site, "broken", {"broken": "broken:f"}, broken=text)
    outcome = installed(*words.split(), cwd=workshop, env=os.environ | {"PYTHONPATH": path_with(site)})
    assert (outcome.status, outcome.err) == (0, "")
    assert not marker.exists()


def test_only_the_chosen_package_is_loaded(workshop, tmp_path):
    marker = tmp_path / "loaded"
    distribution(tmp_path, "other", {"other": "other:f"}, other=f"open({str(marker)!r}, 'w').close()")
    distribution(tmp_path, "chosen", {"chosen": "chosen:f"}, chosen=GOOD)
    outcome = run("reduce", "-q", "--op", "chosen", "--to", "raw", *RANKS, cwd=workshop, setup=seeing(tmp_path))
    succeeded(outcome)
    assert not marker.exists()


def test_a_package_that_is_found_twice_is_one(workshop, tmp_path):
    for name in "first", "second":
        distribution(tmp_path / name, "good", {"good": "good_package:f"}, good_package=GOOD)

    setup = seeing(tmp_path / "first", tmp_path / "second")
    succeeded(run("reduce", "-q", "--op", "good", "--to", "raw", *RANKS, cwd=workshop, setup=setup))


@pytest.mark.needs("pip")
def test_the_example_package(workshop, tmp_path):
    package = Path(__file__).parents[3] / "examples" / "mpired-quaternion"
    words = "install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index --target"
    subprocess.run([sys.executable, "-m", "pip", *words.split(), tmp_path / "site", package], check=True)
    form = np.dtype([(name, "f8") for name in "wxyz"])
    units = {"1": (1, 0, 0, 0), "i": (0, 1, 0, 0), "j": (0, 0, 1, 0), "k": (0, 0, 0, 1)}
    for rank, name in enumerate("ijk"):
        np.save(tmp_path / f"{rank}.npy", np.array([units[name], (2, 0, 0, rank)], form))
    env = os.environ | {"PYTHONPATH": path_with(tmp_path / "site")}
    files = [f"{rank}.npy" for rank in range(3)]
    for op, ranks, expected in (
        ("product", files, b"-1.0,0.0,0.0,0.0\n4.0,0.0,0.0,12.0"),
        ("product", files[::-1], b"1.0,0.0,0.0,0.0\n4.0,0.0,0.0,12.0"),
        ("sum", files, b"0.0,1.0,1.0,1.0\n6.0,0.0,0.0,3.0"),
    ):
        words = ("reduce", "-q", "--op", f"quaternion_{op}", "--to", "csv", *ranks)
        assert installed(*words, cwd=tmp_path, env=env) == (0, b"w,x,y,z\n" + expected + b"\n", "")
    listed = installed("ops", cwd=tmp_path, env=env).out.decode()
    assert "quaternion_product (mpired_quaternion:product): does not commute, identity [1.0, 0.0, 0.0, 0.0]" in listed
    wrong = installed("reduce", "--op", "quaternion_product", *RANKS, cwd=workshop, env=env)
    refused(wrong, 7, "quaternion_product: aborted: quaternions are structures of w, x, y and z, not MPI_DOUBLE")
