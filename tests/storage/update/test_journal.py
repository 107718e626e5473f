"""Journals that are damaged, planted, very large or of another file."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from command import measured, refused, run, snapshot, unchanged
from protocols import JOURNAL
from updates import WORDS, add, pending, value

from mpired.storage import journal
from mpired.storage.lock import Waiting, lock_target

NEVER = b"here/t.npy: removed the journal of an update that was never committed\n"


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
