"""Results in deflated chunks of HDF5, which several threads compress."""

from __future__ import annotations

import h5py
import numpy as np
from command import reduce, succeeded

from mpired.formats import hdf5_results

_CASES = (  # shape, chunks, form, and whether bytes are shuffled
    ((70_000,), (20_000,), "<f8", True),
    ((100, 300), (64, 256), ">i4", True),
    ((7, 330, 200), (1, 330, 200), "|u1", False),
    ((5, 90, 300), (2, 64, 128), "<f8", False),  # rows of chunks are several planes
    ((3, 10), (3, 10), ">i4", True),  # a small chunk, which the library compresses
)


def test_the_library_reads_what_is_in_the_chunks(tmp_path, monkeypatch):
    """Edges of arrays, byte orders and filters: the elements are those of NumPy, whatever the number of workers."""
    monkeypatch.setattr(hdf5_results, "DECODED_NBYTES", 400_000)  # so that large planes are written by their rows
    rng = np.random.default_rng(5)
    for case in _CASES:
        shape, chunks, dtype, shuffle = case
        ranks = [rng.integers(0, 100, shape).astype(dtype) for _ in range(2)]
        for number, rank in enumerate(ranks):
            with h5py.File(tmp_path / f"{number}.h5", "w") as file:
                file.create_dataset("x", data=rank, chunks=chunks, compression=3, shuffle=shuffle)
        digests = set()
        for jobs in ("1", "3"):
            words = ("--op", "sum", "-f", "-j", jobs, "0.h5", "1.h5", "-o", f"sum{jobs}.h5")
            succeeded(reduce(*words, cwd=tmp_path))
            digests.add((tmp_path / f"sum{jobs}.h5").read_bytes())
        assert len(digests) == 1, case
        with h5py.File(tmp_path / "sum3.h5") as file:
            found = file["x"]
            stored = found.dtype, found.chunks, found.compression_opts, found.shuffle
            assert stored == (dtype, chunks, 3, shuffle), case
            assert np.array_equal(found[()], ranks[0] + ranks[1]), case
