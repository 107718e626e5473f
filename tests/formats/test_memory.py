"""Ranks that a program has at hand: arrays and open files, beside paths, in every collective."""

import gzip
import io
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from command import unchanged
from format_files import WRITERS
from rows import together
from tables import bytes_of

import mpired
from mpired.collectives.table import COLLECTIVES
from mpired.errors import CountError, DatatypeError, MpiredError, RanksError, UsageError
from mpired.formats import FORMATS

VALUES = np.arange(60.0).reshape(5, 3, 4)
PAIRS = np.zeros(7, np.dtype([("value", "f8"), ("index", "i4")], align=True))
PAIRS["value"], PAIRS["index"] = [3, 1, 4, 1, 5, 9, 2], range(7)
ARRAYS = {
    "C order": VALUES,
    "Fortran order": np.asfortranarray(VALUES),
    "transposed": VALUES.T,
    "not contiguous": VALUES[::-2, :, ::3],
    "other byte order": VALUES.astype(">f8"),
    "integers of one byte": VALUES.astype("u1"),
    "truth values": VALUES % 2 == 0,
    "pairs with padding": PAIRS,
    "pairs without": PAIRS.astype([("value", ">f8"), ("index", "<i4")]),
    "no dimensions": np.array(2.5),
    "no elements": np.zeros((3, 0, 2)),
    "long double": VALUES.astype(np.longdouble) / 3,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_array_is_the_rank_that_its_file_is(folder):
    with together(folder) as case:
        for form, array in ARRAYS.items():
            with case(form):
                op = {"b": "lor", "V": "maxloc"}.get(array.dtype.kind, "sum")
                np.save("saved.npy", array)
                expected = mpired.reduce(["saved.npy"] * 3, op)
                for ranks in ([array, array, array], ["saved.npy", array, "saved.npy"]):
                    found = mpired.reduce(ranks, op)
                    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
                    assert found.tobytes() == expected.tobytes()
                    assert found.flags.f_contiguous == expected.flags.f_contiguous


def test_every_collective(folder):
    """Arrays, a path and an open file give the results of paths."""
    arrays = [np.arange(6, dtype=np.int32) * (rank + 1) for rank in range(3)]
    for rank, array in enumerate(arrays):
        np.save(f"r{rank}.npy", array)
    with together(folder) as case, open("r2.npy", "rb") as file:
        for name in COLLECTIVES.keys() - {"reduce-local"}:
            with case(name):
                call = getattr(mpired, name.replace("-", "_"))
                more = {"counts": [1, 2, 3]} if name == "reduce-scatter" else {}
                expected = call(["r0.npy", "r1.npy", "r2.npy"], "sum", **more)
                found = call([arrays[0], "r1.npy", file], "sum", **more)
                one, other = ([each if each is None else each.tolist() for each in all_] for all_ in (found, expected))
                assert one == other
        with case("groups"):
            (for_a,), _ = mpired.allreduce(arrays[:1], "max", group_b=["r1.npy", arrays[2]])
            assert for_a.tolist() == arrays[2].tolist()
        with case("reduce-local"):
            mpired.reduce_local(arrays[0], "r1.npy", "sum")
            assert np.load("r1.npy").tolist() == (arrays[0] + arrays[1]).tolist()


def test_an_open_file_is_read_from_its_start_and_stays_where_it_is(folder):
    np.save("r.npy", VALUES)
    content = Path("r.npy").read_bytes()
    Path("r.npy.gz").write_bytes(gzip.compress(content))
    for file in (open("r.npy", "rb"), open("r.npy", "r+b", buffering=0), io.BytesIO(content), gzip.open("r.npy.gz")):  # noqa: SIM115
        with file:
            file.read(100)
            for _ in range(2):
                assert np.array_equal(mpired.reduce([file, VALUES, file], "sum"), VALUES * 3), file
                assert file.tell() == 100
            assert file.read(10) == content[100:110]


def test_temporary_files_and_pipes():
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


def test_every_format_in_memory(folder, cut_into, engine):
    """Their segments are read in any order."""
    cut_into(1 << 16)
    values = np.arange(100_000.0)
    readable = [row.name for row in FORMATS.values() if row.readable]
    with together(folder) as case:
        for form in readable:
            content = WRITERS[form](values)
            more = {"type": "double"} if form == "raw" else {}
            with case(form):
                found = mpired.reduce([io.BytesIO(content), values], "sum", jobs=2, **more)
                assert np.array_equal(next(iter(found.values())) if isinstance(found, dict) else found, 2 * values)
                assert engine[-1][1] > 1
                for nbytes in (len(content) // 2 - 3, 5):
                    with pytest.raises(MpiredError) as error:
                        mpired.reduce([io.BytesIO(content[:nbytes])], "sum", **more)
                    assert error.value.exit_status in ({3, 2} if nbytes == 5 else {3})  # so little is no sign of some


def test_tables_in_memory_and_raw_bytes_beside_an_array():
    """What is declared is about raw files; an array says itself what it is."""
    table = pa.table({"x": [1.0, 2.0], "n": [3, 4]})
    ranks = [io.BytesIO(bytes_of(table, "parquet")), io.BytesIO(bytes_of(table, "arrow"))]
    found = mpired.reduce(ranks, "sum")
    assert {name: each.tolist() for name, each in found.items()} == {"x": [2.0, 4.0], "n": [6, 8]}
    assert mpired.reduce(ranks, "sum", columns="n", output="n.parquet").format == "parquet"
    raw = io.BytesIO(b"head" + np.array([1, 2, 3], ">i4").tobytes())
    declared = {"type": "int", "offset": 4, "byte_order": "big", "format": "raw"}
    assert mpired.reduce([raw, np.array([10, 20, 30], "i4")], "sum", **declared).tolist() == [11, 22, 33]
    with pytest.raises(DatatypeError, match=r"array of rank 0: holds MPI_DOUBLE \(float64\), which is not MPI_INT"):
        mpired.reduce([np.zeros(3)], "sum", type="int")


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
    "a list": ([[1.0]], UsageError, r"^rank 0: is of the type list; a rank is the path"),
    "one array": (VALUES, UsageError, r"^ranks: is one array; give a list, one a rank"),
    "one file": (io.BytesIO(), UsageError, r"^ranks: is one open file; give a list"),
    "one path": ("a.npy", UsageError, r"^ranks: is one path; give a list"),
    "nothing": (None, UsageError, r"^ranks: is of the type NoneType; give a list"),
    "text": ([io.StringIO("1")], UsageError, r"^open file of rank 0: is closed, or has no descriptor"),
    "closed": ([VALUES, closed()], UsageError, r"^open file of rank 1: is closed"),
    "empty": ([io.BytesIO()], UsageError, r"^open file of rank 0: is raw binary"),
    "several": ([VALUES, [1]], UsageError, r"^rank 1: is of the type list"),
    "all": ([VALUES, closed(), io.StringIO()], RanksError, r"2 of 3 ranks: "),
}  # fmt: skip


def test_refusals(folder):
    with together(folder) as case:
        for name, (ranks, error, words) in REFUSED.items():
            with case(name), unchanged(folder), pytest.raises(error, match=words):
                mpired.reduce(ranks, "sum", output="out.npy")
