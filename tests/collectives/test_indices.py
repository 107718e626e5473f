"""MAXLOC and MINLOC on plain values: the index says the rank, the number of its file, or the place of the element."""

import functools
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tables
from command import run, succeeded
from rows import check_refusals

import mpired
from mpired.collectives import plan
from mpired.datatypes import DATATYPES, value_index
from mpired.datatypes.pairs import VALUES
from mpired.errors import DatatypeError, OpError, UsageError

DRAW = np.random.default_rng(64)
NUMBERS = (7, 2, 12, 0, 9)
SHAPE = (5, 9)
PLACES = np.arange(45).reshape(SHAPE)
MAXLOC, MEMBERS = ("--op", "maxloc", "--index", "rank"), ("m0.npy", "m1.npy")
BEST = {"maxloc": np.argmax, "minloc": np.argmin}


def values(nranks=5, shape=SHAPE):
    """Return the values of some ranks, with ties and NaNs, in one array."""
    drawn = DRAW.integers(-3, 4, (nranks, *shape)).astype("f8")
    drawn[DRAW.random(drawn.shape) < 0.05] = np.nan
    drawn[:, 0, 0], drawn[:, 0, 1] = 0.0, np.nan
    return drawn


def best(stack, op, indices):
    """Return the values and indices that win, by NumPy: of equal ones and of NaNs the smallest index."""
    indices = np.broadcast_to(np.asarray(indices).reshape(len(stack), *[1] * (stack.ndim - 1)), stack.shape)
    order = np.argsort(indices, axis=0, kind="stable")
    there = np.take_along_axis(stack, order, 0)
    which = BEST[op](there, axis=0)[None]
    return np.take_along_axis(there, which, 0)[0], np.take_along_axis(np.sort(indices, axis=0), which, 0)[0]


def save(folder, stack, names=None):
    names = names or [f"rank{rank}.npy" for rank in range(len(stack))]
    for name, array in zip(names, stack, strict=True):
        np.save(folder / name, array)
    return [str(folder / name) for name in names]


def check(result, expected):
    found = result["value"], result["index"]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_as_numpy(tmp_path):
    stack = values()
    paths = save(tmp_path, stack, [f"run3_member{number:02}.npy" for number in NUMBERS])
    firsts = {"rank": range(5), "number": NUMBERS, "global": [45 * rank for rank in range(5)]}
    for op, (index, where) in itertools.product(BEST, firsts.items()):
        found = mpired.reduce(paths, op, index=index)
        value, expected = best(stack, op, list(where))
        check(found, (value, expected + (PLACES if index == "global" else 0)))
        assert (found.dtype, found.shape) == (np.dtype([("value", "f8"), ("index", "i4")], align=True), SHAPE)


def test_every_type_of_values(tmp_path):
    index = next(each for each in DATATYPES if each.name == "INT")
    rows = [row for row in DATATYPES if row.group in VALUES and row.dtype is not None]
    assert len(rows) > 30
    for row in rows:
        stack = DRAW.integers(0, 4, (3, 20)).astype(row.form)
        paths = [tmp_path / f"{rank}.bin" for rank in range(3)]
        for path, array in zip(paths, stack, strict=True):
            array.tofile(path)
        found = mpired.reduce(paths, "maxloc", index="rank", type=str(row))
        check(found, best(stack, "maxloc", range(3)))
        assert found.dtype == value_index(row, index).form, row
        parts = (tmp_path / "v.bin", tmp_path / "i.bin")
        mpired.reduce(paths, "maxloc", index="rank", type=str(row), split=parts, overwrite=True)
        np.testing.assert_array_equal(np.fromfile(parts[0], row.form), stack.max(0))
        np.testing.assert_array_equal(np.fromfile(parts[1], "i4"), stack.argmax(0))
        if row.form.char == "g":  # no bytes of another value in the padding
            assert not np.fromfile(parts[0], np.uint8).reshape(20, 16)[:, 10:].any()


