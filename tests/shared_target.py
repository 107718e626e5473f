"""A target that several commands work at: how it is made and read, and how processes are stopped and started."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
from values import one_value

BASE = "total.npy"
COUNT = 3000


def reset(folder: Path, count: int = COUNT) -> None:
    for path in (folder / "targets").iterdir():
        path.unlink()
    np.save(folder / "targets" / BASE, np.zeros(count, np.int64))


def value(folder: Path) -> int | None:
    """Return the one value of all elements, None if they differ."""
    return one_value(folder / "targets" / BASE)


def words(number: int, commit: str, *others: str) -> tuple[str, ...]:
    return ("accumulate", "-q", "--op", "sum", "--commit", commit, *others, f"targets/{BASE}", f"add{number}.npy")


# Each adds 1 to every element of the target; `{}` is the target.
IN_PLACE = {
    "reduce --in-place": ("reduce", "--op", "sum", "add1.npy", "{}", "--root", "1", "--in-place"),
    "reduce -f -o": ("reduce", "--op", "sum", "add1.npy", "other.npy", "-f", "-o", "{}"),
    "reduce-local": ("reduce-local", "--op", "sum", "add1.npy", "{}"),
    "scan --in-place": ("scan", "--op", "sum", "add1.npy", "{}", "--in-place"),
    "scan -f -o": ("scan", "--op", "sum", "add1.npy", BASE, "-f", "-o", "targets/{{stem}}.npy"),
    "allreduce --in-place": ("allreduce", "--op", "sum", "add1.npy", "{}", "--in-place"),
    "reduce-scatter-block": ("reduce-scatter-block", "--op", "sum", "add1.npy", "{}", "--in-place"),
    "exscan": ("exscan", "--op", "sum", "add1.npy", "{}", "add1b.npy", "--in-place"),
    "unpack --into": ("unpack", "--type", "int64_t", "--offset", "128", "add1.npy", "--into", "{}"),
    "pack -f -o": ("pack", "--type", "int64_t", "--offset", "128", "add1.npy", "-f", "-o", "{}"),
    "get-accumulate --fetch": ("get-accumulate", "--op", "sum", "other.npy", "add1.npy", "--fetch", "{}", "-f"),
}
# Those whose result is that of the target before, so that an update that is lost shows.
ADDING = ("reduce --in-place", "reduce-local", "scan --in-place", "allreduce --in-place")


def in_place(folder: Path, command: str) -> tuple[str, ...]:
    """Return the words of a command, and make its files."""
    reset(folder)
    np.save(folder / "add1.npy", np.ones(COUNT, np.int64))
    np.save(folder / "add1b.npy", np.ones(COUNT, np.int64))
    np.save(folder / "other.npy", np.ones(COUNT, np.int64))
    np.save(folder / BASE, np.ones(COUNT, np.int64))
    verb, *others = IN_PLACE[command]
    return (verb, "-q", *(word.format(f"targets/{BASE}") for word in others))


def stopping_at(*names: str) -> Callable[[], None]:
    """Return a setup that stops the process at the first of some calls of `os`, before it is made."""

    def setup() -> None:
        def stop(original: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **settings: object) -> object:
                for name in names:
                    setattr(os, name, originals[name])
                os.kill(os.getpid(), signal.SIGSTOP)
                return original(*arguments, **settings)

            return call

        originals = {name: getattr(os, name) for name in names}
        for name in names:
            setattr(os, name, stop(originals[name]))

    return setup


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
