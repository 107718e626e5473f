"""Signals at every stage of a command, and deaths: nothing runs on, and no file is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import COMMAND, alive, children, open_fifo, told_after, unchanged, wait_until
from rows import each
from running import ENDLESS, MEBIBYTE, SHORT, end_in_time, running
from updates import hold

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@each("number", [signal.SIGINT, signal.SIGTERM])  # which workers ignore, and by which they end
def test_signal_to_all_processes_as_a_shell_sees_it(number, folder):
    """With job control the shell gives its job a process group of its own, as it does for ctrl-C."""
    script = 'set -m; "$@" 2> errors & echo $!; wait $!; echo $?'
    words = ["bash", "-c", script, "bash", COMMAND, *ENDLESS]
    with (
        unchanged(folder),
        subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as bash,
    ):
        assert bash.stdout is not None
        pid = int(bash.stdout.readline())
        try:
            wait_until(lambda: len(children(pid)) == 2)
            workers = children(pid)
            os.killpg(pid, number)
            end_in_time([pid, *workers])
            assert int(bash.stdout.readline()) == 128 + number
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        assert (folder / "errors").read_text() == told_after(number)
        (folder / "errors").unlink()


IMPORTING = """
import dataclasses, os, sys
def named(field, owner, name):
    if owner.__name__ == "TypeMap":
        os.kill(os.getpid(), int(sys.argv.pop()))
    return kept(field, owner, name)
kept, dataclasses.Field.__set_name__ = dataclasses.Field.__set_name__, named
from mpired.__main__ import run
run()
"""


@each("number", SIGNALS)
def test_signal_while_modules_are_loaded(number, folder):
    """Python would make another error of an exception that comes there, so it comes afterwards."""
    words = [sys.executable, "-c", IMPORTING, "reduce", "--op", "sum", "--type", "uint8_t", "rank.bin", "-o", "new.bin"]
    with unchanged(folder):
        done = subprocess.run([*words, str(int(number))], cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (-number, b"", told_after(number))


STARTING = """
import os, sys
import mpired.__main__
where, times = sys.argv.pop(), int(sys.argv.pop())
imported = []
def interrupt(event, arguments):
    if event == "import":
        imported.append(arguments[0])
        if where in (arguments[0], str(len(imported))):
            for _ in range(times):
                os.kill(os.getpid(), 2)
sys.addaudithook(interrupt)
mpired.__main__.run()
"""


@each(
    "where, flag, times",
    [
        *((where, "-v", 1) for where in ("1", "20", "100", "numpy", "pyarrow.parquet")),
        *((where, *how) for where in ("mpired.cli", "numpy.linalg") for how in (("-q", 1), ("-v", 2))),
    ],
)
def test_interrupt_of_an_import(where, flag, times, folder):
    """From the first line of the program on: what comes before is Python's. A second one ends the start at once."""
    words = [sys.executable, "-c", STARTING, "reduce", flag, "--op", "sum", "cells.parquet", "-o", "new.parquet"]
    pq.write_table(pa.table({"x": [1.0]}), folder / "cells.parquet")
    with unchanged(folder):
        done = subprocess.run([*words, str(times), where], cwd=folder, capture_output=True, check=False)
    told = told_after(signal.SIGINT) if (flag, times) == ("-v", 1) else ""
    assert (done.returncode, done.stdout, done.stderr.decode()) == (-signal.SIGINT, b"", told)


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


LEFT_BY_RECOVER = "repeat it for the files that have no line yet"
IN_PLACE = ("--op", "sum", "--type", "uint8_t")


@pytest.fixture
def with_fifo(folder):
    """The folder, with a stream that a command waits for."""
    os.mkfifo(folder / "fifo")
    return folder


@each(
    "words, left",
    [
        (("reduce", *IN_PLACE, "fifo", "rank.bin", "-f", "-o", "out"), "no result was written"),
        (("reduce", "-q", *IN_PLACE, "fifo", "-f", "-o", "out"), None),
        (("info", "--type", "uint8_t", "fifo"), "no result was written"),
        (("accumulate", *IN_PLACE, "out", "fifo"), "out is as it was"),
        (("accumulate", "-q", *IN_PLACE, "out", "fifo"), None),
        (
            ("get-accumulate", *IN_PLACE, "--window", "out", "--window", "rank.bin", "--target-rank", "0", "fifo"),
            "out, rank.bin are as they were",
        ),
        (("fetch-and-op", *IN_PLACE, "out", "fifo"), "out is as it was"),
    ],
)
def test_what_is_said_after_an_interrupt(words, left, with_fifo):
    with unchanged(with_fifo), running(*words, cwd=with_fifo) as command, open_fifo(with_fifo / "fifo"):
        os.kill(command.pid, signal.SIGINT)
        assert command.end() == (-signal.SIGINT, b"", told_after(signal.SIGINT, left) if left else "")


