"""Ways to run the command: in a forked child, which is fast, and as the installed program.

Both give an `Outcome`. `snapshot` tells whether a folder stayed as it was.
"""

import contextlib
import ctypes
import faulthandler
import gc
import hashlib
import importlib
import importlib.util
import io
import json
import os
import pkgutil
import signal
import stat
import subprocess
import sys
import sysconfig
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import setups  # noqa: F401 - which a small process knows then
import template

import mpired
from mpired.cli import main

# They need an extra, and tests of the rest do without; a test of them imports them itself.
OF_EXTRAS = {"queries.drawing", "cli.bars", "formats.hierarchy", "formats.hdf5_results", "engines.mpi"}
# What a run imports late is loaded before the fork, so that a child finds it whatever its user may read.
for _module in pkgutil.walk_packages(mpired.__path__, "mpired."):
    if "__main__" not in _module.name and _module.name.removeprefix("mpired.") not in OF_EXTRAS:
        importlib.import_module(_module.name)
for _name in ("select", "click._textwrap"):
    importlib.import_module(_name)

COMMAND = os.path.join(sysconfig.get_path("scripts"), "mpired")
NOBODY = 65534
_LIMIT = 60  # seconds after which a run counts as hung
_PR_SET_DUMPABLE = 4


class Outcome(NamedTuple):
    """How a run ended: the exit status, negative for a signal, and what it wrote."""

    status: int
    out: bytes
    err: str


class Child:
    """A forked child that runs `mpired WORDS...` in a folder.

    Standard input has bytes, as a regular file, or is a descriptor; `stdout` is one in the place of that which is kept
    and read; a variable of `env` that is None is unset; `setup` is called before the command, and those of
    tests/setups.py are fast.
    """

    def __init__(
        self,
        *words: str,
        cwd: str | Path,
        stdin: bytes | int = b"",
        stdout: int | None = None,
        env: Mapping[str, str | None] | None = None,
        setup: Callable[[], object] | None = None,
    ) -> None:
        self._out, self._err = os.memfd_create("out"), os.memfd_create("err")
        source = stdin if isinstance(stdin, int) else _file_of(stdin)
        with warnings.catch_warnings():
            # From Python 3.12 on: the child has one thread, whatever the test process has.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            streams = source, self._out if stdout is None else stdout, self._err
            become_command(words, cwd, streams, env or {}, setup)
        if not isinstance(stdin, int):
            os.close(source)

    def messages(self) -> str:
        """Return what it has written to standard error so far."""
        return os.pread(self._err, os.fstat(self._err).st_size, 0).decode(errors="surrogateescape")

    def finish(self) -> Outcome:
        """Wait for the end."""
        _, status = os.waitpid(self.pid, 0)
        return _outcome(os.waitstatus_to_exitcode(status), self._out, self._err)


def _outcome(status: int, *streams: int) -> Outcome:
    """Return the outcome of a command, of which the streams are closed."""
    out, err = (os.pread(fd, os.fstat(fd).st_size, 0) for fd in streams)
    for fd in streams:
        os.close(fd)
    return Outcome(status, out, err.decode(errors="surrogateescape"))


def run(*words: str, setup: Callable[[], object] | None = None, **settings: object) -> Outcome:
    """Run `mpired WORDS...` in a forked child, of a smaller process if it can be; the settings are those of `Child`."""
    if template.knows(setup) and template.is_like_this_process():
        return _run_by_template(words, setup=setup, **settings)
    return Child(*words, setup=setup, **settings).finish()


def _run_by_template(
    words: tuple[str, ...],
    cwd: str | Path,
    stdin: bytes | int = b"",
    stdout: int | None = None,
    env: Mapping[str, str | None] | None = None,
    setup: Callable[[], object] | None = None,
) -> Outcome:
    environment = {name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None}
    umask = os.umask(0)
    os.umask(umask)
    request = template.Request(words, os.path.abspath(cwd), environment, umask, template.filters(), setup)
    out, err = os.memfd_create("out"), os.memfd_create("err")
    source = stdin if isinstance(stdin, int) else _file_of(stdin)
    status = template.run(request, (source, out if stdout is None else stdout, err))
    if not isinstance(stdin, int):
        os.close(source)
    return _outcome(status, out, err)


def reduce(*words: str, **settings: object) -> Outcome:
    """Run `mpired reduce WORDS...` in a forked child, without the summary."""
    return run("reduce", "-q", *words, **settings)


def _file_of(content: bytes) -> int:
    fd = os.memfd_create("in")
    os.pwrite(fd, content, 0)
    return fd


def become_command(
    words: tuple[str, ...],
    cwd: str | Path,
    streams: tuple[int, int, int],
    env: Mapping[str, str | None],
    setup: Callable[[], object] | None = None,
) -> NoReturn:
    """Become the command: the streams, the folder and the environment, then `main`."""
    status = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LIMIT)
        faulthandler.disable()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.chdir(cwd)
        moved = [os.dup(fd) for fd in streams]
        for number, fd in enumerate(moved):
            os.dup2(fd, number)
        gc.freeze()  # a file of an earlier test must not be closed again by number in here
        os.closerange(3, 4096)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
        sys.stderr = sys.__stderr__ = os.fdopen(2, "w", closefd=False)
        for name, value in env.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if setup is not None:
            setup()
        status = main(list(words))
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)


