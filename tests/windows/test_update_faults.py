"""Whatever fails at whichever call: the target is old or new, never half, and the exit status tells which."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from command import Outcome, refused, run
from faults import Counter, Fault, at, kill_half_way, recover
from values import folder_in_memory

import mpired
from mpired.errors import UnconfirmedError
from mpired.files import calls
from mpired.files.names import MARK

BASE, OTHER = "total.npy", "elsewhere/another.npy"
COUNT = 1500  # elements: pages and a part of one
OLD, NEW = 1.0, 3.0
LOG = f".{BASE}.mpired"
NUMBERS = (errno.EROFS, errno.EMFILE, errno.EACCES, errno.ENOMEM, errno.EPERM)
IN_SHORT = 19  # one of so many calls
ERRORS = [Fault("error", number) for number in NUMBERS]


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as outside:
        np.save(outside / "origin.npy", np.full(COUNT, 2.0))
        (outside / "targets").mkdir()
        yield outside


def reset(folder: Path) -> None:
    """Put the old target there, and nothing else."""
    for path in (folder / "targets").iterdir():
        path.unlink()
    np.save(folder / "targets" / BASE, np.full(COUNT, OLD))
    if (folder / "elsewhere").exists():
        (folder / OTHER).unlink(missing_ok=True)
        os.link(folder / "targets" / BASE, folder / OTHER)


def recovered(folder: Path) -> float | None:
    """Do what `mpired recover` does, by the other name of the target first if it has one; return the value."""
    if (folder / "elsewhere").exists():
        recover(folder / OTHER)
        found = value(folder)
        recover(folder / "targets" / BASE)
        assert value(folder) == found
        assert os.listdir(folder / "elsewhere") == [os.path.basename(OTHER)]
    else:
        recover(folder / "targets" / BASE)
    assert os.listdir(folder / "targets") == [BASE]
    assert MARK not in os.listxattr(folder / "targets" / BASE)
    return value(folder)


def value(folder: Path) -> float | None:
    """Return the one value of all elements, None if they differ."""
    elements = np.load(folder / "targets" / BASE)
    assert elements.shape == (COUNT,)
    return float(elements[0]) if (elements == elements[0]).all() else None


def accumulate(folder: Path, commit: str, setup: Callable[[], None]) -> Outcome:
    words = ("accumulate", "-q", "--op", "sum", "--commit", commit, f"targets/{BASE}", "origin.npy")
    return run(*words, cwd=folder, setup=setup)


def calls_of_a_run(folder: Path, commit: str) -> int:
    """Return how many calls a run without faults makes."""
    counter = Counter()
    reset(folder)
    assert accumulate(folder, commit, at(0, Fault("none"), counter, BASE)) == (0, b"", "")
    assert value(folder) == NEW
    return counter.read()[0]


def each_point(
    folder: Path, commit: str, faults: list[Fault], step: int = 1
) -> Iterator[tuple[Fault, str, Outcome, float | None]]:
    """Run the command for each call and fault, or one of so many, each call's turn coming with another fault.

    Yield fault, call, outcome and the value left.
    """
    counter = Counter()
    last = calls_of_a_run(folder, commit)
    for number in range(1, last + 1):
        for fault in faults[(last - number) % step :: step]:  # also those behind the commit
            reset(folder)
            counter.clear()
            outcome = accumulate(folder, commit, at(number, fault, counter, BASE))
            fired = counter.read()[1]
            assert fired, f"call {number} was not made"
            yield fault, fired, outcome, value(folder)


@pytest.fixture(params=["rename", "named", "journal", "linked"])
def commit(request, monkeypatch, folder) -> str:
    """The protocol; "named" is rename without files that have no name, "linked" journal with a target of two names."""
    if request.param == "named":
        monkeypatch.setattr(calls, "open_unnamed", lambda _dirfd: None)
    if request.param == "linked":
        (folder / "elsewhere").mkdir()
    return request.param.replace("named", "rename").replace("linked", "journal")


def truth_told(outcome: Outcome, left: float | None, after: float | None) -> bool:
    """Tell whether the exit status says what happened."""
    if outcome.status == 4:
        return left == OLD and after == OLD
    return outcome.status in {0, 6} and after == NEW and (outcome.status == 6 or left == NEW)


def test_error_at_any_call_tells_the_truth(commit, long, record_property, folder):
    points, ends = 0, set()
    for fault, call, outcome, left in each_point(folder, commit, ERRORS, 1 if long else IN_SHORT):
        assert "Traceback" not in outcome.err, outcome.err
        assert outcome.err.count("\n") == (outcome.status != 0), (fault, call, outcome)
        litter = set(os.listdir(folder / "targets")) - {BASE}
        # What cannot be removed stays, until the next command.
        assert not litter or call == "unlink" or outcome.status == 6, (fault, call, litter)
        assert truth_told(outcome, left, recovered(folder)), (fault, call, outcome, left, value(folder))
        ends.add(outcome.status)
        points += 1
    assert 4 in ends
    assert 6 in ends or not long
    assert points >= (90 if long else 5), points
    record_property("tried", points)


def test_short_writes_are_continued(commit, long, folder):
    for fault, call, outcome, left in each_point(folder, commit, [Fault("short")], 1 if long else 8):
        assert (outcome.status, outcome.err, left) == (0, "", NEW), (fault, call)


def test_to_continue_short_writes_is_needed(commit, folder, monkeypatch):
    monkeypatch.setattr(calls, "pwrite_all", lambda fd, data, offset: os.pwrite(fd, data, offset))
    assert any(left != NEW for *_, left in each_point(folder, commit, [Fault("short")]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.sampled(2)
def test_signal_at_any_call_means_nothing_changed_or_success(number, commit, long, record_property, folder):
    ends, points = set(), 0
    for _, call, outcome, left in each_point(folder, commit, [Fault("signal", number)], 1 if long else 10):
        assert outcome.err == ""
        assert os.listdir(folder / "targets") == [BASE], call
        ends.add((outcome.status, left))
        points += 1
    assert ends == {(-number, OLD), (0, NEW)}
    record_property("tried", points)


def left_by_a_kill(folder: Path) -> None:
    """Leave what a patch leaves that is killed in the middle of its writing to the target."""
    reset(folder)
    accumulate(folder, "journal", kill_half_way)
    assert value(folder) is None


FAULTS = (Fault("kill before"), Fault("short, then kill"), Fault("error from here on", errno.EIO))


@pytest.fixture
def another_name(folder) -> None:
    """Let the target have another name in another folder."""
    (folder / "elsewhere").mkdir()


@pytest.mark.parametrize("words", [("recover",), ("info",), ("accumulate", "--op", "max", "-q", f"targets/{BASE}")])
@pytest.mark.sampled(2)
def test_faults_in_the_recovery(words, long, folder):
    """Every command finishes the update first; killed or failing in that, it leaves that to the next one."""
    check_faults_in(words, folder, f"targets/{BASE}", long=long)


@pytest.mark.parametrize("words", [("recover",), ("info",)])
@pytest.mark.sampled(2)
def test_faults_in_the_recovery_by_another_name(words, another_name, long, folder):
    check_faults_in(words, folder, OTHER, long=long)


def check_faults_in(words: tuple[str, ...], folder: Path, name: str, *, long: bool) -> None:
    words = (*words, "origin.npy") if words[0] == "accumulate" else (*words, name)
    counter, points = Counter(), 0
    for number in range(1, 200, 1 if long else 2):
        for fault in FAULTS if long else FAULTS[number % len(FAULTS) :][:1]:
            left_by_a_kill(folder)
            counter.clear()
            outcome = run(*words, cwd=folder, setup=at(number, fault, counter, ""))
            if not counter.read()[1]:
                assert points >= (20 if long else 10), points
                return
            assert outcome.status in {0, -signal.SIGKILL, 4, 6}, (fault, outcome)
            assert recovered(folder) == NEW, (fault, counter.read())
            points += 1
    raise AssertionError("the run does not end")


def test_recover_in_python(folder, caplog):
    left_by_a_kill(folder)
    target, missing = folder / "targets" / BASE, folder / "missing.npy"
    listed = run("recover", "--list", str(target), cwd=folder).out.decode()
    (found,) = mpired.recover(target, only_list=True)
    assert f"{found.file}: {', '.join(found.words)}\n" == listed
    assert found.words[0] == "a committed change to finish"
    assert not found.changed
    with pytest.raises(FileNotFoundError):
        mpired.recover([missing, target])
    assert value(folder) == NEW
    assert mpired.recover([target]) == [mpired.Recovered(str(target))]
    left_by_a_kill(folder)
    (done,) = mpired.recover([target])
    assert (done.changed, done.words[0][:18]) == (True, "finished an update")
    assert value(folder) == NEW
    assert [record.name for record in caplog.records] == ["mpired"]  # by the call that failed for another file
    left_by_a_kill(folder)
    mpired.info(target)
    assert caplog.messages[1:] == [f"{target}: {done.words[0]}"]
    with pytest.raises(mpired.errors.UsageError, match="`force`: lets `discard` remove"):
        mpired.recover(target, force=True)


@pytest.mark.parametrize("command", ["reduce", "info", "recover", "accumulate", "reduce-local"])
def test_every_name_of_a_target_leads_to_its_log(command, another_name, folder):
    """What is read by the other name is whole, and a change by it is not undone by the first one."""
    words = {
        "reduce": ("reduce", "-q", "--op", "sum", OTHER, "-o", "result.npy"),
        "info": ("info", OTHER),
        "recover": ("recover", OTHER),
        "accumulate": ("accumulate", "-q", "--op", "sum", OTHER, "origin.npy"),
        "reduce-local": ("reduce-local", "-q", "--op", "sum", "origin.npy", OTHER),
    }[command]
    left_by_a_kill(folder)
    assert b"a committed change to finish" in run("recover", "--list", OTHER, cwd=folder).out
    assert value(folder) is None
    assert run(*words, cwd=folder).status == 0
    expected = {"accumulate": NEW + 2, "reduce-local": NEW + 2}.get(command, NEW)
    if command == "reduce":
        assert (np.load(folder / "result.npy") == NEW).all()
    assert (np.load(folder / OTHER) == expected).all()
    run("info", f"targets/{BASE}", cwd=folder)
    assert (np.load(folder / OTHER) == expected).all()
    assert os.listdir(folder / "targets") == [BASE]


@pytest.mark.parametrize("kind", ["gone", "of a new file"])
def test_the_name_by_which_a_change_was_begun_is_another(kind, another_name, folder):
    """No advice of a command loses the change: to give the file its name back finishes it."""
    left_by_a_kill(folder)
    os.link(folder / OTHER, folder / "third.npy")
    (folder / "targets" / BASE).unlink()
    name, what = OTHER, "cannot be opened for it"
    if kind != "gone":
        np.save(folder / "targets" / BASE, np.zeros(3))
        name, what = f"targets/{BASE}", "is not the file any more"
    for words in (("info", name), ("recover", "--discard", name), ("accumulate", "--op", "sum", name, "origin.npy")):
        refused(run(*words, cwd=folder), 3, *([what] if "--discard" not in words else []), "--discard --force")
    (folder / "targets" / BASE).unlink(missing_ok=True)
    os.link(folder / OTHER, folder / "targets" / BASE)
    assert run("recover", OTHER, cwd=folder).status == 0
    assert recovered(folder) == NEW


@pytest.mark.parametrize("renew", [False, True], ids=["", "and another is there"])
def test_the_folder_of_the_log_was_moved(renew, another_name, folder):
    left_by_a_kill(folder)
    os.rename(folder / "targets", folder / "moved")
    if renew:
        (folder / "targets").mkdir()
    for words in (("info", OTHER), ("recover", "--discard", OTHER), ("accumulate", "--op", "sum", OTHER, "origin.npy")):
        missing = f"by its name {folder.resolve()}/targets/{BASE}, whose directory is not there"
        refused(run(*words, cwd=folder), 3, f"mpired: {OTHER}: ", missing, "--discard --force")
    assert b"a committed change to finish" in run("recover", "--list", OTHER, cwd=folder).out
    if renew:
        (folder / "targets").rmdir()
    os.rename(folder / "moved", folder / "targets")
    assert run("recover", OTHER, cwd=folder).status == 0
    assert value(folder) == NEW


def test_to_give_up_a_change_whose_log_is_missing(another_name, folder):
    left_by_a_kill(folder)
    os.rename(folder / "targets", folder / "moved")
    half = np.load(folder / OTHER)
    assert run("recover", "--discard", "--force", OTHER, cwd=folder).status == 0
    assert run("info", OTHER, cwd=folder).status == 0
    assert (np.load(folder / OTHER) == half).all()


def test_a_mark_does_not_make_others_remove_a_file(another_name, folder):
    """Whoever may write to a file may mark it; the mark leads only to the log of this very change."""
    left_by_a_kill(folder)
    identity, rest = os.getxattr(folder / OTHER, MARK).split(b" ", 1)
    (folder / "victim").mkdir()
    np.save(folder / "alone.npy", np.ones(3))
    inodes = [str(os.stat(folder / name).st_ino).encode() for name in ("alone.npy", "victim")]
    victim = os.fsencode(folder.resolve() / "victim" / BASE)
    planted = [b" ".join((identity, *inodes, victim)), b" ".join((identity, b"9" * 9999, rest)), b"\0garbage"]
    for content in (b"", (folder / "targets" / LOG).read_bytes(), b"x" * 10000):
        (folder / "victim" / LOG).write_bytes(content)
        for mark in planted:
            os.setxattr(folder / "alone.npy", MARK, mark)
            assert run("info", "alone.npy", cwd=folder).status in {0, 3}
            assert (folder / "victim" / LOG).read_bytes() == content


def test_a_copy_with_the_mark_of_its_original_is_refused(another_name, folder):
    left_by_a_kill(folder)
    (folder / "copy.npy").write_bytes((folder / OTHER).read_bytes())
    os.setxattr(folder / "copy.npy", MARK, os.getxattr(folder / OTHER, MARK))
    os.link(folder / "copy.npy", folder / "second.npy")
    for recover_first in (False, True):
        if recover_first:  # the log is gone then, and the copy is what it was: half
            assert recovered(folder) == NEW
        refused(run("info", "copy.npy", cwd=folder), 3, "copy.npy", "copied in the middle", "--discard --force")
    assert run("recover", "--discard", "--force", "copy.npy", cwd=folder).status == 0
    assert run("info", "copy.npy", cwd=folder).status == 0


@pytest.mark.parametrize("commit", ["journal", "auto"])
def test_several_names_on_a_file_system_without_attributes(commit, folder):
    def no_attributes() -> None:
        def refuse(*_arguments: object, **_settings: object) -> None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        os.getxattr = os.setxattr = os.listxattr = os.removexattr = refuse

    (folder / "elsewhere").mkdir()
    reset(folder)
    words = ("accumulate", "-q", "--op", "sum", f"targets/{BASE}", "origin.npy", "--commit")
    refused(run(*words, commit, cwd=folder, setup=no_attributes), 4, BASE, "2 names", "--commit rename")
    assert recovered(folder) == OLD
    assert run(*words, "rename", cwd=folder, setup=no_attributes).status == 0
    assert (value(folder), float(np.load(folder / OTHER)[0])) == (NEW, OLD)
    assert run(*words, "journal", cwd=folder, setup=no_attributes).status == 0  # it has one name now


def test_an_error_between_two_windows_says_which_is_changed(tmp_path, monkeypatch):
    paths = [tmp_path / "w0.npy", tmp_path / "w1.npy"]
    for path in paths:
        np.save(path, np.zeros(2))
    rename, renamed = calls.rename, []

    def fail_the_second(*words: object) -> None:
        renamed.append(words)
        if len(renamed) > 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(*words)

    monkeypatch.setattr(calls, "rename", fail_the_second)
    with pytest.raises(UnconfirmedError, match=r"w1\.npy.* is not changed .*w0\.npy is"):
        mpired.Window(*paths).accumulate(np.ones(4), "sum", map=np.arange(4))
    assert [np.load(path).tolist() for path in paths] == [[1, 1], [0, 0]]
