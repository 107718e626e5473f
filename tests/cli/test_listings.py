"""`mpired ops` and `mpired types`: the lists of what is predefined."""

from __future__ import annotations

import contextlib
import json

import numpy as np
from command import run

import mpired
from mpired import ops
from mpired.errors import OpError

_PREDEFINED = ["MAX", "MIN", "SUM", "PROD", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR", "MAXLOC", "MINLOC",
               "REPLACE", "NO_OP"]  # fmt: skip


def test_ops(folder):
    outcome = run("ops", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    assert [line.split()[0].upper() for line in outcome.out.decode().splitlines()[1:15]] == _PREDEFINED
    rows = json.loads(run("ops", "--json", cwd=folder).out)
    assert [row["name"] for row in rows[: len(_PREDEFINED)]] == [f"MPI_{name}" for name in _PREDEFINED]
    assert [row["name"] for row in rows[len(_PREDEFINED) :]] == [str(row) for row in ops.STATISTICS]
    datatypes = {row["name"]: set(row["datatypes"]) for row in rows}
    assert {"MPI_DOUBLE", "MPI_INT", "MPI_COMPLEX"} <= datatypes["MPI_SUM"]
    assert "MPI_COMPLEX" not in datatypes["MPI_MAX"]
    assert datatypes["MPI_MAXLOC"] == datatypes["MPI_MINLOC"] >= {"MPI_DOUBLE_INT", "MPI_2REAL"}
    assert [row["commute"] for row in rows[:14]] == [True] * 12 + [False] * 2


def test_ops_tells_which_take_times(folder):
    """The marks are those that calls on arrays of datetime64 and timedelta64 bear out."""
    lines = run("ops", "--matrix", cwd=folder).out.decode().splitlines()
    marks = {line.split()[0]: line.split()[1] for line in lines[1:13]}
    for letter, code in (("t", "M8[s]"), ("d", "m8[s]")):
        (first,) = (number for number, line in enumerate(lines) if line.startswith(f"{letter}  "))
        assert np.dtype(code).name.partition("[")[0] in " ".join(lines[first : first + 2])
        taken = []
        for op in marks:
            with contextlib.suppress(OpError):
                mpired.reduce([np.ones(2, code)], op)
                taken.append(op)
        assert [op for op in marks if letter in marks[op]] == taken


def test_ops_names_the_kinds_of_numbers_that_each_takes(folder):
    lines = run("ops", cwd=folder).out.decode().splitlines()
    takes = {line.split()[0]: set(line[11:38].replace(",", "").split()) for line in lines[1:13]}
    kinds = {"integers": "i4", "floats": "f8", "bools": "?", "complex": "c16", "times": "M8[s]"}
    for op, named in takes.items():
        taken = set()
        for kind, code in kinds.items():
            with contextlib.suppress(OpError):
                mpired.reduce([np.ones(2, code)], op)
                taken.add(kind)
        assert named - {"bytes", "pairs"} == taken, op


def test_types(folder):
    outcome = run("types", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    lines = {line.split()[0]: line for line in outcome.out.decode().splitlines()}
    assert "12     16" in lines["MPI_DOUBLE_INT"]
    assert "not available" in lines["MPI_REAL16"]
    rows = {row["name"]: row for row in json.loads(run("types", "--json", cwd=folder).out)}
    assert (rows["MPI_SHORT_INT"]["size"], rows["MPI_SHORT_INT"]["extent"]) == (6, 8)
    assert rows["MPI_REAL16"]["numpy"] is None
    assert rows["MPI_DOUBLE"]["numpy"] == "<f8"
    assert "MPI_LONG_LONG" in rows["MPI_LONG_LONG_INT"]["synonyms"]
