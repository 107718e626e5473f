"""A command that is killed, gets a signal or fails at each of its calls: the result is old or new."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import reduce, snapshot, succeeded
from one_result import NEW, OLD, WORDS

_CALLS = ("open", "pwrite", "posix_fallocate", "fchown", "fchmod", "fsync", "link", "replace", "unlink", "close")


SCRATCH = r"\.[0-9a-f]{16}\.mpired-tmp"  # where files have names from the start, for a moment


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
@pytest.mark.sampled(2)
def test_kill_at_any_call_leaves_the_old_or_the_new(kind, to, folder):
    """What may stay behind is a temporary file that has a name; without one only between its name and its place."""
    found_all, litter_all = [], []
    for status, found, litter in each_call(folder, to, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        assert status == -signal.SIGKILL
        assert all(each == ".out.mpired-new" or re.fullmatch(SCRATCH, each) for each in litter)
        found_all.append(found)
        litter_all.append(len(litter))
    assert set(found_all) == {OLD, _result(to)}
    assert found_all == sorted(found_all, key=lambda found: found != OLD)
    assert sum(litter_all) == 1 if kind == "unnamed" else max(litter_all) == (1 if to == "raw" else 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.sampled(2)
def test_signal_at_any_call_means_nothing_changed_or_success(kind, number, folder):
    ends = set()
    for status, found, litter in each_call(folder, "raw", lambda: os.kill(os.getpid(), number)):
        assert not litter
        ends.add((status, found))
    assert ends == {(-number, OLD), (0, NEW)}


def _input_output_error() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("to", ["raw", "csv"])
@pytest.mark.sampled(2)
def test_error_at_any_call_tells_the_truth(kind, to, folder):
    names = tuple(name for name in _CALLS if name != "unlink")  # a name that cannot be removed stays
    ends = set()
    for status, found, litter in each_call(folder, to, _input_output_error, names):
        assert not litter
        ends.add((status, found))
    assert ends <= {(4, OLD), (6, _result(to)), (0, _result(to))}
    assert {(4, OLD), (6, _result(to))} <= ends
