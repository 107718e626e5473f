"""What a user-defined op starts, prints, reads and waits for, words around it, and the list of the ops of a file."""

import json
import os
import re
import signal

import pytest
from command import Child, alive, children, refused, run, succeeded, told_after, unchanged, wait_until
from op_faults import RANKS, nothing_left, total
from rows import each
from setups import seeing

PRINTED = ["by a child", "by print", "by printf", "by write", "without an end"]
SUMS = [3.0, 6.0, 9.0, 12.0]


def reduced(workshop, op, *words, **settings):
    settings = {"setup": seeing()} | settings
    return run("reduce", "-q", "--op", f"./ops.py:{op}", "--to", "raw", *words, cwd=workshop, **settings)


def test_what_an_op_leaves_behind_is_ended_when_it_succeeds(workshop):
    with nothing_left():
        outcome = reduced(workshop, "leaves_and_adds", *RANKS)
    succeeded(outcome)
    assert total(outcome.out) == SUMS


def test_what_an_op_prints_goes_to_standard_error(workshop):
    outcome = reduced(workshop, "prints_and_adds", *RANKS)
    assert outcome.status == 0
    assert total(outcome.out) == SUMS
    assert sorted(re.findall("by a child|by printf?|by write|without an end", outcome.err)) == sorted(PRINTED * 4)


@pytest.mark.parametrize("op", ["./ops.py:leaves_and_sleeps", "./hangs.py:f", "./faults.so:loops"])
def test_an_op_that_hangs_is_ended_by_a_signal(workshop, op):
    @each("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def ends(number):
        with unchanged(workshop), nothing_left():
            child = Child("reduce", "--op", op, "--force", "-o", "output.npy", *RANKS, cwd=workshop)
            wait_until(lambda: children(child.pid))
            if op == "./ops.py:leaves_and_sleeps":
                wait_until(lambda: any(map(children, children(child.pid))))
            os.kill(child.pid, number)
            outcome = child.finish()
        assert (outcome.status, outcome.out, outcome.err) == (-number, b"", told_after(number))

    ends()


def test_a_worker_does_not_outlive_the_command(workshop):
    child = Child("reduce", "--op", "./ops.py:sleeps", *RANKS, cwd=workshop)
    wait_until(lambda: children(child.pid))
    (worker,) = children(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    child.finish()
    wait_until(lambda: not alive(worker))


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
        "two (./my.py:two): commute not declared, any datatype",
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