def in_child(function: Callable[[], object]) -> object:
    """Call a function in a forked child, which has one thread, and return what it gives, if that is JSON."""
    fd = os.memfd_create("result")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever a command in the test process has left
            signal.alarm(_LIMIT)
            faulthandler.disable()
            os.write(fd, json.dumps(function()).encode())
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the test shall see it
            os.write(fd, traceback.format_exc().encode())
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    result = os.pread(fd, os.fstat(fd).st_size, 0)
    os.close(fd)
    assert status == 0, result.decode()
    return json.loads(result)


def installed(*words: str, **settings: object) -> Outcome:
    """Run the installed `mpired WORDS...`; the settings are those of `subprocess.run`."""
    return _done([COMMAND, *words], {"stdin": subprocess.DEVNULL} | settings)


def shell(script: str, *words: str, **settings: object) -> Outcome:
    """Run a script of bash, in which "$@" is `mpired WORDS...`."""
    return _done(["bash", "-c", script, "bash", COMMAND, *words], settings)


def _done(words: list[str], settings: dict[str, object]) -> Outcome:
    done = subprocess.run(words, capture_output=True, check=False, **{"timeout": _LIMIT} | settings)
    return Outcome(done.returncode, done.stdout, done.stderr.decode(errors="surrogateescape"))


PIP = f"{sys.executable} -m pip"
"""The pip of this environment, or one outside that works on it."""
if importlib.util.find_spec("pip") is None:
    PIP = f"{os.path.realpath(sys.executable)} -m pip --python {sys.executable}"

# A small process between, because what a process was before it became the command counts as its memory too.
_MEASURING = """
import json, os, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True)
import resource
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
print(json.dumps([done.returncode, peak, done.stderr.decode(errors="replace")]))
"""


def measured(*words: str, **settings: object) -> tuple[int, int, str]:
    """Run the installed command; return its status, the most bytes any of its processes held, and its messages."""
    words = (sys.executable, "-I", "-S", "-c", _MEASURING, COMMAND, *words)
    done = subprocess.run(words, stdout=subprocess.PIPE, timeout=_LIMIT, check=True, **settings)
    status, peak, err = json.loads(done.stdout)
    return status, peak, err


def refused(outcome: Outcome, status: int, *reasons: str) -> None:
    """Check that a run ended as every refusal does: one line that says why, and nothing else."""
    assert "Traceback" not in outcome.err, outcome.err
    assert outcome.status == status, outcome.err
    assert outcome.out == b""
    assert outcome.err.startswith("mpired: ")
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.endswith("\n")
    assert all(character.isprintable() for character in outcome.err[:-1])
    for reason in reasons:
        assert reason in outcome.err


def told_after(number: int, left: str = "no result was written") -> str:
    """Return what a command says that a signal has ended: one line after ctrl-C, and nothing else."""
    return f"mpired: interrupted; {left}\n" if number == signal.SIGINT else ""


def succeeded(outcome: Outcome) -> None:
    """Check that a run ended well without a word; it was run with `--quiet`."""
    assert outcome.err == ""
    assert outcome.status == 0


def snapshot(folder: str | Path) -> dict[str, tuple[object, ...]]:
    """Return what a folder and all below it hold: each name with inode, mode, size, time and content."""
    found: dict[str, tuple[object, ...]] = {}
    root = os.fsencode(folder)
    for where, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(where, name)
            status = os.lstat(path)
            regular, content = stat.S_ISREG(status.st_mode), None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif regular:
                with open(path, "rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            state = status.st_ino, status.st_mode, status.st_uid, regular and status.st_mtime_ns, content
            found[os.fsdecode(os.path.relpath(path, root))] = state
    return found


@contextlib.contextmanager
def unchanged(folder: str | Path) -> Iterator[None]:
    """Check that the block leaves a folder as it was, down to inodes and times."""
    before = snapshot(folder)
    yield
    after = snapshot(folder)
    assert sorted(after) == sorted(before)
    assert after == before


def become_nobody() -> None:
    """Give up all rights for good, as a setup of `Child`."""
    become(NOBODY, NOBODY, [])


def become(user: int, group: int, groups: list[int]) -> None:
    """Become another user for good, as a setup of `Child`."""
    os.setgroups(groups)
    os.setgid(group)
    os.setuid(user)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)  # as a process that was never root


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and not yet waited for."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # a process or a thread that ends while it is looked at
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return sorted(found)


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that only waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def open_fifo(path: str | Path) -> io.BufferedWriter:
    """Open a FIFO for writing when its reader has opened it."""
    opened: list[int] = []

    def open_now() -> bool:
        with contextlib.suppress(OSError):  # ENXIO: no reader yet
            opened.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            os.set_blocking(opened[0], True)
        return bool(opened)

    wait_until(open_now)
    return open(opened[0], "wb")


def wait_until(condition: Callable[[], object], seconds: float = _LIMIT) -> None:
    """Wait for a condition that another process brings about."""
    started = time.monotonic()
    while not condition():
        waited = time.monotonic() - started
        assert waited < seconds, f"nothing happened in {seconds} s"
        time.sleep(0.001)