@pytest.mark.parametrize(("form", "order"), [("npy", "C"), ("npy", "F"), ("parquet", "C")])
def test_blocks_and_workers(form, order, tmp_path, monkeypatch):
    """The place of an element is known wherever a block begins."""
    monkeypatch.setattr(plan, "SMALL_NBYTES", 0)
    monkeypatch.setattr(plan, "_BLOCK_BYTES", 16 * 37)
    monkeypatch.setattr(plan, "_STREAMED_BLOCK_BYTES", 16 * 37)
    stack = values(3, (10, 30))
    paths = [tmp_path / f"{rank}.{form}" for rank in range(3)]
    for rank, (path, array) in enumerate(zip(paths, stack, strict=True)):
        if form == "npy":  # the other order in one rank
            np.save(path, np.asarray(array, order="F" if (order == "F") != (rank == 2) else "C"))
        else:
            pq.write_table(pa.table({"x": array.ravel(order)}), path, row_group_size=33 + rank)
    found = [
        mpired.reduce(paths, "maxloc", index="global", jobs=jobs, max_memory=memory)
        for jobs, memory in ((1, 300 << 20), (2, None))
    ]
    assert len({each.tobytes("A") for each in found}) == 1
    value, rank = best(stack, "maxloc", [300 * rank for rank in range(3)])
    places = np.arange(300).reshape((10, 30), order=order)
    check(found[0], (value, rank + places) if form == "npy" else (value.ravel(order), (rank + places).ravel(order)))


def test_ranks_in_the_order_of_letters(tmp_path):
    """Where the order shows in the indices, it is told."""
    paths = save(tmp_path, [[1.0], [2.0]], ["m10.npy", "m2.npy"])
    for index, nwarnings in ("rank", 1), ("global", 1), ("number", 0):
        err = run("reduce", "--op", "maxloc", "--index", index, *paths, "-f", "-o", "o.npy", cwd=tmp_path).err
        assert err.count("warning") == nwarnings, index


def pairs_of(stack, indices):
    """Return the pairs that --index makes, one array a rank."""
    made = []
    for array, index in zip(stack, indices, strict=True):
        made.append(np.zeros(array.shape, np.dtype([("value", "f8"), ("index", "i4")], align=True)))
        made[-1]["value"], made[-1]["index"] = array, index
    return made


def test_every_collective_has_the_bits_of_pairs():
    stack = values(4, (2, 6))
    calls = [mpired.allreduce, mpired.scan, mpired.reduce_scatter_block]
    calls.append(functools.partial(mpired.exscan, exscan_first="identity"))
    calls.append(functools.partial(mpired.reduce_scatter, counts=[3, 0, 5, 4]))
    ways = [("rank", range(4)), ("global", np.arange(48).reshape(4, 2, 6))]
    for call, (index, indices) in itertools.product(calls, ways):
        plain = call(list(stack), op="maxloc", index=index)
        made = call(pairs_of(stack, indices), op="maxloc")
        assert [each.tobytes() for each in plain] == [each.tobytes() for each in made], (call, index)


def test_each_group_counts_its_own_ranks():
    stack = values(5, (2, 6))
    to_a, to_b = mpired.allreduce(list(stack[:2]), "maxloc", group_b=list(stack[2:]), index="rank")
    check(to_a[0], best(stack[2:], "maxloc", range(3)))
    check(to_b[0], best(stack[:2], "maxloc", range(2)))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_column_of_indices_beside_each_of_values(form, tmp_path):
    x, y = values(3, (2, 3)).reshape(3, 6), DRAW.integers(0, 3, (3, 6))
    names = pa.array(list("abcdef"))
    for rank in range(3):
        table = pa.table({"x": x[rank], "name": names, "y": y[rank]})
        (tmp_path / f"{rank}.{form}").write_bytes(tables.bytes_of(table, form))
    paths = [f"{rank}.{form}" for rank in range(3)]
    words = ("reduce", "-q", "--op", "maxloc", "--index", "rank", "--keep", "name", *paths)
    succeeded(run(*words, "-o", f"out.{form}", cwd=tmp_path))
    found = tables.read(tmp_path / f"out.{form}")
    assert found.schema.names == ["x", "x_index", "name", "y", "y_index"]
    assert found["name"].to_pylist() == names.to_pylist()
    for column, stack in ("x", x), ("y", y):
        value, index = best(stack, "maxloc", range(3))
        np.testing.assert_array_equal(found[column].to_numpy(), value)
        np.testing.assert_array_equal(found[f"{column}_index"].to_numpy(), index)
    arrays = mpired.reduce([tmp_path / path for path in paths], "maxloc", index="rank", columns="x,y")
    assert arrays.keys() == {"x", "y"}
    check(arrays["y"], best(y, "maxloc", range(3)))
    succeeded(run(*words, "--split", f"v.{form},i.{form}", cwd=tmp_path))
    parts = [tables.read(tmp_path / f"{part}.{form}") for part in "vi"]
    assert [part.schema.names for part in parts] == [["x", "name", "y"], ["x_index", "name", "y_index"]]
    np.testing.assert_array_equal(parts[0]["x"].to_numpy(), found["x"].to_numpy())
    np.testing.assert_array_equal(parts[1]["y_index"].to_numpy(), found["y_index"].to_numpy())


