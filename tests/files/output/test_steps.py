"""How a result gets to its place, whole and durable, or not at all: the order of the steps, and errors in each."""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from command import reduce, refused, succeeded, unchanged
from one_result import NEW, WORDS, write

from mpired import interrupts
from mpired.context import NO_LIMITS
from mpired.errors import ChangedError, OutputExistsError, UnconfirmedError
from mpired.files import calls
from mpired.files.transaction import Draft


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
    first, link = ([], ["link"]) if kind == "unnamed" else (["fchmod"], [])
    assert steps == [*first, "pwrite", "fchmod", "fsync", *link, "replace", "fsync folder"]


def test_order_of_the_steps_without_replacing(kind, folder, monkeypatch):
    steps = _recorded(monkeypatch)
    write(folder / "results" / "new")
    first, unlink = ([], []) if kind == "unnamed" else (["fchmod"], ["unlink"])
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


def failing(name: str, number: int, when: Callable[..., bool] = lambda *_: True) -> Callable[[], None]:
    """Return a setup that makes a call of `os` fail."""

    def setup() -> None:
        original = getattr(os, name)

        def fails(*arguments: object, **settings: object) -> object:
            if when(*arguments):
                raise OSError(number, os.strerror(number))
            return original(*arguments, **settings)

        setattr(os, name, fails)

    return setup


def _is_folder(fd: int) -> bool:
    return stat.S_ISDIR(os.fstat(fd).st_mode)


def _is_file(fd: int) -> bool:
    return not _is_folder(fd)


@pytest.mark.parametrize(
    ("setup", "reason"),
    [
        (failing("fsync", errno.EIO, _is_file), "Input/output error"),
        (failing("fsync", errno.ENOSPC, _is_file), "No space left"),
        (failing("pwrite", errno.EIO), "Input/output error"),
        (failing("pwrite", errno.ENOSPC), "No space left"),
        (failing("pwrite", errno.EDQUOT), "quota"),
        (failing("posix_fallocate", errno.ENOSPC), "No space left"),
        (failing("posix_fallocate", errno.EFBIG), "File too large"),
        (failing("fchmod", errno.EIO), "Input/output error"),
        (failing("replace", errno.EIO), "Input/output error"),
        (failing("replace", errno.ESTALE), "Stale"),
    ],
)
def test_error_before_the_commit_changes_nothing(kind, setup, reason, folder):
    with unchanged(folder):
        outcome = reduce(*WORDS, "-o", "results/out", "-f", cwd=folder, setup=setup)
        refused(outcome, 4, "results/out", reason)


def test_file_system_that_cannot_allocate(kind, folder):
    setup = failing("posix_fallocate", errno.EOPNOTSUPP)
    succeeded(reduce(*WORDS, "-o", "results/out", "-f", cwd=folder, setup=setup))
    assert (folder / "results" / "out").read_bytes() == NEW


def test_folder_that_is_not_confirmed(kind, folder, monkeypatch):
    setup = failing("fsync", errno.EIO, _is_folder)
    outcome = reduce(*WORDS, "-o", "results/out", "-f", cwd=folder, setup=setup)
    refused(outcome, 6, "results/out", "in place", "Input/output error")
    assert (folder / "results" / "out").read_bytes() == NEW
    setup()
    with pytest.raises(UnconfirmedError) as caught:
        write(folder / "results" / "new")
    assert (caught.value.exit_status, caught.value.mpi_class) == (6, "MPI_ERR_IO")
    assert (folder / "results" / "new").read_bytes() == NEW
    assert sorted(os.listdir(folder / "results")) == ["new", "out"]


@pytest.fixture(autouse=True)
def _restored_calls():
    before = {name: getattr(os, name) for name in ("fsync",)}
    yield
    for name, call in before.items():
        setattr(os, name, call)


def test_file_system_whose_folders_cannot_be_synced(kind, folder):
    setup = failing("fsync", errno.EINVAL, _is_folder)
    succeeded(reduce(*WORDS, "-o", "results/out", "-f", cwd=folder, setup=setup))
    assert (folder / "results" / "out").read_bytes() == NEW


def test_rename_that_is_reported_as_failed_but_was_done(kind, folder):
    """As from an NFS server that answers the repetition of a rename."""

    def setup() -> None:
        original = os.replace

        def replace(*arguments: object, **settings: object) -> None:
            original(*arguments, **settings)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

        os.replace = replace

    succeeded(reduce(*WORDS, "-o", "results/out", "-f", cwd=folder, setup=setup))
    assert (folder / "results" / "out").read_bytes() == NEW
    assert os.listdir(folder / "results") == ["out"]


def _taken_before_the_commit(path: Path) -> Callable[[], None]:
    def setup() -> None:
        original = os.fsync

        def fsync(fd: int) -> None:
            if _is_file(fd):
                path.write_bytes(b"of somebody else")
            original(fd)

        os.fsync = fsync

    return setup


def test_name_that_is_taken_between_check_and_commit(kind, folder):
    setup = _taken_before_the_commit(folder / "results" / "new")
    outcome = reduce(*WORDS, "-o", "results/new", cwd=folder, setup=setup)
    refused(outcome, 2, "results/new", "--force")
    assert (folder / "results" / "new").read_bytes() == b"of somebody else"
    assert sorted(os.listdir(folder / "results")) == ["new", "out"]
    (folder / "results" / "new").unlink()
    setup()
    with pytest.raises(OutputExistsError) as caught:
        write(folder / "results" / "new")
    assert isinstance(caught.value, FileExistsError)
    assert caught.value.exit_status == 2


def test_name_that_is_taken_but_may_be_replaced(kind, folder):
    setup = _taken_before_the_commit(folder / "results" / "new")
    succeeded(reduce(*WORDS, "-o", "results/new", "-f", cwd=folder, setup=setup))
    assert (folder / "results" / "new").read_bytes() == NEW


def test_commit_ends_with_the_callback_while_signals_are_held_back(kind, folder):
    seen = []

    def on_commit() -> None:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        seen.append((out.read_bytes(), {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= blocked))

    out = folder / "results" / "out"
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    write(out, overwrite=True, context=NO_LIMITS._replace(on_commit=on_commit))
    assert seen == [(NEW, True)]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.parametrize("nbytes", [1, 7, 4096])
def test_short_transfers(kind, nbytes, folder):
    """The system may take or give fewer bytes than asked, at any time."""

    def setup() -> None:
        pwrite, write_, preadv = os.pwrite, os.write, os.preadv
        os.pwrite = lambda fd, data, offset: pwrite(fd, data[:nbytes], offset)
        os.write = lambda fd, data: write_(fd, data[:nbytes])
        os.preadv = lambda fd, buffers, offset: preadv(fd, [buffers[0][:nbytes]], offset)

    succeeded(reduce(*WORDS, "-o", "results/out", "-f", cwd=folder, setup=setup))
    assert (folder / "results" / "out").read_bytes() == NEW
    assert reduce(*WORDS, cwd=folder, setup=setup) == (0, NEW, "")
