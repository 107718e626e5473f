"""What happens when the machine does not play along: processes killed, signals, full disks, limits.

Real processes of the installed command. Nothing here sleeps: a test waits for what it needs to see,
and a run is as long as it has to be because it reads the same file again and again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import COMMAND, alive, children, installed, measured, open_fifo, refused, run, shell, unchanged, wait_until

MEBIBYTE = 1 << 20
OLD = b"the old result"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A rank of 64 MiB that takes no space, and an old result."""
    with open(tmp_path / "rank.bin", "wb") as file:
        file.truncate(64 * MEBIBYTE)
    (tmp_path / "out").write_bytes(OLD)
    return tmp_path


@pytest.fixture
def small_folder(tmp_path: Path) -> Path:
    """A rank of 2 MiB, and an old result."""
    (tmp_path / "small.bin").write_bytes(bytes(2 * MEBIBYTE))
    (tmp_path / "out").write_bytes(OLD)
    return tmp_path


# More than any machine reads in the time that a test takes.
ENDLESS = ("reduce", "--op", "sum", "--type", "uint8_t", "-j", "2", "-f", "-o", "out", *["rank.bin"] * 6000)
# Long enough to be caught, and soon at its end.
SHORT = ("reduce", "--op", "sum", "--type", "uint8_t", "-j", "2", "-f", "-o", "out", *["rank.bin"] * 10)


class Running:
    """The installed command at work, in a process group of its own."""

    def __init__(self, *words: str, cwd: Path, prefix: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, COMMAND, *words],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def workers(self, count: int = 2) -> list[int]:
        """Wait for the workers."""
        wait_until(lambda: len(children(self.pid)) >= count or self.process.poll() is not None)
        found = children(self.pid)
        assert len(found) == count, self.process.communicate()
        return found

    def end(self) -> tuple[int, bytes, str]:
        """Wait for the end."""
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err.decode()


@contextlib.contextmanager
def running(*words: str, cwd: Path, prefix: tuple[str, ...] = ()) -> Iterator[Running]:
    """Run the command beside the test; nothing of it is left after the block."""
    command = Running(*words, cwd=cwd, prefix=prefix)
    try:
        yield command
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
        command.process.communicate()


def end_in_time(pids: list[int]) -> None:
    """Check that processes end, which else would go on for much longer."""
    wait_until(lambda: not any(alive(pid) for pid in pids), seconds=20)


# Deaths


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGTERM])
@pytest.mark.parametrize("which", [0, 1])
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
        assert command.end() == (-number, b"", "")


def test_death_of_a_worker_while_many_results_are_made(large_folder):
    with unchanged(large_folder), running(*ENDLESS_BLOCKS, cwd=large_folder) as command:
        workers = command.workers()
        os.kill(workers[0], signal.SIGKILL)
        wait_until(lambda: command.process.poll() is not None)
        status, out, err = command.end()
        assert (status, out) == (8, b"")
        assert re.fullmatch(r"mpired: [^\n]*worker[^\n]*died[^\n]*\n", err)


def test_death_of_the_parent_while_many_results_are_made(large_folder):
    """What it leaves is removed by the next command in that large_folder."""
    with unchanged(large_folder):
        with running(*ENDLESS_BLOCKS, cwd=large_folder) as command:
            workers = command.workers()
            os.kill(command.pid, signal.SIGKILL)
            end_in_time(workers)
        assert any(name.endswith(".mpired-together") for name in os.listdir(large_folder))
        assert installed("info", "--type", "byte", "rank.bin", cwd=large_folder).status == 0


# Signals


