"""Ranks that are streams: folded as they arrive, alone and with others, of FIFOs and of real shells; misfits."""

import contextlib
import gzip
import io
import os
import re
import subprocess

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import Outcome, refused, run, shell, succeeded, unchanged
from needs import needs
from tables import bytes_of
from values import folder_in_memory

CHANCE = np.random.default_rng(4)
RANKS = [CHANCE.integers(-1000, 1000, 70_000).astype("f8") for _ in range(3)]
SUM = RANKS[0] + RANKS[1] + RANKS[2]
RAW = ("reduce", "-q", "--op", "sum", "--type", "double")
NPY = ("reduce", "-q", "--op", "sum")
DOUBLES = 32 << 20  # as zeros, 256 MiB


@pytest.fixture
def folder(tmp_path):
    for rank, array in enumerate(RANKS):
        (tmp_path / f"r{rank}.bin").write_bytes(array.tobytes())
        np.save(tmp_path / f"r{rank}.npy", array)
        table = pa.table({"value": array})
        (tmp_path / f"r{rank}.arrows").write_bytes(bytes_of(table, "arrows", compression="lz4" if rank else None))
        (tmp_path / f"two{rank}.arrows").write_bytes(bytes_of(table.append_column("n", [array]), "arrows"))
    return tmp_path


def streamed(words, ranks, folder) -> Outcome:
    """Run a command on ranks, where `<(SCRIPT)` is a FIFO to which a shell writes, and `< FILE` standard input."""
    with folder_in_memory() as fifos, contextlib.ExitStack() as stack:

        def fifo(script: re.Match[str]) -> str:
            path = f"{fifos}/{len(os.listdir(fifos))}"
            os.mkfifo(path)
            writer = stack.enter_context(subprocess.Popen(["sh", "-c", f"exec {script[1]} > {path}"], cwd=folder))
            stack.callback(writer.kill)
            return path

        files, _, source = re.sub(r"<\(([^)]*)\)", fifo, ranks).partition(" < ")
        with open(folder / source if source else os.devnull, "rb") as stdin:
            return run(*words, *files.split(), cwd=folder, stdin=stdin.fileno())


TO_RAW = (*NPY, "--to", "raw")
STREAMS = [
    (RAW, "<(cat r0.bin) <(cat r1.bin) <(cat r2.bin)"),
    (RAW, "<(cat r0.bin) r1.bin - < r2.bin"),
    (RAW, "<(gzip -c r0.bin) <(cat r1.npy) <(bzip2 -c r2.bin)"),
    (RAW, "- r1.npy <(cat r2.bin) < <(cat r0.bin)"),
    (TO_RAW, "<(cat r0.npy) r1.npy <(xz -c r2.npy)"),
    (TO_RAW, "<(cat r0.arrows) <(cat r1.arrows) <(gzip -c r2.arrows)"),
    (TO_RAW, "<(cat r0.arrows) r1.arrows <(cat r2.npy)"),
    (RAW, "<(cat r0.bin) <(cat r1.arrows) <(cat r2.bin)"),
    ((*TO_RAW, "--columns", "n"), "<(cat two0.arrows) <(cat two1.arrows) two2.arrows"),
    ((*RAW, "--count", "70000"), "<(cat r0.bin r1.bin) r1.bin <(cat r2.bin /dev/zero)"),
    ((*RAW, "--offset", "560000"), "<(cat r1.bin r0.bin) <(cat r1.bin r1.bin) <(cat r0.bin r2.bin)"),
]


def test_streams_and_files(folder):
    needs("bzip2", "xz")
    found = [(words, ranks, streamed(words, ranks, folder)) for words, ranks in STREAMS]
    assert [each for each in found if each[2] != (0, SUM.tobytes(), "")] == []


def test_results_of_streams_are_the_files_that_are_made_of_files(folder):
    """On standard output, and where they grow with the streams."""
    for number, form in enumerate(("raw", "npy", "arrow", "arrows", "parquet", "csv", "zarr.zip")):
        to = form.removesuffix(".zip")
        succeeded(run(*RAW, "r0.bin", "r1.bin", "r2.bin", "--to", to, "-o", f"files.{form}", cwd=folder))
        ranks = ("<(cat r0.bin) <(cat r1.bin) <(cat r2.bin)", "r0.npy <(cat r1.bin) r2.npy")[number % 2]
        plain = (folder / f"files.{form}").read_bytes()
        assert streamed((*RAW, "--to", to), ranks, folder) == (0, plain, ""), form
    for suffix in (".bin", ".npy", ".parquet", ".csv", ".npy.gz"):
        words = ("reduce", "--op", "sum", "--type", "double", "-o", f"sum{suffix}")
        outcome = streamed(words, "<(cat r0.bin) <(cat r1.bin) <(cat r2.bin)", folder)
        assert (outcome.status, "of 3 ranks, 70000 x float64" in outcome.err) == (0, True), suffix
        written = (folder / f"sum{suffix}").read_bytes()
        if suffix == ".parquet":
            assert pq.read_table(folder / "sum.parquet").equals(pq.read_table(folder / "files.parquet"))
        elif suffix.startswith(".npy"):
            assert np.array_equal(np.load(io.BytesIO(gzip.decompress(written) if "gz" in suffix else written)), SUM)
        else:
            assert written == (folder / f"files.{'raw' if suffix == '.bin' else 'csv'}").read_bytes()


MISFITS = [
    ("<(head -c 80 r0.bin) r1.bin", "rank 0 has count 10, but rank 1 ('r1.bin') has 70000"),
    ("r1.npy <(cat r0.bin r0.bin)", "rank 1 has more than 70000 elements, but rank 0 ('r1.npy') has 70000"),
    ("<(head -c 80 r0.bin) <(cat r1.bin)", "rank 0 has count 10, but rank 1 ('"),
    ("<(head -c 800 r0.npy) r1.npy", "has count 84, but its header declares 70000"),
    ("<(cat r0.npy r0.bin) r1.npy", "has more than 70000 elements, but its header declares 70000"),
    ("<(head -c -9 r0.arrows) r1.npy", "cannot be read, the file is damaged"),
    ("<(cat r0.arrows r1.arrows) r1.npy", "it goes on behind the end of the stream"),
    ("r0.npy r1.bin <(head -c 8 r0.npy) <(head -c 80 r0.bin)", "truncated"),
]


def test_streams_that_do_not_fit(folder):
    with unchanged(folder):
        for ranks, reason in MISFITS:
            refused(streamed((*RAW, "-o", "out.bin"), ranks, folder), 3, reason)
        refused(streamed(("scan", *RAW[1:], "-o", "{rank}"), MISFITS[2][0], folder), 3, "rank 1 has count 70000, but")
        for output in (), ("-o", "sum.npy"):
            words = (*RAW, "--offset", f"{DOUBLES * 8 + 8}", *output)
            refused(streamed(words, "<(cat r0.bin) <(cat r1.bin)", folder), 3, "fewer bytes than --offset skips")


def test_a_reader_that_goes_away_ends_a_pipeline(folder):
    """Nobody else ends it: the streams go on for ever."""
    first, then = '"$@" --to raw <(cat /dev/zero) <(cat /dev/zero)', '"$@" --to raw - <(cat /dev/zero)'
    outcome = shell(f'{first} | {then} | head -c 1 | wc -c; echo "${{PIPESTATUS[@]}}"', *RAW, cwd=folder)
    assert (outcome.status, outcome.out.split(), outcome.err) == (0, [b"1", b"141", b"141", b"0", b"0"], "")
