"""What a command takes of the machine: the memory of all its processes and the files that each has open."""

import os
import resource
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

from command import COMMAND, children

from mpired.files import calls


class Peaks(NamedTuple):
    """The most that a command took: bytes of all processes together, open files of one; and how it ended."""

    status: int
    memory: int
    open_files: int
    err: str


def watched(*words: str, **settings: object) -> Peaks:
    """Run the installed command, and look at its processes all the time (VmHWM, /proc/PID/fd)."""
    memory = open_files = 0
    with subprocess.Popen(
        [COMMAND, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **settings
    ) as command:
        while command.poll() is None:
            processes = (command.pid, *children(command.pid))
            memory = max(memory, sum(map(_peak_memory, processes)))
            open_files = max(open_files, *map(_open_files, processes))
            time.sleep(0.003)
        err = command.stderr.read().decode()
    return Peaks(command.returncode, memory, open_files, err)


def _peak_memory(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status") as status:
            return next((int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM")), 0)
    except OSError:  # it has ended
        return 0


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def unseen_limit(number: int) -> Callable[[], None]:
    """Return a setup that lets the kernel refuse more open files than so many, of which mpired sees nothing."""

    def setup() -> None:
        seen = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, seen[1]))
        resource.getrlimit = lambda which: seen if which == resource.RLIMIT_NOFILE else (-1, -1)
        calls.allow_descriptors = lambda wanted: wanted

    return setup
