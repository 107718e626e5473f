"""`--max-memory` is kept by the one-sided commands, measured from outside; less than is needed is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from budgets import watched
from command import unchanged
from format_files import WRITERS

import mpired
from mpired.errors import UsageError

COUNT = 1 << 20
FORMS = ("raw", "npy", "parquet", "arrow")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    values = np.random.default_rng(16).standard_normal(COUNT)
    for form in FORMS:
        (folder / f"origin.{form}").write_bytes(WRITERS[form](values))
        (folder / f"target.{form}").write_bytes(WRITERS[form](values))
    np.save(folder / "map.npy", np.arange(COUNT)[::-1].copy())
    np.save(folder / "half.npy", values[::2])
    (folder / "packed.npy.gz").write_bytes(gzip.compress((folder / "origin.npy").read_bytes(), 1))
    # One that is written again in large pieces.
    large = pa.table({"value": np.tile(values, 4)})
    pq.write_table(large, folder / "large.parquet", row_group_size=4 * COUNT)
    return folder


EVERY_OTHER = f"vector({COUNT // 2},1,2,double)"
# What a command needs.
CASES = {
    "raw": ("60M", "accumulate", "target.raw", "origin.raw", "--type", "double"),
    "npy": ("60M", "accumulate", "target.npy", "origin.npy", "origin.npy"),
    "parquet": ("221M", "accumulate", "target.parquet", "origin.parquet"),
    "arrow": ("224M", "accumulate", "target.arrow", "origin.arrow"),
    "a large row group": ("237M", "accumulate", "large.parquet", "origin.npy", "--target-disp", "0"),
    "many files with columns": ("208M", "accumulate", "target.npy", *["origin.parquet"] * 6),
    "compressed": ("64M", "accumulate", "target.npy", *["packed.npy.gz"] * 6),
    "a map": ("156M", "accumulate", "target.npy", "origin.npy", "--map", "map.npy"),
    "a type": ("117M", "accumulate", "target.npy", "half.npy", "--target-count", "1", "--target-type", EVERY_OTHER),
    "old elements": ("76M", "get-accumulate", "target.npy", "origin.npy", "--fetch", "old.npy", "-f"),
    "an element": ("201M", "fetch-and-op", "target.parquet", "5", "--at", "3"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(2)
def test_memory_is_kept(name, files):
    allowed, verb, *words = CASES[name]
    peaks = watched(verb, "--op", "sum", *words, "--max-memory", allowed, cwd=files)
    assert peaks.status == 0, peaks.err
    assert peaks.memory <= int(allowed[:-1]) << 20


@pytest.mark.parametrize(("name", "needed"), [("", 60), ("map", 156)])
def test_less_than_is_needed_is_refused(name, needed, files):
    """In Python the limit is of the call."""
    words = {name: files / "map.npy"} if name else {}
    window, origin = mpired.Window(files / "target.npy"), files / "origin.npy"
    with unchanged(files), pytest.raises(UsageError, match=f"too little, one process needs {needed}M"):
        window.accumulate(origin, "sum", **words, max_memory=(needed << 20) - 1)
    assert window.accumulate(origin, "sum", **words, max_memory=needed << 20) == 1
