"""Standard streams that are closed, full or broken."""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest
from bad_files import DATA, THREE, covers
from command import COMMAND, installed, reduce, refused, run, shell, unchanged


@covers(80)
@pytest.mark.parametrize("to", ["raw", "npy", "text", "csv", "json", "table"])
def test_full_standard_output(to, folder):
    with unchanged(folder), open("/dev/full", "wb") as full:
        words = ("--op", "sum", "good.npy", "good.npy", "--to", to)
        refused(reduce(*words, cwd=folder, stdout=full.fileno()), 4, "standard output", "No space left")


@covers(80)
@pytest.mark.parametrize("words", ["ops", "types", "info good.npy", "--help", "reduce --help", "--version"])
def test_full_standard_output_of_what_only_prints(words, folder):
    with open("/dev/full", "wb") as full:
        outcome = run(*words.split(), cwd=folder, stdout=full.fileno())
        refused(outcome, 4, "standard output", "No space left")


@covers(80)
@pytest.mark.parametrize("words", ["ops --json", "types", "reduce --help", "recover --list" + 200 * " good.npy"])
def test_standard_output_that_takes_a_part(words, mounted, folder):
    """Python writes each text once without a buffer, and takes what is left of it for written."""
    place = mounted("size=4k")
    whole = run(*words.split(), cwd=folder).out
    with open(place / "out", "wb") as file:
        settings = {"stdout": file, "stderr": subprocess.PIPE, "env": os.environ | {"PYTHONUNBUFFERED": "1"}}
        done = subprocess.run([COMMAND, *words.split()], cwd=folder, check=False, **settings)
    part = (place / "out").read_bytes()
    assert whole.startswith(part)
    if part == whole:
        assert (done.returncode, done.stderr) == (0, b"")
    else:
        assert done.returncode == 4
        assert b"No space left on device" in done.stderr
        assert done.stderr.startswith(b'{"' if "--json" in words else b"mpired: standard output: ")
    piped = installed(*words.split(), cwd=folder, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert piped == (0, whole, "")


@covers(80)
def test_closed_standard_output(folder):
    with unchanged(folder):
        refused(shell('"$@" >&-', "reduce", "-q", "--op", "sum", "good.npy", cwd=folder), 4, "standard output")
    outcome = shell('"$@" >&-', "reduce", "-q", "--op", "sum", "good.npy", "-o", "new.npy", cwd=folder)
    assert outcome == (0, b"", "")
    np.testing.assert_array_equal(np.load(folder / "new.npy"), THREE)


@covers(80)
def test_closed_standard_input(folder):
    assert shell('"$@" <&-', "reduce", "-q", "--op", "sum", "good.npy", "--to", "raw", cwd=folder) == (0, DATA, "")
    for words in ("info -", "reduce --op sum --type double - -o new", "accumulate --op sum good.npy -"):
        with unchanged(folder):
            refused(shell('"$@" <&-', *words.split(), cwd=folder), 4, "standard input: is closed")
    for word in ("/dev/stdin", "/dev/fd/0"):
        refused(shell('"$@" <&-', "info", word, cwd=folder), 4, f"{word}: is closed")


@covers(80)
@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full", "0<&- 2>&-"])
def test_standard_error_that_takes_nothing(where, folder):
    """The summary cannot be written, but the result is in place, and that is what the status tells of."""
    outcome = shell(f'"$@" {where}', "reduce", "--op", "sum", "good.npy", "-o", "new.npy", cwd=folder)
    assert outcome == (0, b"", "")
    np.testing.assert_array_equal(np.load(folder / "new.npy"), THREE)
    with unchanged(folder):
        outcome = shell(f'"$@" {where}', "reduce", "--op", "sum", "bad.npy", "-o", "out", "-f", cwd=folder)
    assert outcome == (4, b"", "")
