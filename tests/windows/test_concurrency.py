"""Several at one target: nothing is lost, nothing is applied twice, whoever is stopped or killed, and wherever."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import COMMAND, Child, become_nobody, refused, run, snapshot
from faults import Counter, Fault, at, recover
from values import folder_in_memory

from mpired.buffers import source
from mpired.options import AccumulateOptions, checked
from mpired.storage import calls, lock, recovery, staging, temporary
from mpired.windows.call import plan_accumulate

BASE = "total.npy"
COUNT = 3000


@pytest.fixture
def folder() -> Iterator[Path]:
    """A target of zeros in a folder of its own, and origins of ones and of powers of 16."""
    with folder_in_memory() as outside:
        (outside / "targets").mkdir()
        for number in (1, 16):
            np.save(outside / f"add{number}.npy", np.full(COUNT, number))
        reset(outside)
        yield outside


def reset(folder: Path, count: int = COUNT) -> None:
    for path in (folder / "targets").iterdir():
        path.unlink()
    np.save(folder / "targets" / BASE, np.zeros(count, np.int64))


def value(folder: Path) -> int | None:
    """Return the one value of all elements, None if they differ."""
    elements = np.load(folder / "targets" / BASE)
    return int(elements[0]) if (elements == elements[0]).all() else None


def words(number: int, commit: str, *others: str) -> tuple[str, ...]:
    return ("accumulate", "-q", "--op", "sum", "--commit", commit, *others, f"targets/{BASE}", f"add{number}.npy")


# One is stopped at each of its calls, and another comes


def interleavings(folder: Path, first: str, second: str, end: signal.Signals, step: int = 1) -> Iterator[str]:
    """Stop one update at each call, or each of so many, run another meanwhile and after; yield what is wrong."""
    counter = Counter()
    for number in range(1, 200, step):
        reset(folder)
        counter.clear()
        setup = at(number, Fault("stop", signal.SIGSTOP), counter, BASE)
        stopped = Child(*words(1, first), cwd=folder, setup=setup)
        _, status = os.waitpid(stopped.pid, os.WUNTRACED)
        if os.WIFEXITED(status):
            assert number > 20
            return
        seen = value(folder)
        meanwhile = run(*words(16, second, "--lock-timeout", "0"), cwd=folder)
        os.kill(stopped.pid, end)
        if end != signal.SIGKILL:
            os.kill(stopped.pid, signal.SIGCONT)
        status = stopped.finish().status
        after = run(*words(16, second), cwd=folder)
        recover(folder / "targets" / BASE)  # a new file that got a name, but not its place
        # A killed one may have committed, which the value tells.
        ones = {0, 1} if status == -signal.SIGKILL else {int(status == 0)}
        expected = {16 * (meanwhile.status == 0) + 16 * (after.status == 0) + each for each in ones}
        call = counter.read()[1]
        where = f"{first} stopped at call {number} ({call}), then {second}, {end.name}"
        if after.status or meanwhile.status not in {0, 5}:
            yield f"{where}: {meanwhile} {after}"
        if value(folder) not in expected or os.listdir(folder / "targets") != [BASE]:
            yield f"{where}: {value(folder)} instead of {expected}, {os.listdir(folder / 'targets')}"
        if seen == 1 and meanwhile.status == 0 and "sync" in call:
            yield f"{where}: the other came in before the end of the commit"


@pytest.mark.parametrize("second", ["rename", "journal"])
@pytest.mark.parametrize("first", ["rename", "journal"])
@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
def test_another_update_at_any_moment(first, second, end, long, folder):
    assert list(interleavings(folder, first, second, end, 1 if long else 2)) == []


# What is left out, and where that shows: the protocol, and what becomes of the one that was stopped.
MUTANTS = {
    "lock": ([(calls, "lock", lambda *_, **__: True)], "rename", signal.SIGCONT),
    # What it would let through the reading notices as well, and it is tried again.
    "second look": (
        [(lock.os.path, "samestat", lambda *_: True), (source, "_stamp", lambda status: (0, 0, status.st_size, 0))],
        "rename",
        signal.SIGCONT,
    ),
    "recovery": (
        [
            (recovery, "recover", lambda *_, **__: ""),
            (recovery, "has_journal", lambda _: False),
            (source, "has_journal", lambda _: False),
        ],
        "journal",
        signal.SIGKILL,
    ),
    "lock on the new file": ([(temporary, "_lock", lambda _fd: True)], "rename", signal.SIGCONT),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_step_is_needed(mutant, folder, monkeypatch):
    """Without it some interleaving loses an update, or lets another see one that is not safe yet."""
    patches, commit, end = MUTANTS[mutant]
    for patch in patches:
        monkeypatch.setattr(*patch)
    assert next(interleavings(folder, commit, commit, end), None) is not None


# Commands that replace a file take its lock too

# Each adds 1 to every element of the target; `{}` is the target.
IN_PLACE = {
    "reduce --in-place": ("reduce", "--op", "sum", "add1.npy", "{}", "--root", "1", "--in-place"),
    "reduce -f -o": ("reduce", "--op", "sum", "add1.npy", "other.npy", "-f", "-o", "{}"),
    "reduce-local": ("reduce-local", "--op", "sum", "add1.npy", "{}"),
    "scan --in-place": ("scan", "--op", "sum", "add1.npy", "{}", "--in-place"),
    "scan -f -o": ("scan", "--op", "sum", "add1.npy", BASE, "-f", "-o", "targets/{{stem}}.npy"),
    "allreduce --in-place": ("allreduce", "--op", "sum", "add1.npy", "{}", "--in-place"),
    "reduce-scatter-block": ("reduce-scatter-block", "--op", "sum", "add1.npy", "{}", "--in-place"),
    "exscan": ("exscan", "--op", "sum", "add1.npy", "{}", "add1b.npy", "--in-place"),
    "unpack --into": ("unpack", "--type", "int64_t", "--offset", "128", "add1.npy", "--into", "{}"),
    "pack -f -o": ("pack", "--type", "int64_t", "--offset", "128", "add1.npy", "-f", "-o", "{}"),
    "get-accumulate --fetch": ("get-accumulate", "--op", "sum", "other.npy", "add1.npy", "--fetch", "{}", "-f"),
}
# Those whose result is that of the target before, so that an update that is lost shows.
ADDING = ("reduce --in-place", "reduce-local", "scan --in-place", "allreduce --in-place")


def in_place(folder: Path, command: str) -> tuple[str, ...]:
    """Return the words of a command, and make its files."""
    reset(folder)
    np.save(folder / "add1.npy", np.ones(COUNT, np.int64))
    np.save(folder / "add1b.npy", np.ones(COUNT, np.int64))
    np.save(folder / "other.npy", np.ones(COUNT, np.int64))
    np.save(folder / BASE, np.ones(COUNT, np.int64))
    verb, *others = IN_PLACE[command]
    return (verb, "-q", *(word.format(f"targets/{BASE}") for word in others))


def stopping_at(*names: str) -> Callable[[], None]:
    """Return a setup that stops the process at the first of some calls of `os`, before it is made."""

    def setup() -> None:
        def stop(original: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **settings: object) -> object:
                for name in names:
                    setattr(os, name, originals[name])
                os.kill(os.getpid(), signal.SIGSTOP)
                return original(*arguments, **settings)

            return call

        originals = {name: getattr(os, name) for name in names}
        for name in names:
            setattr(os, name, stop(originals[name]))

    return setup


def stopped(*words: str, setup: Callable[[], None], cwd: Path) -> Child:
    """Run a command until it stops."""
    child = Child(*words, cwd=cwd, setup=setup)
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), child.finish()
    return child


@pytest.mark.parametrize("command", IN_PLACE)
def test_no_update_comes_in_before_a_file_is_replaced(command, folder):
    child = stopped(*in_place(folder, command), cwd=folder, setup=stopping_at("fsync"))
    before = (folder / "targets" / BASE).read_bytes()
    update = run(*words(16, "auto", "--lock-timeout", "0"), cwd=folder)
    after = (folder / "targets" / BASE).read_bytes()
    os.kill(child.pid, signal.SIGCONT)
    outcome = child.finish()
    assert (outcome.status, outcome.err) == (0, "")
    assert (update.status, after) == (5, before), update.err


@pytest.mark.parametrize("command", IN_PLACE)
def test_a_file_is_not_replaced_while_an_update_is_at_work(command, folder):
    words_ = in_place(folder, command)
    update = stopped(*words(16, "rename"), cwd=folder, setup=stopping_at("replace"))
    before = (folder / "targets" / BASE).read_bytes()
    outcome = run(*words_, "--lock-timeout", "0", cwd=folder)
    after = (folder / "targets" / BASE).read_bytes()
    os.kill(update.pid, signal.SIGCONT)
    assert update.finish().status == 0
    assert (outcome.status, after) == (5, before), outcome.err


def impatient() -> None:
    """Do not wait for a command that has committed many results and puts them in place: status 4."""
    staging._PATIENCE = 0  # noqa: SLF001


@pytest.mark.parametrize("commit", ["rename", "journal"])
@pytest.mark.parametrize("command", ADDING)
def test_an_update_that_comes_in_between_is_in_the_result(command, commit, folder):
    """At each moment that it is stopped at, another update is refused for the lock, or counts."""
    counter, done = Counter(), set()
    for number in range(1, 400, 7):
        command_words = in_place(folder, command)
        counter.clear()
        child = Child(*command_words, cwd=folder, setup=at(number, Fault("stop", signal.SIGSTOP), counter, BASE))
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if os.WIFEXITED(status):
            break
        update = run(*words(16, commit, "--lock-timeout", "0"), cwd=folder, setup=impatient)
        os.kill(child.pid, signal.SIGCONT)
        outcome = child.finish()
        assert (outcome.status, outcome.err) == (0, ""), counter.read()
        assert value(folder) == 1 + 16 * (update.status == 0), (number, counter.read(), update)
        done.add(update.status)
    assert number > 20
    assert {0, 5} <= done <= {0, 4, 5}


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.parametrize("command", ["reduce-local", "unpack --into"])
def test_without_locks_files_are_replaced_all_the_same(command, number, folder):
    """There nothing can be accumulated into them."""

    def no_locks() -> None:
        def refuse(*_arguments: object) -> None:
            raise OSError(number, os.strerror(number))

        fcntl.fcntl = refuse

    outcome = run(*in_place(folder, command), cwd=folder, setup=no_locks)
    assert (outcome.status, outcome.err) == (0, "")
    assert value(folder) == 1


def test_a_file_that_may_only_be_read_is_replaced_under_a_lock(as_root, open_folder):
    """Its owner's updates are kept away by the lock of a reader."""
    folder = open_folder
    folder.chmod(0o777)
    for name in "t.npy", "o.npy":
        np.save(folder / name, np.ones(COUNT, np.int64))
        (folder / name).chmod(0o444)

    def setup() -> None:
        become_nobody()
        stopping_at("replace")()

    command = ("reduce-local", "-q", "--op", "sum", "o.npy", "t.npy")
    child = stopped(*command, cwd=folder, setup=setup)
    update = run("accumulate", "--op", "sum", "t.npy", "o.npy", "--lock-timeout", "0", cwd=folder)
    os.kill(child.pid, signal.SIGCONT)
    outcome = child.finish()
    assert (outcome.status, outcome.err) == (0, "")
    assert update.status == 5, update.err
    assert np.load(folder / "t.npy").tolist() == [2] * COUNT
    child = stopped("accumulate", "-q", "--op", "sum", "t.npy", "o.npy", cwd=folder, setup=stopping_at("replace"))
    refused(run(*command, "--lock-timeout", "0", cwd=folder, setup=become_nobody), 5, "t.npy", "--lock-timeout")
    os.kill(child.pid, signal.SIGCONT)
    assert child.finish().status == 0


