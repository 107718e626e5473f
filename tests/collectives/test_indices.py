"""MAXLOC and MINLOC on plain values: the index says the rank, the number of its file, or the place of the element."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows import check_refusals

import mpired
from mpired.collectives import plan
from mpired.errors import DatatypeError, UsageError

DRAW = np.random.default_rng(64)
NUMBERS = (7, 2, 12, 0, 9)
SHAPE = (5, 9)
PLACES = np.arange(45).reshape(SHAPE)
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
    there = np.take_along_axis(stack, np.argsort(indices, axis=0, kind="stable"), 0)
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


def test_the_last_index_of_all_is_looked_at():
    ranks = [np.zeros(100, "i1")] * 2
    assert mpired.reduce(ranks, "minloc", index="global", index_type="uint8_t")["index"].tolist() == [*range(100)]
    with pytest.raises(UsageError, match=r"^`index_type`: MPI_INT8_T \(int8\) cannot hold the index 199 of rank 1"):
        mpired.reduce(ranks, "minloc", index="global", index_type="int8_t")
    with pytest.raises(DatatypeError, match="is not an integer type"):
        mpired.reduce(ranks, "minloc", index="rank", index_type="double")
    with pytest.raises(DatatypeError, match="has a byte order"):
        mpired.reduce(ranks, "minloc", index="rank", index_type=">i4")


def test_the_number_that_differs_between_the_names(tmp_path):
    for name in "run_{}/tas_1", "tas_r{}i1p1f1", "{}_of_10", "r{}p1.5":
        (tmp_path / name.format(0)).parent.mkdir(exist_ok=True)
        names = [tmp_path / f"{name.format(number)}.npy" for number in (3, 12, 7)]
        for path, value in zip(names, (1.0, 3.0, 2.0), strict=True):
            path.parent.mkdir(exist_ok=True)
            np.save(path, [value])
        if "/" in name:
            with pytest.raises(UsageError, match=r"the same number \(1\).*`rank_regex='.*'`") as error:
                mpired.reduce(names, "maxloc", index="number")
            regex = {"rank_regex": str(error.value).split("'")[-2]}  # works
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
        np.save(tmp_path / f"r{rank + 1}i3.npy", np.zeros(3))
        np.save(tmp_path / f"r{rank + 1}i4.npy", np.zeros(3))
        np.save(tmp_path / f"z{rank}.npy", np.zeros(3, "c16"))
        np.save(tmp_path / f"{'ab'[rank]}.npy", np.zeros(3))
        np.save(tmp_path / f"p{rank}.npy", np.zeros(3, [("value", "f8"), ("index", "i4")]))
        clash = pa.table({"x": np.zeros(3), "x_index": np.zeros(3), "flag": [True] * 3})
        pq.write_table(clash, tmp_path / f"m{rank}.parquet")
    return tmp_path


def test_what_is_refused(folder):
    members, columns = "m0.npy m1.npy", "m0.parquet m1.parquet"
    maxloc, number = "reduce --op maxloc --index rank", "reduce --op maxloc --index number"
    rows = [
        (f"reduce --op max --index rank {members}", 2, "--index: is for maxloc and minloc / leave it out"),
        (f"{maxloc} --in-place {members}", 2, "--in-place: would put pairs into files of plain values; name an"),
        (f"{maxloc} p0.npy p1.npy", 3, "--index: / MPI_DOUBLE_INT / is a pair; leave it out"),
        (f"{maxloc} z0.npy z1.npy", 3, "--index: / MPI_C_DOUBLE_COMPLEX / max"),
        (f"{number} a.npy b.npy", 2, "a.npy: has no number / --index rank"),
        (f"{number} m1.npy m001.npy", 2, "m001.npy: / number (1) / m1.npy / --index rank"),
        (f"{number} -", 2, "standard input: has no number"),
        (f"{number} a0.1.npy a1.2.npy", 3, "2 numbers / choose one, such as with --rank-regex 'a([0-9]+)'"),
        (f"{number} r1i3.npy r1i4.npy r2i3.npy r2i4.npy", 2, "no one number tells all ranks apart; use --index rank"),
        (f"{maxloc} --columns x,x_index {columns}", 2, "--index: / 'x_index' / --columns"),
        (f"{maxloc} --columns flag {columns}", 3, "--index: / 'flag' / MPI_C_BOOL"),
        (f"reduce --op argmax {members}", 2, "argmax: / is not an MPI op"),
        (f"{maxloc} --split v.npy {members}", 2, "--split: / two files"),
        (f"{maxloc} --split v.npy, {members}", 2, "--split: / two files"),
        (f"{maxloc} --split v.npy,v.npy {members}", 2, "v.npy: / the file of several results"),
        (f"{maxloc} --split v.npy,- {members}", 2, "-: is a stream"),
        (f"{maxloc} --split v.npy,i.h4 {members}", 2, "i.h4: would be HDF4"),
        (f"reduce --op sum --split v.npy,i.npy {members}", 2, "--split: / MPI_SUM gives MPI_DOUBLE"),
        ("reduce --op maxloc --split v.npy,i.npy --in-place p0.npy p1.npy", 2, "--split: / --in-place"),
        (f"accumulate --op maxloc b.npy --create --index rank {members}", 2, "No such option '--index'"),
    ]
    check_refusals(folder, rows, stdin=(folder / "m0.npy").read_bytes())
