"""Ranks on other machines are read ahead by threads: the same bits, the same errors, within the same limits.

Where workers may be there too, segments begin at multiples of 4 MiB of the first rank's file.
"""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from needs import needs

import mpired
from mpired.collectives import plan as planning
from mpired.errors import MpiredError
from mpired.files import mounts
from mpired.sources import ahead

NRANKS, COUNT = 80, 3000


@pytest.fixture
def ranks(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    names = [f"r{rank:02}.npy" for rank in range(NRANKS)]
    for rank, name in enumerate(names):
        np.save(name, np.random.default_rng(rank).standard_normal(COUNT) * 10.0 ** (rank % 16))
    return names


@pytest.fixture
def remote(monkeypatch) -> list[int]:
    """Take every file system for one of other machines; return the depths that are read ahead."""
    depths = []

    class Seen(ahead.Ahead):
        def __init__(self, read, nranks, depth):
            depths.append(depth)
            super().__init__(read, nranks, depth)

    monkeypatch.setattr(mounts, "is_remote", lambda _path: True)
    monkeypatch.setattr(ahead, "Ahead", Seen)
    return depths


@pytest.mark.parametrize("op", ["sum", "var", "max"])
def test_the_same_bits_in_blocks(op, ranks, remote, monkeypatch):
    monkeypatch.setattr(planning, "_BLOCK_BYTES", 4096)
    found = mpired.reduce(ranks, op)
    assert remote == [32]
    monkeypatch.setattr(mounts, "is_remote", lambda _path: False)
    assert np.array_equal(found, mpired.reduce(ranks, op))
    assert remote == [32]


def test_more_ranks_than_open_files(ranks, remote, monkeypatch):
    monkeypatch.setattr(planning, "_MAX_OPEN", 70)
    expected = np.load(ranks[0])
    for name in ranks[1:]:
        expected += np.load(name)
    assert np.array_equal(mpired.reduce(ranks, "sum"), expected)
    assert remote == [32]


def test_few_open_files_are_for_the_ranks(ranks, remote):
    mpired.reduce(ranks, "sum", max_open_files=40)
    assert remote == []


def test_the_first_rank_that_is_wrong_is_told(ranks, remote, monkeypatch):
    """The ranks behind it have been read already."""
    read = ahead.Ahead.read

    def shortened(self, rank, start, block):
        for name in ranks[40:60]:
            os.truncate(name, 200)
        return read(self, rank, start, block)

    monkeypatch.setattr(ahead.Ahead, "read", shortened)
    with pytest.raises(MpiredError) as caught:
        mpired.reduce(ranks, "sum", output="out.npy")
    assert "r40.npy" in str(caught.value)
    assert not os.path.exists("out.npy")


def test_a_file_system_in_another_process_is_remote(ranks, tmp_path):
    needs("bindfs")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    subprocess.run(["bindfs", tmp_path, mounted], check=True)
    try:
        assert mounts.is_remote(str(mounted / "r00.npy"))
        assert not mounts.is_remote(str(Path(ranks[0]).resolve()))
        found = mpired.reduce([mounted / name for name in ranks], "sum")
    finally:
        subprocess.run(["umount", mounted], check=True)
    assert np.array_equal(found, mpired.reduce(ranks, "sum"))


# ---- stripes


STRIPE = 4096


@pytest.fixture
def executor():
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        yield executor


@pytest.fixture
def segments(monkeypatch):
    """Small stripes, and the segments of each plan."""
    found = []

    def cut(*words, **keywords):
        found.append(real(*words, **keywords))
        return found[-1]

    real = planning.cut_segments
    monkeypatch.setattr(planning, "cut_segments", cut)
    monkeypatch.setattr(planning, "_STRIPE_BYTES", STRIPE)
    monkeypatch.setattr(planning, "SMALL_NBYTES", 0)
    return found


@pytest.mark.parametrize(
    ("dtype", "count", "offset"), [("u1", 100_003, 0), ("<f8", 1, 0), ("<f8", 100_003, 36_869), (">f4", 1000, 0)]
)
def test_segments_begin_with_stripes_and_bits_are_the_same(dtype, count, offset, executor, segments, tmp_path):
    ranks = [np.random.default_rng(rank).integers(0, 9, count).astype(dtype) for rank in range(3)]
    paths = [tmp_path / f"r{rank}.bin" for rank in range(3)]
    for path, array in zip(paths, ranks, strict=True):
        path.write_bytes(bytes(offset) + array.tobytes())
    result = mpired.reduce(paths, "sum", engine=executor, type=dtype, offset=offset)
    assert result.tobytes() == sum(each.astype(result.dtype) for each in ranks).astype(result.dtype).tobytes()
    (cut,) = segments
    assert [each.start for each in cut[1:]] == [each.stop for each in cut[:-1]]
    assert (cut[0].start, cut[-1].stop) == (0, count)
    itemsize = ranks[0].itemsize
    striped = ranks[0].nbytes >= 2 * 8 * STRIPE
    assert striped == (len(cut) > 1 and all((offset + each.start * itemsize) % STRIPE < itemsize for each in cut[1:]))
