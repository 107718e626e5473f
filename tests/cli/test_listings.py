"""`mpired ops` and `mpired types`: the lists of what is predefined."""

from __future__ import annotations

import json

from command import run

_PREDEFINED = [
    "MAX",
    "MIN",
    "SUM",
    "PROD",
    "LAND",
    "BAND",
    "LOR",
    "BOR",
    "LXOR",
    "BXOR",
    "MAXLOC",
    "MINLOC",
    "REPLACE",
    "NO_OP",
]


def test_ops(folder):
    outcome = run("ops", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    assert [line.split()[0].upper() for line in outcome.out.decode().splitlines()[1:15]] == _PREDEFINED
    rows = json.loads(run("ops", "--json", cwd=folder).out)
    assert [row["name"] for row in rows] == [f"MPI_{name}" for name in _PREDEFINED]
    datatypes = {row["name"]: set(row["datatypes"]) for row in rows}
    assert {"MPI_DOUBLE", "MPI_INT", "MPI_COMPLEX"} <= datatypes["MPI_SUM"]
    assert "MPI_COMPLEX" not in datatypes["MPI_MAX"]
    assert datatypes["MPI_MAXLOC"] == datatypes["MPI_MINLOC"] >= {"MPI_DOUBLE_INT", "MPI_2REAL"}
    assert [row["commute"] for row in rows] == [True] * 12 + [False] * 2


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
