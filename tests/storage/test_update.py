"""What an update keeps of a file, which protocol it takes, and what it makes of things beside the file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import NOBODY, Child, become_nobody, measured, refused, run, snapshot, unchanged

import mpired
from mpired.errors import LockError, MpiredError
from mpired.storage import calls, copying, journal, lock
from mpired.storage.lock import Waiting, lock_target

COMMITS = ("rename", "journal")
JOURNAL = ".t.npy.mpired-journal"
NEVER = b"here/t.npy: removed the journal of an update that was never committed\n"
DEAD = "that an interrupted command had committed"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target of zeros alone in a folder, and ones beside it."""
    (tmp_path / "here").mkdir()
    np.save(tmp_path / "ones.npy", np.ones(500))
    np.save(tmp_path / "here" / "t.npy", np.zeros(500))
    return tmp_path


def add(folder: Path, target: str = "here/t.npy", **how: object) -> None:
    mpired.Window(folder / target, **how).accumulate(folder / "ones.npy", "sum")


def value(folder: Path, target: str = "here/t.npy") -> float | None:
    elements = np.load(folder / target)
    return float(elements[0]) if (elements == elements[0]).all() else None


WORDS = ("accumulate", "-q", "--op", "sum", "here/t.npy", "ones.npy")


# What the file was it stays


@pytest.mark.parametrize("commit", COMMITS)
def test_mode_owner_and_attributes(commit, as_root, folder):
    path = folder / "here" / "t.npy"
    os.chown(path, 12345, 23456)
    path.chmod(0o640)
    os.setxattr(path, "user.origin", b"detector 7")
    add(folder, commit=commit)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 23456, 0o640)
    assert os.getxattr(path, "user.origin") == b"detector 7"
    assert os.listdir(folder / "here") == ["t.npy"]


@pytest.mark.parametrize("commit", COMMITS)
def test_symbolic_link_stays(commit, folder):
    os.symlink("here/t.npy", folder / "link.npy")
    add(folder, "link.npy", commit=commit)
    assert (folder / "link.npy").is_symlink()
    assert value(folder) == 1
    assert os.listdir(folder / "here") == ["t.npy"]


def test_hard_links_stay_together(folder):
    os.link(folder / "here" / "t.npy", folder / "other.npy")
    add(folder)
    assert value(folder, "other.npy") == 1
    assert (folder / "other.npy").stat().st_nlink == 2
    outcome = run("accumulate", "--op", "sum", "--commit", "rename", "here/t.npy", "ones.npy", cwd=folder)
    assert "hard link" in outcome.err
    assert (value(folder), value(folder, "other.npy")) == (2, 1)


def test_inode_of_a_journalled_target_stays(folder):
    before = (folder / "here" / "t.npy").stat().st_ino
    add(folder, commit="journal")
    assert (folder / "here" / "t.npy").stat().st_ino == before
    add(folder, commit="rename")
    assert (folder / "here" / "t.npy").stat().st_ino != before


# Which protocol


def protocol(folder: Path, nbytes: int, part: int, **changes: Callable[..., object]) -> str:
    """Return how a target of that size is changed in its first bytes."""
    path = folder / "big.bin"
    with open(path, "wb") as file:
        file.truncate(nbytes)
    (folder / "part.bin").write_bytes(bytes(part))
    words = ("accumulate", "--op", "sum", "--type", "int8_t", "--target-disp", "0", "--target-count", str(part))
    outcome = run(*words, "big.bin", "part.bin", cwd=folder, setup=lambda: [call() for call in changes.values()])
    assert outcome.status == 0, outcome.err
    return outcome.err.rpartition("(")[2].rstrip(")\n")


def _no_clone() -> None:
    copying.clone = lambda _source, _target: False


def _clone() -> None:
    copying.clone = lambda _source, _target: True


def test_auto_chooses_what_is_cheap_and_keeps_the_file(folder):
    mebibyte = 1 << 20
    assert protocol(folder, 64 * mebibyte, 100) == "rename"
    assert protocol(folder, 65 * mebibyte, 100, clone=_no_clone) == "journal"
    assert protocol(folder, 65 * mebibyte, 100, clone=_clone) == "rename"
    assert protocol(folder, 66 * mebibyte, 17 * mebibyte, clone=_no_clone) == "rename"


