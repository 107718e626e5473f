"""The same bits for any number of workers, any blocks and any position of an element in the buffer."""

import hashlib
import itertools
import json
import os
import random
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import matrix
import numpy as np
import pytest
import reference
import values
from four_formats import FORMATS, SUFFIXES, save

import mpired

COMMAND = os.path.join(sysconfig.get_path("scripts"), "mpired")
NRANKS = 3
JOBS = (1, 2, 7)
FLOATS = {
    "REAL2": "f2", "FLOAT": "f4", "DOUBLE": "f8", "LONG_DOUBLE": "g",
    "COMPLEX4": "f2", "C_COMPLEX": "f4", "C_DOUBLE_COMPLEX": "f8", "C_LONG_DOUBLE_COMPLEX": "g",
}  # fmt: skip
every_format = pytest.mark.parametrize("form", FORMATS)


@pytest.fixture
def roomy():
    """Give a folder for large files, which is emptied at once and not kept for three runs."""
    with tempfile.TemporaryDirectory(prefix="mpired-test-") as folder:
        yield Path(folder)


def ranks_of(name, count, nranks=NRANKS):
    """Return the buffers of some ranks, a third of the elements values that bite, in this order for any count."""
    return [rank[: count * reference.FORMS[name][1]] for rank in values.ranks(name, nranks, 150)]


def said_of(form, name):
    return {"type": name} if form == "raw" else {}


# ---- small data: the plan's constants are made small, and the segments run here in a random order


@pytest.mark.parametrize(("op", "name"), [("SUM", "DOUBLE"), ("MAX", "FLOAT"), ("SUM", "REAL2")])
@every_format
@pytest.mark.sampled(2)
def test_counts_around_every_border(directory, engine, cut_into, form, op, name):
    cut_into(64)
    dtype = FLOATS[name]
    block = 64 // np.dtype(dtype).itemsize  # elements
    borders = range(0, 150, block)
    counts = sorted({count for border in borders for count in (border - 1, border, border + 1) if 0 <= count <= 150})
    for count, jobs in zip(counts[::-2], itertools.cycle(JOBS[::-1])):
        ranks = ranks_of(name, count)
        array = mpired.reduce(save(directory, form, ranks, dtype), op, jobs=jobs, **said_of(form, name))
        assert array.tobytes() == reference.reduce(op, name, ranks), (count, jobs)
    assert {2} < {jobs for jobs, _ in engine}  # no more than there are blocks
    assert max(segments for _, segments in engine) > 3


@every_format
def test_the_file_that_is_written_has_the_same_bytes(directory, engine, cut_into, form):
    paths = save(directory, form, ranks_of("DOUBLE", 150), "f8")
    for to, suffix in SUFFIXES.items():
        output = directory / f"result.{suffix}"
        contents = set()
        for nbytes, jobs in (8, 7), (64, 2), (1 << 20, 1):
            cut_into(nbytes)
            mpired.reduce(paths, "SUM", output=output, overwrite=True, jobs=jobs, to=to, **said_of(form, "DOUBLE"))
            contents.add(output.read_bytes())
        assert len(contents) == 1, to


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_batches_of_any_size(directory, engine, cut_into, monkeypatch, form):
    ranks = ranks_of("DOUBLE", 150)
    paths = save(directory, form, ranks, "f8")
    for batch_rows, nbytes, jobs in (1, 8, 1), (3, 8, 7), (7, 72, 2), (64, 1 << 20, 1):
        monkeypatch.setattr(f"mpired.formats.{form}._BATCH_ROWS", batch_rows)
        cut_into(nbytes)
        array = mpired.reduce(paths, "SUM", jobs=jobs)
        assert array.tobytes() == reference.reduce("SUM", "DOUBLE", ranks), (batch_rows, nbytes, jobs)


# ---- every position: NaNs of different payloads and zeros of different sign, wherever they lie in a vector

LONGEST = 70  # over two of the longest vectors of the smallest elements


def some(long):
    """Return numbers up to the longest; an odd step has every remainder by the length of a vector."""
    return range(0, LONGEST, 1 if long else 5)


def places(long):
    """Return starts and counts."""
    return [*((0, count) for count in some(long)), *((start, LONGEST) for start in some(long))]


