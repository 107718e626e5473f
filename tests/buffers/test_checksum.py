"""The checksum of a file's bytes, compared with zlib's, for any cut into parts; and an archive that NumPy checks."""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest

import mpired
from mpired.buffers import checksum


@pytest.mark.parametrize("nthreads", [1, 2, 3, 8])
def test_any_number_of_threads(nthreads, tmp_path, monkeypatch):
    monkeypatch.setattr(checksum, "_PART_NBYTES", 1000)
    content = np.random.default_rng(1).bytes(100_003)
    (tmp_path / "f").write_bytes(content)
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    for start, stop in ((0, len(content)), (17, 90_001), (5, 5), (3, 4), (1, 2500)):
        assert checksum.crc32(fd, start, stop, nthreads) == zlib.crc32(content[start:stop])
    os.close(fd)


def test_a_large_archive(tmp_path, cut_into):
    cut_into(1 << 18)
    array = np.random.default_rng(2).standard_normal(1_200_000)
    for rank in range(2):
        np.savez(tmp_path / f"r{rank}.npz", x=array, y=array[:10])
    names = [tmp_path / f"r{rank}.npz" for rank in range(2)]
    mpired.reduce(names, "sum", output=tmp_path / "o.npz", jobs=2)
    with np.load(tmp_path / "o.npz") as found:  # which compares the checksums
        assert (found["x"] == 2 * array).all()
        assert (found["y"] == 2 * array[:10]).all()
