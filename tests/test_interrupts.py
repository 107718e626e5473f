"""Ctrl-C in a program that calls mpired: nothing has changed and nothing is left open, or the call has returned."""

import _thread
import fcntl
import os
import random
import signal
import struct
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from command import in_child, snapshot

import mpired

POINTS, LAST = 40, 80


def ranks():
    for number in range(3):
        np.save(f"r{number}.npy", np.arange(5000.0) + number)
    np.save("total.npy", np.zeros(5000))
    return [f"r{number}.npy" for number in range(3)]


def reduce():
    return mpired.reduce([f"r{number}.npy" for number in range(3)], "sum", output="out.npy", overwrite=True)


def scan():
    return mpired.scan([f"r{number}.npy" for number in range(3)], "sum", output="out{rank}.npy", overwrite=True)


def renamed():
    return mpired.Window("total.npy", commit="rename").accumulate([f"r{number}.npy" for number in range(3)], "sum")


def in_place():
    return mpired.Window("total.npy", commit="journal").accumulate([f"r{number}.npy" for number in range(3)], "sum")


def arrays():
    return mpired.reduce([f"r{number}.npy" for number in range(3)], "max")


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


@pytest.mark.parametrize("function", [reduce, scan, renamed, in_place, arrays])
def test_wherever_it_comes(tmp_path, monkeypatch, function):
    monkeypatch.chdir(tmp_path)

    def points():
        ranks()
        for _ in range(2):  # what is imported and kept is there then
            function()
        whole = At(0)
        whole.call(function)
        draw, wrong, seen = random.Random(5), [], {"before": 0, "after": 0}
        for number in [*draw.sample(range(1, whole.count), POINTS), *range(whole.count - LAST, whole.count)]:
            there, files, at = open_files(), snapshot("."), At(number)
            given, came = at.call(function)
            if at.count < number:  # that is after the call
                continue
            found = {
                "it did not come": not came,
                "files are open": open_files() != there,
                "changed": given is None and snapshot(".") != files,
                "not changed": given is not None and snapshot(".") == files and function is not arrays,
                "another handler": signal.getsignal(signal.SIGINT) is not signal.default_int_handler,
            }
            wrong += [(number - whole.count, what) for what, is_so in found.items() if is_so]
            seen["before" if given is None else "after"] += 1
        return wrong, seen

    wrong, seen = in_child(points)
    assert wrong == []
    assert seen["before"] > POINTS // 4
    assert seen["after"] > LAST // 4


def interrupted_after(seconds, function):
    """Return what a call gave that is interrupted so late, what it raised, and how long after that it ended."""
    ends, pid = [], os.getpid()

    def interrupt():
        time.sleep(seconds)
        ends.append(time.monotonic())
        os.kill(pid, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        given, raised = function(), None
    except (KeyboardInterrupt, mpired.MpiredError) as error:
        given, raised = None, type(error).__name__
    return given, raised, time.monotonic() - ends[0] if ends else None


def op(invec, inoutvec):
    time.sleep(100)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mpired.reduce(["r0.npy"] * 4, op, output="out.npy"),
        lambda: mpired.reduce(["r0.npy"] * 4, "ops.py:slow", output="out.npy"),
        lambda: mpired.reduce(["r0.npy"] * 100_000, "sum", output="out.npy", jobs=1),
        lambda: mpired.Window("total.npy").accumulate(["r0.npy"] * 200_000, "sum"),
        lambda: mpired.Window("locked.npy", lock_timeout=100).accumulate("r0.npy", "sum"),
        lambda: mpired.reduce(["fifo"], "sum", type="int"),
        lambda: mpired.reduce(["held"], "sum", type="int"),
    ],
    ids=["op", "op of a worker", "fold", "accumulate", "lock", "FIFO without a writer", "FIFO"],
)
def test_what_takes_long_ends_at_once(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    ranks()
    np.save("locked.npy", np.zeros(5000))
    Path("ops.py").write_text("import time\ndef slow(invec, inoutvec):\n    time.sleep(100)\n")
    for name in ("fifo", "held"):
        os.mkfifo(name)

    def long():
        writer = os.open("held", os.O_RDWR)
        reader = os.open("locked.npy", os.O_RDONLY)
        fcntl.flock(reader, fcntl.LOCK_EX)
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        locked = os.open("locked.npy", os.O_RDWR)
        fcntl.fcntl(locked, fcntl.F_OFD_SETLK, lock)
        there, files = open_files(), snapshot(".")
        _, raised, _ = interrupted_after(0.5, call)
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


def test_a_second_one_is_raised_anywhere(tmp_path, monkeypatch):
    """Where nothing else would end the call."""
    monkeypatch.chdir(tmp_path)
    ranks()
    assert in_child(lambda: warned(3)) == ["pressed", "pressed", "interrupted"]


def test_an_error_is_told_before_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ranks()
    assert in_child(lambda: warned(1)) == ["pressed", "told", "interrupted"]


def test_other_handlers_and_threads_are_as_they_were(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ranks()

    def others():
        came = []

        def mine(*_):
            came.append(1)

        signal.signal(signal.SIGINT, mine)

        def handler(invec, inoutvec):
            came.append(signal.getsignal(signal.SIGINT) is mine)
            return invec + inoutvec

        mpired.reduce(["r0.npy", "r1.npy"], handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        thread = threading.Thread(target=lambda: mpired.reduce(["r0.npy", "r1.npy"], usual))

        def usual(invec, inoutvec):
            came.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
            return invec + inoutvec

        thread.start()
        thread.join()
        return came

    assert set(in_child(others)) == {True}
