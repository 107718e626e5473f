"""Several commands that commit many files at the same time."""

from __future__ import annotations

import errno
import os
import warnings

import pytest
from command import snapshot, unchanged
from many_files import NEW, contents, in_child, litter, write

from mpired.errors import UnconfirmedError
from mpired.storage import calls, staging
from mpired.storage.remains import finish_staged as recover
from mpired.storage.together import Together


def test_drafts_of_the_living_are_left_alone(paths, tmp_path):
    with Together(list(map(str, paths)), overwrite=True) as outputs:
        for draft in outputs.drafts:
            with draft.created() as fd:
                calls.pwrite_all(fd, b"draft", 0)
        before = snapshot(tmp_path)
        assert in_child(lambda: recover(map(str, paths))) == 0
        assert snapshot(tmp_path) == before
        outputs.commit()
    assert contents(paths) == [b"draft"] * 4


def test_two_at_the_same_time(tmp_path):
    """Each is whole; which one was last is nobody's business."""
    paths = [tmp_path / str(number) for number in range(4)]
    with Together(list(map(str, paths)), overwrite=True) as outputs:
        write(paths)
        for draft in outputs.drafts:
            with draft.created() as fd:
                calls.pwrite_all(fd, b"second", 0)
        outputs.commit()
    assert contents(paths) == [b"second"] * 4
    assert litter(tmp_path) == []


def test_a_living_command_that_renames_is_waited_for(committed, paths, tmp_path, monkeypatch):
    """Its lock is held by another process, which is told to go on when somebody waits."""
    read, write_end = os.pipe()
    ready, ready_end = os.pipe()

    def holds() -> None:
        fd = os.open(committed[0] / "lock", os.O_RDWR)
        assert calls.lock(fd)
        os.write(ready_end, b"x")
        os.read(read, 1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            holds()
        finally:
            os._exit(0)
    os.read(ready, 1)
    waited = []

    def sleep(_seconds: float) -> None:
        if not waited:
            os.write(write_end, b"x")
            os.waitpid(pid, 0)
        waited.append(1)

    monkeypatch.setattr(staging.time, "sleep", sleep)
    recover(map(str, paths))
    assert waited == [1]
    assert contents(paths) == NEW
    for fd in (read, write_end, ready, ready_end):
        os.close(fd)


def test_a_living_command_that_does_not_end(committed, paths, tmp_path, monkeypatch):
    fd = os.open(committed[0] / "lock", os.O_RDWR)
    assert calls.lock(fd)
    monkeypatch.setattr(staging, "_PATIENCE", 0.01)
    with unchanged(tmp_path), pytest.raises(OSError, match="does not come to an end") as caught:
        recover(map(str, paths))
    assert caught.value.errno == errno.EBUSY
    os.close(fd)


def test_what_comes_between_manifest_and_rename_is_replaced_by_the_living(tmp_path, monkeypatch):
    """Of two commands with --force on the same files the last one wins, as for a single file."""
    paths = [tmp_path / str(number) for number in range(2)]
    original = staging.commit

    def commit(home: str) -> None:
        original(home)
        paths[1].write_bytes(b"another command's")

    monkeypatch.setattr(staging, "commit", commit)
    write(paths)
    assert contents(paths) == NEW[:2]
    for path in paths:
        path.unlink()
    with pytest.raises(UnconfirmedError, match="appeared"):
        write(paths, overwrite=False)
    assert contents(paths) == [NEW[0], b"another command's"]