def test_a_foreign_owner_means_the_journal(as_root, open_folder):
    np.save(open_folder / "t.npy", np.zeros(5))
    np.save(open_folder / "ones.npy", np.ones(5))
    (open_folder / "t.npy").chmod(0o666)
    open_folder.chmod(0o777)
    words = ("accumulate", "--op", "sum", "t.npy", "ones.npy")
    outcome = run(*words, cwd=open_folder, setup=become_nobody)
    assert outcome.err.endswith("t.npy (journal)\n"), outcome.err
    os.chown(open_folder / "t.npy", NOBODY, NOBODY)
    assert run(*words, cwd=open_folder, setup=become_nobody).err.endswith("t.npy (rename)\n")


@pytest.mark.parametrize("commit", COMMITS)
def test_folder_that_cannot_be_written_to(commit, as_root, open_folder):
    np.save(open_folder / "t.npy", np.zeros(5))
    (open_folder / "t.npy").chmod(0o666)
    with unchanged(open_folder):
        words = ("accumulate", "--op", "sum", "--commit", commit, "t.npy", "t.npy")
        refused(run(*words, cwd=open_folder, setup=become_nobody), 4, "t.npy", "Permission denied")


@pytest.mark.parametrize("commit", COMMITS)
def test_full_disk(commit, mounted, folder):
    where = mounted("size=1m")
    (where / "t.bin").write_bytes(bytes(900 << 10))
    (folder / "o.bin").write_bytes(bytes(900 << 10))
    with unchanged(where):
        words = ("accumulate", "--op", "sum", "--type", "double", "--commit", commit, str(where / "t.bin"), "o.bin")
        refused(run(*words, cwd=folder), 4, str(where / "t.bin"), "No space left")


def test_full_disk_under_a_sparse_target(mounted, folder):
    """The holes that will be written to are filled before the commit, where that can still be refused."""
    where = mounted("size=1m")
    with open(where / "t.bin", "wb") as file:
        file.truncate(8 << 20)
    (folder / "o.bin").write_bytes(bytes(700 << 10))
    words = ("accumulate", "--op", "sum", "--type", "int8_t", "--target-disp", "0", "--commit", "journal")
    refused(run(*words, str(where / "t.bin"), "o.bin", cwd=folder), 4, str(where / "t.bin"), "No space left")
    assert os.listdir(where) == ["t.bin"]
    assert not any((where / "t.bin").read_bytes())


@pytest.mark.parametrize("commit", COMMITS)
def test_file_size_limit(commit, folder):
    import resource

    with unchanged(folder / "here"):
        words = (*WORDS, "--commit", commit)
        outcome = run(*words, cwd=folder, setup=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)))
        refused(outcome, 4, "here/t.npy", "File too large")


# The lock


def hold(path: Path, kind: int = fcntl.F_WRLCK) -> int:
    """Hold the lock as another program may, and return the descriptor."""
    fd = os.open(path, os.O_RDWR)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))
    return fd


@pytest.mark.parametrize("kind", [fcntl.F_WRLCK, fcntl.F_RDLCK])
@pytest.mark.parametrize("timeout", ["0", "0.05"])
def test_lock_that_is_held(kind, timeout, folder):
    fd = hold(folder / "here" / "t.npy", kind)
    with unchanged(folder):
        refused(run(*WORDS, "--lock-timeout", timeout, cwd=folder), 5, "here/t.npy", "--lock-timeout")
        with pytest.raises(LockError):
            add(folder, lock_timeout=0)
    os.close(fd)
    add(folder, lock_timeout=0)


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_PATIENCE", 0.05)
    monkeypatch.setattr(lock, "_REMINDER", 0.1)


@pytest.mark.parametrize("words", [WORDS, ("reduce-local", "--op", "sum", "ones.npy", "here/t.npy")])
@pytest.mark.parametrize("kind", [fcntl.F_WRLCK, fcntl.F_RDLCK])
def test_a_long_wait_is_told_again_and_again(kind, words, folder, monkeypatch):
    """With the process that has the lock, and how to end the wait."""
    impatient(monkeypatch)
    fd = hold(folder / "here" / "t.npy", kind)
    outcome = run(*words, "--lock-timeout", "0.5", cwd=folder)
    os.close(fd)
    assert outcome.status == 5
    *told, last = outcome.err.splitlines()
    assert len(told) > 1
    for line in told:
        assert line.startswith(f"mpired: here/t.npy: waiting for process {os.getpid()} (")
        assert "ctrl-C" in line
        assert "--lock-timeout" in line
    seconds = re.fullmatch(r"mpired: here/t.npy: others kept it locked for ([0-9.]+) s; .*", last)
    assert seconds is not None
    assert len(seconds[1]) <= len("0.49")


