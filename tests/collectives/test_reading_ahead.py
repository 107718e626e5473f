"""Ranks on other machines are read ahead by threads: the same bits, the same errors, within the same limits."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from needs import needs

import mpired
from mpired.collectives import plan as planning
from mpired.errors import MpiredError
from mpired.files import mounts
from mpired.formats import ahead

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
