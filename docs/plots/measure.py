"""Measures what docs/performance.md tells of the costs of a reduction, into measured.json: `make bench-plot`.

    python docs/plots/measure.py [RUNS]

The files are in /dev/shm, 9 GB of them, so that no disk is measured. Times are the least of RUNS runs (default 3) of
whole processes; kernels are timed in this process, on blocks that stay in the caches.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

import mpired
from mpired.datatypes import get
from mpired.ops import native

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "benchmarks"))

from kernels import nanoseconds  # noqa: E402 - found by the line above

MIB, GIB = 1 << 20, 1 << 30
FILES, FILE_NBYTES = 16, 512 * MIB
RANK_NBYTES = (4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 512 * MIB)
NRANKS = (2, 10, 100, 1_000, 10_000, 100_000)
SMALL_COUNT = 512
BLOCK_NBYTES = 256 << 10
TYPES = (
    "int8_t", "int32_t", "int64_t", "real2", "float", "double", "long_double", "c_double_complex", "c_bool", "2int",
    "float_int", "double_int",
)  # fmt: skip
OPS = ("sum", "prod", "max", "land", "band", "maxloc")
_LEAST_SECONDS = 0.02


def seconds_of(words: Sequence[str], runs: int) -> float:
    """Return the least of the times of a command, which others disturb least."""
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "mpired", *words], check=True)  # noqa: S603 - our own command
        taken.append(time.perf_counter() - start)
    return round(min(taken), 4)


def rate_of(work: Callable[[], object], amount: float) -> float:
    """Return how much of an amount is done in a nanosecond: the best of some rounds, which others disturb least."""
    work()
    best, rounds = float("inf"), 1
    for _ in range(7):
        while True:
            start = time.perf_counter()
            for _ in range(rounds):
                work()
            taken = time.perf_counter() - start
            if taken > _LEAST_SECONDS:
                break
            rounds *= 2
        best = min(best, taken / rounds)
    return round(amount / best / 1e9, 4)


def memory(path: Path) -> dict[str, float]:
    """Return GB/s of one worker: copying within the caches and within memory, and reading files that are cached."""
    block, large = np.ones(BLOCK_NBYTES, np.uint8), np.ones(256 * MIB, np.uint8)
    other, copy = np.empty_like(block), np.empty_like(large)
    fd = os.open(path, os.O_RDONLY)
    view = memoryview(block)

    def read() -> None:
        for offset in range(0, 256 * MIB, BLOCK_NBYTES):
            os.preadv(fd, [view], offset)

    try:
        return {
            "copy of a block": rate_of(lambda: np.copyto(other, block), BLOCK_NBYTES),
            "copy of 256 MiB": rate_of(lambda: np.copyto(copy, large), 256 * MIB),
            "reading by blocks": rate_of(read, 256 * MIB),
        }
    finally:
        os.close(fd)


def kernels() -> list[dict[str, object]]:
    """Return for each op and datatype that it takes how many elements a kernel combines in a nanosecond."""
    return [
        {
            "op": op.name.lower(),
            "type": name,
            "itemsize": datatype.form.itemsize,
            "rate": round(1 / nanoseconds(op, datatype), 4),
            "compiled": native.twin(op.name.lower(), datatype) is not None,
        }
        for name in TYPES
        for op in mpired.OPS
        if op.name.lower() in OPS and (datatype := get(name.upper())).group in op.groups
    ]


def large(directory: Path, runs: int) -> dict[str, object]:
    """Return the times of sums as the ranks get longer and more, and with one worker and all."""
    random = np.random.default_rng(0)
    paths = [str(directory / f"{number:02}.bin") for number in range(FILES)]
    for path in paths:
        random.random(FILE_NBYTES // 8).tofile(path)
    words = ["reduce", "-q", "-f", "--op", "sum", "--type", "double", "-o", str(directory / "out.bin")]
    rates = memory(Path(paths[0]))
    lengths = {
        nbytes * FILES: seconds_of([*words, "--count", str(nbytes // 8), *paths], runs) for nbytes in RANK_NBYTES
    }
    parts = [*words, "--ranks-in-file", str(FILES)]
    ranks = {number * FILE_NBYTES: seconds_of([*parts, *paths[:number]], runs) for number in (1, 2, 4, 8, 16)}
    half = paths[: FILES // 2]
    workers = {jobs: seconds_of([*parts, "-j", str(jobs), *half], runs) for jobs in (1, os.cpu_count() or 1)}
    for path in paths:
        os.unlink(path)
    return {"memory": rates, "lengths": lengths, "ranks": ranks, "workers": workers}


def small(directory: Path, runs: int) -> dict[int, float]:
    """Return the times of sums of ranks of 4 KiB, by how many there are."""
    folder = directory / "small"
    folder.mkdir()
    paths = [folder / f"{number:06}.npy" for number in range(max(NRANKS))]
    values = np.random.default_rng(0).random(SMALL_COUNT)
    for path in paths:
        np.save(path, values)
    listing, out = directory / "list", str(directory / "out.npy")
    found = {}
    for nranks in NRANKS:
        listing.write_text("".join(f"{path}\n" for path in paths[:nranks]))
        words = ["reduce", "-q", "-f", "--op", "sum", "-o", out, "--files-from", str(listing)]
        found[nranks] = seconds_of(words, runs)
    return found


def main() -> None:
    """Measure, and write the file."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    directory = Path(tempfile.mkdtemp(prefix="mpired-costs-", dir="/dev/shm"))
    try:
        measured = {
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "runs": runs,
            "kernels": kernels(),
            "small": small(directory, runs),
            **large(directory, runs),
        }
    finally:
        shutil.rmtree(directory)
    (HERE / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