def test_who_has_the_lock_may_be_unknown(as_root, open_folder, monkeypatch):
    """What other users have open is theirs to know."""
    impatient(monkeypatch)
    np.save(open_folder / "t.npy", np.arange(3))
    (open_folder / "t.npy").chmod(0o666)
    fd = hold(open_folder / "t.npy")
    words = ("fetch-and-op", "--op", "sum", "t.npy", "1", "--lock-timeout", "0.3")
    outcome = run(*words, cwd=open_folder, setup=become_nobody)
    os.close(fd)
    assert outcome.status == 5
    assert outcome.err.startswith("mpired: t.npy: waiting for another process, which has it locked")


@pytest.mark.parametrize("timeout", ["-1", "nan", "inf", "1e400", "x"])
@pytest.mark.parametrize("words", [("reduce", "--op", "sum", "ones.npy", "here/t.npy", "-f", "-o", "here/t.npy"),
                                   ("reduce-local", "--op", "sum", "ones.npy", "here/t.npy"),
                                   ("scan", "--op", "sum", "ones.npy", "here/t.npy", "--in-place"),
                                   ("pack", "--type", "byte", "ones.npy", "-f", "-o", "here/t.npy"),
                                   ("unpack", "--type", "byte", "ones.npy", "--into", "here/t.npy"),
                                   ("recover", "here/t.npy")])  # fmt: skip
def test_a_lock_timeout_that_is_no_time(words, timeout, folder):
    with unchanged(folder):
        refused(run(*words, "--lock-timeout", timeout, cwd=folder), 2, "--lock-timeout")
        assert run(*words, cwd=folder, env={"MPIRED_LOCK_TIMEOUT": timeout}).status == 2


def test_a_reader_waits_for_the_end_of_an_update_as_long_as_it_is_told(folder, monkeypatch):
    impatient(monkeypatch)
    journal_ = folder / "here" / ".t.npy.mpired-journal"
    journal_.touch()  # as while an update is at work, that has the lock
    fd = hold(folder / "here" / "t.npy")
    outcome = run("reduce", "-q", "--op", "sum", "here/t.npy", "--lock-timeout", "0.3", cwd=folder)
    os.close(fd)
    assert outcome.status == 5
    assert f"waiting for process {os.getpid()}" in outcome.err


def test_lock_of_a_dead_process_is_free(folder):
    held = os.pipe()
    child = Child("--version", cwd=folder, setup=lambda: (hold(folder / "here" / "t.npy"), os.kill(os.getpid(), 9)))
    assert child.finish().status == -9
    os.close(held[0])
    os.close(held[1])
    add(folder, lock_timeout=0)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks(number, folder):
    def no_locks() -> None:
        def refuse(*_arguments: object) -> None:
            raise OSError(number, os.strerror(number))

        fcntl.fcntl = refuse

    with unchanged(folder):
        refused(run(*WORDS, cwd=folder, setup=no_locks), 5, "here/t.npy", "has no locks")


def test_who_may_only_read_can_read_between_two_updates(as_root, open_folder):
    np.save(open_folder / "t.npy", np.arange(3))
    (open_folder / "t.npy").chmod(0o644)
    words = ("get-accumulate", "-q", "--op", "no_op", "--to", "text", "t.npy")
    with unchanged(open_folder):
        assert run(*words, cwd=open_folder, setup=become_nobody) == (0, b"0\n1\n2\n", "")
        words = ("fetch-and-op", "--op", "no_op", "--target-disp", "2", "t.npy")
        assert run(*words, cwd=open_folder, setup=become_nobody) == (0, b"2\n", "")
        fd = hold(open_folder / "t.npy")
        refused(run(*words, "--lock-timeout", "0", cwd=open_folder, setup=become_nobody), 5, "t.npy", "--lock-timeout")
        os.close(fd)
        words = ("fetch-and-op", "--op", "sum", "t.npy", "1")
        refused(run(*words, cwd=open_folder, setup=become_nobody), 4, "t.npy", "Permission denied")


# What lies beside the file


def pending(folder: Path) -> bytes:
    """Leave a whole journal that was not applied, and return it."""
    kept: list[bytes] = []
    apply = journal.apply
    try:

        def stop(*_arguments: object, **_settings: object) -> None:
            kept.append((folder / "here" / JOURNAL).read_bytes())
            raise OSError(errno.EIO, "stopped")

        journal.apply = stop
        with pytest.raises(MpiredError, match="do not repeat"):
            add(folder, commit="journal")
    finally:
        journal.apply = apply
    assert value(folder) == 0
    return kept[0]


