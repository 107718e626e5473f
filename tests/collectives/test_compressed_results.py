"""Results compressed by their suffix: read by other programs, the same bytes each time, whole or not at all."""

import bz2
import gzip
import lzma
import subprocess

import numpy as np
import pytest
from command import run, succeeded
from needs import needs
from rows import check_refusals

import mpired

CHANCE = np.random.default_rng(5)
RANKS = [CHANCE.integers(-1000, 1000, (30, 500)).astype("f8") for _ in range(3)]


def by_program(name):
    def unpack(data):
        needs(name)
        return subprocess.run([name, "-dc"], input=data, stdout=subprocess.PIPE, check=True).stdout

    return unpack


UNPACK = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
UNPACK |= {".zst": by_program("zstd"), ".lz4": by_program("lz4")}
NAMES = ("r0.npy", "r1.npy", "r2.npy")


@pytest.fixture
def folder(tmp_path):
    for rank, array in enumerate(RANKS):
        np.save(tmp_path / f"r{rank}.npy", array)
    return tmp_path


def test_what_is_in_it_is_the_plain_result(folder):
    """The same bytes each time."""

    def result(name, form):
        succeeded(run("reduce", "-q", "--op", "sum", *NAMES, "--to", form, "-o", name, cwd=folder))
        return (folder / name).read_bytes()

    wrong, suffixes = [], [*UNPACK]
    for number, form in enumerate(("npy", "raw", "csv", "arrows", "parquet")):  # each with two codecs
        plain = result(f"sum.{form}", form)
        chosen = [suffixes[number], suffixes[number - 1]]
        wrong += [(form, suffix) for suffix in chosen if UNPACK[suffix](result(f"sum.{form}{suffix}", form)) != plain]
        if result(f"again.{form}{chosen[0]}", form) != (folder / f"sum.{form}{chosen[0]}").read_bytes():
            wrong.append(("again", form, chosen[0]))
    assert wrong == []


def test_plain_bytes_that_are_replaced_stay_plain(tmp_path):
    """Whatever their name: `format="raw"` alone reads them, and would take compressed ones for elements."""
    first, second, packed = (str(tmp_path / name) for name in ("a.gz", "b.gz", "packed.npy"))
    np.save(packed, np.ones(4))
    raw, found = {"type": "double", "format": "raw"}, []
    for call in (
        lambda: mpired.reduce([first, second], "sum", in_place=True, **raw),
        lambda: mpired.scan([first, second], "sum", in_place=True, **raw),
        lambda: mpired.reduce_local(first, second, "sum", **raw),
        lambda: mpired.unpack(packed, into=second, type="resized(0,16,double)"),
    ):
        for name in (first, second):
            np.arange(8.0).tofile(name)
        call()
        found.append([np.fromfile(name).tolist() for name in (first, second)])
    once, twice = np.arange(8.0).tolist(), (np.arange(8.0) * 2).tolist()
    assert found == [[twice, once], [once, twice], [once, twice], [once, [1.0, 1.0, 1.0, 3.0, 1.0, 5.0, 1.0, 7.0]]]


def test_what_is_refused(folder):
    reduce, none = "reduce --op sum r0.npy r1.npy", "--level: is for compressed results"
    rows = [
        (f"{reduce} -o s.npy.zst --level 23", 2, "--level: 23 is none of zstd, whose levels are 1 to 22"),
        (f"{reduce} --level 3", 2, none),
        (f"{reduce} --in-place --level 3", 2, "--level: does not go with --in-place"),
        ("allreduce --op sum r0.npy r1.npy --link -o s_{rank}.npy.gz", 2, "--link: makes one file of all results"),
        (f"{reduce} -o s.h4.gz", 2, "s.h4.gz: would be HDF4 by its suffix"),
    ]
    check_refusals(folder, rows)