def test_an_array_becomes_two_columns(tmp_path):
    ranks = save(tmp_path, [[1.5], [2.5]])
    summary = mpired.reduce(ranks, "maxloc", index="rank", output=tmp_path / "out.parquet")
    assert summary.nbytes == 16  # what was read
    assert pq.read_table(tmp_path / "out.parquet").to_pydict() == {"value": [2.5], "index": [1]}
    again = mpired.reduce([tmp_path / "out.parquet"], "maxloc", pair="value,index")
    assert again.tolist() == [(2.5, 1)]


def test_raw_bytes_lie_as_they_are_said_to(tmp_path):
    stack = np.array([[1.0, 5.0], [3.0, 2.0]], ">f8")
    for rank in range(2):
        (tmp_path / f"{rank}.bin").write_bytes(b"head" + stack[rank].tobytes())
    words = ("reduce", "-q", *MAXLOC, "--offset", "4", "0.bin", "1.bin")
    form = np.dtype([("value", ">f8"), ("index", ">i4")], align=True)
    out = run(*words, "--type", ">f8", "--header", "copy", cwd=tmp_path).out
    assert (out[:4], np.frombuffer(out[4:], form).tolist()) == (b"head", [(3.0, 1), (5.0, 0)])
    packed = np.array([(3.0, 1), (5.0, 0)], [("value", ">f8"), ("index", ">i4")])
    assert run(*words, "--type", "double", "--datarep", "external32", cwd=tmp_path).out == packed.tobytes()


def test_the_type_of_indices(tmp_path):
    for numbers, index_type, dtype in (
        ((1, 2**31 - 1), None, "i4"),
        ((1, 2**31), None, "i8"),
        ((1, 200), "uint8_t", "u1"),
        ((1, 2**64 - 1), np.uint64, "u8"),
        ((1, 2), "int64_t", "i8"),
    ):
        paths = save(tmp_path, [[1.0], [2.0]], [f"m{number}.npy" for number in numbers])
        found = mpired.reduce(paths, "maxloc", index="number", index_type=index_type)
        assert (found["index"].tolist(), found.dtype["index"]) == ([numbers[1]], np.dtype(dtype))


def test_the_last_index_of_all_is_looked_at():
    ranks = [np.zeros(100, "i1")] * 2
    assert mpired.reduce(ranks, "minloc", index="global", index_type="uint8_t")["index"].tolist() == [*range(100)]
    with pytest.raises(UsageError, match=r"^`index_type`: MPI_INT8_T \(int8\) cannot hold the index 199 of rank 1"):
        mpired.reduce(ranks, "minloc", index="global", index_type="int8_t")
    with pytest.raises(DatatypeError, match="is not an integer type"):
        mpired.reduce(ranks, "minloc", index="rank", index_type="double")
    with pytest.raises(DatatypeError, match="has a byte order"):
        mpired.reduce(ranks, "minloc", index="rank", index_type=">i4")


