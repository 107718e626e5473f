"""Workers or the command itself are killed: nothing runs on, and no file is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

from command import COMMAND, alive, children, told_after, unchanged, wait_until
from rows import each
from running import ENDLESS, end_in_time, running

# As endless, into as many files as ranks; all together they hold one rank.
ENDLESS_BLOCKS = ("reduce-scatter-block", "--op", "sum", "--type", "uint8_t", "-j", "2", "-o", "new_{rank}",
                  *["rank.bin"] * 512)  # fmt: skip
NEW_FILE = [word if word != "out" else "new.bin" for word in ENDLESS]


@each(
    "words, number, which",
    [
        (ENDLESS, signal.SIGKILL, 1),
        (NEW_FILE, signal.SIGSEGV, 0),
        (ENDLESS, signal.SIGTERM, 0),
        (ENDLESS_BLOCKS, signal.SIGKILL, 0),
    ],
)
def test_death_of_a_worker_ends_the_run(words, number, which, folder):
    with unchanged(folder), running(*words, cwd=folder) as command:
        workers = command.workers()
        os.kill(workers[which], number)
        wait_until(lambda: command.process.poll() is not None)
        status, out, err = command.end()
        assert (status, out) == (8, b"")
        assert re.fullmatch(r"mpired: [^\n]*worker[^\n]*died[^\n]*\n", err)
        end_in_time(workers)


@each("words", [ENDLESS, ENDLESS_BLOCKS])
def test_death_of_the_parent_ends_the_workers(words, folder):
    with unchanged(folder), running(*words, cwd=folder) as command:
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


@each("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_many_results_are_made(number, folder):
    with unchanged(folder), running(*ENDLESS_BLOCKS, cwd=folder) as command:
        workers = command.workers()
        os.kill(command.pid, number)
        end_in_time([command.pid, *workers])
        assert command.end() == (-number, b"", told_after(number))
