"""Full disks, few descriptors, little memory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import installed, measured, refused, run, shell, unchanged
from running import MEBIBYTE, OLD


def test_disk_that_fills_up_while_the_result_is_written(mounted, folder):
    """Nothing was reserved: the space is gone when the workers write."""
    where = mounted("size=9m")
    (where / "out").write_bytes(OLD)

    def nothing_reserved() -> None:
        os.posix_fallocate = lambda fd, _start, nbytes: os.ftruncate(fd, nbytes)

    words = ("reduce", "--op", "sum", "--type", "double", "-j", "2", "-o", str(where / "out"), "-f")
    with unchanged(where):
        outcome = run(*words, *["rank.bin"] * 4, cwd=folder, setup=nothing_reserved)
        refused(outcome, 4, str(where / "out"), "No space left")


def test_full_place_for_temporary_files(mounted, folder):
    """Standard output is computed in a temporary file first."""
    where = mounted("size=1m")
    with unchanged(folder):
        words = ("reduce", "--op", "sum", "--type", "double", "rank.bin", "--count", "200000")
        outcome = installed(*words, cwd=folder, env=os.environ | {"TMPDIR": str(where)})
        refused(outcome, 4, str(where), "No space left")
    assert os.listdir(where) == []


# Descriptors and memory


def test_many_files_with_few_descriptors_and_workers(folder):
    words = ("-q", "--op", "sum", "--overflow", "wrap", "--type", "uint8_t", "-j", "2", "-o", "out", "-f")
    (folder / "rank.bin").write_bytes(b"\x01\x02" * (MEBIBYTE // 4))
    assert shell('ulimit -n 64; exec "$@"', "reduce", *words, *["rank.bin"] * 200, cwd=folder) == (0, b"", "")
    assert (folder / "out").read_bytes() == b"\xc8\x90" * (MEBIBYTE // 4)


def test_many_parquet_files_with_few_descriptors(tmp_path):
    for rank in range(100):
        table = pa.table({"x": np.arange(rank, rank + 10), "y": np.full(10, rank)})
        pq.write_table(table, tmp_path / f"r{rank:02}.parquet")
    words = ("reduce", "-q", "--op", "sum", *sorted(os.listdir(tmp_path)), "-o", "sum.parquet")
    assert shell('ulimit -n 64; exec "$@"', *words, cwd=tmp_path) == (0, b"", "")
    expected = {"x": [100 * i + 4950 for i in range(10)], "y": [4950] * 10}
    assert pq.read_table(tmp_path / "sum.parquet").to_pydict() == expected


def large_ranks(folder: Path, suffix: str, nranks: int) -> list[str]:
    """Make ranks of 16 MiB: of pairs in raw files, of doubles in parquet."""
    pairs = np.zeros(MEBIBYTE, np.dtype([("value", "f8"), ("index", "i4")], align=True))
    pairs["value"] = np.random.default_rng(7).random(MEBIBYTE)
    names = [f"r{rank:02}{suffix}" for rank in range(nranks)]
    for rank, name in enumerate(names):
        pairs["value"] = np.roll(pairs["value"], 1)
        pairs["index"] = rank
        if suffix == ".bin":
            pairs.tofile(folder / name)
        else:
            table = pa.table({"x": np.concatenate([pairs["value"], pairs["value"]])})
            pq.write_table(table, folder / name, compression="none", use_dictionary=False)
    return names


@pytest.mark.parametrize(
    ("words", "suffix", "nranks", "limit"),
    [
        (("--op", "maxloc", "--type", "double_int"), ".bin", 8, 150),
        (("--op", "prod", "--type", "c_double_complex"), ".bin", 6, 150),
        (("--op", "sum"), ".parquet", 8, 250),
    ],
)
def test_memory_of_every_process_and_equal_bytes(words, suffix, nranks, limit, tmp_path):
    results, ranks = [], large_ranks(tmp_path, suffix, nranks)
    for jobs in ("1", "3"):
        out = tmp_path / f"out{jobs}{suffix}"
        status, peak, err = measured("reduce", "-q", *words, "-j", jobs, "-o", str(out), *ranks, cwd=tmp_path)
        assert (status, err) == (0, "")
        assert peak < limit * 10**6
        results.append(out.read_bytes())
    assert results[0] == results[1]


def test_memory_allowed_is_kept(tmp_path):
    """The processes together: the parent, and what it says of its workers."""
    words = ("reduce", "--json", "--op", "maxloc", "--type", "double_int", "-j", "4")
    ranks = large_ranks(tmp_path, ".bin", 16)
    for megabytes in (150, 300):
        status, peak, err = measured(*words, "--max-memory", f"{megabytes}M", *ranks, cwd=tmp_path)
        assert status == 0
        workers = json.loads(err)["workers"]
        processes = 1 if workers == 1 else workers + 1
        assert processes * peak <= megabytes << 20
        assert (workers == 1) == (megabytes == 150)
