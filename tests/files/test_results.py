"""How a result gets to its place, whole and durable, or not at all, and what is kept of the file that is replaced."""

import errno
import fcntl
import os
import re
import signal
import stat
from pathlib import Path

import numpy as np
import pytest
from command import NOBODY, become_nobody, reduce, refused, succeeded, unchanged
from faults import failing
from users import ACCESS_LIST, LIST

from mpired import interrupts
from mpired.context import NO_LIMITS, Context
from mpired.errors import ChangedError, OutputExistsError, UnconfirmedError
from mpired.files import calls, copying, mounts
from mpired.files.scratch import Scratch
from mpired.files.transaction import Draft, open_output


@pytest.fixture(params=["unnamed", "named"])
def kind(request, monkeypatch) -> str:
    """The kind of temporary file; patched here, children inherit it."""
    if request.param == "named":
        monkeypatch.setattr(calls, "open_unnamed", lambda _dirfd: None)
    return request.param


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A rank, and a folder for the result alone."""
    (tmp_path / "rank.bin").write_bytes(NEW)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "out").write_bytes(OLD)
    return tmp_path


OLD, NEW = b"the old result", np.arange(1000.0).tobytes()

WORDS = ("--op", "sum", "--type", "double", "rank.bin")


def write(path: Path | str, data: bytes = NEW, context: Context = NO_LIMITS, **settings: object) -> None:
    """Write `data` as a result."""
    with open_output(os.fspath(path), context=context, **settings) as output:
        output.allocate(len(data))
        calls.pwrite_all(output.fd, data, 0)
        output.commit(context.on_commit)


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


def _replace_and_fail() -> None:
    """Report a rename as failed that was done, as an NFS server does that answers the repetition of a rename."""
    original = os.replace

    def replace(*arguments: object, **settings: object) -> None:
        original(*arguments, **settings)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    os.replace = replace


HARMLESS = {
    "no allocation": failing(errno.EOPNOTSUPP, "posix_fallocate"),
    "no attributes": failing(errno.EOPNOTSUPP, "listxattr"),
    "folders that cannot be synced": failing(errno.EINVAL, "fsync", when=_is_folder),
    "a rename that is done and reported as failed": _replace_and_fail,
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_is_no_failure(what, kind, folder):
    succeeded(reduce(*RESULT, cwd=folder, setup=HARMLESS[what]))
    assert (folder / "results" / "out").read_bytes() == NEW
    assert os.listdir(folder / "results") == ["out"]


def test_short_transfers_to_a_stream(folder):

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
            if not _is_folder(fd):
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


def test_scratch_file_has_no_name_and_is_shared_by_path(kind, tmp_path):
    with Scratch(str(tmp_path)) as scratch:
        assert os.listdir(tmp_path) == []
        scratch.allocate(1000)
        with open(scratch.shared.path, "r+b") as other:
            other.write(NEW[:1000])
        assert os.pread(scratch.fd, 2000, 0) == NEW[:1000]
    assert not os.path.exists(scratch.shared.path)


def test_leaving_without_a_commit_changes_nothing(kind, folder):
    before = os.listdir("/proc/self/fd")
    with unchanged(folder), open_output(str(folder / "results" / "out"), overwrite=True) as output:
        calls.pwrite_all(output.fd, NEW, 0)
    with unchanged(folder), pytest.raises(ZeroDivisionError), open_output(str(folder / "results" / "new")) as output:
        _ = 1 / 0
    assert os.listdir("/proc/self/fd") == before


def test_draft_is_private_locked_and_beside_the_result(tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "open_unnamed", lambda _dirfd: None)
    with open_output(str(tmp_path / ("x" * 255))):
        (name,) = os.listdir(tmp_path)
        assert re.fullmatch(r"\.x{100}\.[0-9a-f]{32}\.mpired-new", name)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        with open(tmp_path / name, "rb+") as other, pytest.raises(BlockingIOError):
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert os.listdir(tmp_path) == []


def test_symbolic_links_are_kept(kind, folder):
    out, link = folder / "results" / "out", folder / "link"
    link.symlink_to("middle")
    (folder / "middle").symlink_to(out)
    with pytest.raises(OutputExistsError):
        write(link)
    write(link, overwrite=True)
    assert (link.is_symlink(), (folder / "middle").is_symlink(), out.is_symlink()) == (True, True, False)
    assert out.read_bytes() == NEW
    (folder / "dangling").symlink_to("results/new")
    write(folder / "dangling")
    assert (folder / "dangling").is_symlink()
    assert (folder / "results" / "new").read_bytes() == NEW
    assert sorted(os.listdir(folder)) == ["dangling", "link", "middle", "rank.bin", "results"]


def test_mode_of_a_new_file_is_that_of_any_new_file(kind, tmp_path):
    modes = {}
    for umask in (0o000, 0o022, 0o027, 0o077, 0o777):
        before = os.umask(umask)
        try:
            write(tmp_path / f"{umask:o}")
            (tmp_path / f"like{umask:o}").touch()
        finally:
            os.umask(before)
        modes[umask] = [(tmp_path / f"{name}{umask:o}").stat().st_mode for name in ("", "like")]
    assert [umask for umask, (mode, like) in modes.items() if mode != like] == []


def test_mode_of_an_existing_file_is_kept(as_root, kind, folder):
    out, modes = folder / "results" / "out", (0, 0o400, 0o644, 0o755, 0o2750, 0o4755)
    found = []
    for mode in modes:
        out.chmod(mode)
        write(out, overwrite=True)
        found.append(stat.S_IMODE(out.stat().st_mode))
    assert found == [*modes]


def test_owner_and_attributes_are_kept(as_root, kind, folder):
    out, attributes = folder / "results" / "out", {"user.origin": b"run 7", "user.empty": b"", ACCESS_LIST: LIST}
    os.chown(out, NOBODY, 12345)
    for name, value in attributes.items():
        os.setxattr(out, name, value)
    write(out, overwrite=True)
    assert (out.stat().st_uid, out.stat().st_gid) == (NOBODY, 12345)
    assert {name: os.getxattr(out, name) for name in os.listxattr(out)} == attributes


def test_owner_that_cannot_be_kept_loses_set_uid(as_root, kind, open_folder):
    (open_folder / "rank.bin").write_bytes(NEW)
    (open_folder / "out").write_bytes(OLD)
    (open_folder / "out").chmod(0o6755)
    open_folder.chmod(0o777)
    succeeded(reduce(*WORDS, "-o", "out", "-f", cwd=open_folder, setup=become_nobody))
    status = (open_folder / "out").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o755, NOBODY)


MEBIBYTE = 1 << 20
DATA = b"elements" * 1000


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A file of 8 MiB with something at its beginning, in its middle and at its end."""
    with open(tmp_path / "sparse", "wb") as file:
        for at in (0, 4 * MEBIBYTE + 100, 8 * MEBIBYTE - len(DATA)):
            file.seek(at)
            file.write(DATA)
    return tmp_path / "sparse"


def copied(path: Path) -> Path:
    new = path.with_name("new")
    with open(path, "rb") as source, open(new, "wb") as target:
        target.truncate(path.stat().st_size)
        copying.copy_sparse(source.fileno(), target.fileno(), 0, path.stat().st_size, 0)
    return new


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_holes_stay_holes(sparse):
    new = copied(sparse)
    assert new.read_bytes() == sparse.read_bytes()
    assert allocated(new) <= allocated(sparse) + MEBIBYTE // 4


@pytest.mark.parametrize("kind", ["ext4", "nfs4"])
def test_a_file_that_is_cut_while_it_is_copied_is_an_error(kind, sparse, monkeypatch):
    monkeypatch.setattr(mounts, "mount_of_device", lambda _device: mounts.Mount(kind))
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)
    original = calls.pread_into

    def cut(fd: int, buffer: memoryview, offset: int) -> int:
        os.truncate(sparse, 1000)
        return original(fd, buffer, offset)

    monkeypatch.setattr(calls, "pread_into", cut)
    with pytest.raises(OSError, match="ends at byte 1000"):
        copied(sparse)
