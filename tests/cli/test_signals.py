"""Signals at every stage of a command, and deaths: nothing runs on, and no file is left."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command import COMMAND, alive, children, open_fifo, told_after, unchanged, wait_until
from rows import each
from running import ENDLESS, MEBIBYTE, OLD, end_in_time, running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A rank of 64 MiB that takes no space, and an old result; beside the folder a rank of 256 MiB."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for path, size in ((folder / "rank.bin", 64 * MEBIBYTE), (tmp_path / "large.bin", 256 * MEBIBYTE)):
        path.touch()
        os.truncate(path, size)
    (folder / "out").write_bytes(OLD)
    return folder


UNPREPARED = """
import _signal, sys
import mpired.__main__
def interrupted(*words):
    _signal.signal = usual
    raise KeyboardInterrupt
usual, _signal.signal = _signal.signal, interrupted
mpired.__main__.run()
"""


def test_interrupt_before_anything_listens(folder):
    words = [sys.executable, "-c", UNPREPARED, "reduce", "--op", "sum", "rank.bin"]
    done = subprocess.run(words, cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (-signal.SIGINT, b"", told_after(signal.SIGINT))


IN_PLACE = ("--op", "sum", "--type", "uint8_t")


@each("words, left", [
    (("reduce", *IN_PLACE, "fifo", "rank.bin", "-f", "-o", "out"), "no result was written"),
    (("accumulate", *IN_PLACE, "out", "fifo"), "out is as it was"),
    (("fetch-and-op", "-q", *IN_PLACE, "out", "fifo"), None),
    (("get-accumulate", *IN_PLACE, "--window", "out", "--window", "rank.bin", "--target-rank", "0", "fifo"),
     "out, rank.bin are as they were"),
])  # fmt: skip
def test_what_is_said_after_an_interrupt(words, left, folder):
    """Of a command that waits for a stream."""
    if not (folder / "fifo").exists():
        os.mkfifo(folder / "fifo")
    with unchanged(folder), running(*words, cwd=folder) as command, open_fifo(folder / "fifo"):
        os.kill(command.pid, signal.SIGINT)
        assert command.end() == (-signal.SIGINT, b"", told_after(signal.SIGINT, left) if left else "")


# As endless, into as many files as ranks; all together they hold one rank.
ENDLESS_BLOCKS = ("reduce-scatter-block", "--op", "sum", "--type", "uint8_t", "-j", "2", "-o", "new_{rank}",
                  *["../large.bin"] * 256)  # fmt: skip
NEW_FILE = [word if word != "out" else "new.bin" for word in ENDLESS]


@each("words, number, times", [
    (ENDLESS, signal.SIGTERM, 1),
    (ENDLESS, signal.SIGINT, 20),  # to all processes; those after the first change nothing
    (ENDLESS_BLOCKS, signal.SIGHUP, 1),
])  # fmt: skip
def test_signal_to_the_parent(words, number, times, folder):
    with unchanged(folder), running(*words, cwd=folder) as command:
        workers = command.workers()
        for _ in range(times):
            (os.kill if times == 1 else os.killpg)(command.pid, number)
        end_in_time([command.pid, *workers])
        assert command.end() == (-number, b"", told_after(number))


@each("words, number, which", [(NEW_FILE, signal.SIGSEGV, 1), (ENDLESS_BLOCKS, signal.SIGKILL, 0)])
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
        "mpired.reduce(['../large.bin'] * 600, op='sum', type='uint8_t', jobs=2, output='out', overwrite=True)\n"
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
