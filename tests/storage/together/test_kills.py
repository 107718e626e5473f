"""A command that is killed while it commits many files: all are old or, after the next command, all new."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from many_files import CHANGING, NEW, OLD, contents, in_child, litter, new, old, write

from mpired.storage.remains import finish_staged as recover

COMMITTING = {"commit", "manifest"}


def die_at(which: int, *, after: bool) -> Callable[[], None]:
    """Return what kills this process at a changing call, counted over all of them."""

    def patch() -> None:
        count = iter(range(10**6))

        def dying(original: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **settings: object) -> object:
                mine = next(count) == which
                if mine and not after:
                    os.kill(os.getpid(), signal.SIGKILL)
                result = original(*arguments, **settings)
                if mine:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            return call

        for name in CHANGING:
            setattr(os, name, dying(getattr(os, name)))

    return patch


def deaths(function: Callable[[], object], *, after: bool) -> Iterator[int]:
    """Run a function again and again, each time killed one call later, until it comes to its end."""
    for which in range(1000):

        def child(which: int = which) -> None:
            die_at(which, after=after)()
            function()

        status = in_child(child)
        assert status in {0, -signal.SIGKILL}
        if status == 0:
            return
        yield which
    pytest.fail("it has no end")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("after", [False, True])
def test_death_at_every_call(after, paths, tmp_path):
    states = []
    for _ in deaths(lambda: write(paths), after=after):
        found = contents(paths)
        states.append(sum(content in NEW for content in found))
        assert all(content in {old(i), new(i)} for i, content in enumerate(found))
        committed = any(
            {*os.listdir(tmp_path / name / staging)} >= COMMITTING
            for name in "ab"
            for staging in os.listdir(tmp_path / name)
            if "mpired" in staging
        )
        recover([str(paths[0]), str(paths[3])])
        recovered = contents(paths)
        assert recovered in (OLD, NEW)
        assert recovered == NEW or not (committed or NEW[0] in found)
        assert litter(tmp_path) == []
        for i, path in enumerate(paths):
            path.write_bytes(old(i))
    assert {0, 1, 2, 3, 4} <= set(states)  # each of the renames was reached
    assert states == sorted(states)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("after", [True, False])
def test_death_at_every_call_while_new_names_are_taken(after, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    paths = [tmp_path / "ab"[number % 2] / str(number) for number in range(4)]
    states = []
    for _ in deaths(lambda: write(paths, overwrite=False), after=after):
        found = contents(paths)
        states.append(4 - found.count(None))
        recover(map(str, paths))
        assert contents(paths) in ([None] * 4, NEW)
        assert contents(paths) == NEW or found == [None] * 4
        assert litter(tmp_path) == []
        for path in paths:
            path.unlink(missing_ok=True)
    assert {0, 1, 2, 3, 4} <= set(states)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("folder", ["a", "b"])
def test_death_while_it_is_finished(after, folder, paths, tmp_path):
    """The next command dies too, at each of its calls; the one after that finishes, from whichever folder."""

    def dies_between_the_renames() -> None:
        original, count = os.replace, iter(range(100))

        def replace(*arguments: object, **settings: object) -> None:
            original(*arguments, **settings)
            if next(count) == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = replace
        write(paths)

    reached = 0
    for which in range(1000):
        assert in_child(dies_between_the_renames) == -signal.SIGKILL
        assert contents(paths) == [*NEW[:2], *OLD[2:]]

        def recovers(which: int = which) -> None:
            die_at(which, after=after)()
            recover([str(tmp_path / folder / "x")])

        status = in_child(recovers)
        recover([str(paths[0]), str(paths[3])])
        assert contents(paths) == NEW
        assert litter(tmp_path) == []
        for i, path in enumerate(paths):
            path.write_bytes(old(i))
        if status == 0:
            break
        reached += 1
    assert reached > 10


def test_one_folder_is_enough_to_finish_all(paths, tmp_path):
    def dies() -> None:
        os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        write(paths)

    for folder in "ab":
        assert in_child(dies) == -signal.SIGKILL
        assert contents(paths) == OLD
        recover([str(tmp_path / folder / "anything")])
        assert contents(paths) == NEW
        assert litter(tmp_path) == []
        for number, path in enumerate(paths):
            path.write_bytes(old(number))
