"""One suite over every format: those of the table, and one that a package installs.

A format joins it by its row, and by an entry of `WRITERS` and `READERS` in tests/format_files.py that writes and reads
its files without mpired. What is expected comes from NumPy.
"""

import numpy as np
import pytest
from command import run, succeeded
from format_files import INTEGERS, RANKS, READABLE, READERS, ROWS, UPDATABLE, WRITERS, same, typed

from mpired.formats import FORMATS
from mpired.sources.directory import INDEX_SUFFIX

every_readable = pytest.mark.parametrize("form", READABLE)


def test_every_format_is_in_the_suite():
    assert set(READERS) == set(ROWS)
    assert set(WRITERS) == set(READABLE)
    assert {"mini", "bundle"} == set(ROWS) - set(FORMATS)
    assert all(FORMATS[row.name] is row and row.doc and not row.place for row in FORMATS.values())
    assert all(row.suffixes for row in ROWS.values() if row.readable)


@pytest.mark.parametrize("to", ROWS)
def test_results(bench, to):
    """Of integers as a stream, of doubles under each suffix, and of a stream, whose count shows only at its end."""
    a, b, c = INTEGERS
    same(READERS[to](bench.reduce("--to", to, *bench.write("npy", INTEGERS)), a.dtype), (a + b) + c)
    a, b, c = RANKS
    names = bench.write("npy", RANKS)
    for suffix in ROWS[to].suffixes:
        if suffix != INDEX_SUFFIX:  # of shards, see test_sharded.py
            bench.reduce("-o", f"sum{suffix}", *names)
            same(bench.read(to, f"sum{suffix}", a.dtype), (a + b) + c)
    outcome = bench.run("reduce", "-q", "--op", "sum", "--type", "double", "--to", to, "-", stdin=RANKS[0].tobytes())
    succeeded(outcome)
    same(READERS[to](outcome.out, np.dtype("f8")), RANKS[0])


@every_readable
def test_ranks_and_results_of_collectives(bench, form):
    suffix = ROWS[form].suffixes[0]
    a, b, c = INTEGERS
    mean = ("reduce", "-q", "--op", "mean", *typed(form, "int32_t"), "-o", f"mean{suffix}")
    succeeded(bench.run(*mean, *bench.write(form, INTEGERS)))
    same(bench.read(form, f"mean{suffix}", np.dtype("f8")), np.mean(INTEGERS, axis=0))
    words = (*typed(form, "int32_t"), "--counts", "3,0,9", "--in-place", *bench.write(form, INTEGERS))
    succeeded(bench.run("reduce-scatter", "-q", "--op", "sum", *words))
    for rank, part in enumerate([slice(0, 3), slice(3, 3), slice(3, 12)]):
        same(bench.read(form, f"rank{rank}{suffix}", a.dtype), (a + b + c)[part])
    a, b, c = RANKS
    names = bench.write(form, RANKS)
    bench.reduce(*typed(form, "double"), "--root", "1", "--in-place", *names)
    for name, expected in zip(names, [a, (a + b) + c, c], strict=True):
        same(bench.read(form, name, a.dtype), expected)
    bench.reduce(*typed(form, "double"), "-o", f"sum{suffix}", *bench.write(form, [np.zeros(0)] * 2))
    same(bench.read(form, f"sum{suffix}", np.dtype("f8")), np.zeros(0))


@pytest.mark.parametrize("form", UPDATABLE)
def test_updates(bench, form):
    a, b, c = RANKS
    target, *origins = bench.write(form, RANKS)
    succeeded(bench.run("accumulate", "-q", "--op", "sum", *typed(form, "double"), target, *origins))
    same(bench.read(form, target, a.dtype), (a + b) + c)
    a, b, _ = INTEGERS
    target, origin, _ = bench.write(form, INTEGERS)
    words = ("--op", "sum", *typed(form, "int32_t"), "--to", "npy", "--fetch", "old.npy", target, origin)
    succeeded(bench.run("get-accumulate", "-q", *words))
    same(bench.read("npy", "old.npy", a.dtype), a)
    same(bench.read(form, target, a.dtype), a + b)