def awkward_ranks(name):
    """Return three ranks whose elements go through all triples of zeros, NaNs and infinities, one a position."""
    parts, extent = reference.FORMS[name]
    code = parts[0][0]
    zeros_and_ones, infinities_and_nans = values.BITING[code][:3], values.BITING[code][9:]
    triples = list(itertools.product((*zeros_and_ones, *infinities_and_nans), repeat=3))
    random.Random(1).shuffle(triples)
    ranks = []
    for rank in range(3):
        octets = bytearray(LONGEST * extent * 3)
        for i, (start, (_, offset)) in enumerate(itertools.product(range(0, len(octets), extent), parts)):
            component = triples[i % len(triples)][rank]
            at = start + offset
            octets[at : at + len(component)] = component
        ranks.append(bytes(octets))
    return ranks


def wrong_places(directory, op, name, ranks, long):
    """Return the starts and counts of the parts of which the bits are not those of the whole."""
    extent = reference.FORMS[name][1]
    expected = reference.reduce(op, name, ranks)
    paths = save(directory, "raw", ranks, np.uint8)
    return [
        (start, count)
        for start, count in places(long)
        if mpired.reduce(paths, op, type=name, offset=start * extent, count=count).tobytes()
        != expected[start * extent : (start + count) * extent]
    ]


@pytest.mark.parametrize("op", ["SUM", "PROD", "MAX", "MIN"])
def test_bits_do_not_depend_on_the_position(directory, either_kernel, long, op):
    names = [name for name in FLOATS if name in matrix.LEGAL[op]]
    for name in names if either_kernel == "numpy" else matrix.COMPILED[op].intersection(names):
        assert wrong_places(directory, op, name, awkward_ranks(name), long) == [], name


@pytest.mark.parametrize("op", ["MAXLOC", "MINLOC"])
def test_pairs_do_not_depend_on_the_position(directory, either_kernel, long, op):
    for name in "FLOAT_INT", "DOUBLE_INT", "LONG_DOUBLE_INT", "2REAL", "SHORT_INT", "2INT":
        assert wrong_places(directory, op, name, values.ranks(name, 3, 2 * LONGEST), long) == [], name


# ---- real workers


def awkward_numbers(count, rank):
    """Return random doubles of many magnitudes among which are NaNs of different payloads and both zeros."""
    draw = np.random.default_rng(rank)
    bits = draw.standard_normal(count).view(np.uint64)
    biting = np.array([int.from_bytes(octets, "little") for octets in values.BITING["f8"]], np.uint64)
    places = draw.integers(0, count, count // 16)
    bits[places] = draw.choice(biting, len(places))
    return bits.view(np.float64)


def command(paths, output, *words):
    """Run the command, and return the digest of the result and the number of workers."""
    done = subprocess.run(
        [COMMAND, "reduce", "--json", "-f", "-o", output, *words, *paths], check=True, capture_output=True, text=True
    )
    with open(output, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), json.loads(done.stdout)["workers"]


@pytest.mark.parametrize(("form", "op"), [("npy", "MAX"), ("parquet", "SUM")])
def test_the_command_gives_the_same_bytes_with_any_workers_and_memory(roomy, form, op):
    count = (50 << 20) // (NRANKS * 8) + 13  # more than 48 MiB in all, from where on a pool is used
    arrays = [awkward_numbers(count, rank) for rank in range(NRANKS)]
    paths = save(roomy, form, [array.tobytes() for array in arrays], "f8", (100_003, 200_006, 300_009))
    output = str(roomy / f"large.{SUFFIXES[form]}")
    digest, workers = command(paths, output, "--op", op, "-j", "1")
    assert workers == 1
    columns = form == "parquet"
    least = 188 if columns else 60
    for jobs, memory, workers in (
        ("7", "", 4 if columns else 7),  # of a column whole row groups
        ("2", f"{4 * least}M", 2),
    ):
        limit = ("--max-memory", memory) if memory else ()
        assert command(paths, output, "--op", op, "-j", jobs, *limit) == (digest, workers)
    assert command(paths, output, "--op", op, "-j", "1", "--max-memory", f"{least + 1}M") == (digest, 1)
