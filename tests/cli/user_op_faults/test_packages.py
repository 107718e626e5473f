"""Ops of installed packages, most of which are broken."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import installed, refused, run, succeeded
from op_faults import GOOD, RANKS, distribution, nothing_left, path_with
from setups import seeing


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


def test_only_the_chosen_package_is_loaded(workshop, tmp_path):
    marker = tmp_path / "loaded"
    distribution(tmp_path, "other", {"other": "other:f"}, other=f"open({str(marker)!r}, 'w').close()")
    distribution(tmp_path, "chosen", {"chosen": "chosen:f"}, chosen=GOOD)
    outcome = run("reduce", "-q", "--op", "chosen", "--to", "raw", *RANKS, cwd=workshop, setup=seeing(tmp_path))
    succeeded(outcome)
    assert not marker.exists()


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