def test_the_journal_of_a_file_is_finished_before_the_file_is_replaced(folder):
    words_ = in_place(folder, "reduce-local")
    update = stopped(*words(16, "journal"), cwd=folder, setup=stopping_at("fdatasync"))
    os.kill(update.pid, signal.SIGKILL)
    update.finish()
    assert (folder / "targets" / f".{BASE}.mpired-journal").exists()
    outcome = run(*words_, cwd=folder)
    assert outcome.status == 0
    assert "finished an update" in outcome.err
    assert value(folder) == 17
    assert os.listdir(folder / "targets") == [BASE]


def test_two_names_of_one_file_are_one_lock(folder):
    """Each rank gets its result under its own name."""
    in_place(folder, "reduce-local")
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

    words_ = ("scan", "-q", "--op", "sum", "--type", "int64_t", *names, "--in-place")
    before = snapshot(folder)
    outcome = run(*words_, cwd=folder, setup=few)
    if hard == 64:
        refused(outcome, 4, "r00.bin", "100 files", "ulimit -n")
        assert snapshot(folder) == before
    else:
        assert (outcome.status, outcome.err) == (0, "")
        assert [int(np.fromfile(folder / name, np.int64)[0]) for name in names] == list(range(1, 101))


def test_workers_do_not_keep_the_lock(folder):
    """A command that is killed has no lock any more, whatever became of its workers."""
    target = folder / "targets" / BASE
    with lock.lock_target(str(target), lock.Waiting(timeout=0)):
        inherited = forked(signal.pause)
    try:
        with lock.lock_target(str(target), lock.Waiting(timeout=10)):
            pass
    finally:
        os.kill(inherited, signal.SIGKILL)
        os.waitpid(inherited, 0)


