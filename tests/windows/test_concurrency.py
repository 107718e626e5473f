"""Several commands at one target, stopped, killed or all at once: nothing is lost, and none waits for ever."""

import itertools
import mmap
import os
import random
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import Child, refused, run, snapshot
from faults import Counter, Fault, at, stopped
from protocols import COMMITS
from values import folder_in_memory, one_value

import mpired
from mpired.errors import MpiredError
from mpired.files import calls, keys, lock
from mpired.files.access import lock_all

COUNT = 3000
BASE = "total.npy"
TARGET = f"targets/{BASE}"
# Each adds 1 to every element of the target, which is 0, so that an update that is lost shows.
COMMANDS = {
    "reduce --in-place": ("reduce", "-q", "--op", "sum", "add1.npy", TARGET, "--root", "1", "--in-place"),
    "reduce-local": ("reduce-local", "-q", "--op", "sum", "add1.npy", TARGET),
    "allreduce --in-place": ("allreduce", "-q", "--op", "sum", "add1.npy", TARGET, "--in-place"),
    "fetch-and-op": ("fetch-and-op", "-q", "--op", "sum", TARGET, "1"),
    "compare-and-swap": ("compare-and-swap", "-q", TARGET, "0", "1"),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A target of zeros in a folder of its own, and an origin of ones."""
    with folder_in_memory() as outside:
        (outside / "targets").mkdir()
        np.save(outside / "add16.npy", np.full(COUNT, 16))
        reset(outside)
        yield outside


def reset(folder: Path) -> None:
    for path in (folder / "targets").iterdir():
        path.unlink()
    np.save(folder / TARGET, np.zeros(COUNT, np.int64))
    np.save(folder / "add1.npy", np.ones(COUNT, np.int64))


def value(folder: Path) -> int | None:
    """Return the one value of all elements, None if they differ."""
    return one_value(folder / TARGET)


def stops(folder: Path, command: str, counter: Counter, step: int) -> Iterator[tuple[int, Child]]:
    """Yield a command that is stopped at each `step`-th of its calls."""
    for number in range(1, 400, step):
        reset(folder)
        counter.clear()
        setup = at(number, Fault("stop", signal.SIGSTOP), counter, BASE)
        child = stopped(*COMMANDS[command], cwd=folder, setup=setup)
        if child is None:
            break
        yield number, child
    assert number > 20


@pytest.mark.parametrize("name", COMMANDS)
def test_an_update_that_comes_in_between_counts(name, long, folder):
    """It is refused for the lock, or is in the result: a command looks at the elements under the lock alone."""
    counter, done = Counter(), set()
    for number, child in stops(folder, name, counter, 1 if long else 19):
        words = ("accumulate", "-q", "--op", "sum", "--commit", COMMITS[number % 2], TARGET, "add16.npy")
        update = run(*words, "--lock-timeout", "0", cwd=folder)
        os.kill(child.pid, signal.SIGCONT)
        outcome = child.finish()
        added = 16 * (update.status == 0)
        where = number, counter.read(), update
        assert (outcome.status, outcome.err) == (0, ""), where
        if name in {"fetch-and-op", "compare-and-swap"}:
            before = int(outcome.out)
            assert before in {0, added}, where
            changed = name == "fetch-and-op" or before == 0
            assert np.load(folder / TARGET)[0] == changed + added, where
        else:
            assert value(folder) == 1 + added, where
        done.add(update.status)
    assert done == {0, 5}


def forked(function: Callable[[], object]) -> int:
    """Call a function in a child, and return its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.alarm(100)
        function()
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the test shall show it
        traceback.print_exc()
    finally:
        os._exit(status)


def stopping_at_lock(number: int) -> Callable[[], None]:
    """Return a setup that stops the process before it takes its n-th lock."""

    def setup() -> None:
        original, left = calls.lock, number

        def lock_(*arguments: object, **settings: object) -> bool:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            return original(*arguments, **settings)

        calls.lock = lock_

    return setup


def test_hard_links_that_cross_do_not_wait_for_each_other(folder):
    """By their paths the first comes to `a` before `b`, and the second the other way round."""
    np.save(folder / "one.npy", np.ones(1, np.int64))
    for name, other in [("a", "z"), ("b", "y")]:
        np.save(folder / f"targets/{name}.npy", np.zeros(1, np.int64))
        os.link(folder / f"targets/{name}.npy", folder / f"targets/{other}.npy")

    def update(*names: str) -> tuple[str, ...]:
        windows = [word for name in names for word in ("--window", f"targets/{name}.npy")]
        return ("accumulate", "-q", "--op", "sum", *windows, "--target-rank", "0", "--lock-timeout", "20", "one.npy")

    children = [stopped(*update(*names), cwd=folder, setup=stopping_at_lock(2)) for names in ("ay", "bz")]
    for child in children:
        os.kill(child.pid, signal.SIGCONT)
    assert [child.finish() for child in children] == [(0, b"", "")] * 2
    assert [np.load(folder / f"targets/{name}.npy")[0] for name in "abyz"] == [1, 1, 1, 1]


def test_two_names_of_one_file_are_one_lock(folder):
    """Each rank gets its result under its own name."""
    os.link(folder / "add1.npy", folder / "name.npy")
    outcome = run("scan", "-q", "--op", "sum", "add1.npy", "name.npy", "--in-place", "--lock-timeout", "0", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    assert np.load(folder / "add1.npy")[0] == 1
    assert np.load(folder / "name.npy")[0] == 2


@pytest.mark.parametrize("hard", [64, 20_000])
def test_more_files_than_descriptors_are_locked(hard, folder):
    for rank in range(100):
        np.full(10, 1).tofile(folder / f"r{rank:02}.bin")
    names = [f"r{rank:02}.bin" for rank in range(100)]

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))

    words = ("scan", "-q", "--op", "sum", "--type", "int64_t", *names, "--in-place")
    before = snapshot(folder)
    outcome = run(*words, cwd=folder, setup=few)
    if hard == 64:
        refused(outcome, 4, "Too many open files")
        assert snapshot(folder) == before
    else:
        assert (outcome.status, outcome.err) == (0, "")
        assert [int(np.fromfile(folder / name, np.int64)[0]) for name in names] == list(range(1, 101))