def test_the_last_number_of_the_name(tmp_path):
    (tmp_path / "x9.tar").mkdir()
    for name, number in ("member07.npy", 7), ("a1b2c.f32", 2), ("part.3", 3), ("x9.tar/m4.npy", 4):
        np.zeros(1).tofile(tmp_path / name)
        found = mpired.reduce([tmp_path / name], "maxloc", index="number", type="double", format="raw")
        assert found["index"] == [number], name


def test_the_number_that_differs_between_the_names(tmp_path):
    for name in "run_{}/tas_1", "tas_r{}i1p1f1", "{}_of_10", "r{}p1.5":
        (tmp_path / name.format(0)).parent.mkdir(exist_ok=True)
        names = [tmp_path / f"{name.format(number)}.npy" for number in (3, 12, 7)]
        for path, value in zip(names, (1.0, 3.0, 2.0), strict=True):
            path.parent.mkdir(exist_ok=True)
            np.save(path, [value])
        if "/" in name:
            with pytest.raises(UsageError, match=r"the same number \(1\).*`rank_regex='r\(\[0-9\]\+\)'`"):
                mpired.reduce(names, "maxloc", index="number")
            regex = {"rank_regex": "run_([0-9]+)"}
        else:
            regex = {}
        found = mpired.reduce(names, "maxloc", index="number", expect_ranks=[3, 7, 12], **regex)
        assert found["index"] == [12], name


@pytest.fixture
def folder(tmp_path):
    """Ranks of every sort."""
    for rank in range(2):
        np.save(tmp_path / f"m{rank}.npy", np.zeros(3))
        np.save(tmp_path / f"m{rank:03}.npy", np.zeros(3))
        np.save(tmp_path / f"a{rank}.{rank + 1}.npy", np.zeros(3))
        np.save(tmp_path / f"z{rank}.npy", np.zeros(3, "c16"))
        np.save(tmp_path / f"{'ab'[rank]}.npy", np.zeros(3))
        np.save(tmp_path / f"p{rank}.npy", np.zeros(3, [("value", "f8"), ("index", "i4")]))
        clash = pa.table({"x": np.zeros(3), "x_index": np.zeros(3), "flag": [True] * 3})
        pq.write_table(clash, tmp_path / f"m{rank}.parquet")
    return tmp_path


def test_what_is_refused(folder):
    members, columns, pairs = "m0.npy m1.npy", "m0.parquet m1.parquet", "--index rank makes pairs"
    maxloc, number = "reduce --op maxloc --index rank", "reduce --op maxloc --index number"
    rows = [
        (f"reduce --op max --index rank {members}", 2, "--index: is for maxloc and minloc / leave it out"),
        (f"reduce --op maxloc --index-type int {members}", 2, "--index-type: / with --index only"),
        (f"{maxloc} --in-place {members}", 2, "--in-place: would put pairs into files of plain values; name an"),
        (f"{maxloc} p0.npy p1.npy", 3, "--index: / MPI_DOUBLE_INT / is a pair; leave it out"),
        (f"{maxloc} --type double_int {members}", 3, "is not MPI_DOUBLE_INT: m0.npy"),
        (f"{maxloc} z0.npy z1.npy", 3, "--index: / MPI_C_DOUBLE_COMPLEX / max"),
        (f"{number} a.npy b.npy", 2, "a.npy: has no number / --index rank"),
        (f"{number} m1.npy m001.npy", 2, "m001.npy: / number (1) / m1.npy / --index rank"),
        (f"{number} -", 2, "standard input: has no number"),
        (f"{number} a0.1.npy a1.2.npy", 3, "2 numbers / choose one, such as with --rank-regex 'r([0-9]+)'"),
        (f"{maxloc} --columns x,x_index {columns}", 2, "--index: / 'x_index' / --columns"),
        (f"{maxloc} --columns flag {columns}", 3, "--index: / 'flag' / MPI_C_BOOL"),
        (f"{maxloc} --columns x --keep x_index {columns} -o o.parquet", 2, "--keep: / 'x_index' / leave it out"),
        (f"reduce --op maxloc {members}", 3, f"MPI_MAXLOC: / {pairs}"),
        (f"reduce --op maxloc --type double --from raw {members}", 3, f"MPI_MAXLOC: / {pairs}"),
        (f"reduce --op argmax {members}", 2, "argmax: / is not an MPI op"),
        (f"{maxloc} --split v.npy {members}", 2, "--split: / two files"),
        (f"{maxloc} --split v.npy, {members}", 2, "--split: / two files"),
        (f"{maxloc} --split v.npy,v.npy {members}", 2, "v.npy: / the file of several results"),
        (f"{maxloc} --split v.npy,m0.npy {members}", 2, "m0.npy: is the file of rank 0"),
        (f"{maxloc} --split v.npy,b.npy {members}", 2, "b.npy: already exists; / --force"),
        (f"{maxloc} --split v.npy,- {members}", 2, "-: is a stream"),
        (f"{maxloc} --split v.npy,i.h4 {members}", 2, "i.h4: would be HDF4"),
        (f"{maxloc} --split v.npy,i.npy -o o.npy {members}", 2, "--split: / leave it out, or / --output"),
        (f"{maxloc} --split v.npy,i.npy -o - {members}", 2, "--split: / leave it out, or / --output"),
        (f"reduce --op sum --split v.npy,i.npy {members}", 2, "--split: / MPI_SUM gives MPI_DOUBLE"),
        ("reduce --op maxloc --split v.npy,i.npy --in-place p0.npy p1.npy", 2, "--split: / --in-place"),
        (f"accumulate --op maxloc b.npy --create --index rank {members}", 2, "No such option '--index'"),
    ]
    check_refusals(folder, rows, stdin=(folder / "m0.npy").read_bytes())


