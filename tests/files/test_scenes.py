"""Scenes of two commands, or a command and a stranger, at files that a command changes.

Other scenes are in `test_power_cuts` (cuts, also of a recovery), `test_kills_and_errors`, `test_neighbours`,
`test_keys`, `test_rights` (users and groups), `test_updates`, `windows/test_half_done` (hard links) and
`windows/test_concurrency`.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import Child, Outcome, refused, run, unchanged
from faults import Counter, Fault, at, kill, kill_half_way, stopped
from users import STRANGER
from values import folder_in_memory, one_value

from mpired.files import log
from mpired.files.places import Place

COUNT = 500
# Both add one to x; the first to y as well, in another directory.
SET = ("allreduce", "-q", "--op", "sum", "--in-place", "a/x.npy", "b/y.npy")
PATCH = ("accumulate", "-q", "--op", "sum", "--commit", "journal", "a/x.npy", "one.npy")
CHANGES = pytest.mark.parametrize("words", [PATCH, SET], ids=["patch", "set"])
OLD, NEW = {PATCH: (1, 1), SET: (1, 1)}, {PATCH: (2, 1), SET: (2, 2)}
TOTAL = ("reduce", "-q", "--op", "sum", "a/x.npy", "b/y.npy", "--to", "text")
STOP = Fault("stop", signal.SIGSTOP)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Files of ones in two directories, in memory."""
    with folder_in_memory() as outside:
        yield made(outside)


def made(folder: Path) -> Path:
    for name in folder.iterdir():
        shutil.rmtree(name) if name.is_dir() else name.unlink()
    for name in ("one", "a/x", "b/y"):
        (folder / name).parent.mkdir(exist_ok=True)
        np.save(folder / f"{name}.npy", np.ones(COUNT))
    return folder


def values(folder: Path, *names: str) -> tuple[float | None, ...]:
    """Return the value of all elements of x and of y, or of others; None if they differ."""
    return tuple(one_value(folder / name) for name in names or ("a/x.npy", "b/y.npy"))


