"""Options from the environment, which a command always tells of."""

from __future__ import annotations

import numpy as np
import pytest
from command import refused, run
from three_ranks import A, B


def test_environment_sets_options_and_is_told(folder):
    words = ("reduce", "--op", "sum", "a.bin", "b.bin")
    env = {"MPIRED_TYPE": "double", "MPIRED_TO": "text", "MPIRED_JOBS": "1"}
    outcome = run(*words, cwd=folder, env=env)
    assert outcome.out == b"11.5\n2.25\n2.0\n"
    given = outcome.err.rstrip().partition("; from the environment: ")[2].split(", ")
    assert sorted(given) == ["--jobs (MPIRED_JOBS)", "--to (MPIRED_TO)", "--type (MPIRED_TYPE)"]
    outcome = run(*words, "--to", "csv", "-j", "1", cwd=folder, env=env)
    assert outcome.out == b"value\n11.5\n2.25\n2.0\n"
    assert outcome.err.rstrip().endswith("; from the environment: --type (MPIRED_TYPE)")
    assert "environment" not in run(*words, "--type", "double", cwd=folder).err


@pytest.mark.parametrize(
    ("name", "value"), [("MPIRED_OP", "max"), ("OP", "max"), ("TYPE", "float"), ("REDUCE_OP", "max"), ("JOBS", "x")]
)
def test_environment_that_is_not_asked(name, value, folder):
    outcome = run("reduce", "--op", "sum", "--type", "double", "a.bin", "b.bin", cwd=folder, env={name: value})
    assert (outcome.status, outcome.out) == (0, (A + B).tobytes())
    refused(run("reduce", "a.npy", cwd=folder, env={name: value}), 2, "--op")


def test_environment_that_makes_no_sense(folder):
    outcome = run("reduce", "--op", "sum", "a.npy", cwd=folder, env={"MPIRED_JOBS": "many"})
    refused(outcome, 2, "jobs", "many")


@pytest.mark.parametrize("variable", ["MPIRED_FORCE", "MPIRED_OVERWRITE"])
@pytest.mark.parametrize("report", ["-q", "--json", "-v"])
def test_environment_is_never_silent(variable, report, folder):
    words = ("reduce", report, "--op", "sum", "a.npy", "b.npy", "-o", "c.npy")
    outcome = run(*words, cwd=folder, env={variable: "1"})
    assert outcome.status == 0
    assert f"from the environment: --overwrite ({variable})" in outcome.err
    np.testing.assert_array_equal(np.load(folder / "c.npy"), A + B)


def test_quiet_from_the_environment_says_so(folder):
    outcome = run("reduce", "--op", "sum", "a.npy", "-o", "new.npy", cwd=folder, env={"MPIRED_QUIET": "1"})
    assert outcome == (0, b"", "mpired: from the environment: --quiet (MPIRED_QUIET)\n")
