"""Readers beside an update: those that know nothing of mpired, and its own."""

from __future__ import annotations

import mmap
import os
import signal

import numpy as np
from command import Child
from faults import Counter, Fault, at
from shared_target import BASE, COUNT, many, reset, words

from mpired.context import NO_LIMITS
from mpired.options import ACCUMULATE, checked
from mpired.windows.call import plan_accumulate
from mpired.windows.transaction import transact


def test_a_reader_without_locks_sees_the_old_or_the_new(folder):
    target = folder / "targets" / BASE
    done = mmap.mmap(-1, 1)
    said = checked(ACCUMULATE, {"commit": "rename", "durability": "process"})

    def write() -> None:
        while not done[0]:
            transact(plan_accumulate([target], [folder / "add1.npy"], "sum", said, NO_LIMITS))

    seen = set()
    with many([write]):
        try:
            while len(seen) < 40:  # of the updates that came in between
                with open(target, "rb") as file:
                    elements = np.frombuffer(file.read()[128:], np.int64)
                assert len(elements) == COUNT
                assert elements.min() == elements.max()
                seen.add(int(elements[0]))
        finally:
            done[0] = 1


def test_reduce_waits_for_the_end_of_an_update(long, folder):
    """A command that opens the target while its log is carried out waits, and reads the whole."""
    counter = Counter()
    for number in range(1, 200, 1 if long else 3):
        reset(folder)
        counter.clear()
        stopped = Child(
            *words(1, "journal"), cwd=folder, setup=at(number, Fault("stop", signal.SIGSTOP), counter, BASE)
        )
        _, status = os.waitpid(stopped.pid, os.WUNTRACED)
        if os.WIFEXITED(status):
            return
        is_log_there = (folder / "targets" / f".{BASE}.mpired").exists()
        reader = Child("reduce", "-q", "--op", "sum", f"targets/{BASE}", "--to", "raw", cwd=folder)
        if not is_log_there:
            assert reader.finish().out == np.load(folder / "targets" / BASE).tobytes()
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.finish().status == 0
        if is_log_there:
            assert reader.finish() == (0, np.ones(COUNT, np.int64).tobytes(), "")
