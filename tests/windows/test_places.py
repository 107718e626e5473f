"""Where accumulate puts elements: types, counts, maps, boxes and ranks of a window."""

import numpy as np
import pytest
from command import run, unchanged
from hypothesis import example, given, settings
from hypothesis import strategies as st
from protocols import COMMITS
from rows import check_refusals

import mpired
from mpired.errors import MpiredError


@given(
    indices=st.lists(st.integers(0, 30), max_size=60), origin=st.lists(st.floats(-1e3, 1e3), min_size=60, max_size=60)
)
@example(indices=[0] * 3, origin=[1e3, -1e3, 1e-13, *[0.0] * 57])  # whose sum in another order is 0
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


BOXES = {
    "3,0:5": np.s_[3, 0:5], "1:3": np.s_[1:3], "-1": np.s_[-1], ":,2": np.s_[:, 2], "::2,1:5:3": np.s_[::2, 1:5:3],
    "0:4,-3:": np.s_[0:4, -3:], "2,3,1": np.s_[2, 3, 1], "1:1": np.s_[1:1],
}  # fmt: skip


@pytest.mark.parametrize("order", ["C", "F"])
def test_boxes(order, tmp_path):
    wrong = []
    for text, index in BOXES.items():
        array = np.asarray(np.arange(120.0).reshape(4, 6, 5), order=order)
        np.save(tmp_path / "t.npy", array)
        origin = np.asarray(np.random.default_rng(1).random(array[index].shape), order=order)
        np.save(tmp_path / "o.npy", origin)
        mpired.Window(tmp_path / "t.npy").accumulate(tmp_path / "o.npy", "sum", at=text)
        array[index] += origin
        if (np.load(tmp_path / "t.npy") != array).any():
            wrong.append(text)
    assert wrong == []


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


def test_maps_of_python_and_of_files(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros(4))
    np.save(tmp_path / "truths.npy", np.array([True, False]))
    (tmp_path / "map.bin").write_bytes(bytes(16))
    window = mpired.Window(tmp_path / "t.npy")
    window.accumulate(np.ones(3), "sum", map=[3, 0, 3])
    assert np.load(tmp_path / "t.npy").tolist() == [1, 0, 0, 2]
    window.accumulate(np.ones(0), "sum", map=[])
    words = "accumulate --op sum t.npy t.npy --map"
    check_refusals(
        tmp_path, [(f"{words} truths.npy", 3, "truths.npy", "BOOL"), (f"{words} map.bin", 2, "--map", "map.bin", "raw")]
    )
    with unchanged(tmp_path):
        with pytest.raises(MpiredError, match="a map is of integers"):
            window.accumulate(np.ones(2), "sum", map=[0.5, 1])
        with pytest.raises(MpiredError, match="`lock_timeout`"):
            mpired.Window(tmp_path / "t.npy", lock_timeout="a").accumulate(np.ones(4), "sum")


EMPTY = "contiguous(0,int)"

NOTHING = [
    f"accumulate --op sum t.npy o.npy --target-type {EMPTY} --origin-count 0",
    f"accumulate --op sum t.npy o.npy --origin-type {EMPTY}",
    f"accumulate --op sum t.npy o.npy --origin-type {EMPTY} --origin-count 3",
    f"accumulate --op sum t.npy o.npy --origin-type {EMPTY} --target-type {EMPTY}",
    f"accumulate --op sum t.npy o.npy --origin-type {EMPTY} --target-count 0",
    "accumulate --op sum t.npy o.npy --origin-count 0",
    "accumulate --op sum t.npy none.npy",
    "accumulate --op sum t.npy none.npy --target-count 0",
    "accumulate --op sum --type int t.bin short.bin --origin-count 0",
    "accumulate --op sum --type int short.bin t.bin --origin-count 0",
    f"get-accumulate --op no_op t.npy --target-type {EMPTY} --to text",
    f"get-accumulate --op sum t.npy o.npy --origin-type {EMPTY} --to text",
]


def test_empty_types_and_counts_do_nothing(tmp_path):
    """They are legal (MPI-4.1, 12.3.4); an empty type beside elements is not."""
    np.save(tmp_path / "t.npy", np.arange(4, dtype=np.int32))
    np.save(tmp_path / "o.npy", np.ones(4, np.int32))
    np.save(tmp_path / "none.npy", np.ones(0, np.int32))
    (tmp_path / "t.bin").write_bytes(bytes(16))
    (tmp_path / "short.bin").write_bytes(b"ab")
    with unchanged(tmp_path):
        done = {words: run(*words.split(), "-q", cwd=tmp_path) for words in NOTHING}
    assert {words: outcome for words, outcome in done.items() if outcome != (0, b"", "")} == {}
    check_refusals(tmp_path, [(f"accumulate --op sum t.npy t.npy --target-type {EMPTY}", 3, "as many")])
