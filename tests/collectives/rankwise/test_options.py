"""The options that the commands with results for the ranks share with reduce."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from command import COMMAND, installed, refused, run, unchanged
from rankwise import COUNT, NPY, SUM, numbers


@pytest.mark.parametrize("verb", ["scan", "exscan", "allreduce", "reduce-scatter-block"])
def test_illegal_requests_leave_no_file(folder, verb):
    with unchanged(folder):
        for words, status, reason in [
            (("--op", "maxloc", *NPY), 3, "MPI_MAXLOC"),
            (("--op", "nosuch", *NPY), 2, "nosuch"),
            (("--op", "replace", *NPY), 3, "accumulate"),
            (("--op", "sum", "missing.npy", "r0.npy"), 4, "missing.npy"),
            (("--op", "sum", "r0.npy", "r0.bin"), 2, "--type"),
            (("--op", "sum"), 2, "at least one file"),
        ]:
            refused(run(verb, *words, "-o", "out_{rank}.npy", cwd=folder), status, reason)


def test_options_of_other_calls_are_unknown(folder):
    with unchanged(folder):
        for verb, option in ("scan", "--link"), ("allreduce", "--counts=1"), ("scan", "--root=1"), ("exscan", "--link"):
            refused(run(verb, *SUM, *NPY, "-o", "out_{rank}.npy", option, cwd=folder), 2, option.split("=")[0])


def test_summary(folder):
    outcome = run("scan", "--op", "sum", *NPY, "-o", "out_{rank}.npy", cwd=folder)
    assert outcome.err == (
        "mpired: MPI_Scan with sum of 4 ranks, 12 x int64, 1 worker -> 4 files, out_{rank}.npy (npy)\n"
    )


def test_summary_as_json(folder):
    outcome = run("exscan", "--json", "--op", "max", *NPY, "-o", "out_{rank}.npy", cwd=folder)
    summary = json.loads(outcome.out)
    expected = {"call": "MPI_Exscan", "op": "MPI_MAX", "nranks": 4, "noutputs": 3, "output": "out_{rank}.npy",
                "format": "npy", "nbytes": 3 * 8 * COUNT}  # fmt: skip
    assert {name: summary[name] for name in expected} == expected  # the last rank is in no result


def test_the_order_of_the_ranks_is_doubted(folder):
    np.save(folder / "r10.npy", numbers(0))
    words = ("--op", "sum", "r0.npy", "r10.npy", "r2.npy")
    assert "r10.npy came before r2.npy" in run("scan", *words, "-o", "out_{rank}.npy", cwd=folder).err
    assert "came before" not in run("allreduce", *words, "-f", "-o", "out_{rank}.npy", cwd=folder).err  # integers


def test_hard_links_are_told(folder):
    os.link(folder / "r0.npy", folder / "other")
    outcome = run("scan", "--op", "sum", *NPY, "--in-place", cwd=folder)
    assert "r0.npy is a hard link" in outcome.err


def test_environment(folder):
    outcome = run(
        "scan", "--op", "sum", *NPY, "-o", "out_{rank}.npy", cwd=folder, env={"MPIRED_TO": "text", "MPIRED_JOBS": "1"}
    )
    assert "from the environment" in outcome.err
    assert (folder / "out_0.npy").read_text().splitlines()[0] == str(numbers(0)[0])


def test_the_installed_command_has_all_verbs():
    text = installed("--help").out.decode()
    for verb in "allreduce", "scan", "exscan", "reduce-scatter", "reduce-scatter-block", "reduce-local":
        assert f"  {verb} " in text
    assert os.path.exists(COMMAND)
