"""Ops of installed packages, most of which are broken."""

import json
import tomllib
from pathlib import Path

import numpy as np
from command import refused, run, succeeded
from op_faults import GOOD, RANKS, distribution, nothing_left
from setups import seeing


def test_list_of_ops_as_json_beside_broken_packages(workshop, site):
    outcome = run("ops", "--json", cwd=workshop, setup=seeing(site))
    listed = json.loads(outcome.out)
    rows = {row["name"]: row for row in listed}
    assert outcome.status == 0
    assert len(listed) == 14 + 12 + 9
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


def test_the_example_package(workshop, tmp_path):
    package = Path(__file__).parents[3] / "examples" / "mpired-quaternion"
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    distribution(tmp_path / "site", project["name"], project["entry-points"]["mpired.ops"])
    settings = {"cwd": tmp_path, "setup": seeing(tmp_path / "site", package)}
    units = {"i": (0, 1, 0, 0), "j": (0, 0, 1, 0), "k": (0, 0, 0, 1)}
    for rank, name in enumerate(units):
        np.save(tmp_path / f"{rank}.npy", np.array([units[name], (2, 0, 0, rank)], [(part, "f8") for part in "wxyz"]))
    files = [f"{rank}.npy" for rank in range(3)]
    for op, ranks, expected in (
        ("product", files, b"-1.0,0.0,0.0,0.0\n4.0,0.0,0.0,12.0"),
        ("product", files[::-1], b"1.0,0.0,0.0,0.0\n4.0,0.0,0.0,12.0"),
        ("sum", files, b"0.0,1.0,1.0,1.0\n6.0,0.0,0.0,3.0"),
    ):
        words = ("reduce", "-q", "--op", f"quaternion_{op}", "--to", "csv", *ranks)
        assert run(*words, **settings) == (0, b"w,x,y,z\n" + expected + b"\n", "")
    wrong = run("reduce", "--op", "quaternion_product", *RANKS, **settings | {"cwd": workshop})
    refused(wrong, 7, "quaternion_product: aborted: quaternions are structures of w, x, y and z, not MPI_DOUBLE")