@pytest.mark.parametrize(
    "words",
    [
        ("info", "here/t.npy"),
        ("reduce", "-q", "--op", "sum", "here/t.npy", "-o", "result.npy"),
        ("recover", "here/t.npy"),
        ("accumulate", "-q", "--op", "max", "here/t.npy", "here/t.npy"),
        ("get-accumulate", "-q", "--op", "no_op", "here/t.npy", "--fetch", "old.npy"),
        ("reduce", "-q", "--op", "sum", "here/t.npy", "ones.npy", "--in-place"),
    ],
)
def test_every_command_finishes_an_update(words, folder):
    pending(folder)
    assert run(*words, cwd=folder).status == 0
    assert value(folder) == (2 if "--in-place" in words else 1)
    assert os.listdir(folder / "here") == ["t.npy"]
    if "result.npy" in words:
        assert value(folder, "result.npy") == 1


@pytest.mark.parametrize("words", [[], ["--discard", "--force"]])
def test_what_is_done_and_cannot_be_printed_is_done(words, folder):
    """The status is about the file, and standard error says what was done with it."""
    pending(folder)
    done = "removed the journal" if words else "finished an update of 4000 bytes"
    with open("/dev/full", "wb") as full:
        outcome = run("recover", *words, "ones.npy", "here/t.npy", cwd=folder, stdout=full.fileno())
        assert outcome.status == 6
        first, second = outcome.err.splitlines()
        assert first.startswith(f"mpired: here/t.npy: {done}")
        assert second.startswith("mpired: standard output: No space left on device; ")
        assert second.endswith("do not repeat")
        assert value(folder) == (0 if words else 1)
        assert os.listdir(folder / "here") == ["t.npy"]
        with unchanged(folder):
            outcome = run("recover", *words, "ones.npy", "here/t.npy", cwd=folder, stdout=full.fileno())
            refused(outcome, 4, "standard output: No space left on device")
            outcome = run("recover", "--list", "ones.npy", cwd=folder, stdout=full.fileno())
            refused(outcome, 4, "standard output: No space left on device")


def test_recover_lists_and_discards(folder):
    pending(folder)
    with unchanged(folder):
        listed = run("recover", "--list", "here/t.npy", "ones.npy", cwd=folder)
        assert listed == (0, b"here/t.npy: a committed update to finish\nones.npy: nothing\n", "")
        refused(run("recover", "--discard", "here/t.npy", cwd=folder), 3, "here/t.npy", JOURNAL, "--discard --force")
        refused(run("recover", "--force", "here/t.npy", cwd=folder), 2, "--force", "--discard")
    assert run("recover", "--discard", "--force", "here/t.npy", cwd=folder).status == 0
    assert value(folder) == 0
    assert os.listdir(folder / "here") == ["t.npy"]


def test_who_may_not_write_does_not_read_the_half(as_root, open_folder):
    np.save(open_folder / "ones.npy", np.ones(500))
    (open_folder / "here").mkdir()
    np.save(open_folder / "here" / "t.npy", np.zeros(500))
    pending(open_folder)
    with unchanged(open_folder):
        refused(run("info", "here/t.npy", cwd=open_folder, setup=become_nobody), 3, "here/t.npy", "mpired recover")


@pytest.mark.parametrize("cut", [0, 1, 100, 4095, 4096, 5000, -1])
def test_journal_that_is_not_whole_never_happened(cut, folder):
    whole = pending(folder)
    (folder / "here" / JOURNAL).write_bytes(whole[:cut])
    add(folder)
    assert value(folder) == 1
    assert os.listdir(folder / "here") == ["t.npy"]


@pytest.mark.parametrize("at", [0, 8, 16, 24, 32, 48, 60, 80, 96, 110, 4000, 4096, 6000, -20])
def test_journal_with_a_wrong_byte_never_happened(at, folder):
    content = bytearray(pending(folder))
    content[at] ^= 1
    (folder / "here" / JOURNAL).write_bytes(content)
    assert run("recover", "here/t.npy", cwd=folder).status == 0
    assert value(folder) == 0
    assert os.listdir(folder / "here") == ["t.npy"]


HEADER = "<8sQ16sQQQ16sQQQQ16s"
INODE, GENERATION, SIZE, HEAD = 32, 40, 48, 56


def resealed(content: bytes, at: int, new: bytes) -> bytes:
    """Change a journal, with digests that fit, as somebody could who knows the form."""
    content = content[:at] + new + content[at + len(new) :]
    size = struct.calcsize(HEADER)
    fixed = content[: size - 16] + hashlib.blake2b(content[4096:], digest_size=16).digest()
    digest = hashlib.blake2b(fixed, digest_size=16).digest()
    return (fixed + digest).ljust(4096, b"\0") + content[4096:]


