"""Compressed records and compressed elements: they are decompressed first, from files and from streams."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from command import refused, run, unchanged

TYPE = ("--type", "resized(0,16,double)")


@pytest.fixture
def folder(tmp_path):
    records = np.arange(200.0)
    records[1::2] = 0
    records.tofile(tmp_path / "records.bin")
    (tmp_path / "records.bin.gz").write_bytes(gzip.compress(records.tobytes()))
    np.save(tmp_path / "packed.npy", records[::2])
    (tmp_path / "packed.npy.gz").write_bytes(gzip.compress((tmp_path / "packed.npy").read_bytes()))
    return tmp_path


@pytest.mark.parametrize("name", ["records.bin.gz", "-"])
@pytest.mark.parametrize("count", [None, 7])
def test_pack(name, count, folder):
    stdin = (folder / "records.bin.gz").read_bytes()
    more = [] if count is None else ["--count", str(count)]
    assert run("pack", "-q", *TYPE, *more, name, "-o", "out.npy", cwd=folder, stdin=stdin).status == 0
    np.testing.assert_array_equal(np.load(folder / "out.npy"), np.arange(0, 200.0, 2)[:count])


def test_unpack(folder):
    assert run("unpack", "-q", *TYPE, "packed.npy.gz", "-o", "out.bin", cwd=folder).status == 0
    np.testing.assert_array_equal(np.fromfile(folder / "out.bin"), np.fromfile(folder / "records.bin"))


def test_into_a_compressed_file_nothing_is_unpacked(folder):
    with unchanged(folder):
        outcome = run("unpack", *TYPE, "packed.npy", "--into", "records.bin.gz", cwd=folder)
        refused(outcome, 3, "records.bin.gz", "is gzip")
