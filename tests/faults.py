"""Faults at system calls of `os` and `fcntl` that touch files, numbered from the opening of the target in each run."""

import errno
import fcntl
import mmap
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from command import Child

import mpired
from mpired.files import calls

# Whatever `files` asks of the system; what only looks is in it too, because looking can fail.
CALLS = (
    "open", "preadv", "pwrite", "ftruncate", "posix_fallocate", "copy_file_range", "lseek", "fchown", "fchmod", "fsync",
    "fdatasync", "link", "replace", "unlink", "mkdir", "rmdir", "symlink", "readlink", "stat", "fstat", "listdir",
    "setxattr", "removexattr", "getxattr", "listxattr", "close",
)  # fmt: skip
CHANGING = frozenset(CALLS) - {
    "open", "preadv", "lseek", "readlink", "stat", "fstat", "listdir", "getxattr", "listxattr", "close",
}  # fmt: skip
SHORTENED = frozenset({"pwrite", "copy_file_range"})


class Fault(NamedTuple):
    """What happens at a call, and the errno or the signal.

    "kill before", "kill after", "short, then kill", "error", "error from here on", "signal", "stop"; "no memory" at a
    call that changes something.
    """

    name: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.name} {errno.errorcode.get(self.number, self.number) if self.number else ''}".strip()


class Counter:
    """Tells the parent how many calls a run made, and the name of the one with the fault."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 4096)
        self.names: list[str] = []
        """The calls that this process made."""

    def note(self, made: int, fired: str = "") -> None:
        self._shared.seek(0)
        text = f"{made} {fired}".encode()
        self._shared.write(text + b"\n")

    def read(self) -> tuple[int, str]:
        line = self._shared[:64].partition(b"\n")[0].rstrip(b"\0").decode()
        made, _, fired = line.partition(" ")
        return int(made or 0), fired

    def clear(self) -> None:
        self._shared[:] = bytes(4096)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at(number: int, fault: Fault, counter: Counter, target: str) -> Callable[[], None]:
    """Return a setup that lets a fault happen at the n-th call after the opening of `target`, or at none for 0."""

    def setup() -> None:
        made, counting = 0, False

        def watched(name: str, original: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **settings: object) -> object:
                nonlocal made, counting
                if name == "open" and not counting:
                    counting = isinstance(arguments[0], str | bytes) and os.fsdecode(arguments[0]).endswith(target)
                if not counting:
                    return original(*arguments, **settings)
                made += 1
                counter.names.append(name)
                hit = made == number
                counter.note(made, name if hit else counter.read()[1])
                if hit and fault.name == "no memory" and name in CHANGING:
                    raise MemoryError
                if hit or (fault.name == "error from here on" and made > number > 0 and name in CHANGING):
                    return _happen(fault, name, original, arguments, settings)
                return original(*arguments, **settings)

            return call

        for name in CALLS:
            setattr(os, name, watched(name, getattr(os, name)))
        fcntl.fcntl = watched("fcntl", fcntl.fcntl)
        fcntl.ioctl = watched("ioctl", fcntl.ioctl)

    return setup


def _happen(
    fault: Fault, name: str, original: Callable[..., object], arguments: tuple[object, ...], settings: dict[str, object]
) -> object:
    if fault.name == "short, then kill":
        if name == "pwrite":
            fd, data, offset = arguments
            original(fd, data[: max(1, len(data) // 2)], offset)
        elif name == "copy_file_range":
            source, to, count, *offsets = arguments
            original(source, to, max(1, count // 2), *offsets)
        else:
            return original(*arguments, **settings)
        kill()
    if fault.name.startswith("error"):
        if name == "close":
            original(*arguments)  # the descriptor is gone all the same
        raise OSError(fault.number, os.strerror(fault.number))
    if fault.name == "kill before":
        kill()
    if fault.name in {"signal", "stop"}:
        os.kill(os.getpid(), fault.number)
    try:
        return original(*arguments, **settings)
    finally:
        if fault.name == "kill after":
            kill()


def failing(
    number: int, *names: str, module: object = os, when: Callable[..., bool] = lambda *_: True
) -> Callable[[], None]:
    """Return a setup by which calls of the system fail, or those with some arguments."""

    def failed(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **settings: object) -> object:
            if when(*arguments):
                paths = [path for path in arguments[:1] if isinstance(path, str | bytes)]
                raise OSError(number, os.strerror(number), *paths)
            return original(*arguments, **settings)

        return call

    def setup() -> None:
        for name in names:
            setattr(module, name, failed(getattr(module, name)))

    return setup


def stopped(*words: str, setup: Callable[[], None], cwd: Path) -> Child | None:
    """Run a command until it stops; None if it ends."""
    child = Child(*words, cwd=cwd, setup=setup)
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    return child if os.WIFSTOPPED(status) else None


def kill_half_way(end: Callable[[], None] = kill) -> None:
    """Be a setup by which a process is killed, or another end comes, when half of a patch is in its target."""
    copy = calls.copy_range

    def half(source: int, target: int, start: int, stop: int, to: int, **settings: bool) -> None:
        copy(source, target, start, (start + stop) // 2, to)
        calls.copy_range = copy
        end()
        copy(source, target, start, stop, to, **settings)

    calls.copy_range = half


def recover(path: Path) -> None:
    """Do to a target what `mpired recover` does, in this process."""
    mpired.recover(path)
