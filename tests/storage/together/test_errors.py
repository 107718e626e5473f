"""Errors of each call while many files are committed: all are old, or the next command makes all new."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import refused, run
from many_files import CHANGING, FINISHED, NEW, OLD, contents, litter, old, write

from mpired.errors import UnconfirmedError
from mpired.storage.remains import finish_staged as recover
from mpired.storage.staging import pending


def failing(name: str, number: int, fails: Callable[[int], bool]) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what lets the calls of a function fail for which `fails` holds, counted from 0."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        original, count = getattr(os, name), iter(range(10**6))

        def patched(*arguments: object, **settings: object) -> object:
            if fails(next(count)):
                raise OSError(number, os.strerror(number))
            return original(*arguments, **settings)

        monkeypatch.setattr(os, name, patched)

    return patch


def calls_of_a_commit(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how often each changing call is made, and at which of the fsyncs and opens the commit point is."""
    counts = dict.fromkeys(CHANGING, 0)
    with monkeypatch.context() as patch:
        for name in CHANGING:
            original = getattr(os, name)

            def counted(*arguments: object, _name=name, _original=original, **settings: object) -> object:
                counts[_name] += 1
                return _original(*arguments, **settings)

            patch.setattr(os, name, counted)
        write(paths)
    for number, path in enumerate(paths):
        path.write_bytes(old(number))
    return counts


def end_of_writing(paths: list[Path]) -> str:
    """Tell how writing ended: before the commit, with a file's name in the error, or after it."""
    try:
        write(paths)
    except UnconfirmedError:
        return "committed"
    except OSError as error:
        return "before" if error.filename else f"nameless: {error}"
    return "no error"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(
    "name", ["fchmod", "fsync", "mkdir", "open", "posix_fallocate", "pwrite", "replace", "symlink"]
)
def test_error_of_every_call_leaves_all_old_or_all_new(name, number, paths, tmp_path, monkeypatch):
    total = calls_of_a_commit(paths, monkeypatch)[name]
    assert total > 0
    ends = set()
    for which in range(total):
        with monkeypatch.context() as patch:
            failing(name, number, lambda count, which=which: count == which)(patch)
            ends.add(ending := end_of_writing(paths))
            if ending == "before":
                assert contents(paths) == OLD
                assert litter(tmp_path) == []
        committed = contents(paths) != OLD or any(pending(str(path.parent)) for path in paths)
        recover(map(str, paths))
        assert contents(paths) == (NEW if committed else OLD), (which, ends)
        assert litter(tmp_path) == []
        for i, path in enumerate(paths):
            path.write_bytes(old(i))
    assert ends <= {"before", "committed", "no error"}
    assert ("committed" if name == "replace" else "before") in ends


def test_error_of_a_rename_is_said_and_the_next_command_finishes(tmp_path):
    for rank in range(3):
        np.save(tmp_path / f"r{rank}.npy", np.full(3, rank + 1))

    def setup() -> None:
        original, count = os.replace, iter(range(100))

        def replace(*arguments: object, **settings: object) -> None:
            if next(count) == 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            original(*arguments, **settings)

        os.replace = replace

    outcome = run("scan", "-q", "--op", "sum", "r0.npy", "r1.npy", "r2.npy", "--in-place", cwd=tmp_path, setup=setup)
    refused(outcome, 6, "committed", "next mpired command")
    assert [np.load(tmp_path / f"r{rank}.npy")[0] for rank in range(3)] == [1, 2, 3]
    outcome = run("reduce", "-q", "--op", "max", "r2.npy", "--to", "raw", cwd=tmp_path)
    assert outcome == (0, np.full(3, 6).tobytes(), f"mpired: {tmp_path}/r0.npy: {FINISHED} (3 files)\n")
    assert [np.load(tmp_path / f"r{rank}.npy")[0] for rank in range(3)] == [1, 3, 6]
    assert litter(tmp_path) == []
