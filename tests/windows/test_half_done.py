"""A patch that was interrupted half-way: every command finishes it, by every name of its target, or says why not."""

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command import run
from faults import Counter, Fault, at, failing, kill_half_way, recover
from rows import check_refusals
from values import folder_in_memory, one_value

import mpired
from mpired.errors import ChangedError, UnconfirmedError
from mpired.files import calls
from mpired.files.places import MARK

BASE, OTHER = "total.npy", "elsewhere/another.npy"
COUNT = 1500  # elements: pages and a part of one
OLD, NEW = 1.0, 3.0
LOG = f".{BASE}.mpired"
FAULTS = (Fault("kill before"), Fault("short, then kill"), Fault("error from here on", errno.EIO))


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as outside:
        np.save(outside / "origin.npy", np.full(COUNT, 2.0))
        (outside / "targets").mkdir()
        yield outside


@pytest.fixture
def another_name(folder) -> None:
    """Let the target have another name in another folder."""
    (folder / "elsewhere").mkdir()


def reset(folder: Path) -> None:
    """Put the old target there, and nothing else."""
    for path in (folder / "targets").iterdir():
        path.unlink()
    np.save(folder / "targets" / BASE, np.full(COUNT, OLD))
    if (folder / "elsewhere").exists():
        (folder / OTHER).unlink(missing_ok=True)
        os.link(folder / "targets" / BASE, folder / OTHER)


def value(folder: Path, name: str = f"targets/{BASE}") -> float | None:
    """Return the one value of all elements, None if they differ."""
    return one_value(folder / name)


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


def left_by_a_kill(folder: Path) -> None:
    """Leave what a patch leaves that is killed in the middle of its writing to the target."""
    reset(folder)
    words = ("accumulate", "-q", "--op", "sum", "--commit", "journal", f"targets/{BASE}", "origin.npy")
    run(*words, cwd=folder, setup=kill_half_way)
    assert value(folder) is None


@pytest.mark.parametrize(
    "command", ["recover T", "info T", "accumulate --op max -q T origin.npy", "recover O", "info O"]
)
@pytest.mark.sampled(2)
def test_faults_in_the_recovery(command, long, folder):
    """Killed or failing in that, a command leaves it to the next one."""
    if "O" in command:
        (folder / "elsewhere").mkdir()
    words = [{"T": f"targets/{BASE}", "O": OTHER}.get(word, word) for word in command.split()]
    counter, points = Counter(), 0
    for number in range(1, 200, 1 if long else 5):
        for fault in FAULTS if long else FAULTS[number % len(FAULTS) :][:1]:
            left_by_a_kill(folder)
            counter.clear()
            outcome = run(*words, cwd=folder, setup=at(number, fault, counter, ""))
            if not counter.read()[1]:
                assert points >= (20 if long else 4), points
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
    with pytest.raises(mpired.errors.UsageError, match="`force`: is of use with `discard`"):
        mpired.recover(target, force=True)


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
    copied = [("info copy.npy", 3, "copy.npy", "copied in the middle", "--discard --force")]
    check_refusals(folder, copied)
    assert recovered(folder) == NEW  # the log is gone then, and the copy is what it was: half
    check_refusals(folder, copied)
    assert run("recover", "--discard", "--force", "copy.npy", cwd=folder).status == 0
    assert run("info", "copy.npy", cwd=folder).status == 0


@pytest.mark.parametrize("commit", ["journal", "auto"])
def test_several_names_on_a_file_system_without_attributes(commit, another_name, folder):
    no_attributes = failing(errno.EOPNOTSUPP, "getxattr", "setxattr", "listxattr", "removexattr")
    reset(folder)
    words = ("accumulate", "-q", "--op", "sum", f"targets/{BASE}", "origin.npy", "--commit")
    check_refusals(folder, [((*words, commit), 4, BASE, "2 names", "--commit rename")], setup=no_attributes)
    assert recovered(folder) == OLD
    assert run(*words, "rename", cwd=folder, setup=no_attributes).status == 0
    assert (value(folder), value(folder, OTHER)) == (NEW, OLD)
    assert run(*words, "journal", cwd=folder, setup=no_attributes).status == 0  # it has one name now


REPLACED = ChangedError("w1.npy", "was replaced by another program meanwhile")  # else the call would begin again


@pytest.mark.parametrize("error", [OSError(errno.EIO, os.strerror(errno.EIO)), REPLACED])
def test_an_error_between_two_windows_says_which_is_changed(error, tmp_path, monkeypatch):
    paths = [tmp_path / "w0.npy", tmp_path / "w1.npy"]
    for path in paths:
        np.save(path, np.zeros(2))
    rename, renamed = calls.rename, []

    def fail_the_second(*words: object) -> None:
        renamed.append(words)
        if len(renamed) > 1:
            raise error
        rename(*words)

    monkeypatch.setattr(calls, "rename", fail_the_second)
    with pytest.raises(UnconfirmedError, match=r"w1\.npy.* is not changed .*w0\.npy is"):
        mpired.Window(*paths).accumulate(np.ones(4), "sum", map=np.arange(4))
    assert [np.load(path).tolist() for path in paths] == [[1, 1], [0, 0]]
