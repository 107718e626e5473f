"""Ranks that a program has at hand: arrays and open files, beside paths, in every collective."""

from __future__ import annotations

import gzip
import io
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from command import unchanged
from tables import bytes_of

import mpired
from mpired.collectives.table import COLLECTIVES
from mpired.errors import CountError, DatatypeError, RanksError, UsageError

VALUES = np.arange(60.0).reshape(5, 3, 4)
PAIRS = np.zeros(7, np.dtype([("value", "f8"), ("index", "i4")], align=True))
PAIRS["value"], PAIRS["index"] = [3, 1, 4, 1, 5, 9, 2], range(7)


def mapped(folder: Path) -> np.ndarray:
    np.save(folder / "mapped.npy", VALUES)
    return np.load(folder / "mapped.npy", mmap_mode="r")


ARRAYS = {
    "C order": lambda _: VALUES,
    "Fortran order": lambda _: np.asfortranarray(VALUES),
    "transposed": lambda _: VALUES.T,
    "not contiguous": lambda _: VALUES[::-2, :, ::3],
    "other byte order": lambda _: VALUES.astype(">f8"),
    "integers of one byte": lambda _: VALUES.astype("u1"),
    "truth values": lambda _: VALUES % 2 == 0,
    "pairs with padding": lambda _: PAIRS,
    "pairs without": lambda _: PAIRS.astype([("value", ">f8"), ("index", "<i4")]),
    "no dimensions": lambda _: np.array(2.5),
    "no elements": lambda _: np.zeros((3, 0, 2)),
    "mapped": mapped,
    "a part of what is mapped": lambda folder: mapped(folder)[1:, :2],
    "long double": lambda _: VALUES.astype(np.longdouble) / 3,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def op_for(array: np.ndarray) -> str:
    return {"b": "lor", "V": "maxloc"}.get(array.dtype.kind, "sum")


@pytest.mark.parametrize("form", ARRAYS)
def test_an_array_is_the_rank_that_its_file_is(form, folder):
    array = ARRAYS[form](folder)
    np.save("saved.npy", array)
    expected = mpired.reduce(["saved.npy"] * 3, op_for(array))
    for ranks in ([array, array, array], ["saved.npy", array, "saved.npy"], [array, "saved.npy", array]):
        found = mpired.reduce(ranks, op_for(array))
        assert (found.shape, found.dtype, found.tobytes()) == (expected.shape, expected.dtype, expected.tobytes())
        assert found.flags.f_contiguous == expected.flags.f_contiguous
    written = mpired.reduce([array, "saved.npy"], op_for(array), output="result.npy")
    assert (written.nranks, written.format) == (2, "npy")
    mpired.reduce(["saved.npy", "saved.npy"], op_for(array), output="expected.npy")
    assert Path("result.npy").read_bytes() == Path("expected.npy").read_bytes()


def test_numpy_gives_the_same_sums(folder):
    ranks = [VALUES, VALUES[::-1], (VALUES * 0.1).astype(">f8"), np.asfortranarray(VALUES / 7)]
    assert np.array_equal(mpired.reduce(ranks, "sum"), ((ranks[0] + ranks[1]) + ranks[2]) + ranks[3])


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective(name, folder):
    arrays = [np.arange(6, dtype=np.int32) * (rank + 1) for rank in range(3)]
    for rank, array in enumerate(arrays):
        np.save(f"r{rank}.npy", array)
    call = getattr(mpired, name.replace("-", "_"))
    more = {"counts": [1, 2, 3]} if name == "reduce-scatter" else {}
    if name == "reduce-local":
        call(arrays[0], "r1.npy", "sum")
        assert np.load("r1.npy").tolist() == (arrays[0] + arrays[1]).tolist()
        return
    expected = call(["r0.npy", "r1.npy", "r2.npy"], "sum", **more)
    with open("r2.npy", "rb") as file:
        found = call([arrays[0], "r1.npy", file], "sum", **more)
    assert [None if each is None else each.tolist() for each in found] == [
        None if each is None else each.tolist() for each in expected
    ]
    if COLLECTIVES[name].intercomm:
        for_a = call(
            arrays[:1], "max", group_b=["r1.npy", arrays[2]], **({"counts": [6], "counts_b": [2, 4]} if more else {})
        )
        assert np.concatenate(for_a if name == "reduce" else for_a[0], axis=None).tolist()[:6] == arrays[2].tolist()


@pytest.mark.parametrize("threads", [1, 2])
def test_workers_read_them(threads, cut_into, folder, monkeypatch):
    """A worker that is forked, and one that is a new interpreter, has the elements of this process."""
    monkeypatch.setattr("mpired.engines.pool.can_fork", lambda: threads == 1)
    cut_into(1 << 16)
    array = np.random.default_rng(5).random((300, 200))
    np.save("r.npy", array)
    stream = io.BytesIO(bytes_of(pa.table({"x": array[0]}), "parquet"))
    assert np.array_equal(
        mpired.reduce([array, "r.npy", array.T[::-1].T], "sum", jobs=2), (array + array) + array[:, ::-1]
    )
    assert np.array_equal(mpired.reduce([stream, stream], np.multiply, jobs=2), array[0] * array[0])


FILES = {
    "buffered": lambda: open("r.npy", "rb"),  # noqa: SIM115 - the test closes it
    "raw": lambda: open("r.npy", "rb", buffering=0),  # noqa: SIM115 - as above
    "for writing too": lambda: open("r.npy", "r+b"),  # noqa: SIM115 - as above
    "in memory": lambda: io.BytesIO(Path("r.npy").read_bytes()),
    "unpacked": lambda: gzip.open("r.npy.gz", "rb"),  # noqa: SIM115 - as above
    "buffered and unpacked": lambda: io.BufferedReader(gzip.open("r.npy.gz", "rb")),  # noqa: SIM115 - as above
}


@pytest.mark.parametrize("form", FILES)
def test_an_open_file_is_read_from_its_start_and_stays_where_it_is(form, folder):
    np.save("r.npy", VALUES)
    Path("r.npy.gz").write_bytes(gzip.compress(Path("r.npy").read_bytes()))
    with FILES[form]() as file:
        file.read(100)
        for _ in range(2):
            assert np.array_equal(mpired.reduce([file, VALUES, file], "sum"), VALUES * 3)
            assert file.tell() == 100
        assert file.read(10) == Path("r.npy").read_bytes()[100:110]


def test_temporary_files_and_pipes(folder):
    np.save("r.npy", VALUES)
    with tempfile.NamedTemporaryFile() as named, tempfile.TemporaryFile() as unnamed:
        for file in (named, unnamed):
            np.save(file, VALUES)  # what is written is in the buffer of the file, or in the file
        assert np.array_equal(mpired.reduce([named, unnamed], "max"), VALUES)
    with subprocess.Popen(["cat", "r.npy"], stdout=subprocess.PIPE) as cat:
        assert np.array_equal(mpired.reduce([cat.stdout, "r.npy"], "sum"), VALUES * 2)
    with open("/dev/zero", "rb") as zeros:
        assert mpired.reduce([zeros, zeros], "sum", type="double", count=3).tolist() == [0.0, 0.0, 0.0]
        with pytest.raises(UsageError, match="/dev/zero: is a device, which has no end"):
            mpired.reduce([zeros], "sum", type="double")


def test_raw_bytes_beside_an_array(folder):
    """What is declared is about raw files; an array says itself what it is."""
    raw = io.BytesIO(b"head" + np.array([1, 2, 3], ">i4").tobytes())
    found = mpired.reduce(
        [raw, np.array([10, 20, 30], "i4")], "sum", type="int", offset=4, byte_order="big", format="raw"
    )
    assert found.tolist() == [11, 22, 33]
    with pytest.raises(DatatypeError, match=r"array of rank 0: holds MPI_DOUBLE \(float64\), which is not MPI_INT"):
        mpired.reduce([np.zeros(3)], "sum", type="int")


def test_a_table_in_memory(folder):
    table = pa.table({"x": [1.0, 2.0], "n": [3, 4]})
    ranks = [io.BytesIO(bytes_of(table, "parquet")), io.BytesIO(bytes_of(table, "arrow"))]
    found = mpired.reduce(ranks, "sum")
    assert {name: values.tolist() for name, values in found.items()} == {"x": [2.0, 4.0], "n": [6, 8]}
    assert mpired.reduce(ranks, "sum", columns="n", output="n.parquet").format == "parquet"


def closed() -> io.BytesIO:
    file = io.BytesIO()
    file.close()
    return file


OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [0, 2], "itemsize": 8})
REFUSED = {
    "count": ([VALUES, VALUES[1:]], CountError, r"^array of rank 1: rank 1 has count 48, but rank 0"),
    "datatype": ([VALUES, VALUES.astype("f4")], DatatypeError, r"^array of rank 1: rank 1 has datatype MPI_FLOAT"),
    "objects": ([np.array([None])], DatatypeError, r"^array of rank 0: holds Python objects"),
    "texts": ([np.array(["a"])], DatatypeError, r"^array of rank 0: holds strings"),
    "overlap": ([np.zeros(2, OVERLAPPING)], DatatypeError, r"^array of rank 0: has no npy form"),
    "masked": ([np.ma.array([1.0])], UsageError, r"^array of rank 0: is a masked array"),
    "a list": ([[1.0]], UsageError, r"^rank 0: is of the type list; a rank is the path"),
    "one array": (VALUES, UsageError, r"^ranks: is one array; give a list, one a rank"),
    "one file": (io.BytesIO(), UsageError, r"^ranks: is one open file; give a list"),
    "one path": ("a.npy", UsageError, r"^ranks: is one path; give a list"),
    "nothing": (None, UsageError, r"^ranks: is of the type NoneType; give a list"),
    "text": ([io.StringIO("1")], UsageError, r"^open file of rank 0: is open as text; open it as bytes"),
    "closed": ([VALUES, closed()], UsageError, r"^open file of rank 1: is closed"),
    "empty": ([io.BytesIO()], UsageError, r"^open file of rank 0: is raw binary"),
    "several": ([VALUES, [1]], UsageError, r"^rank 1: is of the type list"),
    "all": ([VALUES, closed(), io.StringIO()], RanksError, r"2 of 3 ranks: "),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_rank(case, folder):
    ranks, error, words = REFUSED[case]
    with unchanged(folder), pytest.raises(error, match=words):
        mpired.reduce(ranks, "sum", output="out.npy")


def test_ranks_come_out_of_a_generator():
    for_a, for_b = mpired.allreduce(
        (VALUES for _ in range(2)), "sum", group_b={"a": VALUES, "b": VALUES, "c": VALUES}.values()
    )
    assert (len(for_a), len(for_b)) == (2, 3)
    assert np.array_equal(for_a[0], VALUES * 3)
    assert np.array_equal(for_b[0], VALUES * 2)


def test_names_of_results(folder):
    np.save("r.npy", VALUES)
    with open("r.npy", "rb") as file:
        with unchanged(folder), pytest.raises(UsageError, match=r"^{stem}: rank 1 is array, which has no name"):
            mpired.scan([file, VALUES], "sum", output="out_{stem}.npy")
        mpired.scan([file, "r.npy"], "sum", output="{rank}_{stem}.npy")
        with unchanged(folder), pytest.raises(UsageError, match=r"^`in_place`: would replace rank 0, r.npy;"):
            mpired.reduce([file, VALUES], "sum", in_place=True)
        with unchanged(folder), pytest.raises(UsageError, match=r"^r.npy: is the file of rank 0, an input"):
            mpired.reduce([file, VALUES], "sum", output="r.npy", overwrite=True)
    with unchanged(folder), pytest.raises(UsageError, match=r"^`in_place`: would replace rank 1, array of rank 1"):
        mpired.scan(["r.npy", VALUES], "sum", in_place=True)
    assert np.array_equal(np.load("1_r.npy"), VALUES * 2)


def test_an_open_file_as_origin(folder):
    np.save("total.npy", VALUES)
    np.save("r.npy", VALUES)
    window = mpired.Window("total.npy")
    with open("r.npy", "rb") as file:
        assert window.accumulate([file, VALUES, io.BytesIO(Path("r.npy").read_bytes())], "sum") == 3
        assert np.array_equal(window.get_accumulate(file, mpired.REPLACE), VALUES * 4)
    assert np.array_equal(np.load("total.npy"), VALUES)


def test_the_caller_may_write_to_an_array_later(folder):
    """The result is no view of a rank."""
    array = VALUES.copy()
    found = mpired.reduce([array], "sum")
    array[:] = 0
    assert np.array_equal(found, VALUES)
