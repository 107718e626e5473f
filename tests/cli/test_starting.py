"""The ways to start the command: options in any place, as a module, in a folder that has modules."""

from __future__ import annotations

import subprocess
import sys

from command import COMMAND, Outcome, installed, refused
from rows import each

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


@each("start", [[sys.executable, "-P", "-m", "mpired"], [COMMAND], [sys.executable, "-m", "mpired"]])
def test_folder_of_the_data_is_not_searched_for_modules(start, folder):
    for name in _NAMES:
        (folder / f"{name}.py").write_text(_HOSTILE)
    if start[1:] == ["-m", "mpired"]:  # without -P a mpired.py there is what -m asks for
        (folder / "mpired.py").unlink()
    words = [*start, "reduce", "-q", "--op", "sum", "a.parquet", "b.parquet", "--to", "json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_module_is_the_command(folder):
    words = ("reduce", "--op", "sum", "a.npy", "bad.npy")
    as_module = subprocess.run([sys.executable, "-m", "mpired", *words], cwd=folder, capture_output=True, check=False)
    refused(Outcome(as_module.returncode, as_module.stdout, as_module.stderr.decode()), 4, "bad.npy")
    assert installed(*words, cwd=folder) == (as_module.returncode, as_module.stdout, as_module.stderr.decode())
