"""The ways to start the command: options in any place, as a module, in a folder that has modules."""

from __future__ import annotations

import subprocess
import sys

import pytest
from command import COMMAND, Outcome, installed, reduce, refused
from three_ranks import A, B


@pytest.mark.parametrize(
    "words", ["--op sum a.npy b.npy --to raw", "a.npy --op sum b.npy --to raw", "-qj1 --op=sum --to=raw -- a.npy b.npy"]
)
def test_options_in_any_place(words, folder):
    assert reduce(*words.split(), cwd=folder) == (0, (A + B).tobytes(), "")


_HOSTILE = "raise SystemExit('the folder of the data was searched for modules')\n"
_NAMES = (
    "numpy",
    "json",
    "click",
    "mpired",
    "pyarrow",
    "signal",
    "typing",
    "concurrent",
    "multiprocessing",
    "encodings",
)


@pytest.mark.parametrize("start", [[COMMAND], [sys.executable, "-m", "mpired"], [sys.executable, "-P", "-m", "mpired"]])
def test_folder_of_the_data_is_not_searched_for_modules(start, folder):
    # Without -P a mpired.py there is what -m asks for.
    for name in set(_NAMES) - ({"mpired"} if start[1:] == ["-m", "mpired"] else set()):
        (folder / f"{name}.py").write_text(_HOSTILE)
    for to in ("raw", "json", "parquet"):
        words = [*start, "reduce", "-q", "--op", "sum", "a.parquet", "b.parquet", "--to", to]
        done = subprocess.run(words, cwd=folder, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    assert subprocess.run([*start, "--version"], cwd=folder, capture_output=True, check=True).stdout[:7] == b"mpired "


def test_workers_do_not_search_the_folder_of_the_data(folder):
    for name in _NAMES:
        (folder / f"{name}.py").write_text(_HOSTILE)
    with open(folder / "large.bin", "wb") as file:
        file.truncate(32 << 20)
    words = ("reduce", "-q", "--op", "sum", "--type", "double", "large.bin", "large.bin", "-j", "2", "-o", "out.bin")
    assert installed(*words, cwd=folder) == (0, b"", "")


def test_module_is_the_command(folder):
    words = ("reduce", "--op", "sum", "a.npy", "bad.npy")
    as_module = subprocess.run([sys.executable, "-m", "mpired", *words], cwd=folder, capture_output=True, check=False)
    refused(Outcome(as_module.returncode, as_module.stdout, as_module.stderr.decode()), 4, "bad.npy")
    assert installed(*words, cwd=folder) == (as_module.returncode, as_module.stdout, as_module.stderr.decode())
