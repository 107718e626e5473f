"""The next command finishes an update, and says so."""

from __future__ import annotations

import os

import numpy as np
import pytest
from command import NOBODY, become_nobody, refused, run, unchanged
from protocols import LOG
from updates import WORDS, pending, value

from mpired.files import log
from mpired.files.lock import Target

DEAD = "that an interrupted command had committed"


@pytest.mark.parametrize(
    "words",
    [
        ("info", "here/t.npy"),
        ("diff", "here/t.npy", "here/t.npy"),
        ("locate", "--op", "maxloc", "here/t.npy"),
        ("reduce", "-q", "--op", "sum", "here/t.npy", "-o", "result.npy"),
        ("recover", "here/t.npy"),
        ("accumulate", "-q", "--op", "max", "here/t.npy", "here/t.npy"),
        ("get-accumulate", "-q", "--op", "no_op", "here/t.npy", "--fetch", "old.npy"),
        ("reduce", "-q", "--op", "sum", "here/t.npy", "ones.npy", "--in-place"),
    ],
)
def test_every_command_finishes_an_update(words, folder):
    pending(folder)
    assert run(*words, cwd=folder).status == 0
    assert value(folder) == (2 if "--in-place" in words else 1)
    assert os.listdir(folder / "here") == ["t.npy"]
    if "result.npy" in words:
        assert value(folder, "result.npy") == 1


@pytest.mark.parametrize("words", [[], ["--discard", "--force"]])
def test_what_is_done_and_cannot_be_printed_is_done(words, folder):
    """The status is about the file, and standard error says what was done with it."""
    pending(folder)
    done = "gave up an unfinished change" if words else "finished an update of 4000 bytes"
    with open("/dev/full", "wb") as full:
        outcome = run("recover", *words, "ones.npy", "here/t.npy", cwd=folder, stdout=full.fileno())
        assert outcome.status == 6
        first, second = outcome.err.splitlines()
        assert first.startswith(f"mpired: here/t.npy: {done}")
        assert second.startswith("mpired: standard output: No space left on device; ")
        assert second.endswith("do not repeat")
        assert value(folder) == (0 if words else 1)
        assert os.listdir(folder / "here") == ["t.npy"]
        with unchanged(folder):
            outcome = run("recover", *words, "ones.npy", "here/t.npy", cwd=folder, stdout=full.fileno())
            refused(outcome, 4, "standard output: No space left on device")
            outcome = run("recover", "--list", "ones.npy", cwd=folder, stdout=full.fileno())
            refused(outcome, 4, "standard output: No space left on device")


def test_recover_lists_and_discards(folder):
    pending(folder)
    with unchanged(folder):
        listed = run("recover", "--list", "here/t.npy", "ones.npy", cwd=folder)
        assert listed == (0, b"here/t.npy: a committed change to finish\nones.npy: nothing\n", "")
        refused(run("recover", "--discard", "here/t.npy", cwd=folder), 3, "here/t.npy", "--discard --force")
        refused(run("recover", "--force", "here/t.npy", cwd=folder), 2, "--force", "--discard")
    assert run("recover", "--discard", "--force", "here/t.npy", cwd=folder).status == 0
    assert value(folder) == 0
    assert os.listdir(folder / "here") == ["t.npy"]


def test_who_may_not_write_does_not_read_the_half(as_root, open_folder):
    np.save(open_folder / "ones.npy", np.ones(500))
    (open_folder / "here").mkdir()
    np.save(open_folder / "here" / "t.npy", np.zeros(500))
    pending(open_folder)
    with unchanged(open_folder):
        refused(run("info", "here/t.npy", cwd=open_folder, setup=become_nobody), 3, "here/t.npy", "mpired recover")


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(5000)])
def test_what_is_not_a_log_goes_and_is_not_written_to(content, folder):
    """A neighbour may have given a file of this user that name."""
    mine = folder / "mine"
    mine.write_bytes(content)
    os.link(mine, folder / "here" / LOG)
    assert run("info", "here/t.npy", cwd=folder).status == 0
    assert os.listdir(folder / "here") == ["t.npy"]
    assert mine.read_bytes() == content


