"""Several windows are locked in one order."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import numpy as np
from command import run
from faults import stopped

from mpired.files import calls


def stopping_at_lock(number: int) -> Callable[[], None]:
    """Return a setup that stops the process before it takes its n-th lock."""

    def setup() -> None:
        original, left = calls.lock, number

        def lock_(*arguments: object, **settings: object) -> bool:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            return original(*arguments, **settings)

        calls.lock = lock_

    return setup


def test_windows_in_opposite_order_do_not_wait_for_each_other(folder):
    """In the order of inodes they would: a target that is replaced gets another inode."""
    names = ["targets/a.npy", "targets/b.npy"]
    np.save(folder / "one.npy", np.ones(1, np.int64))
    for name in names:
        np.save(folder / name, np.zeros(1, np.int64))

    def update(*order: str) -> tuple[str, ...]:
        windows = [word for name in order for word in ("--window", name)]
        return ("accumulate", "-q", "--op", "sum", *windows, "--target-rank", "0", "--lock-timeout", "4", "one.npy")

    first = stopped(*update(*names), cwd=folder, setup=stopping_at_lock(1))
    for _ in range(50):
        replaced = run("accumulate", "-q", "--op", "sum", "--commit", "rename", names[0], "one.npy", cwd=folder)
        assert replaced.status == 0
        if os.stat(folder / names[0]).st_ino > os.stat(folder / names[1]).st_ino:
            break
    else:
        raise AssertionError("a new file never got a greater inode")
    second = stopped(*update(*names[::-1]), cwd=folder, setup=stopping_at_lock(2))
    os.kill(first.pid, signal.SIGCONT)
    time.sleep(0.3)  # for it to take what it can, which is what makes the two wait for each other in a wrong order
    os.kill(second.pid, signal.SIGCONT)
    assert [first.finish(), second.finish()] == [(0, b"", "")] * 2


def test_hard_links_that_cross_do_not_wait_for_each_other(folder):
    """By their paths the first comes to `a` before `b`, and the second the other way round."""
    np.save(folder / "one.npy", np.ones(1, np.int64))
    for name, other in [("a", "z"), ("b", "y")]:
        np.save(folder / f"targets/{name}.npy", np.zeros(1, np.int64))
        os.link(folder / f"targets/{name}.npy", folder / f"targets/{other}.npy")

    def update(*names: str) -> tuple[str, ...]:
        windows = [word for name in names for word in ("--window", f"targets/{name}.npy")]
        return ("accumulate", "-q", "--op", "sum", *windows, "--target-rank", "0", "--lock-timeout", "20", "one.npy")

    children = [
        stopped(*update("a", "y"), cwd=folder, setup=stopping_at_lock(2)),
        stopped(*update("b", "z"), cwd=folder, setup=stopping_at_lock(2)),
    ]
    for child in children:
        os.kill(child.pid, signal.SIGCONT)
    assert [child.finish() for child in children] == [(0, b"", "")] * 2
    assert [np.load(folder / f"targets/{name}.npy")[0] for name in "abyz"] == [1, 1, 1, 1]
