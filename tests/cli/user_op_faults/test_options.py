"""Words around a user-defined op that make no sense, or are reported, and the list of the ops of a file."""

import json

import numpy as np
from command import installed, refused, run, unchanged
from op_faults import OPS, RANKS, nothing_left
from rows import check_refused, each


@each(
    "words, status, reason",
    [
        ("./ops.py:add --op-timeout 0", 2, "--op-timeout: 0.0 is not a time"),
        ("./ops.py:add --op-timeout nan", 2, "--op-timeout: nan is not a time"),
        ("sum --commute", 2, "--commute: is for user-defined ops; MPI_SUM is predefined"),
        ("./ops.py", 2, "./ops.py: is the name of a file, not of an op; write ./ops.py:FUNCTION"),
        ("goood", 2, "goood: is not an MPI op"),
        ("./floats.py:f", 3, "./floats.py:f: is not defined for MPI_DOUBLE (float64); it takes MPI_FLOAT"),
    ],
)
def test_refusals(workshop, words, status, reason):
    (workshop / "floats.py").write_text("import mpired\n@mpired.op(datatypes='float')\ndef f(a, b): return a\n")
    check_refused(workshop, ("reduce", *RANKS, "-o", "new.npy", "--op", *words.split()), status, reason)


@each("option, said", [("--commute", True), ("--no-commute", False)])
def test_what_is_said_of_commuting_is_reported(workshop, option, said):
    outcome = run("reduce", "--json", "--op", "./ops.py:add", option, "--to", "raw", *RANKS, cwd=workshop)
    assert outcome.status == 0
    assert json.loads(outcome.err)["commute"] is said


def test_no_compiled_files_are_left(tmp_path):
    (tmp_path / "ops.py").write_text(OPS)
    for name in RANKS:
        np.save(tmp_path / name, np.arange(3.0))
    with unchanged(tmp_path):
        assert installed("reduce", "-q", "--op", "ops.py:add", "--to", "raw", *RANKS, cwd=tmp_path).status == 0


def test_ops_of_a_file(workshop, tmp_path):
    (tmp_path / "my.py").write_text(
        "import mpired\n"
        "@mpired.op(commute=False, datatypes=['int', 'double'], name='first')\n"
        "def one(a, b):\n    'One.'\n"
        "@mpired.op()\n"
        "def two(a, b): pass\n"
        "def plain(a, b): pass\n"
    )
    outcome = run("ops", "./my.py", cwd=tmp_path)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.decode().splitlines() == [
        "first (./my.py:one): does not commute, MPI_INT, MPI_DOUBLE; One.",
        "two (./my.py:two): commute not said, any datatype",
    ]
    rows = json.loads(run("ops", "--json", "my.py", cwd=tmp_path).out)
    assert [(row["name"], row["place"], row["commute"]) for row in rows] == [
        ("first", "my.py:one", False),
        ("two", "my.py:two", None),
    ]
    message = "mpired: empty.py: no function in it is decorated with @mpired.op\n"
    assert run("ops", "empty.py", cwd=workshop) == (0, b"", message)


@each(
    "file, reason",
    [
        ("missing.py", "the file does not exist"),
        (".", "is not a regular file"),
        ("text.txt", "is not a Python file"),
        ("syntax.py", "raised SyntaxError"),
        ("ends.py", "it ended with status 0"),
    ],
)
def test_files_that_cannot_be_listed(workshop, file, reason):
    with unchanged(workshop), nothing_left():
        refused(run("ops", file, cwd=workshop), 7, f"mpired: {file}: ", reason)
