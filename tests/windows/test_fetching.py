"""Old elements that a call fetches: to a file, to standard output, and where they cannot be written."""

import errno
import os

import numpy as np
import pytest
from command import refused, run, unchanged
from rows import check_refusals

import mpired
from mpired.errors import MpiredError


def test_get_accumulate_writes_the_old_elements(tmp_path):
    np.save(tmp_path / "t.npy", np.arange(6, dtype=">i4").reshape(2, 3))
    np.save(tmp_path / "o.npy", np.ones((2, 3), "i4"))
    words = ("get-accumulate", "-q", "--op", "sum", "t.npy", "o.npy")
    assert run(*words, "--fetch", "old.npy", cwd=tmp_path) == (0, b"", "")
    old = np.load(tmp_path / "old.npy")
    assert old.dtype == np.dtype(">i4")
    assert old.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert run(*words, "--to", "text", cwd=tmp_path) == (0, b"1\n2\n3\n4\n5\n6\n", "")
    with unchanged(tmp_path):
        refused(run(*words, "--fetch", "old.npy", cwd=tmp_path), 2, "old.npy", "--force")
        refused(run(*words, "--fetch", "t.npy", "--force", cwd=tmp_path), 2, "--fetch", "is the target")
        far = ("get-accumulate", "--op", "no_op", "--target-count", str(2**61), "t.npy")
        refused(run(*far, cwd=tmp_path), 3, "window")
        refused(run(*words[:-1], cwd=tmp_path), 2, "needs an origin")
        read = run("get-accumulate", "-q", "--op", "no_op", "--at", "1,:", "--to", "text", "t.npy", cwd=tmp_path)
        assert read == (0, b"5\n6\n7\n", "")


def fill_standard_output() -> None:
    """Let the disk be full for what goes to standard output, by whatever descriptor."""
    written = os.write

    def write(fd: int, data: memoryview) -> int:
        if len(data) and os.path.sameopenfile(fd, 1):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(fd, data)

    os.write = write


def test_old_elements_that_cannot_be_written_are_not_a_failure_that_may_be_repeated(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3))
    outcome = run("fetch-and-op", "--op", "sum", "t.npy", "1", cwd=tmp_path, setup=fill_standard_output)
    refused(outcome, 6, "t.npy", "do not repeat")
    assert np.load(tmp_path / "t.npy").tolist() == [1, 0, 0]


def test_a_stream_that_takes_nothing_is_refused_before_the_target_changes(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3))
    with unchanged(tmp_path):
        with open("/dev/full", "wb") as full:
            outcome = run("fetch-and-op", "--op", "sum", "t.npy", "1", cwd=tmp_path, stdout=full.fileno())
            refused(outcome, 4, "standard output", "No space left")
        outcome = run("get-accumulate", "--op", "sum", "--fetch", "/dev/full", "t.npy", "t.npy", cwd=tmp_path)
        refused(outcome, 4, "/dev/full", "No space left")
        reader, writer = os.pipe()
        os.close(reader)
        outcome = run("fetch-and-op", "--op", "sum", "t.npy", "1", cwd=tmp_path, stdout=writer)
        os.close(writer)
        assert outcome.status == 141


def test_a_stream_that_fails_when_nothing_has_changed(tmp_path):
    """The status is about the target."""
    np.save(tmp_path / "t.npy", np.zeros(3, int))
    reason = "standard output: No space left on device"
    cases = [(words, 4, reason) for words in ("fetch-and-op --op no_op t.npy", "compare-and-swap t.npy 7 8")]
    check_refusals(tmp_path, cases, setup=fill_standard_output)


