"""A command that removes what others have left meets one that writes: each waits before each of its calls."""

from __future__ import annotations

import errno
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from many_files import NEW, contents, litter, write

from mpired.storage import calls, staging
from mpired.storage.remains import finish_staged as recover

# What changes directories, what looks at them, and the lock.
PLACES = (
    *((os, name) for name in ("listdir", "mkdir", "open", "readlink", "rmdir", "symlink", "unlink")),
    (staging, "put_in_place"),
    (calls, "lock"),
)


class Actor(threading.Thread):
    """A thread that does something, but waits before one of its calls until it is let go."""

    def __init__(self, action: Callable[[], object], which: int) -> None:
        super().__init__(daemon=True)
        self._action = action
        self._calls_left = which
        self._waits_or_ended = threading.Event()
        self._go_on = threading.Event()
        self.waits = False
        self.error: BaseException | None = None
        self.start()
        assert self._waits_or_ended.wait(60)

    def run(self) -> None:
        try:
            self._action()
        except BaseException as error:  # noqa: BLE001 - it is looked at where the thread is ended
            self.error = error
        self._waits_or_ended.set()

    def count(self) -> None:
        """Count a call, and wait before the one."""
        if self._calls_left == 0:
            self.waits = True
            self._waits_or_ended.set()
            assert self._go_on.wait(60)
        self._calls_left -= 1

    def end(self) -> BaseException | None:
        """Let it go to its end, and return what it raised."""
        self._go_on.set()
        self.join(60)
        assert not self.is_alive()
        return self.error


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let actors count their calls."""

    def counting(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def call(*arguments: object, **settings: object) -> object:
            actor = threading.current_thread()
            if isinstance(actor, Actor):
                actor.count()
            return original(*arguments, **settings)

        return call

    for module, name in PLACES:
        monkeypatch.setattr(module, name, counting(getattr(module, name)))


def remove_what_is_left(folder: Path) -> None:
    """Do what each command does first; one that puts its results in place is not waited for here."""
    try:
        recover([str(folder / "x")])
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise


@pytest.mark.parametrize("folder", ["a", "b"])
def test_the_one_that_writes_keeps_or_replaces_its_directories(folder, counted, directory, monkeypatch):
    """It keeps the lock of the first one, in `a`, as long as it lives; that in `b` has only a link to it."""
    monkeypatch.setattr(staging, "_PATIENCE", 0)
    paths = [directory / "a" / "0", directory / "b" / "1"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
    met = 0
    for first in range(1000):
        for second in range(1000):
            for path in paths:
                path.unlink(missing_ok=True)
            writer = Actor(lambda: write(paths), first)
            remover = Actor(lambda: remove_what_is_left(directory / folder), second)
            both_wait = writer.waits and remover.waits
            assert (writer.end(), remover.end()) == (None, None), (first, second)
            assert contents(paths) == NEW[:2], (first, second)
            assert litter(directory) == [], (first, second)
            if not both_wait:
                break
            met += 1
        if not writer.waits:
            break
    assert met > 200
