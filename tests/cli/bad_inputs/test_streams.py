"""Streams that are closed, full, broken or no files, or whose readers go, and odd environments."""

import os
import pty
import socket
import subprocess

import numpy as np
from bad_files import DATA, THREE, npy_of
from command import COMMAND, installed, refused, run, shell, unchanged
from rows import check_refused, each


@each("words", ["ops", "info good.npy", "--help", *(f"reduce -q --op sum good.npy --to {to}" for to in ("raw", "csv"))])
def test_full_standard_output(words, folder):
    with unchanged(folder), open("/dev/full", "wb") as full:
        refused(run(*words.split(), cwd=folder, stdout=full.fileno()), 4, "standard output", "No space left")


def test_closed_standard_output(folder):
    with unchanged(folder):
        refused(shell('"$@" >&-', "reduce", "-q", "--op", "sum", "good.npy", cwd=folder), 4, "standard output")
    assert shell('"$@" >&-', "reduce", "-q", "--op", "sum", "good.npy", "-o", "new.npy", cwd=folder) == (0, b"", "")
    np.testing.assert_array_equal(np.load(folder / "new.npy"), THREE)


def test_closed_standard_input(folder):
    assert shell('"$@" <&-', "reduce", "-q", "--op", "sum", "good.npy", "--to", "raw", cwd=folder) == (0, DATA, "")
    words = ("info -", "reduce --op sum --type double - -o new", "accumulate --op sum good.npy -", "info /dev/stdin")
    for each_words in words:
        name = "/dev/stdin" if "/dev" in each_words else "standard input"
        with unchanged(folder):
            refused(shell('"$@" <&-', *each_words.split(), cwd=folder), 4, f"{name}: is closed")


@each("where", ["2>/dev/full", "0<&- 2>&-"])
def test_standard_error_that_takes_nothing(where, folder):
    """The summary cannot be written, but the result is in place, and that is what the status tells of."""
    outcome = shell(f'"$@" {where}', "reduce", "--op", "sum", "good.npy", "-f", "-o", "new.npy", cwd=folder)
    assert outcome == (0, b"", "")
    np.testing.assert_array_equal(np.load(folder / "new.npy"), THREE)
    with unchanged(folder):
        outcome = shell(f'"$@" {where}', "reduce", "--op", "sum", "bad.npy", "-o", "out", "-f", cwd=folder)
    assert outcome == (4, b"", "")


TABLE = b"element  value\n      0    2.0\n      1    4.0\n      2    6.0\n"


@each("env, to, expected", [
    ({"HOME": None, "USER": None, "LOGNAME": None, "PATH": None}, "npy", npy_of(2 * THREE)),
    ({"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": None, "TMPDIR": ""}, "table", TABLE),
    ({"TMPDIR": "/does/not/exist", "PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "error"}, "npy", npy_of(2 * THREE)),
    ({"COLUMNS": "1", "OMP_NUM_THREADS": "junk", "SLURM_CPUS_PER_TASK": "junk", "NO_COLOR": "1"}, "table", TABLE),
])  # fmt: skip
def test_odd_environments(env, to, expected, folder):
    (folder / "ö.npy").write_bytes(npy_of(THREE))
    environment = {name: value for name, value in (os.environ | env).items() if value is not None}
    outcome = installed("reduce", "-q", "--op", "sum", "good.npy", "ö.npy", "--to", to, cwd=folder, env=environment)
    assert outcome == (0, expected, "")


@each("script, to", [('"$@" | head -c 10', "raw"), ('"$@" | :', "npy"), ('"$@" | head -c 10', "csv")])
def test_reader_that_goes(script, to, folder):
    (folder / "large.bin").write_bytes(bytes(2 << 20))  # more than a pipe holds
    words = ("reduce", "-q", "--op", "sum", "--type", "double", "large.bin", "--to", to)
    with unchanged(folder):
        outcome = shell(f"{script}; exit ${{PIPESTATUS[0]}}", *words, cwd=folder)
        assert (outcome.status, outcome.err) == (141, "")


@each("words", ["ops", "ops --json", "--help"])
def test_reader_that_goes_before_anything_is_printed(words, tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([COMMAND, *words.split()], cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_terminal_and_socket_as_input(folder):
    typed, output = ("reduce", "--op", "sum", "--type", "double"), ("-o", "out", "-f")
    master, slave = pty.openpty()
    check_refused(folder, (*typed, os.ttyname(slave), *output), 2, "/dev/pts/", "--count")
    check_refused(folder, (*typed, "-", *output), 2, "standard input", "--count", stdin=slave)
    os.close(master)
    os.close(slave)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        check_refused(folder, (*typed, "socket", *output), 4, "socket")
        check_refused(folder, ("reduce", "--op", "sum", "good.npy", "-f", "-o", "socket"), 4, "socket")