@each("output, number", [("out", signal.SIGINT), ("out", signal.SIGTERM), ("-", signal.SIGINT), ("-", signal.SIGHUP)])
def test_json_after_a_signal(output, number, with_fifo):
    words = ("reduce", "--json", *IN_PLACE, "fifo", "-f", "-o", output)
    with unchanged(with_fifo), running(*words, cwd=with_fifo) as command, open_fifo(with_fifo / "fifo"):
        os.kill(command.pid, number)
        status, out, err = command.end()
    failure = json.loads(err if output == "-" else out)
    assert (status, failure["exit_status"]) == (-number, 128 + number)
    assert (failure["error"], failure["reason"]) == ("Interrupted", "interrupted; no result was written")
    if output == "-":
        assert (out, err.count("\n")) == (b"", 1)
    else:
        assert err == told_after(number)


def test_an_interrupted_recovery_says_that_files_are_left(folder):
    (folder / ".out.mpired").touch()
    fd = hold(folder / ".out.mpired")
    with unchanged(folder), running("recover", "rank.bin", "out", cwd=folder) as command:
        assert command.process.stdout is not None
        assert command.process.stdout.readline() == b"rank.bin: nothing to do\n"
        os.kill(command.pid, signal.SIGINT)
        assert command.end() == (-signal.SIGINT, b"", told_after(signal.SIGINT, LEFT_BY_RECOVER))
    os.close(fd)


def test_hangup_that_is_ignored_stays_ignored(with_fifo):
    """Under nohup a run ends well: the signal is for nobody, also while it waits."""
    words = ("reduce", "-q", *IN_PLACE, "fifo", "-o", "out", "-f")
    with running(*words, cwd=with_fifo, prefix=("nohup",)) as command, open_fifo(with_fifo / "fifo") as fifo:
        for _ in range(3):
            os.killpg(command.pid, signal.SIGHUP)
        fifo.write(b"abc")
        fifo.close()
        status, out, _ = command.end()
        assert (status, out) == (0, b"")
    assert (with_fifo / "out").read_bytes() == b"abc"


def test_hangup_that_is_ignored_does_not_reach_the_workers(folder):
    with running(*SHORT, cwd=folder, prefix=("nohup",)) as command:
        workers = command.workers()
        for worker in workers:  # so that they are there when the signal is
            os.kill(worker, signal.SIGSTOP)
        os.killpg(command.pid, signal.SIGHUP)
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        os.killpg(command.pid, signal.SIGSTOP)
        os.killpg(command.pid, signal.SIGCONT)
        status, out, err = command.end()
        assert (status, out) == (0, b""), err
    assert (folder / "out").read_bytes() == bytes(64 * MEBIBYTE)


# As endless, into as many files as ranks; all together they hold one rank.
ENDLESS_BLOCKS = ("reduce-scatter-block", "--op", "sum", "--type", "uint8_t", "-j", "2", "-o", "new_{rank}",
                  *["../large.bin"] * 256)  # fmt: skip
NEW_FILE = [word if word != "out" else "new.bin" for word in ENDLESS]


@each(
    "words, number, times",
    [
        *((ENDLESS, number, 1) for number in SIGNALS),
        (ENDLESS, signal.SIGINT, 20),  # to all processes; those after the first change nothing
        (ENDLESS_BLOCKS, signal.SIGINT, 1),
    ],
)
def test_signal_to_the_parent(words, number, times, folder):
    with unchanged(folder), running(*words, cwd=folder) as command:
        workers = command.workers()
        for _ in range(times):
            (os.kill if times == 1 else os.killpg)(command.pid, number)
        end_in_time([command.pid, *workers])
        assert command.end() == (-number, b"", told_after(number))


@each(
    "words, number, which",
    [(ENDLESS, signal.SIGKILL, 1), (NEW_FILE, signal.SIGSEGV, 0), (ENDLESS_BLOCKS, signal.SIGKILL, 0)],
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
