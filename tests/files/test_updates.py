"""An update of a target: the protocol that it takes, locks, files beside it that somebody else has, and recovery."""

import errno
import fcntl
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command import NOBODY, Child, become_nobody, refused, run, unchanged, wait_until
from faults import failing
from protocols import COMMITS, LOG
from rows import check_refusals, check_refused
from updates import WORDS, add, has_open, hold, pending, value

from mpired.errors import ChangedError, LockError
from mpired.files import calls, copying, lock, log
from mpired.files.lock import Target
from mpired.files.log import LogWriter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target of zeros alone in a folder, and ones beside it."""
    (tmp_path / "here").mkdir()
    np.save(tmp_path / "ones.npy", np.ones(500))
    np.save(tmp_path / "here" / "t.npy", np.zeros(500))
    return tmp_path


def test_a_target_that_was_replaced_before_the_commit(folder, monkeypatch):
    path, check = folder / "here" / "t.npy", LogWriter.check

    def replace(writer: LogWriter) -> None:
        np.save(folder / "other.npy", np.full(500, 7.0))
        (folder / "other.npy").replace(path)
        check(writer)

    monkeypatch.setattr(LogWriter, "check", replace)
    with pytest.raises(ChangedError, match="was replaced by another program"):
        add(folder, commit="journal")
    assert (value(folder), os.listdir(folder / "here")) == (7, ["t.npy"])


def protocol(folder: Path, nbytes: int, part: int, setup: Callable[[], None] = lambda: None) -> str:
    """Return how a target of that size is changed in its first bytes."""
    with open(folder / "big.bin", "wb") as file:
        file.truncate(nbytes)
    (folder / "part.bin").write_bytes(bytes(part))
    words = ("accumulate", "--op", "sum", "--type", "int8_t", "--target-disp", "0", "--target-count", str(part))
    outcome = run(*words, "big.bin", "part.bin", cwd=folder, setup=setup)
    assert outcome.status == 0, outcome.err
    return outcome.err.rpartition("(")[2].rstrip(")\n")


def test_auto_chooses_what_is_cheap_and_keeps_the_file(folder):
    def clones(*, answer: bool) -> Callable[[], None]:
        return lambda: setattr(copying, "clone", lambda _source, _target: answer)

    mebibyte = 1 << 20
    assert protocol(folder, 64 * mebibyte, 100) == "rename"
    assert protocol(folder, 65 * mebibyte, 100, clones(answer=False)) == "journal"
    assert protocol(folder, 65 * mebibyte, 100, clones(answer=True)) == "rename"
    assert protocol(folder, 66 * mebibyte, 17 * mebibyte, clones(answer=False)) == "rename"


def test_full_disk(mounted, folder):
    """Of a sparse target the holes that will be written to are filled before the commit, where that can be refused."""
    where = mounted("size=1m")
    words = ("accumulate", "--op", "sum", "--type", "int8_t", "--target-disp", "0")
    (where / "t.bin").write_bytes(bytes(900 << 10))
    (folder / "o.bin").write_bytes(bytes(900 << 10))
    target = str(where / "t.bin")
    no_room = [((*words, "--commit", commit, target, "o.bin"), 4, target, "No space left") for commit in COMMITS]
    check_refusals(folder, no_room)
    np.save(folder / "o.npy", np.zeros(1 << 16))
    with subprocess.Popen(["cat", "o.npy"], cwd=folder, stdout=subprocess.PIPE) as process:
        outcome = run("show", "-", cwd=folder, stdin=process.stdout.fileno(), env={"TMPDIR": str(where)})
    refused(outcome, 4, f"standard input, kept in {where} first: No space left on device")
    (where / "t.bin").unlink()
    with open(where / "t.bin", "wb") as file:
        file.truncate(8 << 20)
    (folder / "o.bin").write_bytes(bytes(700 << 10))
    check_refusals(folder, [((*words, "--commit", "journal", target, "o.bin"), 4, target, "No space left")])
    assert not any((where / "t.bin").read_bytes())
    for rank in range(6):
        np.zeros(1 << 15).tofile(folder / f"r{rank}.bin")
    words = ("scan", "-f", "--op", "sum", "--type", "double", *(f"r{rank}.bin" for rank in range(6)))
    check_refusals(folder, [((*words, "-o", f"{where}/out_{{rank}}"), 4, "No space left", "out_")])
    assert os.listdir(where) == ["t.bin"]


@pytest.mark.parametrize("kind", [fcntl.F_WRLCK, fcntl.F_RDLCK])
def test_lock_that_is_held(kind, folder):
    fd = hold(folder / "here" / "t.npy", kind)
    times = [((*WORDS, "--lock-timeout", time), 5, "here/t.npy", "--lock-timeout") for time in ("0", "0.05")]
    check_refusals(folder, times)
    with unchanged(folder), pytest.raises(LockError):
        add(folder, lock_timeout=0)
    os.close(fd)
    add(folder, lock_timeout=0)


def test_a_long_wait_is_logged_in_python(folder, monkeypatch, caplog):
    monkeypatch.setattr(lock, "_PATIENCE", 0.05)
    fd = hold(folder / "here" / "t.npy")
    with caplog.at_level("INFO", "mpired"), pytest.raises(LockError):
        add(folder, lock_timeout=0.3)
    os.close(fd)
    name, level, text = caplog.record_tuples[0]
    assert (name, level) == ("mpired", 20)
    assert "t.npy: waiting for another process, which has it locked; " in text
    assert "`lock_timeout`" in text


def test_file_system_without_locks(folder):
    for number in (errno.ENOLCK, errno.EOPNOTSUPP):
        no_locks = failing(number, "fcntl", module=fcntl)
        check_refusals(folder, [(WORDS, 5, "here/t.npy", "has no locks")], setup=no_locks)


@pytest.mark.parametrize("commit", COMMITS)
def test_target_replaced_while_waiting(commit, folder):
    """The lock that was waited for is on a file that has no name any more: the new one is locked, and changed."""
    path = folder / "here" / "t.npy"
    fd = hold(path)
    child = Child(*WORDS, "--commit", commit, cwd=folder)
    wait_until(lambda: has_open(child.pid, path))
    np.save(folder / "new.npy", np.full(500, 10.0))
    os.replace(folder / "new.npy", path)
    os.close(fd)
    assert child.finish() == (0, b"", "")
    assert value(folder) == 11


def _intrude(monkeypatch, folder: Path, make: Callable[[Path], None]) -> None:
    """Let somebody take the name of a new file just before it is opened; drafts and logs have names from the start."""
    original = calls.open_new

    def open_new(name, dirfd=None):
        if not (path := folder / "here" / os.fsdecode(name)).exists():
            make(path)
        return original(name, dirfd)

    monkeypatch.setattr(calls, "open_new", open_new)
    monkeypatch.setattr(calls, "open_unnamed", lambda _dirfd: None)


def _file(path: Path) -> None:
    path.write_bytes(b"another's")
    os.chown(path, NOBODY, NOBODY)


def _link(path: Path) -> None:
    (path.parent.parent / "elsewhere").write_bytes(b"another's")
    path.symlink_to("../elsewhere")


@pytest.mark.parametrize(
    ("commit", "make", "status"),
    [("rename", _file, 5), ("rename", _link, 4), ("journal", _file, 5), ("journal", _link, 3)],
)
def test_a_name_that_somebody_takes_is_left_to_him(as_root, commit, make, status, folder, monkeypatch):
    _intrude(monkeypatch, folder, make)
    refused(run(*WORDS, "--commit", commit, "--lock-timeout", "0.2", cwd=folder), status, "here/")
    assert value(folder) == 0
    (intruder,) = (path for path in (folder / "here").iterdir() if path.name != "t.npy")
    assert intruder.read_bytes() == b"another's"


OWN = {
    LOG: "belongs to an unfinished change of t.npy, and is not data",
    ".t.npy.mpired-new": "is a draft of a command that writes t.npy, not data",
    "t.npy.mpired-keys": "has the keys of updates of t.npy, and is not data",
    ".t.npy.mpired-journal": "is the journal of an unfinished update of t.npy by mpired 0.1",
    ".0123abcd.mpired-together": "has results that mpired 0.1 has not put in place yet",
}
# Each names such a file, J or LINK, which leads to it; T is the target.
COMMANDS = (
    "info T J", "reduce --op sum T J -o x.npy", "reduce --op sum T -f -o J", "scan --op sum T T --in-place J",
    "reduce-local --op sum T J", "pack --type double T -o J", "unpack --type double T --into J",
    "accumulate --op sum J T", "accumulate --op sum T J", "accumulate --op sum T ones.npy --map J",
    "get-accumulate --op sum J T", "get-accumulate --op sum T ones.npy -f --fetch J", "fetch-and-op --op sum J T",
    "compare-and-swap T J 1", "recover J", "recover --discard --force J", "info T LINK",
)  # fmt: skip


def test_files_of_mpired_itself_are_no_data(folder):
    """One with the name of a log would be removed by the recovery of the file beside it; that is not begun."""
    for name, reason in OWN.items():
        (folder / "here" / name).write_bytes(b"my own notes" * 1000)
        os.symlink(f"here/{name}", folder / "link")
        names = {"T": "here/t.npy", "J": f"here/{name}", "LINK": "link"}
        for words in COMMANDS:
            subject = "link" if "LINK" in words else f"here/{name}"
            given = tuple(names.get(word, word) for word in words.split())
            check_refused(folder, given, 3, f"mpired: {subject}: {reason}")
        (folder / "here" / name).unlink()
        (folder / "link").unlink()


def test_dead_drafts_are_removed_and_living_ones_stay(folder):
    draft, foreign = (folder / "here" / name for name in (".t.npy.mpired-new", ".u.npy.mpired-new"))
    for path in (draft, foreign):
        path.write_bytes(b"x")
    fd = hold(draft)
    assert run("recover", "here/t.npy", cwd=folder).out == b"here/t.npy: nothing to do\n"
    os.close(fd)
    assert run("recover", "here/t.npy", cwd=folder).out == f"here/t.npy: removed {draft.name}\n".encode()
    assert sorted(os.listdir(folder / "here")) == [foreign.name, "t.npy"]


DONE = "finished an update of 4000 bytes that an interrupted command had committed"
FINISHING = (
    "info here/t.npy", "diff here/t.npy here/t.npy", "locate --op maxloc here/t.npy",
    "reduce -q --op sum here/t.npy -o result.npy", "accumulate --op max here/t.npy ones.npy",
    "fetch-and-op --op no_op here/t.npy", "reduce -q --op sum here/t.npy ones.npy --in-place",
)  # fmt: skip


def again(folder) -> None:
    """Leave a whole log of a target of zeros."""
    np.save(folder / "here" / "t.npy", np.zeros(500))
    pending(folder)


def test_every_command_finishes_an_update_and_says_so(folder):
    for words in FINISHING:
        again(folder)
        outcome = run(*words.split(), cwd=folder)
        assert outcome.status == 0, words
        assert outcome.err.splitlines()[0] == f"mpired: here/t.npy: {DONE}", words
        assert outcome.err.count("finished") == 1
        assert value(folder) == (2 if "--in-place" in words else 1), words
        assert os.listdir(folder / "here") == ["t.npy"]
    assert value(folder, "result.npy") == 1
    again(folder)
    told = f"here/t.npy: {DONE}\nones.npy: nothing to do\n"
    assert run("recover", "here/t.npy", "ones.npy", cwd=folder) == (0, told.encode(), "")
    assert value(folder) == 1


@pytest.mark.parametrize("words", [[], ["--discard", "--force"]])
def test_what_is_done_and_cannot_be_printed_is_done(words, folder):
    """The status is about the file, and standard error says what was done with it."""
    pending(folder)
    done = "gave up an unfinished change" if words else "finished an update of 4000 bytes"
    command = ("recover", *words, "ones.npy", "here/t.npy")
    with open("/dev/full", "wb") as full:
        outcome = run(*command, cwd=folder, stdout=full.fileno())
        assert outcome.status == 6
        first, second = outcome.err.splitlines()
        assert first.startswith(f"mpired: here/t.npy: {done}")
        assert second.startswith("mpired: standard output: No space left on device; ")
        assert second.endswith("do not repeat")
        assert (value(folder), os.listdir(folder / "here")) == (0 if words else 1, ["t.npy"])
        for again_ in (command, "recover --list ones.npy"):
            check_refused(folder, again_, 4, "standard output: No space left on device", stdout=full.fileno())


def test_a_change_of_another_user_is_not_finished(as_root, open_folder):
    """Who may not write to the target does not read the half either."""
    shared = open_folder
    (shared / "here").mkdir()
    np.save(shared / "ones.npy", np.ones(500))
    again(shared)
    check_refusals(shared, [("info here/t.npy", 3, "here/t.npy", "mpired recover")], setup=become_nobody)
    for path in (shared / "here", shared / "here" / "t.npy"):
        os.chown(path, NOBODY, NOBODY)
    reason = "here/t.npy: has an unfinished change of user root (0)"
    check_refusals(shared, [(WORDS, 3, reason, "mpired recover here/t.npy")], setup=become_nobody)
    os.chown(shared / "here" / LOG, NOBODY, NOBODY)
    check_refusals(shared, [(WORDS, 3, "runuser -u ", "-- mpired recover here/t.npy")])


def test_a_file_that_was_renamed_does_not_lose_its_update_by_advice(folder):
    """Its name leads to its log no more, which is the only place of its update."""
    pending(folder)
    os.rename(folder / "here" / "t.npy", folder / "here" / "moved.npy")
    np.save(folder / "here" / "t.npy", np.zeros(500))
    check_refusals(folder, [("recover --discard here/t.npy", 3, "here/t.npy", LOG, "--discard --force")])
    os.replace(folder / "here" / "moved.npy", folder / "here" / "t.npy")
    assert run("recover", "here/t.npy", cwd=folder).status == 0
    assert value(folder) == 1


def test_a_log_with_a_wrong_byte_never_happened(folder):
    """In the header its numbers and digests; and then the payload and the body."""
    found = {}
    for place in (3, 8, 24, 32, 40, 48, 56, 64, 80, 4095, 4096, 5000, -1):
        content = bytearray(pending(folder))
        content[place] ^= 1
        (folder / "here" / LOG).write_bytes(content)
        found[place] = run("info", "here/t.npy", cwd=folder).status, value(folder), os.listdir(folder / "here")
    assert [(place, each) for place, each in found.items() if each != (0, 0, ["t.npy"])] == []


@pytest.mark.parametrize("name", ["../ones.npy", "..", "here/t.npy"])
def test_a_log_that_names_files_elsewhere_is_refused(name, folder):
    with Target(str(folder / "here" / "t.npy")) as target:
        writer = log.LogWriter(target, [target.path])
        writer.write(b"forged", 0)
        writer.write_body(log.LogKind.PATCH, {"name": name})
        writer.link(target)
        writer.complete()
        writer.is_committed = True
        writer.close()
    check_refusals(folder, [("info here/t.npy", 3, f"{name}: is not a name of a file")])
