"""Processes that work at a shared target: a function of the test in a child."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable


def forked(function: Callable[[], object]) -> int:
    """Call a function in a child, and return its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.alarm(100)
        function()
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the test shall show it
        traceback.print_exc()
    finally:
        os._exit(status)


def ended_well(pids: list[int]) -> None:
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