# What fails after the commit


def closes_fail_after(name: str) -> Callable[[], None]:
    """Return a setup that lets every close fail from a call of `os` on, as on NFS with a quota."""

    def setup() -> None:
        original, close, armed = getattr(os, name), os.close, False

        def call(*arguments: object, **settings: object) -> object:
            nonlocal armed
            done = original(*arguments, **settings)
            armed = True
            return done

        def failing(fd: int) -> None:
            close(fd)
            if armed:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

        setattr(os, name, call)
        os.close = failing

    return setup


@pytest.mark.parametrize("command", [*IN_PLACE, "accumulate", "journal", "parquet"])
def test_a_close_that_fails_after_the_commit_is_no_failure(command, folder):
    words_ = in_place(folder, command if command in IN_PLACE else "reduce-local")
    pq.write_table(pa.table({"x": np.zeros(COUNT, np.int64)}), folder / "t.parquet")
    words_ = {
        "accumulate": words(1, "rename"),
        "journal": words(1, "journal"),
        "parquet": ("accumulate", "-q", "--op", "sum", "t.parquet", "add1.npy"),
    }.get(command, words_)
    setup = closes_fail_after("fdatasync" if command == "journal" else "replace")
    outcome = run(*words_, cwd=folder, setup=setup)
    assert outcome.status in {0, 6}, outcome.err
    if command == "parquet":
        assert pq.read_table(folder / "t.parquet")["x"].to_pylist() == [1] * COUNT
    elif command in {*ADDING, "accumulate", "journal"}:
        assert run("info", f"targets/{BASE}", cwd=folder).status == 0  # which finishes what a status of 6 has left
        assert value(folder) == 1


