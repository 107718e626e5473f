"""How a result gets to its place, whole and durable, or not at all: the order of the steps, and errors in each.

And of results for standard output, devices, FIFOs and descriptors, and the scratch files before them.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
from pathlib import Path

import pytest
from command import reduce, refused, shell, succeeded, unchanged
from faults import failing
from one_result import NEW, OLD, WORDS, write

from mpired import interrupts
from mpired.context import NO_LIMITS
from mpired.errors import ChangedError, OutputExistsError, UnconfirmedError
from mpired.files import calls
from mpired.files.scratch import Scratch
from mpired.files.transaction import Draft

RESULT = (*WORDS, "-o", "results/out", "-f")


def _recorded(monkeypatch) -> list[str]:
    """Return a list that the calls of a commit are written to."""
    steps: list[str] = []

    def record(name: str) -> None:
        original = getattr(os, name)

        def recorded(first: object, *others: object, **settings: object) -> object:
            of_folder = name == "fsync" and stat.S_ISDIR(os.fstat(first).st_mode)
            steps.append("fsync folder" if of_folder else name)
            return original(first, *others, **settings)

        monkeypatch.setattr(os, name, recorded)

    for name in ("pwrite", "fchmod", "fsync", "link", "replace", "unlink"):
        record(name)
    return steps


def test_order_of_the_steps(kind, folder, monkeypatch):
    steps = _recorded(monkeypatch)
    write(folder / "results" / "out", overwrite=True)
    first, link, unlink = ([], ["link"], []) if kind == "unnamed" else (["fchmod"], [], ["unlink"])
    assert steps == [*first, "pwrite", "fchmod", "fsync", *link, "replace", "fsync folder"]
    steps.clear()
    write(folder / "results" / "new")
    assert steps == [*first, "pwrite", "fchmod", "fsync", "link", *unlink, "fsync folder"]


def test_a_file_that_was_replaced_meanwhile_stays(folder):
    path = folder / "results" / "out"
    (folder / "other").write_bytes(b"other")
    with Draft(str(path), overwrite=True) as draft:
        calls.pwrite_all(draft.fd, NEW, 0)
        (folder / "other").replace(path)
        with pytest.raises(ChangedError, match="was replaced by another program"):
            draft.commit(interrupts.committed)
    assert (path.read_bytes(), os.listdir(folder / "results")) == (b"other", ["out"])


def _is_folder(fd: int) -> bool:
    return stat.S_ISDIR(os.fstat(fd).st_mode)


def _is_file(fd: int) -> bool:
    return not _is_folder(fd)


def _replace_and_fail() -> None:
    """Report a rename as failed that was done, as an NFS server does that answers the repetition of a rename."""
    original = os.replace

    def replace(*arguments: object, **settings: object) -> None:
        original(*arguments, **settings)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    os.replace = replace


HARMLESS = {
    "no allocation": failing(errno.EOPNOTSUPP, "posix_fallocate"),
    "folders that cannot be synced": failing(errno.EINVAL, "fsync", when=_is_folder),
    "a rename that is done and reported as failed": _replace_and_fail,
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_is_no_failure(what, kind, folder):
    succeeded(reduce(*RESULT, cwd=folder, setup=HARMLESS[what]))
    assert (folder / "results" / "out").read_bytes() == NEW
    assert os.listdir(folder / "results") == ["out"]


def test_short_transfers_to_a_stream(folder):
    """Of files `test_kills_and_errors` has them."""

    def setup() -> None:
        write = os.write
        os.write = lambda fd, data: write(fd, data[:100])

    assert reduce(*WORDS, cwd=folder, setup=setup) == (0, NEW, "")


@pytest.fixture
def own_fsync(monkeypatch) -> None:
    """Put `os.fsync` back after a test that calls a setup in this process."""
    monkeypatch.setattr(os, "fsync", os.fsync)


def test_folder_that_is_not_confirmed(kind, own_fsync, folder):
    setup = failing(errno.EIO, "fsync", when=_is_folder)
    refused(reduce(*RESULT, cwd=folder, setup=setup), 6, "results/out", "in place", "Input/output error")
    assert (folder / "results" / "out").read_bytes() == NEW
    setup()
    with pytest.raises(UnconfirmedError) as caught:
        write(folder / "results" / "new")
    assert (caught.value.exit_status, caught.value.mpi_class) == (6, "MPI_ERR_IO")
    assert (folder / "results" / "new").read_bytes() == NEW
    assert sorted(os.listdir(folder / "results")) == ["new", "out"]


def test_name_that_is_taken_between_check_and_commit(kind, own_fsync, folder):
    new = folder / "results" / "new"

    def setup() -> None:
        original = os.fsync

        def fsync(fd: int) -> None:
            if _is_file(fd):
                new.write_bytes(b"of somebody else")
            original(fd)

        os.fsync = fsync

    refused(reduce(*WORDS, "-o", "results/new", cwd=folder, setup=setup), 2, "results/new", "--force")
    assert new.read_bytes() == b"of somebody else"
    assert sorted(os.listdir(folder / "results")) == ["new", "out"]
    new.unlink()
    succeeded(reduce(*WORDS, "-o", "results/new", "-f", cwd=folder, setup=setup))
    assert new.read_bytes() == NEW
    new.unlink()
    setup()
    with pytest.raises(OutputExistsError) as caught:
        write(new)
    assert isinstance(caught.value, FileExistsError)
    assert caught.value.exit_status == 2


def test_commit_ends_with_the_callback_while_signals_are_held_back(kind, folder):
    seen = []

    def on_commit() -> None:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        seen.append((out.read_bytes(), {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= blocked))

    out: Path = folder / "results" / "out"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    write(out, overwrite=True, context=NO_LIMITS._replace(on_commit=on_commit))
    assert seen == [(NEW, True)]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


# ---- streams


def test_device_is_written_to(folder):
    before = os.stat("/dev/null")
    with unchanged(folder):
        assert reduce(*WORDS, "-o", "/dev/null", cwd=folder) == (0, b"", "")
    after = os.stat("/dev/null")
    assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)


def test_fifo_is_written_to(folder):
    os.mkfifo(folder / "fifo")
    with open(os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK), "rb") as fifo:
        succeeded(reduce(*WORDS, "-o", "fifo", cwd=folder))
        assert fifo.read() == NEW
    assert stat.S_ISFIFO((folder / "fifo").stat().st_mode)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ('"$@" > results/out', "/dev/stdout"),
        ('{ printf %s "$HEAD"; "$@"; } > results/out', "/proc/self/fd/1"),
        ('"$@" >> results/out', "/dev/fd/1"),
        ('"$@" >> results/out', "-"),
    ],
)
def test_redirected_standard_output_is_written_through(script, name, folder):
    """The shell's file is written to, after what is there; it is not replaced, and needs no --force."""
    out = folder / "results" / "out"
    inode = out.stat().st_ino
    outcome = shell(script, "reduce", "-q", *WORDS, "-o", name, cwd=folder, env=os.environ | {"HEAD": "head"})
    assert outcome == (0, b"", "")
    head = OLD if ">>" in script else b"head" if "HEAD" in script else b""
    assert (out.read_bytes(), out.stat().st_ino) == (head + NEW, inode)
    assert os.listdir(folder / "results") == ["out"]


def test_scratch_file_has_no_name_and_is_shared_by_path(kind, tmp_path):
    with Scratch(str(tmp_path)) as scratch:
        assert os.listdir(tmp_path) == []
        scratch.allocate(1000)
        with open(scratch.shared_path, "r+b") as other:
            other.write(NEW[:1000])
        assert os.pread(scratch.fd, 2000, 0) == NEW[:1000]
    assert not os.path.exists(scratch.shared_path)
