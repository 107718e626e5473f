"""The next command finishes an update, and says so; also if many ranks of one directory are looked at together."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from command import NOBODY, become_nobody, run, unchanged
from protocols import LOG
from rows import check_refusals
from updates import WORDS, pending, value

from mpired.files import log
from mpired.files.lock import Target

DONE = "finished an update of 4000 bytes that an interrupted command had committed"
COMMANDS = [
    "info here/t.npy",
    "diff here/t.npy here/t.npy",
    "locate --op maxloc here/t.npy",
    "reduce -q --op sum here/t.npy -o result.npy",
    "accumulate -q --op max here/t.npy ones.npy",
    "accumulate --op max here/t.npy ones.npy",
    "get-accumulate -q --op no_op here/t.npy --fetch old.npy",
    "fetch-and-op --op no_op here/t.npy",
    "reduce -q --op sum here/t.npy ones.npy --in-place",
]


def again(folder) -> None:
    """Leave a whole log of a target of zeros."""
    np.save(folder / "here" / "t.npy", np.zeros(500))
    pending(folder)


def test_every_command_finishes_an_update_and_says_so(folder):
    for words in COMMANDS:
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
        nothing = [
            (each, 4, "standard output: No space left on device") for each in (command, "recover --list ones.npy")
        ]
        check_refusals(folder, nothing, stdout=full.fileno())


def test_recover_lists_and_discards(folder):
    pending(folder)
    with unchanged(folder):
        listed = run("recover", "--list", "here/t.npy", "ones.npy", cwd=folder)
        assert listed == (0, b"here/t.npy: a committed change to finish\nones.npy: nothing\n", "")
    check_refusals(folder, [("recover --discard here/t.npy", 3, "here/t.npy", "--discard --force")])
    assert run("recover", "--discard", "--force", "here/t.npy", cwd=folder).status == 0
    assert (value(folder), os.listdir(folder / "here")) == (0, ["t.npy"])


@pytest.fixture
def shared(as_root, open_folder):
    """A whole log in a folder that other users can get to."""
    (open_folder / "here").mkdir()
    np.save(open_folder / "ones.npy", np.ones(500))
    again(open_folder)
    return open_folder


def test_a_change_of_another_user_is_not_finished(shared):
    """Who may not write to the target does not read the half either."""
    check_refusals(shared, [("info here/t.npy", 3, "here/t.npy", "mpired recover")], setup=become_nobody)
    for path in (shared / "here", shared / "here" / "t.npy"):
        os.chown(path, NOBODY, NOBODY)
    reason = "here/t.npy: has an unfinished change of user root (0)"
    check_refusals(shared, [(WORDS, 3, reason, "mpired recover here/t.npy")], setup=become_nobody)
    os.chown(shared / "here" / LOG, NOBODY, NOBODY)
    check_refusals(shared, [(WORDS, 3, "runuser -u ", "-- mpired recover here/t.npy")])


@pytest.mark.parametrize("renew", [True, False], ids=["with a new file", "without"])
def test_a_file_that_was_renamed_does_not_lose_its_update_by_advice(renew, folder):
    """Its name leads to its log no more, which is the only place of its update."""
    pending(folder)
    os.rename(folder / "here" / "t.npy", folder / "here" / "moved.npy")
    if renew:
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
    with Target("here/t.npy", str(folder / "here" / "t.npy"), -1, os.open(folder / "here", os.O_RDONLY)) as target:
        writer = log.LogWriter(LOG.encode(), target.dirfd, [target.path])
        writer.write(b"forged", 0)
        writer.seal(log.LogKind.PATCH, {"name": name})
        writer.link(LOG.encode())
        writer.complete()
        writer.is_committed = True
        writer.close()
    check_refusals(folder, [("info here/t.npy", 3, f"{name}: is not a name of a file")])


# Many ranks


NAMES = ["t.npy", *(f"r{rank}.npy" for rank in range(99))]


@pytest.fixture
def ranks(folder: Path) -> Path:
    for name in NAMES[1:]:
        np.save(folder / "here" / name, np.full(500, 0.5))
    return folder / "here"
