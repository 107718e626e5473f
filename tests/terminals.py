"""The command with a terminal as one of its streams."""

from __future__ import annotations

import contextlib
import os
import pty
from pathlib import Path

import setups
from command import Outcome, run


def on_terminal(*words: str, cwd: Path, stream: int = 1) -> tuple[Outcome, str]:
    """Run the command with a terminal as standard output or error; return the outcome and what is seen."""
    master, slave = pty.openpty()
    name = os.ttyname(slave)
    outcome = run(*words, cwd=cwd, setup=setups.on_terminal(name, stream))
    os.close(slave)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(master, 65536):
            seen += part
    os.close(master)
    return outcome, seen.decode().replace("\r\n", "\n")