@pytest.mark.parametrize(
    ("at", "new"), [(INODE, b"\1" * 8), (GENERATION, b"\1" * 8), (SIZE, b"\1\0\1" + bytes(5)), (HEAD, bytes(16))]
)
def test_journal_of_another_file_is_refused_and_kept(at, new, folder):
    """Another inode, generation, size, header."""
    content = resealed(pending(folder), at, new)
    (folder / "here" / JOURNAL).write_bytes(content)
    with unchanged(folder):
        refused(run(*WORDS, cwd=folder), 3, "here/t.npy", "another file", "--discard --force")
        refused(run("recover", "--discard", "here/t.npy", cwd=folder), 3, "here/t.npy", "another file", "--force")
        refused(run("info", "here/t.npy", cwd=folder), 3, "here/t.npy", "another file")
        assert b"not its own" in run("recover", "--list", "here/t.npy", cwd=folder).out
    assert run("recover", "--discard", "--force", "here/t.npy", cwd=folder).status == 0
    add(folder)


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 4000), (120, 4000), (136, 4000), (128, 4008), (128, 0), (2**63, 4000)]
)
def test_journal_that_points_out_of_the_elements_was_not_written_by_an_update(offset, nbytes, folder):
    content = pending(folder)
    table = content[:-16] + struct.pack("<QQ", offset, nbytes)
    (folder / "here" / JOURNAL).write_bytes(resealed(table, 0, b"MPIREDJ1"))
    assert run("recover", "here/t.npy", cwd=folder).out == NEVER
    assert value(folder) == 0


def _as_link(path: Path) -> None:
    (path.parent.parent / "elsewhere").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to("../elsewhere")


def _as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "make",
    [
        _as_link,
        _as_fifo,
        _as_folder,
        lambda path: path.chmod(0o666),
        lambda path: os.chown(path, 12345, 12345),
        lambda path: os.link(path, path.parent.parent / "other"),
    ],
    ids=["link", "fifo", "folder", "mode", "owner", "hard link"],
)
def test_journal_that_cannot_be_trusted(make, as_root, folder):
    pending(folder)
    make(folder / "here" / JOURNAL)
    before = snapshot(folder)
    refused(run(*WORDS, cwd=folder), 3, JOURNAL)
    refused(run("info", "here/t.npy", cwd=folder), 3, JOURNAL)
    assert snapshot(folder) == before


def test_not_to_follow_links_is_needed(folder, monkeypatch):
    """Without the flag the bytes of a file elsewhere would get into the target."""
    pending(folder)
    _as_link(folder / "here" / JOURNAL)
    monkeypatch.setattr(os, "O_NOFOLLOW", 0)
    assert run("recover", "here/t.npy", cwd=folder).status == 0
    assert value(folder) == 1


def _intrude(monkeypatch, folder: Path, make: Callable[[Path], None]) -> None:
    """Let somebody take the name of a new file just before it is opened; temporary files have names from the start."""
    original = calls.open_new

    def open_new(name, dirfd=None):
        make(folder / "here" / os.fsdecode(name))
        return original(name, dirfd)

    monkeypatch.setattr(calls, "open_new", open_new)
    monkeypatch.setattr(calls, "open_unnamed", lambda _dirfd: None)


def _file(path: Path) -> None:
    path.write_bytes(b"another's")


def _link(path: Path) -> None:
    (path.parent.parent / "elsewhere").write_bytes(b"another's")
    path.symlink_to("../elsewhere")


@pytest.mark.parametrize("make", [_file, _link])
@pytest.mark.parametrize("commit", COMMITS)
def test_a_name_that_somebody_takes_is_left_to_him(commit, make, folder, monkeypatch):
    _intrude(monkeypatch, folder, make)
    refused(run(*WORDS, "--commit", commit, cwd=folder), 4, "here/t.npy")
    assert value(folder) == 0
    (intruder,) = (path for path in (folder / "here").iterdir() if path.name != "t.npy")
    assert intruder.read_bytes() == b"another's"


@pytest.mark.parametrize(
    ("commit", "make", "flags"),
    [
        ("rename", _file, ["O_EXCL"]),
        ("journal", _file, ["O_EXCL"]),
        ("journal", _link, ["O_EXCL", "O_NOFOLLOW"]),  # either is enough
    ],
)
def test_to_create_exclusively_is_needed(commit, make, flags, folder, monkeypatch):
    _intrude(monkeypatch, folder, make)
    for flag in flags:
        monkeypatch.setattr(os, flag, 0)
    run(*WORDS, "--commit", commit, cwd=folder)
    left = [path for path in folder.rglob("*") if path.is_file() and path.read_bytes()[:9] == b"another's"]
    assert left == []


