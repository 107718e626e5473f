"""The installed command at work beside a test.

Nothing here sleeps: a test waits for what it needs to see, and a run is as long as it has to be because it reads the
same file again and again.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from command import COMMAND, alive, children, wait_until

MEBIBYTE = 1 << 20
OLD = b"the old result"

# More than any machine reads in the time that a test takes.
ENDLESS = ("reduce", "--op", "sum", "--type", "uint8_t", "-j", "2", "-f", "-o", "out", *["../large.bin"] * 600)


class Running:
    """The installed command at work, in a process group of its own."""

    def __init__(self, *words: str, cwd: Path, prefix: tuple[str, ...] = ()) -> None:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen([*prefix, COMMAND, *words], cwd=cwd, process_group=0, **streams)
        self.known: list[int] = []
        """The workers so far."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def workers(self, count: int = 2) -> list[int]:
        """Wait for the workers."""
        wait_until(lambda: len(children(self.pid)) >= count or self.process.poll() is not None)
        self.known = children(self.pid)
        assert len(self.known) == count, self.process.communicate()
        return self.known

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
        for worker in filter(alive, command.known):  # which have groups of their own
            os.kill(worker, signal.SIGKILL)
        command.process.communicate()


def end_in_time(pids: list[int]) -> None:
    """Check that processes end, which else would go on for much longer."""
    wait_until(lambda: not any(map(alive, pids)), seconds=30)
