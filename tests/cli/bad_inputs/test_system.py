"""What the system does not give: rights, room on the disk, descriptors, memory."""

import functools
import os
import resource
import subprocess
import sys
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import reduce, refused, run, shell, unchanged
from rows import check_refused, each

import mpired
import mpired.files.calls


@pytest.fixture(scope="module")
def needed() -> int:
    """The megabytes of address space that NumPy takes when it is imported."""
    program = "import numpy; print(*(line.split()[1] for line in open('/proc/self/status') if 'VmPeak' in line))"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    return (int(done.stdout) >> 10) + 1


@pytest.mark.parametrize("more", range(8, 152, 36))
@pytest.mark.parametrize("suffix", ["bin", "parquet"])
@pytest.mark.sampled(3)
def test_address_space_limit(suffix, more, needed, folder):
    """Whatever is the first that does not fit, a library, an array or a worker: an end, and one line."""
    with open(folder / "rank.bin", "wb") as file:
        file.truncate(64 << 20)
    pq.write_table(pa.table({"value": np.zeros(100_000)}), folder / "rank.parquet")
    typed = ("--type", "double") if suffix == "bin" else ()
    words = ("reduce", "-q", "--op", "sum", *typed, f"rank.{suffix}", f"rank.{suffix}", "-j", "2", "-o", "new.npy")
    outcome = shell(f'ulimit -v {needed + more << 10}; "$@"', *words, cwd=folder)
    if outcome.status:
        refused(outcome, outcome.status)
        assert outcome.status in {4, 8}
    assert (folder / "new.npy").exists() == (outcome.status == 0)


@each("words, status", [
    ("libx.so.1: cannot open shared object file: Too many open files", 4),
    ("/lib/x.so: file too short\nand more", 4),
    ("/lib/x.so: cannot allocate memory in static TLS block", 4),
    ("/lib/x.so: failed to map segment from shared object: Operation not permitted", 4),
    ("/lib/x.so: failed to map segment from shared object", 8),
    ("/lib/x.so: cannot map zero-fill pages: Cannot allocate memory", 8),
    ("libx.so.1: cannot open shared object file: Cannot allocate memory", 8),
])  # fmt: skip
@each("wrapped", [False, True])
def test_a_library_that_cannot_be_loaded(words, status, wrapped, folder):
    """Only what the loader says of memory is about memory."""

    def no_library() -> None:
        def load(*_: object) -> NoReturn:
            error = ImportError(words, path="/lib/x.so")
            if wrapped:  # as NumPy does
                raise ImportError("see the instructions\non the page") from error
            raise error

        mpired.files.calls.check_address_space = load

    outcome = run("info", "good.npy", cwd=folder, setup=no_library)
    refused(outcome, status, "memory: there is not enough" if status == 8 else " ".join(words.split()))


@each("count", [8_000, 100_000])
@each("to", ["npy", "parquet", "arrow", "csv", "hdf5"])
def test_file_size_limit(to, count, folder):
    """Of the result, for which 64000 bytes of elements still fit but not what a format adds, and of what is before."""
    np.save(folder / "large.npy", np.random.default_rng(1).random(count) + 1e-300)
    small_files = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (64_000, 64_000))
    with unchanged(folder):
        words = ("--op", "sum", "large.npy", "large.npy", "--to", to, "-o", "out", "-f")
        outcome = reduce(*words, cwd=folder, setup=small_files)
        refused(outcome, 4, "File too large")
        assert outcome.err.startswith(("mpired: out: ", f"mpired: {folder}: "))
        assert "line " not in outcome.err  # of the program


def test_file_size_limit_of_a_target(folder):
    values = np.random.default_rng(1).random(10_000)
    np.save(folder / "large.npy", values)
    pq.write_table(pa.table({"x": values}), folder / "t.parquet")
    np.savez_compressed(folder / "t.npz", x=values)
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (64_000, 64_000))
    for target in "t.parquet", "t.npz":
        check_refused(folder, f"accumulate --op sum {target} large.npy", 4, f"{target}: File too large", setup=limit)