def test_local_reductions_name_no_option_that_they_lack(folder):
    assert "--index" not in run("reduce-local", "--op", "maxloc", *MEMBERS, cwd=folder).err
    with pytest.raises(OpError, match="`index='rank'` makes pairs"):
        mpired.scan([np.zeros(2)], "maxloc")


def test_a_window_gets_pairs_that_are_made_before(folder):
    best = ("accumulate", "-q", "--op", "maxloc", "best.npy", "--create")
    for number, array in (3, [1.0, 5.0]), (12, [2.0, 4.0]):
        np.save(folder / f"day{number}.npy", array)
        made = run("reduce", "-q", "--op", "maxloc", "--index", "number", f"day{number}.npy", cwd=folder)
        succeeded(run(*best, "-", stdin=made.out, cwd=folder))
    assert np.load(folder / "best.npy").tolist() == [(2.0, 12), (5.0, 3)]


def test_two_files_for_each_rank(folder):
    stack = values(2, (1, 3))[:, 0]
    for rank, pairs in enumerate(pairs_of(stack, np.arange(6).reshape(2, 3))):
        np.save(folder / f"p{rank}.npy", pairs)
        np.save(folder / f"m{rank}.npy", stack[rank])
    for words in (("p0.npy", "p1.npy"), ("--index", "global", *MEMBERS)):
        succeeded(run("scan", "-qf", "--op", "minloc", *words, "--split", "v{rank}.npy,i{rank}.bin", cwd=folder))
        for rank in range(2):
            value, index = best(stack[: rank + 1], "minloc", [3 * each for each in range(rank + 1)])
            np.testing.assert_array_equal(np.load(folder / f"v{rank}.npy"), value)
            np.testing.assert_array_equal(np.fromfile(folder / f"i{rank}.bin", "i4"), index + np.arange(3))


def test_two_files_of_pairs_of_columns(tmp_path):
    pq.write_table(pa.table({"e": [1.0, 2.0], "c": pa.array([7, 8], pa.int64())}), tmp_path / "two.parquet")
    parts = tmp_path / "v.parquet", tmp_path / "i.csv"
    summary = mpired.reduce([tmp_path / "two.parquet"], "maxloc", pair="e,c", split=parts)
    assert pq.read_table(parts[0]).to_pydict() == {"e": [1.0, 2.0]}
    assert parts[1].read_text() == "c\n7\n8\n"
    assert (summary.noutputs, summary.output) == (2, f"{parts[0]},{parts[1]}")
