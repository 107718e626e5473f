"""Ranks on other machines are read ahead by threads; segments of workers there begin with stripes of 4 MiB."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

import mpired
from mpired.collectives import plan as planning

STRIPE = 4096


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


def test_segments_begin_with_stripes_and_bits_are_the_same(segments, tmp_path):
    paths = [tmp_path / f"r{rank}.bin" for rank in range(3)]
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        for dtype, count, offset in ("u1", 100_003, 0), ("<f8", 1, 0), ("<f8", 100_003, 36_869), (">f4", 1000, 0):
            ranks = [np.random.default_rng(rank).integers(0, 9, count).astype(dtype) for rank in range(3)]
            for path, array in zip(paths, ranks, strict=True):
                path.write_bytes(bytes(offset) + array.tobytes())
            result = mpired.reduce(paths, "sum", engine=executor, type=dtype, offset=offset)
            assert result.tobytes() == sum(ranks).astype(result.dtype).tobytes(), (dtype, count)
            cut = segments.pop()
            assert [each.start for each in cut[1:]] == [each.stop for each in cut[:-1]], (dtype, count)
            assert (cut[0].start, cut[-1].stop) == (0, count)
            places = [offset + each.start * ranks[0].itemsize for each in cut[1:]]
            striped = ranks[0].nbytes >= 2 * 8 * STRIPE
            assert striped == (len(cut) > 1 and all(at % STRIPE < ranks[0].itemsize for at in places)), (dtype, count)