@pytest.mark.parametrize(("number", "status"), [("INT", 130), ("TERM", 143), ("HUP", 129)])
def test_signal_to_all_processes_as_a_shell_sees_it(number, status, folder):
    """With job control the shell gives its job a process group of its own, as it does for ctrl-C."""
    script = 'set -m; "$@" 2> errors & echo $!; wait $!; echo $?'
    with unchanged(folder):
        with subprocess.Popen(
            ["bash", "-c", script, "bash", COMMAND, *ENDLESS],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as bash:
            assert bash.stdout is not None
            pid = int(bash.stdout.readline())
            try:
                wait_until(lambda: len(children(pid)) == 2)
                workers = children(pid)
                os.killpg(pid, getattr(signal, f"SIG{number}"))
                end_in_time([pid, *workers])
                assert int(bash.stdout.readline()) == status
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        assert (folder / "errors").read_bytes() == b""
        (folder / "errors").unlink()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_the_parent_alone(number, folder):
    with unchanged(folder), running(*ENDLESS, cwd=folder) as command:
        workers = command.workers()
        os.kill(command.pid, number)
        end_in_time([command.pid, *workers])
        assert command.end() == (-number, b"", "")


def test_second_signal_changes_nothing(folder):
    with unchanged(folder), running(*ENDLESS, cwd=folder) as command:
        workers = command.workers()
        for _ in range(20):
            os.killpg(command.pid, signal.SIGINT)
        end_in_time([command.pid, *workers])
        assert command.end() == (-signal.SIGINT, b"", "")


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_while_modules_are_loaded(number, folder):
    """Python would make another error of an exception that comes there."""
    words = [sys.executable, "-c", IMPORTING, "reduce", "--op", "sum", "--type", "uint8_t", "rank.bin", "-o", "new.bin"]
    with unchanged(folder):
        done = subprocess.run([*words, str(int(number))], cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-number, b"", b"")


STARTING = """
import os, sys
import mpired.__main__
left = int(sys.argv.pop())
def interrupt(event, arguments):
    global left
    if event == "import":
        left -= 1
        if not left:
            os.kill(os.getpid(), 2)
sys.addaudithook(interrupt)
mpired.__main__.run()
"""


@pytest.mark.parametrize("number", [1, 2, 5, 20, 60, 100])
def test_interrupt_of_an_import_at_the_start(number, folder):
    """From the first line of the program on: what comes before is Python's."""
    words = [sys.executable, "-c", STARTING, "reduce", "--op", "sum", "--type", "uint8_t", "rank.bin", "-o", "new.bin"]
    with unchanged(folder):
        done = subprocess.run([*words, str(number)], cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_while_waiting_for_a_stream(number, folder):
    os.mkfifo(folder / "fifo")
    words = ("reduce", "--op", "sum", "--type", "uint8_t", "fifo", "rank.bin", "-o", "out", "-f")
    with unchanged(folder), running(*words, cwd=folder) as command, open_fifo(folder / "fifo"):
        os.kill(command.pid, number)
        assert command.end() == (-number, b"", "")


def test_hangup_that_is_ignored_stays_ignored(folder):
    """Under nohup a run ends well: the signal is for nobody, also while it waits."""
    os.mkfifo(folder / "fifo")
    words = ("reduce", "-q", "--op", "sum", "--type", "uint8_t", "fifo", "-o", "out", "-f")
    with running(*words, cwd=folder, prefix=("nohup",)) as command, open_fifo(folder / "fifo") as fifo:
        for _ in range(3):
            os.killpg(command.pid, signal.SIGHUP)
        fifo.write(b"abc")
        fifo.close()
        status, out, _ = command.end()
        assert (status, out) == (0, b"")
    assert (folder / "out").read_bytes() == b"abc"


def test_hangup_that_is_ignored_does_not_reach_the_workers(folder):
    with running(*SHORT, cwd=folder, prefix=("nohup",)) as command:
        workers = command.workers()
        for worker in workers:  # so that they are there when the signal is
            os.kill(worker, signal.SIGSTOP)
        os.killpg(command.pid, signal.SIGHUP)
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        status, out, err = command.end()
        assert (status, out) == (0, b""), err
    assert (folder / "out").read_bytes() == bytes(64 * MEBIBYTE)


def test_stopped_and_continued(folder):
    with running(*SHORT, cwd=folder) as command:
        command.workers()
        os.killpg(command.pid, signal.SIGSTOP)
        os.killpg(command.pid, signal.SIGCONT)
        assert command.end()[0] == 0
    assert (folder / "out").read_bytes() == bytes(64 * MEBIBYTE)


# Space


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_full_disk(jobs, mounted, folder):
    where = mounted("size=1m")
    (where / "out").write_bytes(OLD)
    words = ("reduce", "--op", "sum", "--type", "double", "-j", jobs, "-o", str(where / "out"), "-f")
    with unchanged(where):
        refused(installed(*words, *["rank.bin"] * 4, cwd=folder), 4, str(where / "out"), "No space left")


def test_disk_that_fills_up_while_the_result_is_written(mounted, folder):
    """Nothing was reserved: the space is gone when the workers write."""
    where = mounted("size=9m")
    (where / "out").write_bytes(OLD)

    def nothing_reserved() -> None:
        os.posix_fallocate = lambda fd, _start, nbytes: os.ftruncate(fd, nbytes)

    words = ("reduce", "--op", "sum", "--type", "double", "-j", "2", "-o", str(where / "out"), "-f")
    with unchanged(where):
        outcome = run(*words, *["rank.bin"] * 4, cwd=folder, setup=nothing_reserved)
        refused(outcome, 4, str(where / "out"), "No space left")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_file_size_limit(jobs, folder):
    words = ("reduce", "--op", "sum", "--type", "double", "-j", jobs, "-o", "out", "-f", *["rank.bin"] * 4)
    with unchanged(folder):
        refused(shell('ulimit -f 1024; exec "$@"', *words, cwd=folder), 4, "out", "File too large")


def test_full_place_for_temporary_files(mounted, small_folder):
    """Standard output is computed in a temporary file first."""
    where = mounted("size=1m")
    with unchanged(small_folder):
        words = ("reduce", "--op", "sum", "--type", "double", "small.bin")
        outcome = installed(*words, cwd=small_folder, env=os.environ | {"TMPDIR": str(where)})
        refused(outcome, 4, str(where), "No space left")
    assert os.listdir(where) == []


# Descriptors and memory


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five thousand ranks of a hundred integers."""
    folder = tmp_path_factory.mktemp("many")
    for rank in range(5000):
        np.save(folder / f"r{rank:04}.npy", np.arange(rank, rank + 100))
    return folder


@pytest.mark.parametrize("op", ["sum", "max"])
def test_many_files_with_few_descriptors(op, many):
    words = ("reduce", "-q", "--op", op, "--to", "raw", *sorted(os.listdir(many)))
    outcome = shell('ulimit -n 64; exec "$@"', *words, cwd=many)
    first = np.arange(100)
    expected = 5000 * first + 5000 * 4999 // 2 if op == "sum" else first + 4999
    assert outcome == (0, expected.tobytes(), "")


def test_many_files_with_few_descriptors_and_workers(folder):
    words = (
        "reduce",
        "-q",
        "--op",
        "sum",
        "--overflow",
        "wrap",
        "--type",
        "uint8_t",
        "-j",
        "2",
        "-o",
        "out",
        "-f",
        *["rank.bin"] * 200,
    )
    (folder / "rank.bin").write_bytes(b"\x01\x02" * (MEBIBYTE // 4))
    assert shell('ulimit -n 64; exec "$@"', *words, cwd=folder) == (0, b"", "")
    assert (folder / "out").read_bytes() == b"\xc8\x90" * (MEBIBYTE // 4)


def test_many_parquet_files_with_few_descriptors(tmp_path):
    for rank in range(100):
        pq.write_table(
            pa.table({"x": np.arange(rank, rank + 10), "y": np.full(10, rank)}), tmp_path / f"r{rank:02}.parquet"
        )
    words = ("reduce", "-q", "--op", "sum", *sorted(os.listdir(tmp_path)), "-o", "sum.parquet")
    assert shell('ulimit -n 64; exec "$@"', *words, cwd=tmp_path) == (0, b"", "")
    expected = {"x": [100 * i + 4950 for i in range(10)], "y": [4950] * 10}
    assert pq.read_table(tmp_path / "sum.parquet").to_pydict() == expected


def large_ranks(folder: Path, suffix: str, nranks: int) -> list[str]:
    """Make ranks of 16 MiB: of pairs in raw files, of doubles in parquet."""
    pairs = np.zeros(MEBIBYTE, np.dtype([("value", "f8"), ("index", "i4")], align=True))
    pairs["value"] = np.random.default_rng(7).random(MEBIBYTE)
    names = [f"r{rank:02}{suffix}" for rank in range(nranks)]
    for rank, name in enumerate(names):
        pairs["value"] = np.roll(pairs["value"], 1)
        pairs["index"] = rank
        if suffix == ".bin":
            pairs.tofile(folder / name)
        else:
            table = pa.table({"x": np.concatenate([pairs["value"], pairs["value"]])})
            pq.write_table(table, folder / name, compression="none", use_dictionary=False)
    return names


@pytest.mark.parametrize(
    ("words", "suffix", "nranks", "limit"),
    [
        (("--op", "maxloc", "--type", "double_int"), ".bin", 16, 150),
        (("--op", "prod", "--type", "c_double_complex"), ".bin", 6, 150),
        (("--op", "sum"), ".parquet", 16, 250),
    ],
)
def test_memory_of_every_process_and_equal_bytes(words, suffix, nranks, limit, tmp_path):
    results, ranks = [], large_ranks(tmp_path, suffix, nranks)
    for jobs in ("1", "2", "7"):
        out = tmp_path / f"out{jobs}{suffix}"
        arguments = ("reduce", "-q", *words, "-j", jobs, "-o", str(out), *ranks)
        status, peak, err = measured(*arguments, cwd=tmp_path)
        assert (status, err) == (0, "")
        assert peak < limit * 10**6
        results.append(out.read_bytes())
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("size", ["150M", "300M", "1G"])
def test_memory_allowed_is_kept(size, tmp_path):
    """The processes together: the parent, and what it says of its workers."""
    words = ("reduce", "--json", "--op", "maxloc", "--type", "double_int", "-j", "4", "--max-memory", size)
    ranks = large_ranks(tmp_path, ".bin", 16)
    status, peak, err = measured(*words, "-o", "out.bin", *ranks, cwd=tmp_path)
    assert status == 0
    workers = json.loads(err)["workers"]
    processes = 1 if workers == 1 else workers + 1
    allowed = int(size[:-1]) << (30 if size.endswith("G") else 20)
    assert processes * peak <= allowed
    assert workers == {"150M": 1}.get(size, workers)


def test_memory_that_is_never_enough(small_folder):
    words = ("reduce", "--op", "sum", "--type", "uint8_t", "--max-memory", "10M", "small.bin", "-o", "out", "-f")
    with unchanged(small_folder):
        refused(installed(*words, cwd=small_folder), 2, "--max-memory", "too little")


# Readers


@pytest.mark.parametrize("script", ['"$@" | head -c 10', '"$@" | :'])
@pytest.mark.parametrize("to", ["raw", "npy", "csv"])
def test_reader_that_goes(script, to, small_folder):
    words = ("reduce", "-q", "--op", "sum", "--type", "double", "small.bin", "--to", to)
    with unchanged(small_folder):
        outcome = shell(f"{script}; exit ${{PIPESTATUS[0]}}", *words, cwd=small_folder)
        assert (outcome.status, outcome.err) == (141, "")


@pytest.mark.parametrize("words", ["ops", "types", "ops --json", "--help"])
def test_reader_that_goes_before_anything_is_printed(words, tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([COMMAND, *words.split()], stdout=write, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_messages_that_nobody_reads(small_folder):
    """The result is in place when the summary is written; a reader that is gone does not make that untrue."""
    read, write = os.pipe()
    os.close(read)
    words = [COMMAND, "reduce", "--op", "sum", "--type", "double", "small.bin", "-o", "new.bin"]
    done = subprocess.run(words, stderr=write, stdout=subprocess.PIPE, cwd=small_folder, check=False)
    os.close(write)
    assert (done.returncode, done.stdout) == (0, b"")
    assert (small_folder / "new.bin").read_bytes() == bytes(2 * MEBIBYTE)
