"""What accumulate does to which bytes, and what it refuses, through the Python API and the command."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
import reference
import values
from command import refused, run, unchanged
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import LEGAL_PAIRS

import mpired
from mpired.errors import MpiredError
from mpired.windows.runs import Runs

COMMITS = ("rename", "journal")
HUGE = str(2**63 - 1)
TWO = "vector(2,1,4,double)"


# Elements


@pytest.mark.parametrize(("op", "name"), LEGAL_PAIRS)
def test_accumulating_is_the_fold_that_goes_on(op, name, directory):
    """Every op on every datatype: the bits of the slow twin, and what carries no value stays as it was."""
    target, *origins = values.ranks(name, 4, 30)
    (directory / "t.bin").write_bytes(target)
    for i, origin in enumerate(origins):
        (directory / f"o{i}.bin").write_bytes(origin)
    commit = COMMITS[len(name) % 2]
    mpired.Window(directory / "t.bin", type=name, commit=commit).accumulate(
        [directory / f"o{i}.bin" for i in range(3)], op
    )
    expected = reference.elements(name, reference.reduce(op, name, [target, *origins]))
    found = reference.elements(name, (directory / "t.bin").read_bytes())
    for new, right, old in zip(found, expected, reference.elements(name, target), strict=True):
        assert reference.without_padding(name, new) == right
        assert bytes(a ^ b for a, b in zip(new, right, strict=True)) == _only_padding(name, old)


def _only_padding(name: str, element: bytes) -> bytes:
    kept = reference.without_padding(name, element)
    return bytes(a ^ b for a, b in zip(element, kept, strict=True))


@pytest.mark.parametrize("code", [">f8", "<f8", ">i2", ">u4", "|b1", ">c16", ">f2"])
def test_byte_order_of_the_target_is_kept(code, tmp_path):
    values_ = np.array([0, 1, 1, 0, 1]).astype(code)
    np.save(tmp_path / "t.npy", values_)
    np.save(tmp_path / "o.npy", values_.astype(np.dtype(code).newbyteorder("=")))
    op = "lor" if code == "|b1" else "sum"
    mpired.Window(tmp_path / "t.npy").accumulate(tmp_path / "o.npy", op)
    found = np.load(tmp_path / "t.npy")
    assert found.dtype == np.dtype(code)
    assert (found == (values_ if op == "lor" else 2 * values_)).all()


def test_packed_pairs_in_npy(tmp_path):
    pairs = np.array([(1.5, 7), (2.5, 8)], [("a", "<f8"), ("b", "<i4")])
    np.save(tmp_path / "t.npy", pairs)
    np.save(tmp_path / "o.npy", np.array([(3.5, 1), (2.5, 2)], [("x", "<f8"), ("y", "<i4")]))
    mpired.Window(tmp_path / "t.npy", commit="journal").accumulate(tmp_path / "o.npy", "maxloc")
    found = np.load(tmp_path / "t.npy")
    assert found.dtype == pairs.dtype
    assert found.tolist() == [(3.5, 1), (2.5, 2)]


def test_a_last_element_without_its_padding(tmp_path):
    pairs = np.zeros(3, np.dtype([("v", "f8"), ("i", "i4")], align=True))
    (tmp_path / "t.bin").write_bytes(pairs.tobytes()[:-4])
    pairs["v"] = 9
    (tmp_path / "o.bin").write_bytes(pairs.tobytes())
    for commit in COMMITS:
        mpired.Window(tmp_path / "t.bin", type="double_int", commit=commit).accumulate(tmp_path / "o.bin", "maxloc")
        found = (tmp_path / "t.bin").read_bytes()
        assert len(found) == 44
        assert np.frombuffer(found + bytes(4), pairs.dtype)["v"].tolist() == [9, 9, 9]


@pytest.mark.parametrize("commit", COMMITS)
def test_target_that_is_an_origin_too(commit, tmp_path):
    np.save(tmp_path / "t.npy", np.arange(1000.0))
    os.symlink("t.npy", tmp_path / "link.npy")
    window = mpired.Window(tmp_path / "t.npy", commit=commit)
    with pytest.warns(mpired.errors.SameFileWarning):
        window.accumulate([tmp_path / "t.npy", tmp_path / "link.npy"], "sum")
    assert (np.load(tmp_path / "t.npy") == 3 * np.arange(1000.0)).all()


# Places


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_runs_reach_each_element_once_and_no_other(data):
    itemsize = data.draw(st.sampled_from([1, 2, 8, 16]))
    count = data.draw(st.integers(0, 40))
    gaps = data.draw(st.lists(st.sampled_from([0, 0, 1, 3, 700, 1500]), min_size=count, max_size=count))
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    starts, at = [], data.draw(st.integers(0, 9))
    for gap, length in zip(gaps, lengths, strict=True):
        starts.append(at + gap)
        at += gap + length * itemsize
    order = data.draw(st.permutations(range(count)))
    runs = Runs(
        np.array([starts[i] for i in order], np.int64), np.array([lengths[i] for i in order], np.int64), itemsize
    )
    runs.check("t", at)
    expected = [starts[i] + j * itemsize for i in order for j in range(lengths[i])]
    assert runs.entries == len(expected)
    assert runs.positions().tolist() == expected
    found: dict[int, int] = {}
    last = 0
    for batch in runs.batches():
        assert all(last <= start < stop for start, stop in batch.ranges)
        last = batch.ranges[-1][1]
        places = [start + k for start, stop in batch.ranges for k in range(stop - start)]
        at_ = range(0, len(places), itemsize) if batch.at is None else batch.at.tolist()
        (turn,) = batch.rounds
        index = range(turn.index.start, turn.index.stop) if isinstance(turn.index, slice) else turn.index.tolist()
        for position, number in zip(at_, index, strict=True):
            assert number not in found
            found[number] = places[position]
    assert [found[i] for i in range(len(expected))] == expected


@given(
    indices=st.lists(st.integers(0, 30), max_size=60), origin=st.lists(st.floats(-1e3, 1e3), min_size=60, max_size=60)
)
@settings(max_examples=100, deadline=None)
def test_map_is_ufunc_at(indices, origin, directory):
    """Repeated entries are all applied, in order: the bits of `np.add.at`."""
    target, index = np.linspace(0, 1, 31), np.array(indices, np.int64)
    np.save(directory / "t.npy", target)
    np.save(directory / "m.npy", index)
    values_ = np.array(origin[: len(indices)])
    np.add.at(target, index, values_)
    mpired.Window(directory / "t.npy").accumulate(values_, "sum", map=directory / "m.npy")
    assert np.load(directory / "t.npy").tobytes() == target.tobytes()


def test_map_applies_the_entries_in_order(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3))
    window = mpired.Window(tmp_path / "t.npy")
    window.accumulate(np.array([1.0, 2, 3, 4]), "replace", map=np.array([1, 1, 0, 1]))
    assert np.load(tmp_path / "t.npy").tolist() == [3, 4, 0]
    assert window.get_accumulate(np.array([1.0, 1, 1]), "sum", map=np.array([2, 2, 2])).tolist() == [0, 1, 2]


def test_a_map_in_batches(tmp_path):
    """More than a batch, far apart and close, and again."""
    draw = np.random.default_rng(5)
    target = draw.integers(0, 100, 3_000_000)
    index = np.concatenate([draw.integers(0, 3_000_000, 200_000), draw.integers(0, 50, 5000)])
    origin = draw.integers(0, 100, len(index))
    np.save(tmp_path / "t.npy", target)
    for commit in COMMITS:
        mpired.Window(tmp_path / "t.npy", commit=commit).accumulate(origin, "sum", map=index)
        np.add.at(target, index, origin)
        assert (np.load(tmp_path / "t.npy") == target).all()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("3,0:5", np.s_[3, 0:5]),
        ("1:3", np.s_[1:3]),
        ("-1", np.s_[-1]),
        (":,2", np.s_[:, 2]),
        ("::2,1:5:3", np.s_[::2, 1:5:3]),
        ("0:4,-3:", np.s_[0:4, -3:]),
        ("2,3,1", np.s_[2, 3, 1]),
        ("1:1", np.s_[1:1]),
    ],
)
def test_boxes(text, index, order, tmp_path):
    array = np.asarray(np.arange(120.0).reshape(4, 6, 5), order=order)
    np.save(tmp_path / "t.npy", array)
    origin = np.asarray(np.random.default_rng(1).random(array[index].shape), order=order)
    np.save(tmp_path / "o.npy", origin)
    mpired.Window(tmp_path / "t.npy").accumulate(tmp_path / "o.npy", "sum", at=text)
    array[index] += origin
    assert (np.load(tmp_path / "t.npy") == array).all()


def test_windows_of_several_ranks(tmp_path):
    for rank, count in enumerate((4, 0, 3)):
        np.save(tmp_path / f"w{rank}.npy", np.zeros(count))
    window = mpired.Window(*(tmp_path / f"w{rank}.npy" for rank in range(3)))
    window.accumulate(np.array([1.0, 2, 3, 4]), "sum", map=np.array([6, 0, 6, 4]))
    assert [np.load(tmp_path / f"w{rank}.npy").tolist() for rank in range(3)] == [[2, 0, 0, 0], [], [4, 0, 4]]
    window.accumulate(np.array([5.0]), "sum", target_rank=2, target_disp=1)
    assert np.load(tmp_path / "w2.npy").tolist() == [4, 5, 4]
    assert window.fetch_and_op(1, "sum", target_rank=0, target_disp=3) == 0
    with pytest.raises(MpiredError, match="`target_rank`"):
        window.accumulate(np.ones(4), "sum")
    with pytest.raises(MpiredError, match="names one file twice"):
        mpired.Window(tmp_path / "w0.npy", tmp_path / "w0.npy").accumulate(np.ones(4), "sum", target_rank=0)


@pytest.mark.parametrize("commit", COMMITS)
def test_far_into_a_sparse_file(commit, tmp_path):
    """Beyond 4 GiB, and holes stay holes."""
    path = tmp_path / "t.bin"
    with open(path, "wb") as file:
        file.truncate(6 << 30)
    disp = (5 << 30) // 8 + 3
    mpired.Window(path, type="int64_t", commit=commit).accumulate(np.array([7, 8]), "sum", target_disp=disp)
    with open(path, "rb") as file:
        file.seek(8 * disp - 8)
        assert np.frombuffer(file.read(32), np.int64).tolist() == [0, 7, 8, 0]
    assert path.stat().st_size == 6 << 30
    assert path.stat().st_blocks * 512 < 1 << 20


# Fetching


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


def test_no_op_ignores_its_origin(tmp_path):
    """Whatever it is (MPI-4.1, 12.3.4): of another datatype or count, or the target; one line says that."""
    np.save(tmp_path / "t.npy", np.arange(3.0))
    np.save(tmp_path / "o.npy", np.ones(7, "i4"))
    words = ("get-accumulate", "--op", "no_op", "--to", "text", "t.npy")
    with unchanged(tmp_path):
        for origin in ("o.npy", "t.npy", "-"):
            outcome = run(*words, origin, cwd=tmp_path)
            assert outcome[:2] == (0, b"0.0\n1.0\n2.0\n")
            note = f"mpired: {origin} is not used: MPI_NO_OP only reads the target"
            assert outcome.err.splitlines()[0] == note
            assert run(*words, "-q", origin, cwd=tmp_path) == (0, outcome.out, "")
        value = run("fetch-and-op", "--op", "no_op", "t.npy", "--target-disp", "1", "x", cwd=tmp_path)
        assert value == (0, b"1.0\n", "mpired: x is not used: MPI_NO_OP only reads the target\n")
        window = mpired.Window(tmp_path / "t.npy")
        with pytest.warns(mpired.errors.UnusedWarning, match="^the origin is not used: MPI_NO_OP only reads"):
            assert window.get_accumulate(np.ones(2, "i1"), "no_op").tolist() == [0, 1, 2]
        with pytest.warns(mpired.errors.UnusedWarning, match="^5 is not used"):
            assert window.fetch_and_op(5, "no_op", target_disp=2) == 2


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


@pytest.mark.parametrize(
    ("words", "notes"),
    [
        ("fetch-and-op --op sum t.npy t.npy", ["the origin t.npy is the same file as the target t.npy"]),
        ("fetch-and-op --op sum t.npy ./t.npy", ["the origin ./t.npy is the same file as the target t.npy"]),
        ("fetch-and-op --op sum t.npy v.npy", []),
        ("fetch-and-op --op sum --window t.npy 5", []),
        ("fetch-and-op --op sum --window 5 5", []),
        ("compare-and-swap t.npy t.npy t.npy", ["the origin t.npy is the same file as the target t.npy"]),
        ("compare-and-swap t.npy 0 t.npy", ["the origin t.npy is the same file as the target t.npy"]),
    ],
)
def test_an_element_that_is_of_the_target_itself(words, notes, tmp_path):
    for name in ("t.npy", "v.npy", "5.npy"):
        np.save(tmp_path / name, np.array([3]))
    (tmp_path / "5.npy").rename(tmp_path / "5")  # a number is a number, whatever a file is called
    outcome = run(*words.split(), cwd=tmp_path)
    assert outcome == (0, b"3\n", "".join(f"mpired: warning: {note}\n" for note in notes))
    assert run(*words.split(), "-q", cwd=tmp_path).err == ""


@pytest.mark.parametrize("words", ["fetch-and-op --op no_op t.npy", "compare-and-swap t.npy 7 8"])
def test_a_stream_that_fails_when_nothing_has_changed(words, tmp_path):
    """The status is about the target."""
    np.save(tmp_path / "t.npy", np.zeros(3, int))
    with unchanged(tmp_path):
        outcome = run(*words.split(), cwd=tmp_path, setup=fill_standard_output)
        refused(outcome, 4, "standard output: No space left on device")
        assert "do not repeat" not in outcome.err


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

        mpired.storage.calls.fsync_directory = fail

    words = ("get-accumulate", "--op", "sum", "--fetch", "old/old.npy", "-f", "t.npy", "t.npy")
    outcome = run(*words, cwd=tmp_path, setup=no_directory)
    refused(outcome, 4, "old/old.npy", "Input/output error", "has the old elements" if there else "is removed")
    assert (tmp_path / "t.npy").read_bytes() == before
    assert os.listdir(tmp_path / "old") == (["old.npy"] if there else [])
    if there:
        assert np.load(tmp_path / "old" / "old.npy").tolist() == [0, 0, 0]


# The file of the old elements and its directory are synced before the journal is.
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


def test_types_as_deep_as_a_text_is_long(tmp_path):
    """Every third number of the window and of the origin, by a thousand structures in one another."""
    levels = 1000
    deep = "struct([1,1],[0,6],[short," * levels + "short" + "])" * levels
    target, origin = np.arange(6000, dtype=np.int16), np.arange(6000, dtype=np.int16)[::-1].copy()
    target.tofile(tmp_path / "t.bin")
    origin.tofile(tmp_path / "o.bin")
    words = ("--type", "short", "--target-type", deep, "--target-count", "1", "--target-disp", "2")
    words = (*words, "--origin-type", deep, "--origin-disp", "1", "--origin-count", "1")
    outcome = run("accumulate", "-q", "--op", "sum", *words, "t.bin", "o.bin", cwd=tmp_path)
    assert (outcome.status, outcome.err) == (0, "")
    target[2 : 2 + 3 * levels + 1 : 3] += origin[1 : 1 + 3 * levels + 1 : 3]
    assert (tmp_path / "t.bin").read_bytes() == target.tobytes()


@pytest.mark.parametrize(
    ("type_", "op", "value", "old", "new"),
    [
        ("int8_t", "sum", "-5", b"0\n", -5),
        ("uint64_t", "bor", "0xffffffffffffffff", b"0\n", 2**64 - 1),
        ("double", "replace", "1e-300", b"0.0\n", 1e-300),
        ("c_bool", "lor", "true", b"0\n", 1),
        ("c_double_complex", "sum", "2-1j", b"0.0 0.0\n", 2 - 1j),
    ],
)
def test_values_on_the_command_line(type_, op, value, old, new, tmp_path):
    form = mpired.datatypes.parse(type_)[0].form
    (tmp_path / "t.bin").write_bytes(np.zeros(3, form).tobytes())
    words = ("fetch-and-op", "--type", type_, "--op", op, "--target-disp", "1", "t.bin", value)
    assert run(*words, cwd=tmp_path) == (0, old, "")
    assert np.fromfile(tmp_path / "t.bin", form).tolist() == [0, new, 0]


def test_pairs_on_the_command_line(tmp_path):
    np.save(tmp_path / "t.npy", np.array([(1.5, 3)], np.dtype([("v", "f8"), ("i", "i4")], align=True)))
    assert run("fetch-and-op", "--op", "minloc", "t.npy", "1.5,2", cwd=tmp_path) == (0, b"1.5 3\n", "")
    assert run("fetch-and-op", "--op", "no_op", "t.npy", cwd=tmp_path) == (0, b"1.5 2\n", "")


@pytest.mark.parametrize("value", ["300", "x", "1.5", "", "1,2"])
def test_values_that_are_none(value, tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3, np.int8))
    with unchanged(tmp_path):
        refused(run("fetch-and-op", "--op", "sum", "t.npy", value, cwd=tmp_path), 2, "MPI_INT8_T")


def test_compare_and_swap(tmp_path):
    np.save(tmp_path / "t.npy", np.array([3, 4]))
    assert run("compare-and-swap", "t.npy", "3", "-9", cwd=tmp_path) == (0, b"3\n", "")
    assert run("compare-and-swap", "t.npy", "3", "10", cwd=tmp_path) == (0, b"-9\n", "")
    assert mpired.Window(tmp_path / "t.npy").compare_and_swap(4, 5, target_disp=1) == 4
    assert np.load(tmp_path / "t.npy").tolist() == [-9, 5]
    np.save(tmp_path / "d.npy", np.zeros(2))
    with unchanged(tmp_path):
        refused(run("compare-and-swap", "d.npy", "0", "1", cwd=tmp_path), 3, "MPI_COMPARE_AND_SWAP", "MPI_DOUBLE")
        refused(run("compare-and-swap", "t.npy", "0", cwd=tmp_path), 2, "COMPARE")


# Making a target


def test_create_fills_with_the_identity(tmp_path):
    words = ("accumulate", "-q", "--create", "2,3", "new.npy", "o.npy", "--target-disp", "1", "--op")
    np.save(tmp_path / "o.npy", np.array([5, -5], np.int16))
    for op, rest in (("sum", 0), ("prod", 1), ("max", -(2**15)), ("min", 2**15 - 1), ("band", -1), ("bxor", 0)):
        assert run(*words, op, cwd=tmp_path) == (0, b"", ""), op
        found = np.load(tmp_path / "new.npy")
        assert found.dtype == np.int16
        assert found.tolist() == [[rest, 5, -5], [rest, rest, rest]], op
        assert (tmp_path / "new.npy").stat().st_mode & 0o777 == 0o644
        (tmp_path / "new.npy").unlink()
    refused(run(*words, "replace", cwd=tmp_path), 3, "MPI_REPLACE", "identity")
    refused(run(*words, "sum", "--create", "2,x", cwd=tmp_path), 2, "2,x")
    refused(run(*words, "sum", "--create", "2", cwd=tmp_path), 3, "window")
    refused(run("accumulate", "--op", "sum", "new.npy", "o.npy", cwd=tmp_path), 4, "new.npy", "No such file")
    refused(run(*words[:3], "2", "new.parquet", "o.npy", "--op", "sum", cwd=tmp_path), 2, "--create")
    assert os.listdir(tmp_path) == ["o.npy"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("accumulate", ("--op", "sum", "--create", "2", "{}", "o.npy")),
        ("get-accumulate", ("--op", "sum", "--create", "2", "--to", "text", "{}", "o.npy")),
        ("fetch-and-op", ("--op", "sum", "--type", "int16_t", "--create", "2", "{}", "1")),
    ],
)
def test_create_makes_no_file_that_looks_like_another_format(command, words, tmp_path):
    """Without a declared datatype it would not know its own again."""
    np.save(tmp_path / "o.npy", np.array([5, -5], np.int16))
    with unchanged(tmp_path):
        for name, reason in {"new.h5": "HDF5", "new.parquet": "parquet", "new.dat": "--type"}.items():
            if command != "fetch-and-op" or name != "new.dat":
                outcome = run(command, *(word.format(name) for word in words), cwd=tmp_path)
                refused(outcome, 2, "--create", name, reason)
                assert "--to" not in outcome.err
    (tmp_path / "o.bin").write_bytes(bytes(4))
    for name in ("new.dat", "new.0", "new"):
        declared = ("--op", "sum", "--type", "int16_t", "--create", "2", name, "o.bin")
        assert run("accumulate", "-q", *declared, cwd=tmp_path) == (0, b"", "")
        assert (tmp_path / name).read_bytes() == bytes(4)


def test_create_of_pairs_and_raw(tmp_path):
    pair = np.array([(2.5, 4)], np.dtype([("v", "f8"), ("i", "i4")], align=True))
    mpired.Window(tmp_path / "new.bin").accumulate(pair, "minloc", create=3, target_disp=1)
    found = np.fromfile(tmp_path / "new.bin", pair.dtype)
    assert found.tolist() == [(np.inf, 2**31 - 1), (2.5, 4), (np.inf, 2**31 - 1)]


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
    for at in (np.s_[1, 0:2, 1:4:2], np.s_[1], 1, np.s_[:, -1], np.s_[0:0]):
        assert np.array_equal(window.get_accumulate(None, "no_op", at=at), array[at])
    assert window.fetch_and_op(None, "no_op", at=(1, 2, 3)) == 23
    with pytest.raises(MpiredError, match="`at`"):
        window.get_accumulate(None, "no_op", at=(1.5,))


def test_maps_of_python_and_of_files(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(4))
    np.save(tmp_path / "truths.npy", np.array([True, False]))
    (tmp_path / "map.bin").write_bytes(bytes(16))
    window = mpired.Window(tmp_path / "t.npy")
    window.accumulate(np.ones(3), "sum", map=[3, 0, 3])
    assert np.load(tmp_path / "t.npy").tolist() == [1, 0, 0, 2]
    window.accumulate(np.ones(0), "sum", map=[])
    with unchanged(tmp_path):
        words = ("accumulate", "--op", "sum", "--target-disp", "0", "t.npy", "t.npy")
        refused(run(*words[:3], "--map", "truths.npy", "t.npy", "t.npy", cwd=tmp_path), 3, "truths.npy", "BOOL")
        refused(run(*words[:3], "--map", "map.bin", "t.npy", "t.npy", cwd=tmp_path), 2, "--map", "map.bin", "raw")
        with pytest.raises(MpiredError, match="a map is of integers"):
            window.accumulate(np.ones(2), "sum", map=[0.5, 1])
        with pytest.raises(MpiredError, match="`lock_timeout`"):
            mpired.Window(tmp_path / "t.npy", lock_timeout="a").accumulate(np.ones(4), "sum")


def test_nothing_to_combine_changes_nothing(tmp_path):
    np.save(tmp_path / "t.npy", np.ones((2, 2)))
    np.save(tmp_path / "none.npy", np.ones(0))
    with unchanged(tmp_path):
        assert run("accumulate", "-q", "--op", "sum", "t.npy", "none.npy", cwd=tmp_path) == (0, b"", "")
        words = ("--origin-count", "0", "t.npy", "t.npy")
        assert run("accumulate", "-q", "--op", "sum", *words, cwd=tmp_path) == (0, b"", "")
        words = ("--target-count", "0", "t.npy", "none.npy")
        assert run("accumulate", "-q", "--op", "sum", *words, cwd=tmp_path) == (0, b"", "")


def test_a_raw_target_with_a_piece_of_an_element(tmp_path):
    (tmp_path / "t.bin").write_bytes(bytes(35))
    np.save(tmp_path / "o.npy", np.ones(4))
    words = ("accumulate", "-q", "--op", "sum", "--type", "double", "t.bin", "o.npy")
    with unchanged(tmp_path):
        refused(run(*words, cwd=tmp_path), 3, "t.bin", "3 bytes follow the last whole MPI_DOUBLE")
    assert run(*words, "--target-disp", "0", cwd=tmp_path) == (0, b"", "")
    assert (tmp_path / "t.bin").read_bytes() == np.ones(4).tobytes() + bytes(3)


def test_a_swap_that_does_not_happen_leaves_the_file_alone(tmp_path):
    np.save(tmp_path / "t.npy", np.array([3, 4]))
    with unchanged(tmp_path):
        assert run("compare-and-swap", "t.npy", "5", "9", cwd=tmp_path) == (0, b"3\n", "")
        assert mpired.Window(tmp_path / "t.npy").compare_and_swap(5, 9, target_disp=1) == 4


@pytest.mark.parametrize("rank", ["3", "1", "-1", "\u0661"])
@pytest.mark.parametrize("words", [("fetch-and-op", "--op", "sum", "t.npy", "1"),
                                   ("compare-and-swap", "t.npy", "0", "1"),
                                   ("get-accumulate", "--op", "no_op", "t.npy")])  # fmt: skip
def test_a_target_rank_that_is_none(words, rank, tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3, np.int32))
    with unchanged(tmp_path):
        refused(run(*words, "--target-rank", rank, cwd=tmp_path), 2, "--target-rank")


EMPTY = "contiguous(0,int)"


@pytest.mark.parametrize("words", [
    ("accumulate", "--op", "sum", "t.npy", "o.npy", "--target-type", EMPTY, "--origin-count", "0"),
    ("accumulate", "--op", "sum", "t.npy", "o.npy", "--origin-type", EMPTY),
    ("accumulate", "--op", "sum", "t.npy", "o.npy", "--origin-type", EMPTY, "--origin-count", "3"),
    ("accumulate", "--op", "sum", "t.npy", "o.npy", "--origin-type", EMPTY, "--target-type", EMPTY),
    ("accumulate", "--op", "sum", "t.npy", "o.npy", "--origin-type", EMPTY, "--target-count", "0"),
    ("accumulate", "--op", "sum", "--type", "int", "t.bin", "short.bin", "--origin-count", "0"),
    ("accumulate", "--op", "sum", "--type", "int", "short.bin", "t.bin", "--origin-count", "0"),
    ("get-accumulate", "--op", "no_op", "t.npy", "--target-type", EMPTY, "--to", "text"),
    ("get-accumulate", "--op", "sum", "t.npy", "o.npy", "--origin-type", EMPTY, "--to", "text"),
])  # fmt: skip
def test_empty_types_and_counts_do_nothing(words, tmp_path):
    """They are legal (MPI-4.1, 12.3.4)."""
    np.save(tmp_path / "t.npy", np.arange(4, dtype=np.int32))
    np.save(tmp_path / "o.npy", np.ones(4, np.int32))
    (tmp_path / "t.bin").write_bytes(bytes(16))
    (tmp_path / "short.bin").write_bytes(b"ab")
    with unchanged(tmp_path):
        assert run(*words, "-q", cwd=tmp_path) == (0, b"", "")


def test_an_empty_type_beside_elements_is_refused(tmp_path):
    np.save(tmp_path / "t.npy", np.arange(4, dtype=np.int32))
    with unchanged(tmp_path):
        refused(run("accumulate", "--op", "sum", "t.npy", "t.npy", "--target-type", EMPTY, cwd=tmp_path), 3, "as many")


@pytest.mark.parametrize("value", ["\u0661", "1_0", "\uff11"])
def test_values_are_in_ascii_digits(value, tmp_path):
    for dtype in np.int32, np.float64, np.complex128:
        np.save(tmp_path / "t.npy", np.zeros(3, dtype))
        with unchanged(tmp_path):
            refused(run("fetch-and-op", "--op", "sum", "t.npy", value, cwd=tmp_path), 2, "is no element of")


def test_quiet_is_taken_where_there_is_no_summary(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(3, np.int32))
    assert run("fetch-and-op", "-q", "--op", "sum", "t.npy", "-5", cwd=tmp_path) == (0, b"0\n", "")
    assert run("compare-and-swap", "--quiet", "t.npy", "-5", "7", cwd=tmp_path) == (0, b"-5\n", "")


@pytest.mark.parametrize("words", [("fetch-and-op", "--op", "sum", "--bogus", "t.npy", "1"),
                                   ("fetch-and-op", "--op", "sum", "t.npy", "-x"),
                                   ("compare-and-swap", "-z", "t.npy", "1", "2"),
                                   ("compare-and-swap", "t.npy", "1", "--json")])  # fmt: skip
def test_an_unknown_option_is_no_value(words, tmp_path):
    np.save(tmp_path / "t.npy", np.array([3, 4]))
    with unchanged(tmp_path):
        refused(run(*words, cwd=tmp_path), 2, "No such option")


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("i4", 1.9), ("i4", np.float64(3.0)), ("i4", "1.5"), ("i4", 2**31), ("u1", -1), ("i8", [1]), ("i4", 1j),
        ("f4", 1e39), ("f4", "1e39"), ("f2", 70000), ("f8", "1e400"), ("f8", 10**400), ("f8", 1j), ("c8", 1e39),
        ("c8", "1e39"),
    ],
)  # fmt: skip
def test_a_number_that_the_elements_cannot_hold(dtype, value, tmp_path):
    np.save(tmp_path / "t.npy", np.ones(2, dtype))
    window = mpired.Window(tmp_path / "t.npy")
    with unchanged(tmp_path), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MpiredError, match="is no element of MPI_"):
            window.fetch_and_op(value, "sum")
        if dtype[0] in "iu":
            with pytest.raises(MpiredError, match="is no element of MPI_"):
                window.compare_and_swap(value, 1)


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("f4", 0.1, np.float32(0.1)), ("f4", "0.1", np.float32("0.1")), ("f8", "0.1", 0.1), ("f4", "inf", np.inf),
        ("f8", np.float32(0.1), float(np.float32(0.1))), ("g", "0.1", np.longdouble("0.1")), ("c16", 1 + 2j, 1 + 2j),
        ("i4", np.int64(-7), -7), ("i4", True, 1), ("u1", np.uint8(255), 255), ("f8", 2**53 + 1, float(2**53)),
    ],
)  # fmt: skip
def test_a_number_is_rounded_once(dtype, value, expected, tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(2, dtype))
    mpired.Window(tmp_path / "t.npy").fetch_and_op(value, "replace")
    assert np.load(tmp_path / "t.npy")[0] == expected


def test_a_call_that_fetches_may_create(tmp_path):
    np.save(tmp_path / "o.npy", np.array([3, -4, 5], np.int32))
    words = ("get-accumulate", "-q", "--op", "max", "--create", "3", "--to", "text", "t.npy", "o.npy")
    lowest = np.iinfo(np.int32).min
    assert run(*words, cwd=tmp_path) == (0, f"{lowest}\n{lowest}\n{lowest}\n".encode(), "")
    assert run(*words, cwd=tmp_path) == (0, b"3\n-4\n5\n", "")
    assert np.load(tmp_path / "t.npy").tolist() == [3, -4, 5]
    assert mpired.Window(tmp_path / "u.npy").get_accumulate(np.ones(2), "prod", create=2).tolist() == [1, 1]
    words = ("get-accumulate", "--op", "no_op", "--create", "3", "new.npy")
    refused(run(*words, cwd=tmp_path), 2, "--create", "--type")
    refused(run(*words, "--type", "int", cwd=tmp_path), 3, "NO_OP", "identity")
    assert not (tmp_path / "new.npy").exists()


def test_many_create_one_file(tmp_path):
    pids = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(5):
                    mpired.Window(tmp_path / "new.npy").accumulate(np.ones(100), "sum", create=100)
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    assert (np.load(tmp_path / "new.npy") == 40).all()


# Exactly once


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


# What is refused, without a byte written


@pytest.mark.parametrize(
    ("text", "target", "origin"),
    [
        (
            "contiguous(1000000,vector(1000000,1,2,double))",
            "outside of the window of 800 bytes",
            "but it has 800 bytes",
        ),
        ("hvector(1000000,1000000,-8,double)", "from byte -", "from byte -"),
        ("hvector(1000000000,1,0,contiguous(100,double))", "overlap", None),
    ],
)
def test_types_of_very_many_elements_are_refused_before_they_are_laid_out(text, target, origin, tmp_path):
    for name in ("t.bin", "o.bin"):
        (tmp_path / name).write_bytes(bytes(800))

    def limit():
        pages = int(Path("/proc/self/statm").read_text().split()[0])  # the tests' own process has much already
        allowed = pages * resource.getpagesize() + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))

    words = ("accumulate", "--op", "sum", "--type", "double")
    with unchanged(tmp_path):
        outcome = run(*words, "--target-type", text, "t.bin", "o.bin", cwd=tmp_path, setup=limit)
        refused(outcome, 3, "t.bin: ", target)
        if origin:
            outcome = run(*words, "--origin-type", text, "t.bin", "o.bin", cwd=tmp_path, setup=limit)
            refused(outcome, 3, "o.bin: ", origin)


def _case(*words: str, status: int, reason: str):
    return pytest.param(words, status, reason, id=" ".join(words))


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        _case("--op", "sum", status=2, reason="TARGET"),
        _case("--op", "sum", "t.npy", status=2, reason="ORIGIN"),
        _case("--op", "nope", "t.npy", "o.npy", status=2, reason="is not an MPI op"),
        _case("--op", "no_op", "t.npy", "o.npy", status=3, reason="fetch only"),
        _case("--op", "./f.py:g", "t.npy", "o.npy", status=3, reason="user-defined"),
        _case("--op", "band", "t.npy", "o.npy", status=3, reason="is not defined for MPI_DOUBLE"),
        _case("--op", "sum", "t.npy", "int.npy", status=3, reason="MPI_INT32_T"),
        _case("--op", "sum", "t.npy", "o.npy", status=3, reason="has 3 elements, but the target has 12"),
        _case("--op", "sum", "t.npy", "shape.npy", status=3, reason="shape (4, 3)"),
        _case("--op", "sum", "t.npy", "fortran.npy", status=3, reason="order"),
        _case("--op", "sum", "--target-disp", "10", "t.npy", "o.npy", status=3, reason="outside of the window"),
        _case("--op", "sum", "--target-disp", "-1", "t.npy", "o.npy", status=3, reason="is negative"),
        _case("--op", "sum", "--target-disp", "99999999999999999999", "t.npy", "o.npy", status=3, reason="window"),
        _case("--op", "sum", "--target-disp", HUGE, "t.npy", "o.npy", status=3, reason="window"),
        _case("--op", "sum", "--disp-unit", "1", "--target-disp", HUGE, "t.npy", "o.npy", status=3, reason="window"),
        _case("--op", "sum", "--target-type", TWO, "--target-count", "9999999", "t.npy", "o.npy", status=3, reason="3"),
        _case("--op", "sum", "--disp-unit", "0", "t.npy", "o.npy", status=2, reason="--disp-unit"),
        _case("--op", "sum", "--offset", "8", "t.npy", "o.npy", status=2, reason="--offset"),
        _case("--op", "sum", "--target-count", "2", "t.npy", "o.npy", status=3, reason="3 elements for 2"),
        _case("--op", "sum", "--target-count", "-2", "t.npy", "o.npy", status=3, reason="negative"),
        _case("--op", "sum", "--origin-disp", "2", "--origin-count", "2", "t.npy", "o.npy", status=3, reason="fewer"),
        _case("--op", "sum", "--target-type", "vector(3,1,0,double)", "t.npy", "o.npy", status=3, reason="overlap"),
        _case("--op", "sum", "--target-type", "int", "t.npy", "o.npy", status=3, reason="MPI_INT"),
        _case("--op", "sum", "--type", "long", "--origin-type", "int64_t", "t.npy", "o.npy", status=3, reason="same"),
        _case("--op", "sum", "--at", "5,0:3", "t.npy", "o.npy", status=3, reason="out of bounds"),
        _case("--op", "sum", "--at", "0,0:9", "t.npy", "o.npy", status=3, reason="out of bounds"),
        _case("--op", "sum", "--at", "0,a", "t.npy", "o.npy", status=2, reason="no index"),
        _case("--op", "sum", "--at", "0,0,0", "t.npy", "o.npy", status=2, reason="3 indices"),
        _case("--op", "sum", "--at", "0", "--target-disp", "1", "t.npy", "o.npy", status=2, reason="choose one"),
        _case("--op", "sum", "--map", "bad.npy", "t.npy", "o.npy", status=3, reason="entry 1 is 12"),
        _case("--op", "sum", "--map", "o.npy", "t.npy", "o.npy", status=3, reason="integers"),
        _case("--op", "sum", "--map", "long.npy", "t.npy", "o.npy", status=3, reason="3 elements for 4"),
        _case("--op", "sum", "--lock-timeout", "-1", "t.npy", "o.npy", status=2, reason="--lock-timeout"),
        _case("--op", "sum", "--target-disp", "\u0661", "t.npy", "o.npy", status=2, reason="--target-disp"),
        _case("--op", "sum", "--target-count", "1_0", "t.npy", "o.npy", status=2, reason="--target-count"),
        _case("--op", "sum", "--lock-timeout", "\u0661", "t.npy", "o.npy", status=2, reason="--lock-timeout"),
        _case("--op", "sum", "--at", "\u0661", "t.npy", "o.npy", status=2, reason="--at"),
        _case("--op", "sum", "--create", "\u0661", "new.npy", "o.npy", status=2, reason="--create"),
        _case("--op", "sum", "--lock-timeout", "nan", "t.npy", "o.npy", status=2, reason="--lock-timeout"),
        _case("--op", "sum", "missing.npy", "o.npy", status=4, reason="missing.npy"),
        _case("--op", "sum", "t.npy", "missing.npy", status=4, reason="missing.npy"),
        _case("--op", "sum", "folder", "o.npy", status=4, reason="folder"),
        _case("--op", "sum", "fifo", "o.npy", status=4, reason="regular"),
        _case("--op", "sum", "/dev/null", "o.npy", status=4, reason="regular"),
        _case("--op", "sum", "t.bin", "o.npy", status=2, reason="--type"),
        _case("--op", "sum", "cut.npy", "o.npy", status=3, reason="not a valid npy"),
        _case("--op", "sum", "dangling.npy", "o.npy", status=4, reason="dangling.npy"),
        _case("--op", "sum", "loop.npy", "o.npy", status=4, reason="loop.npy"),
        _case("--op", "sum", "--commit", "direct", "t.npy", "o.npy", status=2, reason="--commit"),
        _case("--op", "sum", "--durability", "some", "t.npy", "o.npy", status=2, reason="--durability"),
        _case("--op", "sum", "--target-rank", "1", "t.npy", "o.npy", status=2, reason="--target-rank"),
    ],
)  # fmt: skip
def test_refusals(words, status, reason, tmp_path):
    np.save(tmp_path / "t.npy", np.arange(12.0).reshape(3, 4))
    np.save(tmp_path / "o.npy", np.ones(3))
    np.save(tmp_path / "int.npy", np.ones(12, np.int32))
    np.save(tmp_path / "shape.npy", np.ones((4, 3)))
    np.save(tmp_path / "fortran.npy", np.ones((3, 4), order="F"))
    np.save(tmp_path / "bad.npy", np.array([0, 12, 1]))
    np.save(tmp_path / "long.npy", np.array([0, 2, 1, 3]))
    (tmp_path / "t.bin").write_bytes(bytes(96))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "t.npy").read_bytes()[:-1])
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    os.symlink("nowhere", tmp_path / "dangling.npy")
    os.symlink("loop.npy", tmp_path / "loop.npy")
    with unchanged(tmp_path):
        refused(run("accumulate", *words, cwd=tmp_path), status, reason)


@pytest.mark.parametrize("commit", COMMITS)
def test_a_program_that_runs(commit, tmp_path):
    shutil.copy(shutil.which("sleep"), tmp_path / "program")
    (tmp_path / "byte").write_bytes(b"1")
    running = subprocess.Popen([tmp_path / "program", "100"])
    try:
        words = ("--op", "replace", "--type", "byte", "--commit", commit, "--from", "raw", "program", "byte")
        with unchanged(tmp_path):
            refused(run("accumulate", *words, "--target-count", "1", cwd=tmp_path), 4, "program", "busy")
    finally:
        running.kill()
        running.wait()


def test_summary_and_json(tmp_path):
    for name in ("t", "o"):
        np.save(tmp_path / f"{name}.npy", np.zeros(3))
    words = ("accumulate", "--op", "sum", "t.npy", "o.npy")
    assert run(*words, cwd=tmp_path).err == "mpired: MPI_SUM of 1 origin, 3 x MPI_DOUBLE -> t.npy (rename)\n"
    told = run(*words, "-v", cwd=tmp_path).err.splitlines()
    assert told[1:] == ["mpired: t.npy: 24 bytes of elements, rename"]
    found = json.loads(run(*words, "--json", cwd=tmp_path).err)
    assert found == {
        "op": "MPI_SUM", "buffers": [{"datatype": "MPI_DOUBLE", "count": 3}], "origins": 1, "windows": ["t.npy"],
        "protocols": ["rename"], "skipped": [], "recovered": [],
        "overflow": [],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["-t.npy", "a b.npy", "\n.npy", "é" * 125 + ".npy", "\udcff.npy", "x" * 251 + ".npy"])
@pytest.mark.parametrize("commit", COMMITS)
def test_names(name, commit, tmp_path):
    path = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), os.fsencode(name))))
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))
    words = ("accumulate", "-q", "--op", "sum", "--commit", commit, "--", name, name)
    assert run(*words, cwd=tmp_path) == (0, b"", "")
    assert len(os.listdir(tmp_path)) == 1
