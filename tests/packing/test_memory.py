"""`--max-memory` is kept by packing and unpacking, measured from outside, and refused if it is too little."""

from __future__ import annotations

import numpy as np
import pytest
from budgets import watched
from rows import check_refused, each

COUNT = 1 << 17
TYPE = ("--type", "resized(0,16,double)")
# What a command needs, as its refusal says: to write a result of that suffix, and to read it.
LEAST = {
    ".bin": ("60M", "60M"),
    ".npy": ("60M", "60M"),
    ".parquet": ("172M", "188M"),
    ".arrow": ("76M", "188M"),
    ".txt": ("60M", None),
    ".bin.xz": ("155M", None),
}


@pytest.mark.parametrize("suffix", LEAST)
@pytest.mark.sampled(2)
def test_memory_is_kept(suffix, tmp_path):
    np.random.default_rng(16).standard_normal(2 * COUNT).tofile(tmp_path / "records.bin")
    packed = f"packed{suffix}"
    calls = [("pack", "records.bin", "-o", packed), ("unpack", packed, "-o", "again.bin")]
    for (verb, *words), allowed in zip(calls, LEAST[suffix], strict=True):
        if allowed is None:
            continue
        peaks = watched(verb, *TYPE, *words, "--max-memory", allowed, cwd=tmp_path)
        assert peaks.status == 0, peaks.err
        assert peaks.memory <= int(allowed[:-1]) << 20


@each("suffix, least", [(".npy", 60), (".parquet", 172)])
def test_less_than_is_needed_is_refused(suffix, least, tmp_path):
    np.zeros(4).tofile(tmp_path / "records.bin")
    words = ("pack", *TYPE, "records.bin", "-o", f"packed{suffix}", "--max-memory", f"{least - 1}M")
    check_refused(tmp_path, words, 2, "--max-memory", f"needs {least}M")