@every_readable
def test_values_of_every_sort(bench, form):
    """Zeros of both signs, infinities and NaN as in raw files; missing ones; and where an extreme is from."""
    suffix, double = ROWS[form].suffixes[0], typed(form, "double")
    odd = np.array([0.0, -0.0, np.inf, -np.inf, 5e-324, 1 + 2**-52, np.nan, -np.nan])
    words = ("reduce", "-q", "--op", "last", "--type", "double", "--to", "raw")
    found = bench.run(*words, *bench.write(form, [np.full(8, -0.0), odd]))
    assert (found.status, found.out, found.err) == (0, odd.tobytes(), "")
    arrays = [np.array([-9.0, 2.0, -9.0, 4.0]), np.array([1.0, -9.0, -9.0, 8.0])]
    words = (*double, "--missing", "-9", "--count-valid", "n.npy", "-o", f"sum{suffix}")
    bench.reduce(*words, *bench.write(form, arrays))
    same(bench.read(form, f"sum{suffix}", np.dtype("f8")), np.array([1.0, 2.0, -9.0, 12.0]))
    same(bench.read("npy", "n.npy", np.dtype("i8")), np.array([1, 1, 0, 2]))
    arrays = [np.array([1.0, 5.0, np.nan, 2.0]), np.array([4.0, 5.0, 0.0, -1.0])]
    words = ("reduce", "-q", "--op", "maxloc", "--index", "global", *double, *bench.write(form, arrays))
    succeeded(bench.run(*words, "--split", f"v{suffix},i.npy"))
    same(bench.read(form, f"v{suffix}", np.dtype("f8")), np.max(arrays, axis=0))
    same(bench.read("npy", "i.npy", np.dtype("i4")), np.array([4, 1, 2, 3], "i4"))


@pytest.mark.parametrize("form", ["raw", "npy", "npz", "hdf5", "zarr", "mini", "bundle"])
def test_big_endian_elements(bench, form):
    a, b, c = (rank.astype(">f8") for rank in RANKS)
    order = ("--byte-order", "big") if ROWS[form].needs_type else ()
    output = f"sum{ROWS[form].suffixes[0]}"
    bench.reduce(*typed(form, "double"), *order, "-o", output, *bench.write(form, [a, b, c]))
    found = bench.read(form, output, a.dtype)
    assert found.tolist() == ((a + b) + c).tolist()
    assert found.dtype.newbyteorder("=") == np.dtype("f8")


@every_readable
def test_refusals(bench, form):
    """Of another type or none, of files that are cut, and of a target of another type than its origin."""
    names, double = bench.write(form, RANKS), typed(form, "double")
    if ROWS[form].needs_type:
        bench.refuses(2, names[0], "give --type", words=("reduce", "--op", "sum", *names))
    else:
        words = ("reduce", "--op", "sum", "--type", "int32_t", "-o", "new.npy", *names)
        bench.refuses(3, names[0], "is not MPI_INT32_T", words=words)
    if ROWS[form].updatable:
        (origin,) = bench.write("npy", INTEGERS[:1], "other")
        reason = origin if ROWS[form].needs_type else "INT32_T"
        bench.refuses(3, "DOUBLE", reason, words=("accumulate", "--op", "sum", *double, names[0], origin))
    content = (bench.folder / names[1]).read_bytes()
    for kept in (0, 5):
        (bench.folder / names[1]).write_bytes(content[:kept])
        bench.refuses(3, names[1], words=("reduce", "--op", "sum", *double, "-o", "new.npy", *names))


def test_more_elements_than_a_block(tmp_path):
    """Python reads the numbers back, each with all its bits."""
    array = np.random.default_rng(3).standard_normal(20_000)
    np.save(tmp_path / "a.npy", array)
    for form in ("text", "csv"):
        outcome = run("reduce", "-q", "--op", "sum", "a.npy", "--to", form, cwd=tmp_path)
        succeeded(outcome)
        assert [float(line) for line in outcome.out.split()[form == "csv" :]] == array.tolist()
