"""Words around a user-defined op that make no sense, or are reported."""

import json

import numpy as np
import pytest
from command import installed, refused, run, unchanged
from op_faults import OPS, RANKS


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--op", "./ops.py:add", "--op-timeout", "0"), "--op-timeout: 0.0 is not a time"),
        (("--op", "./ops.py:add", "--op-timeout", "nan"), "--op-timeout: nan is not a time"),
        (("--op", "sum", "--commute"), "--commute: is for user-defined ops; MPI_SUM is predefined"),
        (("--op", "./ops.py"), "./ops.py: is the name of a file, not of an op; write ./ops.py:FUNCTION"),
        (("--op", "goood"), "goood: is not an MPI op"),
    ],
)
def test_usage(workshop, words, reason):
    with unchanged(workshop):
        refused(run("reduce", *words, "-o", "new.npy", *RANKS, cwd=workshop), 2, reason)


def test_an_op_that_is_not_for_the_datatype_is_an_error_of_mpi(workshop):
    (workshop / "floats.py").write_text("import mpired\n@mpired.op(datatypes='float')\ndef f(a, b): return a\n")
    with unchanged(workshop):
        outcome = run("reduce", "--op", "./floats.py:f", "-o", "new.npy", *RANKS, cwd=workshop)
    refused(outcome, 3, "./floats.py:f: is not defined for MPI_DOUBLE (float64); it takes MPI_FLOAT")


@pytest.mark.parametrize(("option", "said"), [("--commute", True), ("--no-commute", False)])
def test_what_is_said_of_commuting_is_reported(workshop, option, said):
    outcome = run("reduce", "--json", "--op", "./ops.py:add", option, "--to", "raw", *RANKS, cwd=workshop)
    assert outcome.status == 0
    assert json.loads(outcome.err)["commute"] is said


def test_no_compiled_files_are_left(tmp_path):
    (tmp_path / "ops.py").write_text(OPS)
    for name in RANKS:
        np.save(tmp_path / name, np.arange(3.0))
    with unchanged(tmp_path):
        installed("reduce", "-q", "--op", "ops.py:add", "--to", "raw", *RANKS, cwd=tmp_path)