# Several windows are locked in one order


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


def test_windows_in_opposite_order_do_not_wait_for_each_other(folder):
    """In the order of inodes they would: a target that is replaced gets another inode."""
    names = ["targets/a.npy", "targets/b.npy"]
    np.save(folder / "one.npy", np.ones(1, np.int64))
    for name in names:
        np.save(folder / name, np.zeros(1, np.int64))

    def update(*order: str) -> tuple[str, ...]:
        windows = [word for name in order for word in ("--window", name)]
        return ("accumulate", "-q", "--op", "sum", *windows, "--target-rank", "0", "--lock-timeout", "4", "one.npy")

    first = stopped(*update(*names), cwd=folder, setup=stopping_at_lock(1))
    for _ in range(50):
        replaced = run("accumulate", "-q", "--op", "sum", "--commit", "rename", names[0], "one.npy", cwd=folder)
        assert replaced.status == 0
        if os.stat(folder / names[0]).st_ino > os.stat(folder / names[1]).st_ino:
            break
    else:
        raise AssertionError("a new file never got a greater inode")
    second = stopped(*update(*names[::-1]), cwd=folder, setup=stopping_at_lock(2))
    os.kill(first.pid, signal.SIGCONT)
    time.sleep(0.3)  # for it to take what it can, which is what makes the two wait for each other in a wrong order
    os.kill(second.pid, signal.SIGCONT)
    assert [first.finish(), second.finish()] == [(0, b"", "")] * 2


