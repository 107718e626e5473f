"""One suite over every format: those of the table, and one that a package installs.

A format joins it by its row, and by an entry of `WRITERS` and `READERS` in tests/format_files.py that writes and reads
its files without mpired. What is expected comes from NumPy.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from command import succeeded
from format_files import DRAW, INTEGERS, NUMBERS, RANKS, READABLE, READERS, ROWS, UPDATABLE, WRITERS, same, typed

from mpired.formats import FORMATS

every_readable = pytest.mark.parametrize("form", READABLE)
every_type = pytest.mark.parametrize("datatype", NUMBERS)


def test_every_format_is_in_the_suite():
    assert set(READERS) == set(ROWS)
    assert set(WRITERS) == set(READABLE)
    assert {"mini", "bundle"} == set(ROWS) - set(FORMATS)
    assert all(FORMATS[row.name] is row and row.doc and not row.place for row in FORMATS.values())
    assert all(row.suffixes for row in ROWS.values() if row.readable)


@every_type
@every_readable
def test_reduce(bench, form, datatype):
    a, b, c = NUMBERS[datatype]
    output = f"sum{ROWS[form].suffixes[0]}"
    bench.reduce(*typed(form, datatype), "-o", output, *bench.write(form, [a, b, c]))
    same(bench.read(form, output, a.dtype), (a + b) + c)


@every_type
@pytest.mark.parametrize("to", ROWS)
def test_result(bench, to, datatype):
    a, b, c = NUMBERS[datatype]
    names = bench.write("npy", [a, b, c])
    same(READERS[to](bench.reduce("--to", to, *names), a.dtype), (a + b) + c)
    for suffix in ROWS[to].suffixes:
        bench.reduce("-o", f"sum{suffix}", *names)
        same(bench.read(to, f"sum{suffix}", a.dtype), (a + b) + c)


@pytest.mark.parametrize("to", ROWS)
def test_result_of_a_stream(bench, to):
    """Its count shows only at its end."""
    outcome = bench.run("reduce", "-q", "--op", "sum", "--type", "double", "--to", to, "-", stdin=RANKS[0].tobytes())
    succeeded(outcome)
    same(READERS[to](outcome.out, np.dtype("f8")), RANKS[0])


@every_readable
def test_scan(bench, form):
    a, b, c = RANKS
    suffix = ROWS[form].suffixes[0]
    names = bench.write(form, RANKS)
    succeeded(bench.run("scan", "-q", "--op", "sum", *typed(form, "double"), "-o", f"to_{{rank}}{suffix}", *names))
    for rank, expected in enumerate([a, a + b, (a + b) + c]):
        same(bench.read(form, f"to_{rank}{suffix}", a.dtype), expected)


@every_readable
def test_blocks_of_other_counts(bench, form):
    a, b, c = INTEGERS
    suffix = ROWS[form].suffixes[0]
    words = (*typed(form, "int32_t"), "--counts", "3,0,9", "--in-place", *bench.write(form, INTEGERS))
    succeeded(bench.run("reduce-scatter", "-q", "--op", "sum", *words))
    for rank, part in enumerate([slice(0, 3), slice(3, 3), slice(3, 12)]):
        same(bench.read(form, f"rank{rank}{suffix}", a.dtype), (a + b + c)[part])


@every_readable
def test_in_place(bench, form):
    a, b, c = RANKS
    names = bench.write(form, RANKS)
    bench.reduce(*typed(form, "double"), "--root", "1", "--in-place", *names)
    for name, expected in zip(names, [a, (a + b) + c, c], strict=True):
        same(bench.read(form, name, a.dtype), expected)


@pytest.mark.parametrize("form", UPDATABLE)
def test_accumulate(bench, form):
    a, b, c = RANKS
    target, *origins = bench.write(form, RANKS)
    succeeded(bench.run("accumulate", "-q", "--op", "sum", *typed(form, "double"), target, *origins))
    same(bench.read(form, target, a.dtype), (a + b) + c)


@pytest.mark.parametrize("form", UPDATABLE)
def test_get_accumulate(bench, form):
    a, b, _ = INTEGERS
    target, origin, _ = bench.write(form, INTEGERS)
    words = ("--op", "sum", *typed(form, "int32_t"), "--to", "npy", "--fetch", "old.npy", target, origin)
    succeeded(bench.run("get-accumulate", "-q", *words))
    same(bench.read("npy", "old.npy", a.dtype), a)
    same(bench.read(form, target, a.dtype), a + b)


@pytest.mark.parametrize("form", [name for name in UPDATABLE if ROWS[name].is_flat])
def test_target_that_is_made(bench, form):
    a, b, c = RANKS
    target = f"made{ROWS[form].suffixes[0]}"
    words = ("--op", "sum", "--type", "double", "--create", "12", target, *bench.write(form, RANKS))
    succeeded(bench.run("accumulate", "-q", *words))
    same(bench.read(form, target, a.dtype), (a + b) + c)


@every_readable
def test_mixed_with_all_others(bench, form):
    arrays = [DRAW.integers(-9, 9, 12).astype("f8") for _ in READABLE]
    others = [name for name in READABLE if name != form]
    names = [bench.write(each, [array])[0] for each, array in zip([form, *others], arrays, strict=True)]
    output = f"sum{ROWS[form].suffixes[0]}"
    bench.reduce("--type", "double", "-o", output, *names)
    same(bench.read(form, output, np.dtype("f8")), np.sum(arrays, axis=0))


@pytest.mark.parametrize("op", ["sum", "max"])
@every_readable
def test_the_bits_of_raw(bench, form, op):
    odd = np.array([0.0, -0.0, np.inf, -np.inf, 5e-324, 1 + 2**-52, np.nan, -np.nan])
    arrays = [odd, odd[::-1].copy(), np.full(8, -0.0)]
    outputs = []
    for each in ("raw", form):
        words = ("--op", op, "--type", "double", "--to", "raw", *bench.write(each, arrays))
        outputs.append(bench.run("reduce", "-q", *words))
        succeeded(outputs[-1])
    assert outputs[0].out == outputs[1].out


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
def test_a_result_of_another_type(bench, form):
    names = bench.write(form, INTEGERS)
    output = f"mean{ROWS[form].suffixes[0]}"
    words = ("reduce", "-q", "--op", "mean", *typed(form, "int32_t"), "-o", output, *names)
    succeeded(bench.run(*words))
    same(bench.read(form, output, np.dtype("f8")), np.mean(INTEGERS, axis=0))


@every_readable
def test_missing_values_and_how_many_are_valid(bench, form):
    arrays = [np.array([-9.0, 2.0, -9.0, 4.0]), np.array([1.0, -9.0, -9.0, 8.0])]
    suffix, names = ROWS[form].suffixes[0], bench.write(form, arrays)
    words = ("--missing", "-9", "--count-valid", "n.npy", "-o", f"sum{suffix}")
    bench.reduce(*typed(form, "double"), *words, *names)
    same(bench.read(form, f"sum{suffix}", np.dtype("f8")), np.array([1.0, 2.0, -9.0, 12.0]))
    same(bench.read("npy", "n.npy", np.dtype("i8")), np.array([1, 1, 0, 2]))


@every_readable
def test_values_and_where_they_are_from(bench, form):
    arrays = [np.array([1.0, 5.0, np.nan, 2.0]), np.array([4.0, 5.0, 0.0, -1.0])]
    suffix, names = ROWS[form].suffixes[0], bench.write(form, arrays)
    words = ("reduce", "-q", "--op", "maxloc", "--index", "global", *typed(form, "double"), *names)
    succeeded(bench.run(*words, "--split", f"v{suffix},i.npy"))
    same(bench.read(form, f"v{suffix}", np.dtype("f8")), np.max(arrays, axis=0))
    same(bench.read("npy", "i.npy", np.dtype("i4")), np.array([4, 1, 2, 3], "i4"))
    outcome = bench.run(*words, "--to", "text")
    assert outcome.out == b"4.0 4\n5.0 1\nnan 2\n2.0 3\n"


@every_type
@every_readable
def test_info(bench, form, datatype):
    (name,) = bench.write(form, NUMBERS[datatype][:1])
    outcome = bench.run("info", "--json", *typed(form, datatype), name)
    succeeded(outcome)
    (file,) = json.loads(outcome.out)
    (buffer,) = file["buffers"]
    nbytes = (bench.folder / name).stat().st_size
    assert (file["file"], file["format"], file["nbytes"]) == (name, form, nbytes)
    assert (buffer["datatype"], buffer["count"]) == (f"MPI_{datatype.upper()}", 12)
    assert (buffer["name"] == "value") == ROWS[form].has_columns
    assert (buffer["datarep"] is None) != ROWS[form].needs_type
    succeeded(bench.run("info", *typed(form, datatype), name))


@every_readable
def test_no_elements(bench, form):
    output = f"sum{ROWS[form].suffixes[0]}"
    bench.reduce(*typed(form, "double"), "-o", output, *bench.write(form, [np.zeros(0)] * 2))
    same(bench.read(form, output, np.dtype("f8")), np.zeros(0))


@every_readable
def test_name_without_suffix(bench, form):
    (name,) = bench.write(form, RANKS[:1])
    (bench.folder / name).rename(bench.folder / "rank.0")
    words = typed(form, "double") if ROWS[form].magic or ROWS[form].needs_type else ("--from", form)
    same(READERS["raw"](bench.reduce(*words, "--to", "raw", "rank.0"), np.dtype("f8")), RANKS[0])


@every_readable
def test_format_that_is_named(bench, form):
    (name,) = bench.write(form, RANKS[:1])
    (bench.folder / name).rename(bench.folder / "rank.csv")
    words = ("--from", form, *typed(form, "double"), "--to", "raw", "rank.csv")
    same(READERS["raw"](bench.reduce(*words), np.dtype("f8")), RANKS[0])


@every_readable
def test_type_that_is_not_that_of_the_file(bench, form):
    names = bench.write(form, RANKS)
    if ROWS[form].needs_type:
        bench.refuses(2, names[0], "give --type", words=("reduce", "--op", "sum", *names))
    else:
        words = ("reduce", "--op", "sum", "--type", "int32_t", "-o", "new.npy", *names)
        bench.refuses(3, names[0], "is not MPI_INT32_T", words=words)


@pytest.mark.parametrize("kept", [0, 5], ids=["empty", "five bytes"])
@every_readable
def test_rank_that_is_cut(bench, form, kept):
    names = bench.write(form, RANKS)
    (bench.folder / names[1]).write_bytes((bench.folder / names[1]).read_bytes()[:kept])
    words = ("reduce", "--op", "sum", *typed(form, "double"), "-o", "new.npy", *names)
    bench.refuses(3, names[1], words=words)


@pytest.mark.parametrize("form", UPDATABLE)
def test_target_that_is_not_like_the_origin(bench, form):
    target, origin = *bench.write(form, RANKS[:1]), *bench.write("npy", INTEGERS[:1], "other")
    words = ("accumulate", "--op", "sum", *typed(form, "double"), target, origin)
    bench.refuses(3, "DOUBLE", "INT32_T" if not ROWS[form].needs_type else origin, words=words)


@pytest.mark.parametrize("form", sorted(set(ROWS) - set(READABLE)))
def test_format_for_results_only(bench, form):
    bench.refuses(2, f"'{form}' is not one of", words=("reduce", "--op", "sum", "--from", form, "rank"))
    for suffix in ROWS[form].suffixes:
        (bench.folder / f"rank{suffix}").write_bytes(b"1\n2\n")
        reason = f"is {form} by its suffix, which mpired does not read"
        bench.refuses(3, reason, words=("reduce", "--op", "sum", f"rank{suffix}"))
