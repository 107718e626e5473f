"""What an op starts, prints, reads and waits for."""

import os
import re
import signal

import pytest
from command import Child, alive, children, run, succeeded, told_after, unchanged, wait_until
from op_faults import RANKS, nothing_left, total
from rows import each

PRINTED = ["by a child", "by print", "by printf", "by write", "without an end"]
SUMS = [3.0, 6.0, 9.0, 12.0]


def reduced(workshop, op, *words, **settings):
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