@pytest.mark.parametrize("commit", ["rename", "journal"])
@pytest.mark.parametrize("command", ["fetch-and-op", "compare-and-swap"])
def test_counters_look_at_the_target_under_the_lock_alone(command, commit, folder):
    """Whatever another does to the target before, the element is taken as it is then."""
    counter = Counter()
    for number in range(1, 100, 3):
        reset(folder)
        counter.clear()
        operands = ("1",) if command == "fetch-and-op" else ("0", "1")
        options = ("--op", "sum") if command == "fetch-and-op" else ()
        setup = at(number, Fault("stop", signal.SIGSTOP), counter, BASE)
        child = Child(command, "-q", *options, f"targets/{BASE}", *operands, cwd=folder, setup=setup)
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if os.WIFEXITED(status):
            break
        update = run(*words(16, commit, "--lock-timeout", "0"), cwd=folder)
        os.kill(child.pid, signal.SIGCONT)
        outcome = child.finish()
        assert (outcome.status, outcome.err) == (0, ""), counter.read()
        before = int(outcome.out)
        assert before in {0, 16 * (update.status == 0)}
        swapped = command == "fetch-and-op" or before == 0
        assert np.load(folder / "targets" / BASE)[0] == swapped + 16 * (update.status == 0)
    assert number > 10


# Many at once


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
    finally:
        os._exit(status)


def ended_well(pids: list[int]) -> None:
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@contextlib.contextmanager
def many(functions: list[Callable[[], object]]) -> Iterator[None]:
    """Run functions in children beside the block."""
    pids = [forked(function) for function in functions]
    try:
        yield
    finally:
        ended_well(pids)


MIXED = ["rename", "journal", "auto", "journal", "rename", "auto", "journal", "rename"]