def test_large_sparse_journal_is_forgotten_at_once(folder):
    with open(folder / "here" / JOURNAL, "wb") as file:
        file.truncate(1 << 40)
    add(folder)
    assert value(folder) == 1


@pytest.mark.parametrize("payload", [0, 32 << 20])
def test_a_large_journal_that_somebody_plants_is_read_in_little_memory(payload, folder):
    """It costs no disk: what it says are millions of ranges is a hole. Its digests fit."""
    target, path = folder / "here" / "t.bin", folder / "here" / ".t.bin.mpired-journal"
    with open(target, "wb") as file:
        file.truncate(40 << 20)
    status, head = target.stat(), hashlib.blake2b(digest_size=16).digest()
    nranges = ((512 << 20) - 4096 - payload) // 16
    with open(path, "wb") as file:
        file.truncate(4096 + payload + 16 * nranges)
    body = hashlib.blake2b(digest_size=16)
    for _ in range((payload + 16 * nranges) // (1 << 16)):
        body.update(bytes(1 << 16))
    body.update(bytes((payload + 16 * nranges) % (1 << 16)))
    numbers = (status.st_ino, 0, status.st_size, head, 0, nranges, payload, 0)
    fixed = struct.pack(HEADER, b"MPIREDJ1", 2, bytes(16), *numbers, body.digest())
    with open(path, "r+b") as file:
        file.write(fixed + hashlib.blake2b(fixed, digest_size=16).digest())
    status, peak, err = measured("recover", str(target))
    assert (status, err) == (0, "")
    assert peak < 150 << 20
    assert not path.exists()


def test_an_update_of_very_many_ranges(folder):
    """The table of a journal is read in blocks: here it is longer than one."""
    target, count = folder / "here" / "t.bin", 100_000
    target.write_bytes(bytes(2 * count))
    with lock_target(str(target), Waiting()) as locked:
        writer = journal.JournalWriter(locked.fd, 0, locked.base, locked.dirfd)
        for number in range(count):
            writer.write(bytes([number % 255 + 1]), 2 * number)
        writer.seal(b"")
        os.close(writer.publish(durable=False).fd)
    assert run("recover", str(target), cwd=folder).status == 0
    expected = np.zeros((count, 2), np.uint8)
    expected[:, 0] = np.arange(count) % 255 + 1
    assert target.read_bytes() == expected.tobytes()


def test_journal_without_its_target(folder):
    content = pending(folder)
    (folder / "here" / "t.npy").unlink()
    refused(run("recover", "here/t.npy", cwd=folder), 3, "here/t.npy", f"here/{JOURNAL} is there", "--discard")
    refused(run(*WORDS, cwd=folder), 3, "here/t.npy", f"here/{JOURNAL} is there")
    refused(run(*WORDS, "--create", "500", cwd=folder), 3, "here/t.npy", "journal")
    assert (folder / "here" / JOURNAL).read_bytes() == content
    assert os.listdir(folder / "here") == [JOURNAL]
    refused(run("recover", "--discard", "here/t.npy", cwd=folder), 3, f"here/{JOURNAL} is there", "--discard --force")
    assert os.listdir(folder / "here") == [JOURNAL]
    outcome = run("recover", "--discard", "--force", "here/t.npy", cwd=folder)
    assert outcome == (0, b"here/t.npy: removed the journal without finishing its update\n", "")
    assert os.listdir(folder / "here") == []
    refused(run("recover", "here/t.npy", cwd=folder), 4, "here/t.npy", "No such file")


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(5000)])
def test_what_is_no_journal_of_a_missing_file_is_discarded(content, folder):
    (folder / "here" / "t.npy").unlink()
    (folder / "here" / JOURNAL).write_bytes(content)
    refused(run("info", "here/t.npy", cwd=folder), 3, "here/t.npy", f"here/{JOURNAL} is there")
    assert run("recover", "--discard", "here/t.npy", cwd=folder).status == 0
    assert os.listdir(folder / "here") == []


@pytest.mark.parametrize("renew", [True, False], ids=["with a new file", "without"])
def test_a_file_that_was_renamed_does_not_lose_its_update_by_advice(renew, folder):
    """Its name leads to its journal no more, which is the only place of its update."""
    pending(folder)
    os.rename(folder / "here" / "t.npy", folder / "here" / "moved.npy")
    if renew:
        np.save(folder / "here" / "t.npy", np.zeros(500))
    with unchanged(folder):
        refused(run("recover", "--discard", "here/t.npy", cwd=folder), 3, "here/t.npy", JOURNAL, "--discard --force")
    os.replace(folder / "here" / "moved.npy", folder / "here" / "t.npy")
    assert run("recover", "here/t.npy", cwd=folder).status == 0
    assert value(folder) == 1