@pytest.mark.parametrize("renew", [True, False], ids=["with a new file", "without"])
def test_a_file_that_was_renamed_does_not_lose_its_update_by_advice(renew, folder):
    """Its name leads to its log no more, which is the only place of its update."""
    pending(folder)
    os.rename(folder / "here" / "t.npy", folder / "here" / "moved.npy")
    if renew:
        np.save(folder / "here" / "t.npy", np.zeros(500))
    with unchanged(folder):
        refused(run("recover", "--discard", "here/t.npy", cwd=folder), 3, "here/t.npy", LOG, "--discard --force")
    os.replace(folder / "here" / "moved.npy", folder / "here" / "t.npy")
    assert run("recover", "here/t.npy", cwd=folder).status == 0
    assert value(folder) == 1


@pytest.mark.parametrize("quiet", [(), ("-q",)])
@pytest.mark.parametrize(
    "words", [("info",), ("accumulate", "ones.npy", "--op", "max"), ("fetch-and-op", "--op", "no_op")]
)
def test_whoever_finishes_an_update_says_so(words, quiet, folder):
    pending(folder)
    command, *rest = words
    outcome = run(command, "here/t.npy", *rest, *(quiet if command == "accumulate" else ()), cwd=folder)
    assert outcome.err.splitlines()[0] == f"mpired: here/t.npy: finished an update of 4000 bytes {DEAD}"
    assert outcome.err.count("finished") == 1
    assert value(folder) == 1


def test_recover_says_what_it_finished(folder):
    pending(folder)
    outcome = run("recover", "here/t.npy", "ones.npy", cwd=folder)
    assert outcome == (
        0,
        f"here/t.npy: finished an update of 4000 bytes {DEAD}\nones.npy: nothing to do\n".encode(),
        "",
    )


def test_list_and_discard_exclude_each_other(folder):
    pending(folder)
    with unchanged(folder):
        refused(run("recover", "--list", "--discard", "here/t.npy", cwd=folder), 2, "--list", "--discard")


def test_a_change_of_another_user_is_not_finished(as_root, open_folder):
    np.save(open_folder / "ones.npy", np.ones(500))
    (open_folder / "here").mkdir()
    np.save(open_folder / "here" / "t.npy", np.zeros(500))
    pending(open_folder)
    for path in (open_folder / "here", open_folder / "here" / "t.npy"):
        os.chown(path, NOBODY, NOBODY)
    with unchanged(open_folder):
        outcome = run(*WORDS, cwd=open_folder, setup=become_nobody)
        refused(outcome, 3, "here/t.npy: has an unfinished change of user root (0)", "mpired recover here/t.npy")
    os.chown(open_folder / "here" / LOG, NOBODY, NOBODY)
    with unchanged(open_folder):
        refused(run(*WORDS, cwd=open_folder), 3, "runuser -u ", "-- mpired recover here/t.npy")


@pytest.mark.parametrize("place", [3, 8, 24, 32, 40, 48, 56, 64, 80, 4095, 4096, 5000, -1])
def test_a_log_with_a_wrong_byte_never_happened(place, folder):
    """In the header its numbers and digests; and then the payload and the body."""
    content = bytearray(pending(folder))
    content[place] ^= 1
    (folder / "here" / LOG).write_bytes(content)
    assert run("info", "here/t.npy", cwd=folder).status == 0
    assert (value(folder), os.listdir(folder / "here")) == (0, ["t.npy"])


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
    with unchanged(folder):
        refused(run("info", "here/t.npy", cwd=folder), 3, f"{name}: is not a name of a file")


def test_messages_name_the_file_as_the_user_does(folder):
    pending(folder)
    os.rename(folder / "here" / LOG, folder / "kept")
    (folder / "here" / LOG).write_bytes((folder / "kept").read_bytes())
    (folder / "alias").symlink_to("here/t.npy")
    with unchanged(folder):
        refused(run(*WORDS, cwd=folder), 3, LOG, "is a copy of a log", "mpired recover --adopt here/t.npy")
        refused(run("recover", "alias", cwd=folder), 3, LOG, "is a copy of a log", "mpired recover --adopt alias")
    assert run("recover", "--adopt", "alias", cwd=folder).status == 0
    assert value(folder) == 1