@pytest.mark.parametrize("there", [False, True])
def test_old_elements_that_the_disk_does_not_confirm_leave_the_target_as_it_was(there, tmp_path):
    """The status is about the target."""
    (tmp_path / "old").mkdir()
    np.save(tmp_path / "t.npy", np.zeros(3))
    if there:
        np.save(tmp_path / "old" / "old.npy", np.ones(3))
    before = (tmp_path / "t.npy").read_bytes()

    def no_directory() -> None:
        def fail(_fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        mpired.files.calls.fsync_directory = fail

    words = ("get-accumulate", "--op", "sum", "--fetch", "old/old.npy", "-f", "t.npy", "t.npy")
    outcome = run(*words, cwd=tmp_path, setup=no_directory)
    refused(outcome, 4, "old/old.npy", "Input/output error", "has the old elements" if there else "is removed")
    assert (tmp_path / "t.npy").read_bytes() == before
    assert os.listdir(tmp_path / "old") == (["old.npy"] if there else [])
    if there:
        assert np.load(tmp_path / "old" / "old.npy").tolist() == [0, 0, 0]


# The file of the old elements and its directory are synced before the log is.
@pytest.mark.parametrize(("commit", "name", "number"), [("rename", "replace", 0), ("journal", "fsync", 2)])
def test_old_elements_go_with_an_update_that_fails(commit, name, number, tmp_path):
    """The same command again is not refused for the file that it has left."""
    np.save(tmp_path / "t.npy", np.zeros(3))

    def no_update() -> None:
        original, count = getattr(os, name), iter(range(100))

        def fail(*arguments: object, **settings: object) -> object:
            if next(count) == number:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return original(*arguments, **settings)

        setattr(os, name, fail)

    words = ("get-accumulate", "-q", "--op", "sum", "--commit", commit, "--fetch", "old.npy", "t.npy", "t.npy")
    refused(run(*words, cwd=tmp_path, setup=no_update), 4, "t.npy", "Input/output error")
    assert os.listdir(tmp_path) == ["t.npy"]
    assert run(*words, cwd=tmp_path).status == 0


def test_compare_and_swap(tmp_path):
    np.save(tmp_path / "t.npy", np.array([3, 4]))
    assert run("compare-and-swap", "t.npy", "3", "-9", cwd=tmp_path) == (0, b"3\n", "")
    assert run("compare-and-swap", "t.npy", "3", "10", cwd=tmp_path) == (0, b"-9\n", "")
    assert mpired.Window(tmp_path / "t.npy").compare_and_swap(4, 5, target_disp=1) == 4
    assert np.load(tmp_path / "t.npy").tolist() == [-9, 5]
    with unchanged(tmp_path):
        assert run("compare-and-swap", "t.npy", "7", "9", cwd=tmp_path) == (0, b"-9\n", "")
        assert mpired.Window(tmp_path / "t.npy").compare_and_swap(7, 9, target_disp=1) == 5


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_box_is_fetched_in_its_shape(order, tmp_path):
    array = np.arange(24).reshape(2, 3, 4)
    np.save(tmp_path / "t.npy", np.asarray(array, order=order))
    words = ("--op", "no_op", "--at", "1,0:2,1:4:2", "--fetch", "box.npy", "t.npy")
    assert run("get-accumulate", "-q", *words, cwd=tmp_path) == (0, b"", "")
    assert np.array_equal(np.load(tmp_path / "box.npy"), array[1, 0:2, 1:4:2])
    words = ("--op", "replace", "--at", "1,0:2,1:4:2", "t.npy", "box.npy")
    assert run("accumulate", "-q", *words, cwd=tmp_path) == (0, b"", "")
    assert np.array_equal(np.load(tmp_path / "t.npy"), array)
    window = mpired.Window(tmp_path / "t.npy")
    for at in (np.s_[1, 0:2, 1:4:2], np.s_[1], 1, np.s_[:, -1], np.s_[0:0], np.s_[..., 1:]):
        assert np.array_equal(window.get_accumulate(None, "no_op", at=at), array[at])
    assert window.fetch_and_op(None, "no_op", at=(1, 2, 3)) == 23
    for at in ((1.5,), [1, 2]):  # NumPy takes a list for rows
        with pytest.raises(MpiredError, match="`at`"):
            window.get_accumulate(None, "no_op", at=at)