@pytest.mark.parametrize("quiet", [(), ("-q",)])
@pytest.mark.parametrize(
    "words", [("info",), ("accumulate", "ones.npy", "--op", "max"), ("fetch-and-op", "--op", "no_op")]
)
def test_whoever_finishes_an_update_says_so(words, quiet, folder):
    pending(folder)
    command, *rest = words
    outcome = run(command, "here/t.npy", *rest, *(quiet if command == "accumulate" else ()), cwd=folder)
    assert outcome.err.splitlines()[0] == f"mpired: here/t.npy: finished an update of 4000 bytes {DEAD}"
    assert outcome.err.count("finished") == 1
    assert value(folder) == 1


def test_recover_says_what_it_finished(folder):
    pending(folder)
    outcome = run("recover", "here/t.npy", "ones.npy", cwd=folder)
    assert outcome == (
        0,
        f"here/t.npy: finished an update of 4000 bytes {DEAD}\nones.npy: nothing to do\n".encode(),
        "",
    )


def test_list_and_discard_exclude_each_other(folder):
    pending(folder)
    with unchanged(folder):
        refused(run("recover", "--list", "--discard", "here/t.npy", cwd=folder), 2, "--list", "--discard")


def test_journal_that_cannot_be_removed(as_root, open_folder):
    """The target has changed, but not all is done."""
    np.save(open_folder / "ones.npy", np.ones(500))
    (open_folder / "here").mkdir()
    np.save(open_folder / "here" / "t.npy", np.zeros(500))
    pending(open_folder)
    for name in ("t.npy", JOURNAL):
        os.chown(open_folder / "here" / name, NOBODY, NOBODY)
    outcome = run(*WORDS, cwd=open_folder, setup=become_nobody)
    refused(outcome, 6, "here/t.npy", f"here/{JOURNAL} cannot be removed (Permission denied)", "nothing else was done")
    assert value(open_folder) == 1
    assert (open_folder / "here" / JOURNAL).exists()


def test_messages_name_the_journal_where_the_user_sees_it(folder):
    pending(folder)
    (folder / "here" / JOURNAL).chmod(0o666)
    (folder / "alias").symlink_to("here/t.npy")
    refused(run(*WORDS, cwd=folder), 3, f"mpired: here/t.npy: a committed update waits in here/{JOURNAL}, to")
    refused(run("recover", "alias", cwd=folder), 3, f"waits in {folder}/here/{JOURNAL}, to which others")
    refused(
        run("recover", str(folder / "here/t.npy"), cwd=folder), 3, f"waits in {folder}/here/{JOURNAL}, to which others"
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (JOURNAL, "is the journal of an unfinished update of t.npy, not data"),
        (".t.npy.0123abcd.mpired-tmp", "is a temporary file of a command that writes t.npy, not data"),
        (".0123456789abcdef.mpired-tmp", "is a temporary file of a command that writes a file, not data"),
        (".0123abcd.mpired-together", "has results that a command has not put in place yet, not data"),
    ],
)
def test_files_of_mpired_itself_are_no_data(name, reason, folder):
    path = f"here/{name}"
    (folder / path).write_bytes(bytes(80))
    own = [
        ("info", path),
        ("reduce", "--type", "double", "--op", "sum", "ones.npy", path),
        ("scan", "--type", "double", "--op", "sum", path, "-o", "x{rank}.bin"),
        ("pack", "--type", "double", path, "-o", "x.bin"),
        ("accumulate", "--type", "double", "--op", "sum", path, "ones.npy"),
        ("accumulate", "--type", "double", "--op", "sum", "ones.npy", path),
        ("reduce", "--type", "double", "--op", "sum", "ones.npy", "-f", "--to", "raw", "-o", path),
        ("reduce-local", "--type", "double", "--op", "sum", "ones.npy", path),
        ("recover", path),
    ]
    with unchanged(folder):
        for words in own:
            refused(run(*words, cwd=folder), 3, f"{path}: {reason}")


