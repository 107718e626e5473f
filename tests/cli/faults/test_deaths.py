"""Workers or the command itself are killed: nothing runs on, and no file is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from command import COMMAND, alive, children, told_after, unchanged, wait_until
from running import ENDLESS, MEBIBYTE, end_in_time, running


@pytest.mark.parametrize(
    ("number", "which"),
    [(signal.SIGKILL, 0), (signal.SIGKILL, 1), (signal.SIGSEGV, 0), (signal.SIGBUS, 1), (signal.SIGTERM, 0)],
)
def test_death_of_a_worker_ends_the_run(number, which, folder):
    with unchanged(folder), running(*ENDLESS, cwd=folder) as command:
        workers = command.workers()
        os.kill(workers[which], number)
        wait_until(lambda: command.process.poll() is not None)
        status, out, err = command.end()
        assert (status, out) == (8, b"")
        assert re.fullmatch(r"mpired: [^\n]*worker[^\n]*died[^\n]*\n", err)
        end_in_time(workers)


def test_death_of_a_worker_leaves_no_new_file(folder):
    words = [word if word != "out" else "new.bin" for word in ENDLESS]
    with unchanged(folder), running(*words, cwd=folder) as command:
        os.kill(command.workers()[0], signal.SIGKILL)
        assert command.end()[0] == 8


def test_death_of_the_parent_ends_the_workers(folder):
    with unchanged(folder), running(*ENDLESS, cwd=folder) as command:
        workers = command.workers()
        os.kill(command.pid, signal.SIGKILL)
        end_in_time(workers)
        assert command.end()[:2] == (-signal.SIGKILL, b"")


def test_death_of_a_parent_with_threads(folder):
    """Its workers are interpreters of their own."""
    script = (
        "import threading, mpired\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "mpired.reduce(['rank.bin'] * 3000, op='sum', type='uint8_t', jobs=2, output='out', overwrite=True)\n"
    )
    python = str(Path(COMMAND).with_name("python"))
    with unchanged(folder), subprocess.Popen([python, "-c", script], cwd=folder, process_group=0) as process:
        try:
            found: list[int] = []

            def workers_run() -> bool:
                found[:] = children(process.pid)
                return len(found) == 2 and all(alive(worker) for worker in found)

            wait_until(workers_run)
            helpers = children(process.pid)
            process.kill()
            end_in_time([*found, *helpers])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


# Many results: what was drafted is gone again


# As endless, into as many files as ranks; all together they hold one rank.
ENDLESS_BLOCKS = ("reduce-scatter-block", "--op", "sum", "--type", "uint8_t", "-j", "2", "-o", "new_{rank}",
                  *["rank.bin"] * 256)  # fmt: skip


@pytest.fixture
def large_folder(folder: Path) -> Path:
    """A rank of 256 MiB that takes no space."""
    os.truncate(folder / "rank.bin", 256 * MEBIBYTE)
    return folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_while_many_results_are_made(number, large_folder):
    with unchanged(large_folder), running(*ENDLESS_BLOCKS, cwd=large_folder) as command:
        workers = command.workers()
        os.kill(command.pid, number)
        end_in_time([command.pid, *workers])
        assert command.end() == (-number, b"", told_after(number))


def test_death_of_a_worker_while_many_results_are_made(large_folder):
    with unchanged(large_folder), running(*ENDLESS_BLOCKS, cwd=large_folder) as command:
        workers = command.workers()
        os.kill(workers[0], signal.SIGKILL)
        wait_until(lambda: command.process.poll() is not None)
        status, out, err = command.end()
        assert (status, out) == (8, b"")
        assert re.fullmatch(r"mpired: [^\n]*worker[^\n]*died[^\n]*\n", err)


def test_death_of_the_parent_while_many_results_are_made(large_folder):
    with unchanged(large_folder), running(*ENDLESS_BLOCKS, cwd=large_folder) as command:
        workers = command.workers()
        os.kill(command.pid, signal.SIGKILL)
        end_in_time(workers)