def test_eight_processes_add_ones(folder):
    """8 processes, 200 increments each, of 10,000 elements, in overlapping and in separate ranges."""
    count, increments = 10_000, 200
    reset(folder, count)
    np.save(folder / "ones.npy", np.ones(count, np.int64))
    np.save(folder / "part.npy", np.full(1000, 1 << 32))

    def work(number: int) -> None:
        for i in range(increments):
            origin, options = ("ones.npy", {}) if i % 2 else ("part.npy", {"target_disp": 1000 * number})
            said = checked(AccumulateOptions, {"commit": MIXED[number], "lock_timeout": 100, **options})
            plan_accumulate([folder / "targets" / BASE], [folder / origin], "sum", said).run()

    with many([lambda n=n: work(n) for n in range(8)]):
        pass
    expected = np.full(count, 8 * increments // 2)
    expected[:8000] += increments // 2 << 32
    assert (np.load(folder / "targets" / BASE) == expected).all()
    assert os.listdir(folder / "targets") == [BASE]


@pytest.mark.parametrize(
    ("op", "start", "origin", "times"),
    [
        ("max", np.int64(-(2**63)), np.int64(7), 1),
        ("bxor", np.uint32(0), np.uint32(0xDEADBEEF), 5),
        ("prod", np.uint64(1), np.uint64(0x9E3779B97F4A7C15), 3),
        ("sum", np.float64(0), np.float64(2.0**-30), 8),
    ],
)
def test_other_ops_are_exact(op, start, origin, times, folder):
    target = folder / "targets" / BASE
    np.save(target, np.full(COUNT, start))
    np.save(folder / "origin.npy", np.full(COUNT, origin))

    def work(commit: str) -> None:
        said = checked(AccumulateOptions, {"commit": commit})
        for _ in range(times):
            plan_accumulate([target], [folder / "origin.npy"], op, said).run()

    with many([lambda commit=commit: work(commit) for commit in MIXED]):
        pass
    expected = start
    with np.errstate(over="ignore"):
        for _ in range(8 * times):
            expected = {"max": np.maximum, "bxor": np.bitwise_xor, "prod": np.multiply, "sum": np.add}[op](
                expected, origin
            )
    assert (np.load(target) == expected).all()


def test_the_installed_command_many_times(folder):
    def work(commit: str) -> None:
        for _ in range(10):
            subprocess.run([COMMAND, *words(1, commit)], cwd=folder, check=True)

    with many([lambda commit=commit: work(commit) for commit in ("rename", "journal", "auto", "journal")]):
        pass
    assert value(folder) == 40


# Killed and killed again


class Acknowledged:
    """A counter for each writer that outlives it."""

    def __init__(self, nwriters: int) -> None:
        self._counts = memoryview(mmap.mmap(-1, 8 * nwriters)).cast("q")

    def add(self, writer: int) -> None:
        # One store: `struct.pack_into` writes zeros first, and a kill between would lose the count.
        self._counts[writer] += 1

    def total(self) -> int:
        return sum(self._counts)


def kill_storm(folder: Path, commit: str, kills: int) -> None:
    """Let four writers add ones, and kill one after the other."""
    said = checked(AccumulateOptions, {"commit": commit})
    acknowledged, target, random_ = Acknowledged(4), folder / "targets" / BASE, random.Random(commit)

    def write(number: int) -> None:
        while True:
            plan_accumulate([target], [folder / "add1.npy"], "sum", said).run()
            acknowledged.add(number)

    writers = [forked(lambda n=n: write(n)) for n in range(4)]
    for _ in range(kills - 4):
        time.sleep(random_.uniform(0, 0.01))
        number = random_.randrange(4)
        os.kill(writers[number], signal.SIGKILL)
        os.waitpid(writers[number], 0)
        writers[number] = forked(lambda n=number: write(n))
    for pid in writers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert run("recover", f"targets/{BASE}", cwd=folder).status == 0
    assert acknowledged.total() > 0
    found = value(folder)
    assert found is not None
    assert acknowledged.total() <= found <= acknowledged.total() + kills
    assert os.listdir(folder / "targets") == [BASE]


@pytest.mark.parametrize("commit", ["rename", "journal"])
def test_hundreds_of_kills(commit, long, record_property, folder):
    kills = 5000 if long else 200
    kill_storm(folder, commit, kills)
    record_property("tried", kills)


def test_the_storm_finds_an_update_in_place_without_a_journal(folder, monkeypatch):
    """It has teeth: what a plain write leaves behind is half."""

    def plain(folder: Path) -> None:
        target = folder / "targets" / BASE
        elements = np.load(target)
        with open(target, "r+b", buffering=0) as file:
            for start in range(0, COUNT, 100):
                file.seek(128 + 8 * start)
                file.write((elements[start : start + 100] + 1).tobytes())

    random_, halves = random.Random(3), 0
    for _ in range(200):
        pid = forked(lambda: [plain(folder) for _ in range(1000)])
        time.sleep(random_.uniform(0.002, 0.01))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        halves += value(folder) is None
        if halves:
            return
        reset(folder)
    raise AssertionError("no kill left a half-written file")


# Readers that know nothing of mpired


def test_a_reader_without_locks_sees_the_old_or_the_new(folder):
    target = folder / "targets" / BASE
    done = mmap.mmap(-1, 1)
    said = checked(AccumulateOptions, {"commit": "rename", "durability": "process"})

    def write() -> None:
        while not done[0]:
            plan_accumulate([target], [folder / "add1.npy"], "sum", said).run()

    seen = set()
    with many([write]):
        try:
            while len(seen) < 40:  # of the updates that came in between
                with open(target, "rb") as file:
                    elements = np.frombuffer(file.read()[128:], np.int64)
                assert len(elements) == COUNT
                assert elements.min() == elements.max()
                seen.add(int(elements[0]))
        finally:
            done[0] = 1


def test_reduce_waits_for_the_end_of_an_update(folder):
    """A command that opens the target while a journal is written from it waits, and reads the whole."""
    counter = Counter()
    for number in range(1, 200):
        reset(folder)
        counter.clear()
        stopped = Child(
            *words(1, "journal"), cwd=folder, setup=at(number, Fault("stop", signal.SIGSTOP), counter, BASE)
        )
        _, status = os.waitpid(stopped.pid, os.WUNTRACED)
        if os.WIFEXITED(status):
            return
        journal_there = (folder / "targets" / f".{BASE}.mpired-journal").exists()
        reader = Child("reduce", "-q", "--op", "sum", f"targets/{BASE}", "--to", "raw", cwd=folder)
        if not journal_there:
            assert reader.finish().out == np.load(folder / "targets" / BASE).tobytes()
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.finish().status == 0
        if journal_there:
            assert reader.finish() == (0, np.ones(COUNT, np.int64).tobytes(), "")
