"""How a result gets to its place: whole and durable, or not at all.

Most tests run twice: with a temporary file that has no name, and with a named one as on file
systems that know nothing else.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import re
import select
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import NOBODY, Child, become_nobody, reduce, refused, run, shell, snapshot, succeeded, unchanged

import mpired
from mpired.errors import OutputExistsError, UnconfirmedError
from mpired.storage import calls
from mpired.storage.output import FileOutput, Scratch, open_output

OLD, NEW = b"the old result", np.arange(1000.0).tobytes()


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


WORDS = ("--op", "sum", "--type", "double", "rank.bin")


def write(path: Path | str, data: bytes = NEW, **settings: object) -> None:
    """Write `data` as a result."""
    with open_output(os.fspath(path), **settings) as output:
        output.allocate(len(data))
        calls.pwrite_all(output.fd, data, 0)
        output.commit()


# What a name leads to


def test_new_file(kind, tmp_path):
    write(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == NEW
    assert os.listdir(tmp_path) == ["out"]


def test_existing_file_is_kept_unless_it_may_be_replaced(kind, folder):
    out = folder / "results" / "out"
    with unchanged(folder), pytest.raises(OutputExistsError, match="`overwrite=True` replaces it"):
        write(out)
    write(out, overwrite=True)
    assert out.read_bytes() == NEW
    assert os.listdir(folder / "results") == ["out"]


def test_leaving_without_a_commit_changes_nothing(kind, folder):
    with unchanged(folder), open_output(str(folder / "results" / "out"), overwrite=True) as output:
        calls.pwrite_all(output.fd, NEW, 0)
    with unchanged(folder), pytest.raises(ZeroDivisionError), open_output(str(folder / "results" / "new")) as output:
        _ = 1 / 0


def test_temporary_file_is_private_locked_and_beside_the_result(tmp_path, monkeypatch):
    monkeypatch.setattr(calls, "open_unnamed", lambda _dirfd: None)
    with open_output(str(tmp_path / ("x" * 255))):
        (name,) = os.listdir(tmp_path)
        assert re.fullmatch(r"\.x{100}\.[0-9a-f]{8}\.mpired-tmp", name)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        with open(tmp_path / name, "rb+") as other, pytest.raises(BlockingIOError):
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert os.listdir(tmp_path) == []


def test_temporary_name_that_is_taken(tmp_path, monkeypatch):
    """What lies in the folder is never written to: not a file of that name, and nothing through a link."""
    monkeypatch.setattr(calls, "open_unnamed", lambda _dirfd: None)
    monkeypatch.setattr(os, "urandom", lambda n: b"\xab" * n)
    (tmp_path / "secret").write_bytes(OLD)
    os.symlink("secret", tmp_path / ".out.abababab.mpired-tmp")
    with unchanged(tmp_path), pytest.raises(FileExistsError):
        write(tmp_path / "out")


def test_symbolic_link_is_kept_and_its_target_replaced(kind, folder):
    out, link = folder / "results" / "out", folder / "link"
    link.symlink_to("middle")
    (folder / "middle").symlink_to(out)
    with pytest.raises(OutputExistsError):
        write(link)
    write(link, overwrite=True)
    assert (link.is_symlink(), (folder / "middle").is_symlink(), out.is_symlink()) == (True, True, False)
    assert out.read_bytes() == NEW
    assert sorted(os.listdir(folder)) == ["link", "middle", "rank.bin", "results"]


def test_dangling_link_gets_its_target(kind, folder):
    (folder / "link").symlink_to("results/new")
    write(folder / "link")
    assert (folder / "link").is_symlink()
    assert (folder / "results" / "new").read_bytes() == NEW


def test_link_to_a_missing_folder(kind, folder):
    (folder / "link").symlink_to("missing/new")
    with unchanged(folder), pytest.raises(FileNotFoundError):
        write(folder / "link")


def test_link_loop(kind, folder):
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    with unchanged(folder), pytest.raises(OSError, match="symbolic links") as caught:
        write(folder / "a", overwrite=True)
    assert caught.value.errno == errno.ELOOP


def test_hard_link_is_split_and_said(kind, folder):
    out, other = folder / "results" / "out", folder / "other"
    os.link(out, other)
    words = ("reduce", *WORDS, "-o", "results/out", "-f")
    outcome = run(*words, "-v", cwd=folder)
    assert outcome.status == 0
    assert "mpired: results/out is a hard link; its other names keep the old content" in outcome.err.splitlines()
    assert (out.read_bytes(), other.read_bytes()) == (NEW, OLD)
    assert (out.stat().st_nlink, other.stat().st_nlink) == (1, 1)


@pytest.mark.parametrize("name", ["", ".", "results", "results/", "new/", "results/out/", "results/out/x", "missing/x"])
def test_names_that_cannot_be_files(kind, name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with unchanged(folder), pytest.raises(OSError, match=r".*") as caught:
        write(name, overwrite=True)
    assert caught.value.errno in {errno.EISDIR, errno.ENOTDIR, errno.ENOENT}
    assert caught.value.filename == name


# Mode, owner, attributes


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o027, 0o077, 0o777])
def test_mode_of_a_new_file_is_that_of_any_new_file(kind, umask, tmp_path):
    before = os.umask(umask)
    try:
        write(tmp_path / "out")
        (tmp_path / "like").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "like").stat().st_mode


@pytest.mark.parametrize(
    "mode", [pytest.param(0, marks=pytest.mark.needs("root")), 0o400, 0o644, 0o755, 0o2750, 0o4755]
)
def test_mode_of_an_existing_file_is_kept(kind, mode, folder):
    out = folder / "results" / "out"
    out.chmod(mode)
    write(out, overwrite=True)
    assert stat.S_IMODE(out.stat().st_mode) == mode


def test_owner_and_attributes_are_kept(as_root, kind, folder):
    out = folder / "results" / "out"
    os.chown(out, NOBODY, 12345)
    os.setxattr(out, "user.origin", b"run 7")
    os.setxattr(out, "user.empty", b"")
    write(out, overwrite=True)
    assert (out.stat().st_uid, out.stat().st_gid) == (NOBODY, 12345)
    assert {name: os.getxattr(out, name) for name in os.listxattr(out)} == {"user.origin": b"run 7", "user.empty": b""}


def test_access_list_is_kept(as_root, kind, folder):
    out = folder / "results" / "out"
    # Version 2; read and write for the owner, read for user 1000, the group and the mask; nothing for others.
    entries = [(1, 6, 2**32 - 1), (2, 4, 1000), (4, 4, 2**32 - 1), (16, 4, 2**32 - 1), (32, 0, 2**32 - 1)]
    octets = b"\x02\0\0\0" + b"".join(
        tag.to_bytes(2, "little") + rights.to_bytes(2, "little") + who.to_bytes(4, "little")
        for tag, rights, who in entries
    )
    os.setxattr(out, "system.posix_acl_access", octets)
    write(out, overwrite=True)
    assert os.getxattr(out, "system.posix_acl_access") == octets


def test_owner_that_cannot_be_kept_loses_set_uid(as_root, kind, open_folder):
    (open_folder / "rank.bin").write_bytes(NEW)
    (open_folder / "out").write_bytes(OLD)
    (open_folder / "out").chmod(0o6755)
    open_folder.chmod(0o777)
    succeeded(reduce(*WORDS, "-o", "out", "-f", cwd=open_folder, setup=become_nobody))
    status = (open_folder / "out").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o755, NOBODY)


def test_file_system_without_attributes(kind, folder, monkeypatch):
    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "listxattr", unsupported)
    write(folder / "results" / "out", overwrite=True)
    assert (folder / "results" / "out").read_bytes() == NEW


# The order of the steps, and what happens when one fails


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
    link = ["link"] if kind == "unnamed" else []
    assert steps == ["pwrite", "fchmod", "fsync", *link, "replace", "fsync folder"]


def test_order_of_the_steps_without_replacing(kind, folder, monkeypatch):
    steps = _recorded(monkeypatch)
    write(folder / "results" / "new")
    unlink = ["unlink"] if kind == "named" else []
    assert steps == ["pwrite", "fchmod", "fsync", "link", "fsync folder", *unlink]


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
    write(out, overwrite=True, on_commit=on_commit)
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


# Every call at which something can happen, one after another

_CALLS = ("open", "pwrite", "posix_fallocate", "fchown", "fchmod", "fsync", "link", "replace", "unlink", "close")


def at_call(number: int, fired: mmap.mmap, act: Callable[[], object], names: tuple[str, ...]) -> Callable[[], None]:
    """Return a setup that does something at the n-th of these calls, before it is made."""

    def setup() -> None:
        made = 0

        def watch(name: str) -> None:
            original = getattr(os, name)

            def watched(*arguments: object, **settings: object) -> object:
                nonlocal made
                made += 1
                if made == number:
                    fired[0] = 1
                    act()
                return original(*arguments, **settings)

            setattr(os, name, watched)

        for name in names:
            watch(name)

    return setup


def each_call(
    folder: Path, to: str, act: Callable[[], object], names: tuple[str, ...] = _CALLS
) -> Iterator[tuple[int, bytes, set[str]]]:
    """Run the command once for each call, with an action before it; yield status, result and litter of each run."""
    results = folder / "results"
    for number in itertools.count(1):
        (results / "out").write_bytes(OLD)
        before, fired = snapshot(folder), mmap.mmap(-1, 1)
        words = (*WORDS, "--to", to, "-o", "results/out", "-f")
        outcome = reduce(*words, cwd=folder, setup=at_call(number, fired, act, names))
        if not fired[0]:
            succeeded(outcome)
            assert number > 8
            return
        litter = set(os.listdir(results)) - {"out"}
        found = (results / "out").read_bytes()
        assert found != OLD or litter or snapshot(folder) == before
        assert "Traceback" not in outcome.err
        yield outcome.status, found, litter
        for name in litter:
            os.unlink(results / name)


def _result(to: str) -> bytes:
    if to == "raw":
        return NEW
    return b"value\n" + b"".join(b"%d.0\n" % i for i in range(1000))


@pytest.mark.parametrize("to", ["raw", "csv"])
def test_kill_at_any_call_leaves_the_old_or_the_new(kind, to, folder):
    """What may stay behind is a temporary file that has a name; without one only between its name and its place."""
    found_all, litter_all = [], []
    for status, found, litter in each_call(folder, to, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        assert status == -signal.SIGKILL
        assert all(re.fullmatch(r"\.(out\.)?[0-9a-f]{8,16}\.mpired-tmp", name) for name in litter)
        found_all.append(found)
        litter_all.append(len(litter))
    assert set(found_all) == {OLD, _result(to)}
    assert found_all == sorted(found_all, key=lambda found: found != OLD)
    assert sum(litter_all) == 1 if kind == "unnamed" else max(litter_all) == (1 if to == "raw" else 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_at_any_call_means_nothing_changed_or_success(kind, number, folder):
    ends = set()
    for status, found, litter in each_call(folder, "raw", lambda: os.kill(os.getpid(), number)):
        assert not litter
        ends.add((status, found))
    assert ends == {(-number, OLD), (0, NEW)}


def _input_output_error() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("to", ["raw", "csv"])
def test_error_at_any_call_tells_the_truth(kind, to, folder):
    names = tuple(name for name in _CALLS if name != "unlink")  # a name that cannot be removed stays
    ends = set()
    for status, found, litter in each_call(folder, to, _input_output_error, names):
        assert not litter
        ends.add((status, found))
    assert ends <= {(4, OLD), (6, _result(to)), (0, _result(to))}
    assert {(4, OLD), (6, _result(to))} <= ends


# Streams


def test_standard_output_is_written_at_the_end(folder):
    """What can fail does so before the first byte."""
    np.save(folder / "bad.npy", np.arange(4))
    outcome = reduce("--op", "sum", "--type", "double", "rank.bin", "bad.npy", cwd=folder)
    refused(outcome, 3, "bad.npy")


@pytest.mark.parametrize("name", ["/dev/null", "/dev/zero"])
def test_device_is_written_to(name, folder):
    before = os.stat(name)
    with unchanged(folder):
        assert reduce(*WORDS, "-o", name, cwd=folder) == (0, b"", "")
    after = os.stat(name)
    assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)


def test_full_device(folder):
    with unchanged(folder):
        refused(reduce(*WORDS, "-o", "/dev/full", cwd=folder), 4, "/dev/full", "No space left")


def test_fifo_is_written_to(folder):
    os.mkfifo(folder / "fifo")
    with open(os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK), "rb") as fifo:
        succeeded(reduce(*WORDS, "-o", "fifo", cwd=folder))
        assert fifo.read() == NEW
    assert stat.S_ISFIFO((folder / "fifo").stat().st_mode)


def test_fifo_whose_reader_goes(folder):
    (folder / "large.bin").write_bytes(bytes(1 << 20))
    os.mkfifo(folder / "fifo")
    fifo = os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    child = Child("reduce", "-q", "--op", "sum", "--type", "double", "large.bin", "-o", "fifo", cwd=folder)
    assert select.select([fifo], [], [], 20)[0] == [fifo]
    os.close(fifo)
    assert child.finish() == (141, b"", "")


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "-"])
@pytest.mark.parametrize(
    "script", ['"$@" > results/out', '{ printf %s "$HEAD"; "$@"; } > results/out', '"$@" >> results/out']
)
def test_redirected_standard_output_is_written_through(name, script, folder):
    """The shell's file is written to, after what is there; it is not replaced, and needs no --force."""
    out = folder / "results" / "out"
    inode = out.stat().st_ino
    outcome = shell(script, "reduce", "-q", *WORDS, "-o", name, cwd=folder, env=os.environ | {"HEAD": "head"})
    assert outcome == (0, b"", "")
    head = OLD if ">>" in script else b"head" if "HEAD" in script else b""
    assert out.read_bytes() == head + NEW
    assert out.stat().st_ino == inode
    assert os.listdir(folder / "results") == ["out"]


