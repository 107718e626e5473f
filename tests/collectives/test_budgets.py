"""`--max-memory` and `--max-open-files` are kept, and what `--dry-run` says of both is true: measured from outside."""

import gzip
import json
import lzma
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from budgets import unseen_limit, watched
from command import run
from format_files import WRITERS

import mpired
from mpired.errors import UsageError

COUNT = 1 << 20  # a row group of parquet
EVERY_OTHER = f"vector({COUNT // 2},1,2,double)"
# What a command needs, and its words. A codec takes by its level, not by how much it compresses.
LEAST = {
    "reduce parquet": ("189M", "reduce -f -o out.parquet", *["origin.parquet"] * 3),
    "reduce raw": ("64M", "reduce -f -o out.raw --type double", *["origin.raw"] * 3),
    "reduce hdf5": ("125M", "reduce -f -o out.h5 --from hdf5", *["origin.hdf5"] * 3),
    "reduce arrow": ("189M", "reduce -f -o out.arrow", *["origin.arrow"] * 3),
    "ranks in zst": ("117M", "reduce -f -o out.bin.gz --type double", *["little.bin.zst"] * 3),
    "ranks in xz": ("88M", "reduce -f -o out.bin --type double", *["little.bin.xz"] * 3),
    "a result in xz": ("156M", "reduce -f -o out.bin.xz --type double", *["little.bin.xz"] * 3),
    "accumulate npy": ("60M", "accumulate", "target.npy", "origin.npy", "origin.npy"),
    "accumulate parquet": ("221M", "accumulate", "target.parquet", "origin.parquet"),
    "accumulate arrow": ("224M", "accumulate", "target.arrow", "origin.arrow"),
    "a large row group": ("237M", "accumulate", "large.parquet", "origin.npy", "--target-disp", "0"),
    "compressed": ("64M", "accumulate", "target.npy", *["packed.npy.gz"] * 6),
    "a map": ("156M", "accumulate", "target.npy", "origin.npy", "--map", "map.npy"),
    "a type": ("117M", "accumulate", "target.npy", "half.npy", "--target-count", "1", "--target-type", EVERY_OTHER),
    "old elements": ("76M", "get-accumulate", "target.npy", "origin.npy", "--fetch", "old.npy", "-f"),
    "an element": ("201M", "fetch-and-op", "target.parquet", "5", "--at", "3"),
}


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    values = np.random.default_rng(16).standard_normal(COUNT)
    for form in ("raw", "npy", "parquet", "arrow", "hdf5"):
        for name in ("origin", "target"):
            (folder / f"{name}.{form}").write_bytes(WRITERS[form](values))
    np.save(folder / "map.npy", np.arange(COUNT)[::-1].copy())
    np.save(folder / "half.npy", values[::2])
    (folder / "packed.npy.gz").write_bytes(gzip.compress((folder / "origin.npy").read_bytes(), 1))
    little = values[: 1 << 17].tobytes()
    (folder / "little.bin.xz").write_bytes(lzma.compress(little))
    with pa.CompressedOutputStream(str(folder / "little.bin.zst"), "zstd") as file:
        file.write(little)
    # One that is written again in large pieces.
    large = pa.table({"value": np.tile(values, 4)})
    pq.write_table(large, folder / "large.parquet", row_group_size=4 * COUNT)
    return folder


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.sampled(2)
def test_memory_is_kept(name, large):
    """What a dry run says of a plain reduction is true within a factor of two."""
    allowed, call, *files = LEAST[name]
    verb, *options = call.split()
    words = (verb, "--op", "sum", *options, *files, "--max-memory", allowed)
    is_plain = name.startswith("reduce ")
    if is_plain:
        work = json.loads(run(*words, "--dry-run", "--json", cwd=large).out)["work"]
    peaks = watched(*words, cwd=large)
    assert peaks.status == 0, peaks.err
    assert 30 << 20 < peaks.memory <= int(allowed[:-1]) << 20
    if is_plain:
        assert work["memory"] / 2 <= peaks.memory <= 2 * work["memory"]
        assert peaks.open_files <= work["open_files"]


MANY = 60
NPY = [f"r{rank}.npy" for rank in range(MANY)]
LENGTH = 3000  # more than is read of a file when it is looked at


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    for rank in range(MANY):
        array = np.full(LENGTH, float(rank))
        for form in ("npy", "parquet"):
            (folder / f"r{rank}.{form}").write_bytes(WRITERS[form](array))
    return folder


@pytest.fixture
def many(written, tmp_path) -> Path:
    return shutil.copytree(written, tmp_path, copy_function=shutil.copyfile, dirs_exist_ok=True)


@pytest.mark.parametrize("form", ["npy", "parquet"])
def test_open_files_of_compressed_ranks(form, many):
    """They are opened when they are read, however many there are."""
    for rank in range(MANY):
        (many / f"r{rank}.{form}.gz").write_bytes(gzip.compress((many / f"r{rank}.{form}").read_bytes()))
    words = ("reduce", "--op", "sum", *(f"r{rank}.{form}.gz" for rank in range(MANY)), "-o", "out.npy")
    outcome = run(*words, "-n", "25", cwd=many, setup=unseen_limit(25))
    assert outcome.status == 0, outcome.err
    assert np.array_equal(np.load(many / "out.npy"), np.full(LENGTH, sum(map(float, range(MANY)))))


@pytest.mark.parametrize("limit", [27, 60])
def test_open_files_of_many_workers(limit, many, cut_into):
    """Connections to workers are open files, too: there are fewer workers then, and fewer ranks open in each."""
    cut_into(1024)
    words = ("reduce", "--json", "--op", "sum", *NPY, "-o", "out.npy", "-j", "40", "-n", str(limit))
    outcome = run(*words, cwd=many, setup=unseen_limit(limit))
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["workers"] > 1


def test_in_python_the_limit_is_of_the_call(many):
    ranks = [str(many / name) for name in NPY]
    expected = np.full(LENGTH, sum(map(float, range(MANY))))
    assert np.array_equal(mpired.reduce(ranks, "sum", max_open_files=25), expected)
    with pytest.raises(UsageError, match=r"`max_open_files`: 3 is too few, a process needs 25"):
        mpired.reduce(ranks, "sum", max_open_files=3)
    with pytest.raises(UsageError, match="`max_open_files`: '30' is not an integer"):
        mpired.reduce(ranks, "sum", max_open_files="30")
