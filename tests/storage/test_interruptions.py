"""Signals that are held back: they come at the end of the block, whichever thread the kernel gives them to."""

import os
import signal
import threading
import time

import pytest
from command import in_child

from mpired.storage import interruptions

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handler(number, _frame):
    raise KeyboardInterrupt(number)


def held(number, *, beside):
    """Return what of a block that gets a signal is done, and what comes after it."""
    signal.signal(number, handler)
    if beside:  # the main thread blocks it, so the kernel gives it to this one
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    done = []
    try:
        with interruptions.blocked(), interruptions.blocked():
            os.kill(os.getpid(), number)
            time.sleep(0.1)  # until a thread has got it
            done.append("all")
    except KeyboardInterrupt as came:
        done += came.args
    return [*done, signal.getsignal(number) is handler, len(signal.pthread_sigmask(signal.SIG_BLOCK, ()))]


@pytest.mark.parametrize("beside", [False, True], ids=["one thread", "threads"])
@pytest.mark.parametrize("number", NUMBERS)
def test_it_comes_at_the_end(number, beside):
    assert in_child(lambda: held(number, beside=beside)) == ["all", number, True, 0]


@pytest.mark.parametrize("beside", [False, True], ids=["one thread", "threads"])
def test_what_is_ignored_from_then_on_does_not_come(beside):
    def ignored():
        signal.signal(signal.SIGTERM, handler)
        if beside:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        with interruptions.blocked():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return signal.getsignal(signal.SIGTERM) is signal.SIG_IGN

    assert in_child(ignored) is True


def test_a_block_of_another_thread_leaves_the_handlers():
    def another():
        seen = []

        def block():
            with interruptions.blocked():
                seen.append(signal.getsignal(signal.SIGTERM) is handler)

        signal.signal(signal.SIGTERM, handler)
        thread = threading.Thread(target=block)
        thread.start()
        thread.join()
        return seen

    assert in_child(another) == [True]