@pytest.mark.parametrize(
    "words",
    [
        "info T J",
        "reduce --op sum T J -o x.npy",
        "reduce --op sum T -f -o J",
        "reduce --op sum T --group-b J -o x.npy",
        "allreduce --op sum T J -o x{rank}.npy",
        "scan --op sum T T --in-place J",
        "reduce-local --op sum T J",
        "reduce-local --op sum J T",
        "pack --type double J -o T -f",
        "pack --type double T -o J",
        "unpack --type double T -o J",
        "unpack --type double T --into J",
        "unpack --type double J --into T",
        "accumulate --op sum J T",
        "accumulate --op sum T J",
        "accumulate --op sum T ones.npy --map J",
        "accumulate --op sum --window T --window J ones.npy",
        "get-accumulate --op sum J T",
        "get-accumulate --op sum T ones.npy -f --fetch J",
        "get-accumulate --op sum T ones.npy --map J",
        "fetch-and-op --op sum T J",
        "fetch-and-op --op sum J T",
        "compare-and-swap J 0 T",
        "compare-and-swap T J 1",
        "recover J",
        "recover --list J",
        "recover --discard --force J",
        "info T LINK",
        "accumulate --op sum LINK T",
    ],
)
def test_a_file_with_the_name_of_a_journal_is_not_removed_because_it_was_named(words, folder):
    """It is none, so the recovery of the file beside it would remove it; it says what it is before anything is done."""
    (folder / "here" / JOURNAL).write_bytes(b"my own notes" * 1000)
    os.symlink(f"here/{JOURNAL}", folder / "link")
    names = {"T": "here/t.npy", "J": f"here/{JOURNAL}", "LINK": "link"}
    shown = "link" if "LINK" in words else f"here/{JOURNAL}"
    with unchanged(folder):
        outcome = run(*(names.get(word, word) for word in words.split()), cwd=folder)
        refused(outcome, 3, f"mpired: {shown}: is the journal of an unfinished update of t.npy, not data")


@pytest.mark.parametrize(
    "words",
    [
        WORDS,
        (*WORDS, "--commit", "journal"),
        ("reduce", "-q", "--op", "sum", "ones.npy", "-f", "-o", "here/t.npy"),
        ("reduce", "-q", "--op", "sum", "here/t.npy", "ones.npy", "--in-place"),
    ],
)
def test_the_next_command_removes_what_a_kill_has_left(words, folder):
    """Between the name of a new file and the rename, on any file system."""

    def kill(*_arguments: object, **_settings: object) -> None:
        os.kill(os.getpid(), 9)

    killed = run(*WORDS, "--commit", "rename", cwd=folder, setup=lambda: setattr(os, "replace", kill))
    assert killed.status == -9
    assert len(os.listdir(folder / "here")) == 2
    living = folder / "here" / ".t.npy.00000001.mpired-tmp"
    living.write_bytes(b"x")
    fd = hold(living)
    assert run(*words, cwd=folder).status == 0
    assert sorted(os.listdir(folder / "here")) == [living.name, "t.npy"]
    os.close(fd)


def test_a_journal_whose_making_fails_does_not_stay(folder):
    """Whatever fails after its name is there."""

    def fail_after_the_making() -> None:
        make, look = calls.open_new, os.fstat

        def fail(*_arguments: object) -> None:
            os.fstat = look
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def open_new(*arguments: object) -> int:
            fd = make(*arguments)
            os.fstat = fail
            return fd

        calls.open_new = open_new

    with unchanged(folder):
        outcome = run(*WORDS, "--commit", "journal", cwd=folder, setup=fail_after_the_making)
        refused(outcome, 4, "here/t.npy", "Input/output error")


def test_dead_temporary_files_are_removed_and_living_ones_stay(folder):
    names = (".t.npy.00000000.mpired-tmp", ".t.npy.00000001.mpired-tmp", ".u.npy.00000002.mpired-tmp")
    dead, living, foreign = (folder / "here" / name for name in names)
    for path in (dead, living, foreign):
        path.write_bytes(b"x")
    fd = hold(living)
    assert run("recover", "here/t.npy", cwd=folder).out == f"here/t.npy: removed {dead.name}\n".encode()
    assert sorted(os.listdir(folder / "here")) == sorted([living.name, foreign.name, "t.npy"])
    os.close(fd)


@pytest.mark.parametrize("commit", COMMITS)
def test_target_replaced_while_waiting(commit, folder):
    """The lock that was waited for is on a file that has no name any more: the new one is locked, and changed."""
    path = folder / "here" / "t.npy"
    fd = hold(path)
    child = Child(*WORDS, "--commit", commit, cwd=folder)
    while not _has_open(child.pid, path.resolve()):
        pass
    np.save(folder / "new.npy", np.full(500, 10.0))
    os.replace(folder / "new.npy", path)
    os.close(fd)
    assert child.finish() == (0, b"", "")
    assert value(folder) == 11


def _has_open(pid: int, path: Path) -> bool:
    """Tell whether a process has a file open; a descriptor may be closed while it is looked at."""
    with contextlib.suppress(OSError):
        return any(os.readlink(f"/proc/{pid}/fd/{n}") == str(path) for n in os.listdir(f"/proc/{pid}/fd"))
    return False
