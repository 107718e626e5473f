"""Signals that are held back: they come at the end of the block, whichever thread the kernel gives them to."""

import contextlib
import itertools
import os
import signal
import threading
import time

import pytest
from command import in_child

from mpired import interrupts

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

pytestmark = pytest.mark.parametrize("beside", [False, True], ids=["one thread", "threads"])


def handler(number, _frame):
    raise KeyboardInterrupt(number)


def another_thread(*, beside):
    """Start a thread, if there is to be one: the main thread blocks the signals, so the kernel gives them to this."""
    if beside:
        threading.Thread(target=threading.Event().wait, daemon=True).start()


def send(number):
    os.kill(os.getpid(), number)
    time.sleep(0.1)  # until a thread has got it


def test_it_comes_at_the_end(beside):
    def held():
        another_thread(beside=beside)
        found = []
        for number in NUMBERS:
            signal.signal(number, handler)
            done = []
            try:
                with interrupts.defer_signals(), interrupts.defer_signals():
                    send(number)
                    done.append("all")
            except KeyboardInterrupt as came:
                done += came.args
            mask = len(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
            found.append([*done, signal.getsignal(number) is handler, mask])
        return found

    assert in_child(held) == [["all", number, True, 0] for number in NUMBERS]


def test_a_block_of_another_thread_leaves_the_handlers(beside):
    def another():
        seen = []

        def block():
            with interrupts.defer_signals():
                seen.append(signal.getsignal(signal.SIGTERM) is handler)

        signal.signal(signal.SIGTERM, handler)
        another_thread(beside=beside)
        thread = threading.Thread(target=block)
        thread.start()
        thread.join()
        return seen

    assert in_child(another) == [True]


def sender_of_signals():
    """Start a process that sends this one signals as long as both live; return its pid."""
    mine, sender = os.getpid(), os.fork()
    if sender:
        return sender
    for number in itertools.takewhile(lambda _: os.getppid() == mine, itertools.cycle(NUMBERS)):
        os.kill(mine, number)
        time.sleep(0.0002)
    os._exit(0)


def test_handlers_that_raise_leave_nothing_held_back(beside):
    """Whenever one raises while others are put back: all are back afterwards, and so is the mask."""

    def storm():
        armed = False

        def raising(_number, _frame):
            nonlocal armed
            if armed:
                armed = False
                raise KeyboardInterrupt

        for number in NUMBERS:
            signal.signal(number, raising)
        another_thread(beside=beside)
        sender = sender_of_signals()
        seen, end = 0, time.monotonic() + 0.6
        while seen < 100 or time.monotonic() < end:
            with contextlib.suppress(KeyboardInterrupt):
                armed = True
                with interrupts.defer_signals():
                    seen += 1
                armed = False
            left = [number for number in NUMBERS if signal.getsignal(number) is not raising]
            if left or signal.pthread_sigmask(signal.SIG_BLOCK, ()):
                return [left, seen]
        os.kill(sender, signal.SIGKILL)
        os.waitpid(sender, 0)
        return "nothing"

    assert in_child(storm) == "nothing"