def test_workers_do_not_keep_the_lock(folder):
    """A command that is killed has no lock any more, whatever became of its workers."""
    target = folder / TARGET
    with lock_all([str(target)], lock.LockTimeout(timeout=0)):
        inherited = forked(signal.pause)
    try:
        with lock_all([str(target)], lock.LockTimeout(timeout=10)):
            pass
    finally:
        os.kill(inherited, signal.SIGKILL)
        os.waitpid(inherited, 0)


NWRITERS = 12


def counts() -> memoryview:
    """Return a number for each writer, which outlives it; it is one store: one in two could be lost by a kill."""
    return memoryview(mmap.mmap(-1, 8 * NWRITERS)).cast("q")


def written(folder: Path, writer: int, number: int, *, both: bool) -> None:
    """Replace p and q together by elements of one value, or replace one file."""
    own = folder / f"writer{writer}"
    own.mkdir(exist_ok=True)
    for name, element in {"p": 0, "q": writer << 32 | number}.items():
        np.save(own / f"{name}.npy", np.full(COUNT, element))
    ranks, how = [own / "p.npy", own / "q.npy"], {"overwrite": True, "jobs": 1}
    if both:
        mpired.allreduce(ranks, "bor", output=folder / "targets" / "{stem}.npy", **how)
    else:
        mpired.reduce(ranks, "bor", output=folder / "targets" / "one.npy", **how)


def added(folder: Path, commit: str, once_key: str | None = None) -> None:
    how = {} if once_key is None else {"once_key": once_key}
    mpired.Window(folder / TARGET, commit=commit).accumulate(folder / "add1.npy", "sum", **how)


def looked(folder: Path) -> None:
    """Read the set: both are alike, or they changed each time that they were read."""
    with open(folder / "targets" / "one.npy", "rb") as file:  # by a reader that knows nothing of locks
        elements = np.frombuffer(file.read()[128:], np.int64)
    assert len(elements) == COUNT
    assert elements.min() == elements.max()
    try:
        total = mpired.reduce([folder / "targets" / f"{name}.npy" for name in "pq"], "bxor", jobs=1)
    except MpiredError as error:
        assert "changed while being read" in str(error)  # noqa: PT017 - one of two ends
        return
    assert not total.any()


KINDS: list[Callable[[Path, int, int], None]] = [
    lambda folder, _writer, _number: added(folder, "rename"),
    lambda folder, _writer, _number: added(folder, "journal"),
    lambda folder, writer, number: added(folder, "auto", f"{writer}: {number}"),
    lambda folder, writer, number: written(folder, writer, number, both=True),
    lambda folder, writer, number: written(folder, writer, number, both=False),
    lambda folder, _writer, _number: looked(folder),
]
WITH_KEYS = 2


def work(folder: Path, begun: memoryview, done: memoryview, writer: int) -> None:
    """Change files again and again; what may not have been done is done once more."""
    for number in itertools.count(done[writer]):
        begun[writer] += 1
        KINDS[writer % len(KINDS)](folder, writer, number)
        done[writer] += 1


def test_writers_of_six_kinds(folder, long, record_property):
    """They are killed again and again."""
    begun, done, chance, kills = counts(), counts(), random.Random(5), 3000 if long else 20
    for name in ("p", "q", "one"):
        np.save(folder / "targets" / f"{name}.npy", np.zeros(COUNT, np.int64))
    writers = [forked(lambda n=n: work(folder, begun, done, n)) for n in range(NWRITERS)]
    ended = []
    for _ in range(kills):
        time.sleep(chance.uniform(0, 0.02))
        number = chance.randrange(NWRITERS)
        os.kill(writers[number], signal.SIGKILL)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(writers[number], 0)[1]))
        writers[number] = forked(lambda n=number: work(folder, begun, done, n))
    for pid in writers:
        os.kill(pid, signal.SIGKILL)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    assert set(ended) == {-signal.SIGKILL}  # none has failed
    names = [BASE, "p.npy", "q.npy", "one.npy"]
    assert run("recover", *(f"targets/{name}" for name in names), cwd=folder).status == 0

    def sums(numbers: memoryview, *kinds: int) -> int:
        return sum(numbers[writer] for writer in range(NWRITERS) if writer % len(KINDS) in kinds)

    with keys.of_file(folder / TARGET) as known:
        with_keys = known.count
    in_flight = sum(writer % len(KINDS) == WITH_KEYS for writer in range(NWRITERS))
    assert sums(done, WITH_KEYS) <= with_keys <= sums(done, WITH_KEYS) + in_flight
    found = value(folder)
    assert found is not None
    assert sums(done, 0, 1) <= found - with_keys <= sums(begun, 0, 1)
    p, q, one = (np.load(folder / "targets" / name) for name in names[1:])
    assert (p == q).all()
    assert (p == p[0]).all()
    assert (one == one[0]).all()
    assert sorted(os.listdir(folder / "targets")) == sorted([*names, f"{BASE}.mpired-keys"])
    record_property("done", sums(done, *range(6)))
    record_property("kills", kills)