def test_process_substitution(folder):
    outcome = shell(
        '"$@" -o >(cat > copy; : > done); while [ ! -e done ]; do :; done', "reduce", "-q", *WORDS, cwd=folder
    )
    assert outcome == (0, b"", "")
    assert (folder / "copy").read_bytes() == NEW


def test_descriptor_that_is_not_open(folder):
    with unchanged(folder):
        refused(reduce(*WORDS, "-o", "/dev/fd/77", cwd=folder), 4, "/dev/fd/77")


# Scratch files


def test_scratch_file_has_no_name_and_is_shared_by_path(kind, tmp_path):
    with Scratch(str(tmp_path)) as scratch:
        assert os.listdir(tmp_path) == []
        scratch.allocate(1000)
        with open(scratch.shared_path, "r+b") as other:
            other.write(NEW[:1000])
        assert os.pread(scratch.fd, 2000, 0) == NEW[:1000]
    assert not os.path.exists(scratch.shared_path)


def test_output_is_closed_however_it_ends(kind, folder):
    before = os.listdir("/proc/self/fd")
    write(folder / "results" / "out", overwrite=True)
    write(folder / "results" / "new")
    with pytest.raises(OutputExistsError):
        FileOutput(str(folder / "results" / "new"))
    with pytest.raises(OSError, match="missing"):
        FileOutput(str(folder / "missing" / "new"))
    assert os.listdir("/proc/self/fd") == before


def test_the_reader_of_a_fifo_gets_to_its_end(tmp_path):
    """While the program lives whose result that was."""
    np.save(tmp_path / "a.npy", np.arange(3.0))
    os.mkfifo(tmp_path / "fifo")
    with subprocess.Popen(["cat", tmp_path / "fifo"], stdout=subprocess.PIPE) as reader:
        mpired.reduce([tmp_path / "a.npy"], "sum", output=tmp_path / "fifo", to="raw")
        assert reader.communicate(timeout=60)[0] == np.arange(3.0).tobytes()