def ours(folder: Path) -> list[str]:
    """Return what lies about that is not the user's."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*mpired*"))


def half_done(end: Callable[[], None], which: int = 2) -> Callable[[], None]:
    """Return a setup with which a command ends, or stops, with half of a patch written or at a step of a set."""

    def setup() -> None:
        steps = 0

        def step(original: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **settings: object) -> object:
                nonlocal steps
                steps += 1
                if steps == which:
                    end()
                return original(*arguments, **settings)

            return call

        kill_half_way(end)
        os.replace, os.unlink = step(os.replace), step(os.unlink)

    return setup


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def crashed(folder: Path, words: tuple[str, ...], which: int = 2) -> Path:
    """Leave what a command leaves that is killed behind its commit."""
    made(folder)
    assert run(*words, cwd=folder, setup=half_done(kill, which)).status == -signal.SIGKILL
    assert ours(folder)
    return folder


def gone_on(child: Child) -> Outcome:
    os.kill(child.pid, signal.SIGCONT)
    return child.finish()


def stops(folder: Path, words: tuple[str, ...], *, long: bool, every: int = 5) -> Iterator[Child]:
    """Yield a command that is stopped at each of its calls, or each fifth."""
    for number in range(1, 1000, 1 if long else every):
        child = stopped(*words, cwd=folder, setup=at(number, STOP, Counter(), ""))
        if child is None:
            assert number > 20
            return
        yield child


@CHANGES
def test_a_copied_tree_leaves_the_original_alone(words, folder, tmp_path):
    crashed(folder, words)
    subprocess.run(["cp", "-a", folder / "a", folder / "b", folder / "one.npy", tmp_path], check=True)
    assert run(*words, cwd=folder).status == 0
    latest = {PATCH: (3, 1), SET: (4, 4)}[words]
    assert values(folder) == latest
    with unchanged(tmp_path):
        refused(run(*TOTAL, cwd=tmp_path), 3, "a copy of a log", "mpired recover --adopt")
        refused(run(*words, cwd=tmp_path), 3, "a copy of a log", "mpired recover --adopt")
    assert run("recover", "--adopt", "a/x.npy", cwd=tmp_path).status == 0
    assert (values(tmp_path), values(folder)) == (NEW[words], latest)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("which", range(1, 5))
@pytest.mark.parametrize(("away", "there"), [("b", "a/x.npy"), ("a", "b/y.npy")])
@pytest.mark.parametrize("how", ["moved", "unreadable"])
def test_a_directory_that_is_away_for_a_time(how, away, there, which, folder):
    crashed(folder, SET, which)
    place, elsewhere = folder / away, folder / "elsewhere"

    def unreadable() -> None:
        open_file = os.open

        def refuse(path: object, *arguments: object, **settings: object) -> int:
            if os.path.basename(os.fsdecode(path)) == away:
                raise OSError(5, "Input/output error")
            return open_file(path, *arguments, **settings)

        os.open = refuse

    if how == "moved":
        place.rename(elsewhere)
        place.mkdir()
    pointer = (folder / there).with_name(f".{Path(there).name}.mpired")
    if pointer.exists() and pointer.stat().st_size:  # else that file has nothing to wait for
        setup = unreadable if how == "unreadable" else None
        with unchanged(folder):
            refused(run("info", there, cwd=folder, setup=setup), 3, "bring it back")
    if how == "moved":
        place.rmdir()
        elsewhere.rename(place)
    assert run(*TOTAL, cwd=folder).out.split() == [b"4.0"] * COUNT
    assert (values(folder), ours(folder)) == (NEW[SET], [])


@CHANGES
def test_a_third_command_comes_while_a_recovery_is_stopped(words, folder, long):
    """The recovery is stopped at each call; a third command comes; the recovery goes on, or is killed."""
    for number in range(1, 1000, 1 if long else 17):
        for end in (signal.SIGCONT, signal.SIGKILL):
            crashed(folder, words)
            child = stopped("recover", "a/x.npy", cwd=folder, setup=at(number, STOP, Counter(), ""))
            if child is None:
                assert number > 20
                return
            third = run(*words, "--lock-timeout", "0", cwd=folder)
            os.kill(child.pid, end)
            os.kill(child.pid, signal.SIGCONT)
            assert child.finish().status == (0 if end == signal.SIGCONT else -signal.SIGKILL)
            assert third.status in {0, 5}
            after = run(*words, cwd=folder)
            assert (after.status, after.err.count("finished")) in {(0, 0), (0, 1)}
            x = [2 + (third.status == 0) + 1, 2 * (1 + (third.status == 0)) * 2][words is SET]
            assert (values(folder), ours(folder)) == ((x, 1 if words is PATCH else x), []), number


@CHANGES
@pytest.mark.parametrize("waiter", ["reader", "writer"])
def test_whoever_waits_for_a_command_that_is_killed_goes_on(waiter, words, folder):
    owner = stopped(*words, cwd=folder, setup=half_done(stop))
    other = Child(*(TOTAL if waiter == "reader" else words), cwd=folder)
    time.sleep(0.3)
    assert os.waitpid(other.pid, os.WNOHANG) == (0, 0)
    os.kill(owner.pid, signal.SIGKILL)
    owner.finish()
    outcome = other.finish()
    assert outcome.status == 0
    if waiter == "reader":
        assert outcome.out.split() == [b"%.1f" % sum(NEW[words])] * COUNT
    assert values(folder) == (NEW[words] if waiter == "reader" else {PATCH: (3, 1), SET: (4, 4)}[words])
    assert ours(folder) == []


@CHANGES
def test_a_recovery_takes_nothing_from_a_living_command(words, folder, long):
    for child in stops(folder, words, long=long):
        other = run("recover", "a/x.npy", "b/y.npy", "--lock-timeout", "0", cwd=folder)
        assert other.status in {0, 5}, other
        assert gone_on(child) == (0, b"", "")
        assert (values(folder), ours(folder)) == (NEW[words], [])
        made(folder)


@CHANGES
def test_readers_see_all_old_or_all_new(words, folder, long):
    """A reader is stopped at each call, a command changes the files; and the other way round."""
    expected = {b"%.1f" % sum(OLD[words]), b"%.1f" % sum(NEW[words])}
    seen = set()
    for child in stops(folder, TOTAL, long=long, every=11):
        assert run(*words, cwd=folder).status == 0
        outcome = gone_on(child)
        assert outcome.status == 0, outcome
        assert len(set(outcome.out.split())) == 1
        seen |= set(outcome.out.split())
        made(folder)
    assert seen == expected
    for child in stops(folder, words, long=long, every=11):
        outcome = run(*TOTAL, "--lock-timeout", "0", cwd=folder)
        assert outcome.status in {0, 5}, outcome
        assert set(outcome.out.split()) in [set(), *({each} for each in expected)]
        assert gone_on(child).status == 0
        made(folder)


def creation(*names: str) -> tuple[str, ...]:
    """Return a command that makes files of ones and of twos of two names."""
    return ("scan", "-q", "--op", "sum", *(f"from/{name}.npy" for name in names), "-o", "{stem}.npy")


@pytest.mark.parametrize("other", ["command", "file"])
def test_names_that_another_takes_meanwhile(other, folder, long):
    """One command makes p and q, and another q and r, or a program q: who comes first has all, the other nothing."""
    seen = set()

    def begin() -> None:
        made(folder)
        (folder / "from").mkdir()
        for name in "pqr":
            shutil.copy(folder / "one.npy", folder / "from" / f"{name}.npy")

    begin()
    for child in stops(folder, creation("p", "q"), long=long, every=3):
        if other == "command":
            is_second = run(*creation("q", "r"), cwd=folder).status == 0
        elif is_second := not (folder / "q.npy").exists():
            (folder / "q.npy").write_bytes(b"precious")
        first = gone_on(child)
        there = "".join(name for name in "pqr" if (folder / f"{name}.npy").exists())
        if not is_second:
            assert (first.status, there, values(folder, "p.npy", "q.npy")) == (0, "pq", (1, 2))
        elif other == "command":
            refused(first, 2, "q.npy: ")
            assert (there, values(folder, "q.npy", "r.npy")) == ("qr", (1, 2))
        else:
            refused(first, 2, "q.npy: ")
            assert (there, (folder / "q.npy").read_bytes()) == ("q", b"precious")
        assert ours(folder) == []
        seen.add(is_second)
        begin()
    assert seen == {True, False}


def test_a_file_that_is_removed_and_restored_is_another_file(tmp_path):
    """Even if it gets the inode of the first, which a disk gives again at once."""
    crashed(tmp_path, PATCH)
    inode = (tmp_path / "a/x.npy").stat().st_ino
    for _ in range(50):
        (tmp_path / "a/x.npy").unlink()
        np.save(tmp_path / "a/x.npy", np.full(COUNT, 7.0))
        if (tmp_path / "a/x.npy").stat().st_ino == inode:
            break
    with unchanged(tmp_path):
        for words in (("info", "a/x.npy"), PATCH, ("recover", "a/x.npy")):
            refused(run(*words, cwd=tmp_path), 3, "a/x.npy: is not the file any more", "--discard --force")
    assert run("recover", "--discard", "--force", "a/x.npy", cwd=tmp_path).status == 0
    assert run(*PATCH, cwd=tmp_path).status == 0
    assert (values(tmp_path), ours(tmp_path)) == ((8, 1), [])


@CHANGES
def test_a_directory_that_is_renamed_takes_its_log_along(words, folder):
    crashed(folder, words)
    whole = folder / "whole"
    whole.mkdir()
    for name in ("a", "b", "one.npy"):
        (folder / name).rename(whole / name)
    whole.rename(folder / "renamed")
    assert run(*TOTAL, cwd=folder / "renamed").status == 0
    assert (values(folder / "renamed"), ours(folder)) == (NEW[words], [])


def test_a_result_that_is_removed_after_a_crash_stays_away(folder):
    crashed(folder, SET)  # x has its new content
    (folder / "a/x.npy").unlink()
    assert run("info", "b/y.npy", cwd=folder).status == 0
    assert (values(folder, "b/y.npy"), ours(folder), (folder / "a/x.npy").exists()) == ((2,), [], False)


def test_a_file_that_was_changed_after_a_crash_stays(folder):
    crashed(folder, SET, 1)
    np.save(folder / "b/y.npy", np.full(COUNT, 7.0))
    outcome = run("info", "b/y.npy", cwd=folder)
    assert (outcome.status, "which is kept as" in outcome.err) == (0, True)
    assert (values(folder), values(folder, "b/y.npy.mpired-kept"), ours(folder)) == ((2, 7), (2,), [])


@CHANGES
def test_a_dry_run_finishes_nothing(words, folder):
    crashed(folder, words)
    with unchanged(folder):
        assert "has an unfinished change" in run(*TOTAL, "--dry-run", cwd=folder).err


def planted(path: Path, kind: log.LogKind, body: dict[str, object], identity: bytes = b"", data: bytes = b"") -> None:
    """Write a whole log of this user."""
    of = path.with_name(path.name[1:].removesuffix(".mpired"))
    place = Place(str(of), str(of), os.open(path.parent, os.O_RDONLY))
    writer = log.LogWriter(place, [str(path.parent)], identity)
    writer.write(data, 0)
    writer.write_body(kind, body)
    writer.link(place)
    writer.complete()
    writer.is_committed = True
    writer.close()


def test_a_log_of_a_stranger_that_a_note_leads_to_is_not_applied(as_root, folder):
    """The note of y leads to a log of x, in the place of which a stranger has put another one with its identity."""
    crashed(folder, SET)
    path, target = folder / "a/.x.npy.mpired", (folder / "a/x.npy").stat()
    identity = bytes.fromhex(os.getxattr(path, log.MARK).decode())
    path.unlink()
    body = {"name": "x.npy", "inode": target.st_ino, "generation": 0, "size": target.st_size, "attributes": {}}
    planted(path, log.LogKind.PATCH, body, identity, b"forged")
    os.chown(path, STRANGER, -1)
    with unchanged(folder):
        refused(run("info", "b/y.npy", cwd=folder), 3, f"change of user {STRANGER}")


def deep(path: Path) -> None:
    """A log in form, of which the body has a thousand brackets; it lacks the attribute."""
    planted(path, log.LogKind.PUTS, {"folders": [[[[]]] * 3] * 1000, "steps": ["../" * 9]})
    os.removexattr(path, log.MARK)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


HOSTILE = {
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
    "link": lambda path: path.symlink_to(path.parent.parent / "one.npy"),
    "dangling link": lambda path: path.symlink_to("nothing"),
    "terabyte": sparse,
    "forged log": deep,
    "result": lambda path: shutil.copy(path.parent.parent / "one.npy", path),
}


@pytest.mark.parametrize("words", [TOTAL, PATCH, SET, ("recover", "a/x.npy")], ids=lambda words: words[0])
def test_what_has_the_name_of_a_log(words, folder):
    """The command does its work, or is refused in a line and has done nothing."""
    for what, make in HOSTILE.items():
        made(folder)
        make(folder / "a" / ".x.npy.mpired")
        outcome = run(*words, cwd=folder)
        assert outcome.status in {0, 3}, (what, outcome)
        assert (values(folder, "one.npy"), outcome.err.count("\n")) == ((1,), int(outcome.status == 3)), what
        if outcome.status == 3:
            assert ".x.npy.mpired" in outcome.err, what
            assert values(folder) == (1, 1), what
        else:
            assert values(folder) == NEW.get(words, (1, 1)), what


@CHANGES
def test_a_log_that_a_stranger_puts_back_means_nothing(words, folder, long):
    """He takes what lies beside the files away at each call of a command, and puts it back when all is done."""
    for child in stops(folder, words, long=long, every=9):
        taken = {name: folder / f"taken{number}" for number, name in enumerate(ours(folder))}
        for name, place in taken.items():
            (folder / name).rename(place)
        gone_on(child)
        for words_then in (TOTAL, words):  # what was left is finished; and then there is something newer
            run(*words_then, cwd=folder)
        latest = values(folder)
        assert None not in latest
        for name, place in taken.items():
            if not (folder / name).exists():
                place.rename(folder / name)
        outcome = run(*TOTAL, cwd=folder)
        assert outcome.status in {0, 3}, outcome
        assert values(folder) == latest
        made(folder)
