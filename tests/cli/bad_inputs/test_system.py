"""What the system does not give: rights, room on the disk, descriptors, memory."""

from __future__ import annotations

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
from bad_files import DATA, furnish, header, npy
from command import become_nobody, measured, reduce, refused, run, shell, unchanged
from rows import check_refused, each

import mpired
import mpired.files.calls


def test_claimed_size_takes_no_memory(folder):
    (folder / "bad.npy").write_bytes(npy(header(shape="(65536, 65536)"), DATA[:8]))
    status, peak, err = measured("reduce", "--op", "sum", "bad.npy", cwd=folder)
    assert (status, err.count("\n")) == (3, 1)
    assert peak < 100 << 20


def test_too_few_descriptors(folder):
    almost_none = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, (4, 4))
    words = ("reduce", "--op", "sum", "good.npy", "good.npy", "-o", "out", "-f")
    check_refused(folder, words, 4, "Too many open files", setup=almost_none)


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


@each(
    "words, status",
    [
        ("libx.so.1: cannot open shared object file: Too many open files", 4),
        ("/lib/x.so: file too short\nand more", 4),
        ("/lib/x.so: cannot allocate memory in static TLS block", 4),
        ("/lib/x.so: failed to map segment from shared object: Operation not permitted", 4),
        ("/lib/x.so: failed to map segment from shared object", 8),
        ("/lib/x.so: cannot map zero-fill pages: Cannot allocate memory", 8),
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


SUM = ("reduce", "-q", "--op", "sum", "good.npy")


def test_input_without_permission(as_root, open_folder):
    (furnish(open_folder) / "good.npy").chmod(0)
    open_folder.chmod(0o777)
    check_refused(open_folder, (*SUM, "-o", "new"), 4, "good.npy", "Permission denied", setup=become_nobody)


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


def test_full_disk(mounted, folder):
    where = mounted("size=1m")
    np.save(folder / "large.npy", np.random.default_rng(1).random(131_000))
    (where / "out").write_bytes(b"the old result")
    for to in ("npy", "parquet", "arrow", "json"):
        with unchanged(where):
            words = ("--op", "sum", str(folder / "large.npy"), "--to", to, "-o", "out", "-f")
            outcome = reduce(*words, cwd=where)
            refused(outcome, 4, "No space left")
            assert outcome.err.startswith(("mpired: out: ", f"mpired: {where}: ")), to
