"""Origins that are applied exactly once, however often a command is repeated."""

from __future__ import annotations

import os

import numpy as np
import pytest
from command import refused, run, unchanged
from protocols import COMMITS

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


def test_once_remembers_hundreds(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(1))
    window = mpired.Window(tmp_path / "t.npy", durability="process")
    for expected in (1, 0):
        for number in range(300):
            assert window.accumulate(np.ones(1), "sum", once_key=f"task {number}") == expected
    assert np.load(tmp_path / "t.npy").tolist() == [300]


def test_once_is_a_flag_that_leaves_the_target_where_it_stands(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3))
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.arange(3.0) + (name == "b"))
    before = (tmp_path / "a.npy").read_bytes()
    for _ in range(2):
        assert run("accumulate", "-q", "--op", "sum", "--once", "t.npy", "a.npy", "b.npy", cwd=tmp_path) == (0, b"", "")
    assert (tmp_path / "a.npy").read_bytes() == before
    assert np.load(tmp_path / "t.npy").tolist() == [1, 3, 5]


@pytest.mark.parametrize("norigins", [384, 385, 1000])
def test_origins_that_a_target_cannot_remember_are_refused(norigins, tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(1))
    window = mpired.Window(tmp_path / "t.npy", durability="process")
    origins = [np.full(1, float(number)) for number in range(norigins)]
    if norigins > 384:
        with (
            unchanged(tmp_path),
            pytest.raises(mpired.errors.UsageError, match=f"there are {norigins}.*`once_key='KEY'`"),
        ):
            window.accumulate(origins, "sum", once=True)
        window.accumulate(origins, "sum", once_key="all of them")
        assert window.accumulate(origins, "sum", once_key="all of them") == 0
    else:
        assert window.accumulate(origins, "sum", once=True) == norigins
        assert window.accumulate(origins, "sum", once=True) == 0
    assert np.load(tmp_path / "t.npy").tolist() == [norigins * (norigins - 1) / 2]


def test_a_command_that_is_repeated_finds_all_its_keys(tmp_path):
    """Of a command with old and new origins no key is forgotten for the sake of the others."""
    np.save(tmp_path / "t.npy", np.zeros(1))
    window = mpired.Window(tmp_path / "t.npy", durability="process")
    origins = [np.full(1, float(number)) for number in range(500)]
    assert window.accumulate(origins[:384], "sum", once=True) == 384
    mixed = [*origins[:100], *origins[384:]]
    assert window.accumulate(mixed, "sum", once=True) == 116
    assert window.accumulate(mixed, "sum", once=True) == 0
    assert np.load(tmp_path / "t.npy").tolist() == [500 * 499 / 2]


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

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    np.save(tmp_path / "o.npy", np.ones(1))
    for commit in COMMITS:
        words = ("accumulate", "--op", "sum", "--commit", commit, "--once-key", "k", "t.npy", "o.npy")
        with unchanged(tmp_path):
            outcome = run(*words, cwd=tmp_path, setup=lambda: setattr(os, "setxattr", full))
            refused(outcome, 4, "t.npy: no room", "keys", "No space left on device", "other attributes")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"once": "task 7"}, "neither true nor false"),
        ({"once": 1}, "neither true nor false"),
        ({"once_key": ""}, "is no key"),
        ({"once_key": True}, "is not a text"),
    ],
)
def test_what_is_no_key_is_refused(said, reason, tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(1))
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


def test_once_on_a_file_system_without_attributes(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise OSError(95, "Operation not supported")

    np.save(tmp_path / "t.npy", np.zeros(1))
    monkeypatch.setattr(os, "getxattr", refuse)
    with unchanged(tmp_path):
        refused(
            run("accumulate", "--op", "sum", "t.npy", "t.npy", "--once-key", "k", cwd=tmp_path), 2, "t.npy", "--once"
        )
    assert run("accumulate", "-q", "--op", "sum", "t.npy", "t.npy", cwd=tmp_path) == (0, b"", "")
