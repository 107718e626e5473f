"""Ctrl-C in a program that calls mpired: nothing has changed and nothing is left open, or the call has returned."""

import _thread
import fcntl
import os
import random
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from command import in_child, snapshot
from updates import hold

import mpired

POINTS, LAST = 16, 60  # some of the instructions of a call, and every other one of the last; with `--long` all
RANKS = [f"r{number}.npy" for number in range(3)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Ranks and a target in the working directory."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(RANKS):
        np.save(name, np.arange(5000.0) + number)
    np.save("total.npy", np.zeros(5000))


CALLS = {
    "reduce": lambda: mpired.reduce(RANKS, "sum", output="out.npy", overwrite=True),
    "scan": lambda: mpired.scan(RANKS, "sum", output="out{rank}.npy", overwrite=True),
    "renamed": lambda: mpired.Window("total.npy", commit="rename").accumulate(RANKS, "sum"),
    "in place": lambda: mpired.Window("total.npy", commit="journal").accumulate(RANKS, "sum"),
    "arrays": lambda: mpired.reduce(RANKS, "max"),
}


def open_files():
    return sorted(os.listdir("/proc/self/fd"))


class _Interrupt:
    __del__ = _thread.interrupt_main


class At:
    """Interrupts a call at one of the instructions in it, of which it counts all."""

    def __init__(self, number):
        self.number, self.count = number, 0

    def traced(self, frame, event, _argument):
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count == self.number:
                sys.settrace(None)
                _ = _Interrupt()  # the next look for signals is the call's, not one of this function
        return self.traced

    def call(self, function):
        """Return what the call gave, if it returned, and whether the interrupt came."""
        given, came = None, False
        before = sys.gettrace()
        try:
            sys.settrace(self.traced)
            given = function()
            sys.settrace(before)
            time.sleep(0)
        except KeyboardInterrupt:
            came = True
        finally:
            sys.settrace(before)
        return given, came


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CALLS)
def test_wherever_it_comes(name, long):
    draws = 10 * POINTS if long else POINTS

    def points():
        function = CALLS[name]
        for _ in range(2):  # what is imported and kept is there then
            function()
        whole = At(0)
        whole.call(function)
        some = random.Random(5).sample(range(1, whole.count), draws)
        wrong, seen = [], {"before": 0, "after": 0}
        for number in [*some, *range(whole.count - LAST, whole.count, 1 if long else 2)]:
            there, files, at = open_files(), snapshot("."), At(number)
            given, came = at.call(function)
            if at.count < number:  # that is after the call
                continue
            found = {
                "it did not come": not came,
                "files are open": open_files() != there,
                "changed": given is None and snapshot(".") != files,
                "not changed": given is not None and snapshot(".") == files and name != "arrays",
                "another handler": signal.getsignal(signal.SIGINT) is not signal.default_int_handler,
            }
            wrong += [(number - whole.count, what) for what, is_so in found.items() if is_so]
            seen["before" if given is None else "after"] += 1
        return wrong, seen

    wrong, seen = in_child(points)
    assert wrong == []
    assert seen["before"] > POINTS // 4
    assert seen["after"] > LAST // 8


def raised_after(seconds, function):
    """Return the error of a call that is interrupted so late."""
    pid = os.getpid()
    threading.Thread(target=lambda: (time.sleep(seconds), os.kill(pid, signal.SIGINT))).start()
    try:
        function()
    except (KeyboardInterrupt, mpired.MpiredError) as error:
        return type(error).__name__
    return None


LONG_CALLS = {
    "op": lambda: mpired.reduce(["r0.npy"] * 4, lambda invec, inoutvec: time.sleep(100), output="out.npy"),
    "op of a worker": lambda: mpired.reduce(["r0.npy"] * 4, "ops.py:slow", output="out.npy"),
    "fold": lambda: mpired.reduce(["r0.npy"] * 100_000, "sum", output="out.npy", jobs=1),
    "accumulate": lambda: mpired.Window("total.npy").accumulate(["r0.npy"] * 200_000, "sum"),
    "lock": lambda: mpired.Window("locked.npy", lock_timeout=100).accumulate("r0.npy", "sum"),
    "FIFO without a writer": lambda: mpired.reduce(["fifo"], "sum", type="int"),
    "FIFO": lambda: mpired.reduce(["held"], "sum", type="int"),
}


@pytest.mark.parametrize("name", LONG_CALLS)
def test_what_takes_long_ends_at_once(name):
    np.save("locked.npy", np.zeros(5000))
    Path("ops.py").write_text("import time\ndef slow(invec, inoutvec):\n    time.sleep(100)\n")
    for fifo in ("fifo", "held"):
        os.mkfifo(fifo)

    def long():
        writer = os.open("held", os.O_RDWR)
        fcntl.flock(os.open("locked.npy", os.O_RDONLY), fcntl.LOCK_EX)
        hold("locked.npy")
        there, files = open_files(), snapshot(".")
        raised = raised_after(0.5, LONG_CALLS[name])
        assert writer
        return raised, open_files() == there, snapshot(".") == files

    assert in_child(long) == ["KeyboardInterrupt", True, True]  # and within the limit of that


def warned(how_often):
    """Return what of a call without a place for its output comes, in which ctrl-C is pressed where it warns."""

    def press(*_):
        for _ in range(how_often):
            seen.append("pressed")
            os.kill(os.getpid(), signal.SIGINT)

    seen = []
    np.save("r10.npy", np.zeros(5000))
    with warnings.catch_warnings():
        warnings.showwarning = press
        warnings.simplefilter("always")
        try:
            try:
                mpired.reduce(["r10.npy", "r2.npy"], "first", output="none/out.npy")
            except OSError:
                seen.append("told")
                time.sleep(0)
        except KeyboardInterrupt:
            seen.append("interrupted")
    return seen


def test_an_error_is_told_before_it_and_a_second_one_is_raised_anywhere():
    """Where nothing else would end the call."""
    assert in_child(lambda: warned(1)) == ["pressed", "told", "interrupted"]
    assert in_child(lambda: warned(3)) == ["pressed", "pressed", "interrupted"]
