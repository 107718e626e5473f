"""What a user-defined op starts, prints, reads and waits for, words around it, and the list of the ops of a file."""

import json
import os
import re
import signal

import numpy as np
import pytest
from command import Child, alive, children, installed, refused, run, succeeded, told_after, unchanged, wait_until
from op_faults import OPS, RANKS, nothing_left, total
from rows import check_refused, each
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


def test_each_call_has_its_own_time(workshop):
    """The first elements are combined three times, which together takes longer than one call may."""
    succeeded(reduced(workshop, "slow", "--op-timeout", "2", *RANKS[:2]))


def test_what_an_op_prints_goes_to_standard_error(workshop):
    outcome = reduced(workshop, "prints_and_adds", *RANKS)
    assert outcome.status == 0
    assert total(outcome.out) == SUMS
    assert sorted(re.findall("by a child|by printf?|by write|without an end", outcome.err)) == sorted(PRINTED * 4)


@each("stream", ["closed", "full", "without a reader"])
def test_what_an_op_prints_may_get_lost(workshop, stream):
    def setup():
        if stream == "closed":
            os.close(2)
            return
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(os.open("/dev/full", os.O_WRONLY) if stream == "full" else writer, 2)

    outcome = reduced(workshop, "prints_to_streams_and_adds", *RANKS, setup=setup)
    assert (outcome.status, outcome.err) == (0, "")
    assert total(outcome.out) == SUMS


def test_an_op_that_reads_standard_input_finds_it_empty(workshop):
    outcome = reduced(workshop, "reads", "-", RANKS[1], stdin=(workshop / RANKS[0]).read_bytes())
    succeeded(outcome)
    assert total(outcome.out) == [1.0, 3.0, 5.0, 7.0]


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
