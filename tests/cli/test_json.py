"""The summary of a command: a line for a person, or with `--json` one for a program, which is not in the way."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command import run


@pytest.fixture
def ranks(tmp_path):
    """Ranks out of order, of which the second overflows the sum."""
    for name in ("rank10", "rank2"):
        np.save(tmp_path / f"{name}.npy", np.array([100, 2], "i1"))
    return tmp_path


def _line(text):
    (line,) = text.splitlines()
    return json.loads(line)


def test_warnings_are_in_it(ranks):
    for name in ("rank10", "rank2"):
        np.save(ranks / f"{name}.npy", np.array([0.5]))
    words = ("scan", "--json", "--op", "sum", "rank10.npy", "rank2.npy", "-o")
    for output, status in (("s_{rank}.npy", 0), ("nowhere/s_{rank}.npy", 4)):
        told = _line(run(*words, output, cwd=ranks).out)
        (warning,) = told["warnings"]
        assert "rank10.npy came before rank2.npy" in warning
        assert told.get("exit_status", 0) == status
    outcome = run("accumulate", "--json", "--op", "max", "rank2.npy", "rank2.npy", cwd=ranks)
    (warning,) = _line(outcome.out)["warnings"]
    assert "same file" in warning


def test_recovery_and_examples(ranks):
    outcome = run("recover", "--json", "rank2.npy", "nix.npy", "rank10.npy", cwd=ranks)
    *lines, failure = map(json.loads, (outcome.out.decode() + outcome.err).splitlines())
    assert [(each["file"], each["words"], each["changed"]) for each in lines] == [
        ("rank2.npy", [], False),
        ("rank10.npy", [], False),
    ]
    assert (failure["exit_status"], failure["subject"]) == (outcome.status, "nix.npy")
    assert _line(run("examples", "--json", "new", cwd=ranks).out)["output"] == "new"
    assert _line(run("examples", "--json", "new", cwd=ranks).out)["exit_status"] == 2
