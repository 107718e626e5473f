"""Too few descriptors, too little memory, no more processes or threads."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import reduce, refused, run, shell, succeeded, unchanged
from rows import check_refused, each

import mpired
import mpired.files.calls


def test_too_few_descriptors(folder):
    def almost_none() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))

    words = ("reduce", "--op", "sum", "good.npy", "good.npy", "-o", "out", "-f")
    check_refused(folder, words, 4, "Too many open files", setup=almost_none)


@each("to", ["npy", "parquet"])
def test_too_little_memory(to, folder):
    np.save(folder / "large.npy", np.zeros(100_000))
    taken = []

    def take_all_memory() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for nbytes in (1 << 24, 1 << 20, 1 << 17):
            with contextlib.suppress(MemoryError):
                while True:
                    taken.append(np.empty(nbytes, np.uint8))

    words = ("reduce", "--op", "sum", "large.npy", "large.npy", "--to", to, "-o", "out", "-f")
    check_refused(folder, words, 8, "memory", setup=take_all_memory)


def test_no_more_threads(folder):
    with open(folder / "large.bin", "wb") as file:
        file.truncate(64 << 20)

    def no_threads() -> None:
        def start(_thread: threading.Thread) -> NoReturn:
            raise RuntimeError("can't start new thread")

        threading.Thread.start = start

    words = ("--op", "sum", "--type", "double", "large.bin", "large.bin", "-j", "2", "-o", "new.bin")
    succeeded(reduce(*words, cwd=folder, setup=no_threads))
    assert (folder / "new.bin").stat().st_size == 64 << 20


@pytest.fixture(scope="module")
def needed() -> int:
    """The megabytes of address space that NumPy takes when it is imported."""
    program = "import numpy; print(*(line.split()[1] for line in open('/proc/self/status') if 'VmPeak' in line))"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    return (int(done.stdout) >> 10) + 1


@each(
    "words, share",
    [("reduce --op sum good.npy good.npy -o new.npy", 0.25), ("info good.npy", 0.55), ("ops", 0.8),
     ("reduce --op sum good.npy good.npy -o new.npy", 0.98)],
)  # fmt: skip
def test_too_little_address_space_for_numpy(words, share, needed, folder):
    """Neither NumPy's text nor that of its libraries, of which some end the process themselves."""
    with unchanged(folder):
        outcome = shell(f'ulimit -v {int(needed * share * 1024)}; "$@"', *words.split(), cwd=folder)
        refused(outcome, 8, "memory")


@pytest.mark.parametrize("more", range(8, 152, 24))
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


@each(
    "words, status",
    [
        ("libx.so.1: cannot open shared object file: Too many open files", 4),
        ("/lib/x.so: file too short\nand more", 4),
        ("/lib/x.so: cannot allocate memory in static TLS block", 4),
        ("/lib/x.so: failed to map segment from shared object: Operation not permitted", 4),
        ("/lib/x.so: failed to map segment from shared object", 8),
        ("/lib/x.so: cannot map zero-fill pages: Cannot allocate memory", 8),
        ("libx.so.1: cannot create shared object descriptor: Cannot allocate memory", 8),
        ("libx.so.1: cannot open shared object file: Cannot allocate memory", 8),
    ],
)
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
