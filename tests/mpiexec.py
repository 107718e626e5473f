"""A real mpiexec, and commands that it starts."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

MPIEXEC = os.path.join(sysconfig.get_path("scripts"), "mpiexec")
EAGER = str(Path(__file__).parent / "eager_command.py")
PROGRAM = f"""\
import os, sys
sys.path[:0] = {[str(Path(__file__).parent)]!r}
import eager_command, mpired
from mpired.errors import UserOpError
eager_command.make_all_large()
"""
"""The beginning of a program for which little data is enough."""


def command(verb: str, *words: str, spread: str | None = None) -> list[str]:
    """Return a command of the engine mpi, for which little data is enough."""
    return [sys.executable, EAGER, verb, "--engine", "mpi", *(["--spread", spread] if spread else []), *words]


def launched(nprocesses: int, *started: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Start processes that run something, and wait for their end."""
    words = [MPIEXEC, "-n", str(nprocesses), *started]
    env = os.environ | environment
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=200, env=env)


def beside(started: list[str], *prefix: str, count: int = 2) -> subprocess.CompletedProcess[str]:
    """Start processes that run a command, and one more that has something before it."""
    return launched(count, *started, ":", "-n", "1", *prefix, *started)
