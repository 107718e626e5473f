"""Origins that are applied exactly once, however often a command is repeated."""

import errno
import os

import numpy as np
import pytest
from command import refused, run, unchanged
from faults import failing
from protocols import COMMITS
from rows import check_refusals

import mpired


@pytest.mark.parametrize("commit", COMMITS)
def test_once(commit, tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3))
    for number in (1, 2):
        np.save(tmp_path / f"o{number}.npy", np.full(3, float(number)))
    words = ("accumulate", "--op", "sum", "--commit", commit, "t.npy")
    assert run(*words, "o1.npy", "--once", cwd=tmp_path).status == 0
    outcome = run(*words, "o1.npy", "o2.npy", "--once", cwd=tmp_path)
    assert outcome.status == 0
    assert "o1.npy: already applied" in outcome.err
    assert np.load(tmp_path / "t.npy").tolist() == [3, 3, 3]
    with unchanged(tmp_path):
        assert run(*words, "o2.npy", "o1.npy", "--once", cwd=tmp_path).status == 0
    assert run(*words, "o1.npy", "--once-key", "task 7", cwd=tmp_path).status == 0
    with unchanged(tmp_path):
        assert "already applied" in run(*words, "o2.npy", "--once-key", "task 7", cwd=tmp_path).err
    assert run(*words, "o2.npy", cwd=tmp_path).status == 0  # without a key, but the keys stay
    with unchanged(tmp_path):
        run(*words, "o2.npy", "--once-key", "task 7", cwd=tmp_path)
    assert np.load(tmp_path / "t.npy").tolist() == [6, 6, 6]
    # A result that takes its place is another file, which remembers nothing of it.
    assert run("reduce", "-q", "--op", "sum", "o1.npy", "-o", "t.npy", "-f", cwd=tmp_path).status == 0
    assert run(*words, "o2.npy", "--once-key", "task 7", cwd=tmp_path).status == 0
    assert np.load(tmp_path / "t.npy").tolist() == [3, 3, 3]


def test_files_with_equal_content_all_count_and_one_file_counts_once(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(1))
    (tmp_path / "day2").mkdir()
    for name in ("a.npy", "b.npy", "day2/a.npy"):
        np.save(tmp_path / name, np.ones(1))
    os.symlink("a.npy", tmp_path / "link.npy")
    words = ("accumulate", "-q", "--op", "sum", "--once", "t.npy")
    outcome = run(*words, "a.npy", "b.npy", "./a.npy", "link.npy", cwd=tmp_path)
    assert outcome.err.count("already applied, left out") == 2
    assert "content" not in outcome.err  # of this command, not of one before
    assert np.load(tmp_path / "t.npy").tolist() == [2]
    outcome = run(*words, "a.npy", "day2/a.npy", str(tmp_path / "b.npy"), cwd=tmp_path)
    assert "warning: day2/a.npy has the content of an origin that was applied before" in outcome.err
    assert outcome.err.count("already applied, left out") == 2
    assert np.load(tmp_path / "t.npy").tolist() == [3]
    np.save(tmp_path / "a.npy", np.full(1, 10.0))  # another content of the same file
    assert run(*words, "a.npy", cwd=tmp_path) == (0, b"", "")
    (tmp_path / "a.npy").rename(tmp_path / "moved.npy")
    told = "moved.npy has the content of an origin that was applied before from another place, and is counted"
    assert run(*words, "moved.npy", cwd=tmp_path) == (0, b"", f"mpired: warning: {told}\n")
    with unchanged(tmp_path):
        run(*words, "moved.npy", cwd=tmp_path)
    assert np.load(tmp_path / "t.npy").tolist() == [23]


def test_the_elements_of_a_map_are_part_of_the_key(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3000))
    window = mpired.Window(tmp_path / "t.npy", durability="process")
    there, back = np.arange(2000), np.arange(2000)
    back[999:1001] = 2500, 2600  # far from both ends, which is all that a long array shows as text
    for number, where in enumerate((there, back, there, back)):
        assert window.accumulate(np.ones(2000), "sum", map=where, once=True) == (number < 2)
        np.save(tmp_path / "map.npy", where)
        assert window.accumulate(np.ones(2000), "sum", map=tmp_path / "map.npy", once=True) == 0


def test_no_room_for_keys_is_said_and_nothing_is_forgotten(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(1))
    window = mpired.Window(tmp_path / "t.npy")
    assert window.accumulate([np.full(1, float(number)) for number in range(300)], "sum", once=True) == 300
    np.save(tmp_path / "o.npy", np.ones(1))
    for commit in COMMITS:
        words = ("accumulate", "--op", "sum", "--commit", commit, "--once-key", "k", "t.npy", "o.npy")
        outcome = run(*words, cwd=tmp_path, setup=failing(errno.ENOSPC, "setxattr"))
        refused(outcome, 4, "t.npy: has no room", "No space left on device", "other attributes")
        assert np.load(tmp_path / "t.npy").tolist() == [sum(range(300))]
        assert "once-keys: 300," in run("info", "t.npy", cwd=tmp_path).out.decode()


def test_what_is_no_key_is_refused(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(1))
    for said, reason in [
        ({"once": "task 7"}, "neither true nor false"),
        ({"once": 1}, "neither true nor false"),
        ({"once_key": ""}, "is not a key"),
        ({"once_key": True}, "is not a text"),
    ]:
        with unchanged(tmp_path), pytest.raises(mpired.errors.UsageError, match=reason):
            mpired.Window(tmp_path / "t.npy").accumulate(np.ones(1), "sum", **said)


def test_once_on_a_file_system_without_attributes(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(1))
    setup, words = failing(errno.EOPNOTSUPP, "getxattr"), "accumulate -q --op sum t.npy t.npy"
    check_refusals(tmp_path, [(f"{words} --once-key k", 2, "t.npy", "--once")], setup=setup)
    assert run(*words.split(), cwd=tmp_path, setup=setup) == (0, b"", "")
