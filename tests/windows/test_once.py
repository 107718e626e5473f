"""Origins that are applied exactly once, however often a command is repeated."""

from __future__ import annotations

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


def test_what_has_no_path_counts_by_its_number_in_the_command(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(1))
    np.save(tmp_path / "one.npy", np.ones(1))
    window = mpired.Window(tmp_path / "t.npy")
    one, two = np.ones(1), np.full(1, 2.0)
    assert window.accumulate([one, two, one], "sum", once=True) == 3
    assert window.accumulate([one, two, one], "sum", once=True) == 0
    with pytest.warns(mpired.errors.SameContentWarning, match="has the content of an origin"):
        assert window.accumulate([one, one, one], "sum", once=True) == 1
    with pytest.warns(mpired.errors.SameContentWarning, match="one.npy has the content of an origin"):
        assert window.accumulate(tmp_path / "one.npy", "sum", once=True) == 1
    with open(tmp_path / "one.npy", "rb") as file:  # which has a path
        assert window.accumulate(file, "sum", once=True) == 0
    assert np.load(tmp_path / "t.npy").tolist() == [6]
    # Ranks of one file, of which some are equal; and a stream.
    np.array([1.0, 5.0, 1.0]).tofile(tmp_path / "ranks.bin")
    words = ("accumulate", "-q", "--op", "sum", "--once", "--type", "double", "u.npy")
    np.save(tmp_path / "u.npy", np.zeros(1))
    for _ in range(2):
        assert run(*words, "--ranks-in-file", "3", "ranks.bin", cwd=tmp_path).status == 0
        assert np.load(tmp_path / "u.npy").tolist() == [7]
    words = ("accumulate", "-q", "--op", "sum", "--once", "u.npy", "-")
    for _ in range(2):
        assert run(*words, cwd=tmp_path, stdin=(tmp_path / "t.npy").read_bytes()).status == 0
        assert np.load(tmp_path / "u.npy").tolist() == [13]


def test_parts_of_one_file_are_not_one_origin(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(1))
    np.ones(2).tofile(tmp_path / "o.bin")
    words = ("accumulate", "-q", "--op", "sum", "--once", "--type", "double", "--count", "1", "t.npy", "o.bin")
    for _ in range(2):
        for offset in ("0", "8"):
            assert run(*words, "--offset", offset, cwd=tmp_path).status == 0
    assert np.load(tmp_path / "t.npy").tolist() == [2]


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


def test_once_from_the_environment(tmp_path):
    for name in ("t", "o"):
        np.save(tmp_path / f"{name}.npy", np.ones(1))
    words = ("accumulate", "--op", "sum", "t.npy", "o.npy")
    assert "--once (MPIRED_ONCE)" in run(*words, cwd=tmp_path, env={"MPIRED_ONCE": "1"}).err
    assert "already applied" in run(*words, cwd=tmp_path, env={"MPIRED_ONCE": "1"}).err
    assert "already applied" not in run(*words, cwd=tmp_path, env={"MPIRED_ONCE_KEY": "k"}).err
    assert "already applied" in run(*words, cwd=tmp_path, env={"MPIRED_ONCE_KEY": "k"}).err


def test_an_origin_that_is_the_target_or_another_origin_is_said(tmp_path):
    for name in ("t", "a"):
        np.save(tmp_path / f"{name}.npy", np.ones(1))
    os.link(tmp_path / "a.npy", tmp_path / "b.npy")
    for origins, reason in {
        ("t.npy",): "the origin t.npy is the same file as the target t.npy",
        ("a.npy", "./a.npy"): "the origin ./a.npy is the same file as the origin a.npy",
        ("a.npy", "b.npy"): "the origin b.npy is the same file as the origin a.npy",
    }.items():
        outcome = run("accumulate", "--op", "sum", "t.npy", *origins, cwd=tmp_path)
        assert outcome.status == 0
        assert outcome.err.splitlines()[0] == f"mpired: warning: {reason}"
        assert run("accumulate", "-q", "--op", "sum", "t.npy", *origins, cwd=tmp_path).err == ""
    outcome = run("get-accumulate", "--op", "sum", "--to", "text", "t.npy", "t.npy", cwd=tmp_path)
    assert "warning: the origin t.npy is the same file as the target t.npy" in outcome.err
    assert "warning" not in run("accumulate", "--op", "sum", "t.npy", "a.npy", cwd=tmp_path).err


def test_once_on_a_file_system_without_attributes(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(1))
    setup, words = failing(errno.EOPNOTSUPP, "getxattr"), "accumulate -q --op sum t.npy t.npy"
    check_refusals(tmp_path, [(f"{words} --once-key k", 2, "t.npy", "--once")], setup=setup)
    assert run(*words.split(), cwd=tmp_path, setup=setup) == (0, b"", "")
