"""The ops of a file, listed."""

import json

import pytest
from command import refused, run, unchanged
from op_faults import nothing_left


def test_ops_of_a_file(tmp_path):
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


def test_a_file_without_decorated_functions(workshop):
    outcome = run("ops", "empty.py", cwd=workshop)
    assert (outcome.status, outcome.out) == (0, b"")
    assert outcome.err == "mpired: empty.py: no function in it is decorated with @mpired.op\n"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("missing.py", "the file does not exist"),
        (".", "is not a regular file"),
        ("text.txt", "is not a Python file"),
        ("syntax.py", "raised SyntaxError"),
        ("exits.py", "raised SystemExit: 0"),
        ("ends.py", "it ended with status 0"),
    ],
)
def test_files_that_cannot_be_listed(workshop, file, reason):
    with unchanged(workshop), nothing_left():
        refused(run("ops", file, cwd=workshop), 7, f"mpired: {file}: ", reason)
