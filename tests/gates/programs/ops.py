"""The ops of the cases: some fail, wait, or end their process."""

import os
import signal
import time

import mpired


@mpired.op(commute=True)
def add(a, b):
    return a + b


def fails(a, b):
    return 1 / 0


def waits(a, b):
    time.sleep(60)


def dies(a, b):
    os.kill(os.getpid(), signal.SIGKILL)


def _signalled(number):
    """Send a signal to the command, whose worker this process is, and wait for the end."""
    os.kill(os.getppid(), number)
    time.sleep(60)


def hangs_up(a, b):
    _signalled(signal.SIGHUP)


def interrupts(a, b):
    _signalled(signal.SIGINT)


def terminates(a, b):
    _signalled(signal.SIGTERM)
