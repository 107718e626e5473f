"""Where workers may be on other machines, segments begin at multiples of 4 MiB of the first rank's file."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import numpy as np
import pytest

import mpired
from mpired.collectives import plan as planning

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


@pytest.mark.parametrize(("dtype", "count"), [("u1", 100_003), ("<f8", 1), ("<f8", 100_003), (">f4", 1000)])
def test_segments_begin_with_stripes_and_bits_are_the_same(dtype, count, executor, segments, tmp_path, monkeypatch):
    ranks = [np.random.default_rng(rank).integers(0, 9, count).astype(dtype) for rank in range(3)]
    for rank, array in enumerate(ranks):
        np.save(tmp_path / f"r{rank}.npy", array)
    paths = [tmp_path / f"r{rank}.npy" for rank in range(3)]
    result = mpired.reduce(paths, "sum", engine=executor)
    assert result.tobytes() == sum(each.astype(result.dtype) for each in ranks).astype(result.dtype).tobytes()
    (cut,) = segments
    assert [each.start for each in cut[1:]] == [each.stop for each in cut[:-1]]
    assert (cut[0].start, cut[-1].stop) == (0, count)
    offset, itemsize = paths[0].stat().st_size - ranks[0].nbytes, ranks[0].itemsize
    striped = ranks[0].nbytes >= 2 * 8 * STRIPE
    assert striped == (len(cut) > 1 and all((offset + each.start * itemsize) % STRIPE < itemsize for each in cut[1:]))


@pytest.mark.parametrize(("offset", "itemsize"), [(0, 8), (128, 8), (131, 24), (9 * STRIPE + 5, 7), (1, 1)])
def test_a_segment_begins_with_the_first_element_behind_a_border(offset, itemsize, monkeypatch):
    monkeypatch.setattr(planning, "_STRIPE_BYTES", STRIPE)
    rank = SimpleNamespace(offset=offset, count=70_001, stored=np.dtype(f"V{itemsize}"))
    starts = planning.stripes(rank, 2)
    assert starts[0] == 0
    assert sorted(set(starts)) == starts
    for start in starts[1:]:
        assert 0 <= (offset + start * itemsize) % STRIPE < itemsize
        assert start < rank.count
