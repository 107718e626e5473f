"""`mpired reduce` and its siblings as a user meets them: every option, every format, every way in and out."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import COMMAND, Child, Outcome, installed, reduce, refused, run, shell, succeeded, unchanged

from mpired.cli import cli

A, B, C = (np.array(values) for values in ([1.5, 2.0, -3.0], [10.0, 0.25, 5.0], [-0.5, 8.0, 4.0]))
PAIR = np.dtype([("value", "f8"), ("index", "i4")], align=True)
PACKED = np.dtype([("value", "<f8"), ("index", "<i4")])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three ranks of three doubles as npy, parquet, arrow and raw."""
    for name, array in zip("abc", (A, B, C), strict=True):
        np.save(tmp_path / f"{name}.npy", array)
        array.tofile(tmp_path / f"{name}.bin")
        table = pa.table({"x": array})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        with pa.ipc.new_file(tmp_path / f"{name}.arrow", table.schema) as file:
            file.write_table(table)
    return tmp_path


def loaded(content: bytes) -> np.ndarray:
    return np.load(io.BytesIO(content))


def pairs_of(rows: Sequence[tuple[float, int]], dtype: np.dtype = PAIR) -> np.ndarray:
    """Return pairs whose padding is zero."""
    pairs = np.zeros(len(rows), dtype)
    for row, pair in enumerate(rows):
        pairs[row] = pair
    return pairs


def fold(op: Callable[..., np.ndarray], *ranks: np.ndarray) -> np.ndarray:
    """Return the left fold, rank by rank."""
    result = ranks[0].copy("K")
    for rank in ranks[1:]:
        op(result, rank, out=result)
    return result


# Ops and datatypes


@pytest.mark.parametrize("word", ["sum", "SUM", "Sum", "mpi_sum", "MPI_SUM"])
def test_op_in_any_spelling(word, folder):
    assert reduce("--op", word, "a.bin", "b.bin", "--type", "double", cwd=folder) == (0, (A + B).tobytes(), "")


# By NumPy's functions, one rank after another.
_OPS: Mapping[str, tuple[Callable[..., np.ndarray], str]] = {
    "max": (np.maximum, "i4 u2 f4 f8 f2"),
    "min": (np.minimum, "i4 u2 f4 f8 f2"),
    "sum": (np.add, "i4 u2 f4 f8 f2 c8 c16"),
    "prod": (np.multiply, "i4 u2 f4 f8 f2"),
    "band": (np.bitwise_and, "i4 u2 i8"),
    "bor": (np.bitwise_or, "i4 u2 i8"),
    "bxor": (np.bitwise_xor, "i4 u2 i8"),
    "land": (np.logical_and, "i4 u2 i8"),
    "lor": (np.logical_or, "i4 u2 i8"),
    "lxor": (np.logical_xor, "i4 u2 i8"),
}


@pytest.mark.parametrize(
    ("op", "code", "suffix"),
    [
        (op, code, suffix)
        for op, (_, codes) in _OPS.items()
        for code in codes.split()
        for suffix in ("npy", "parquet", "bin")
        if (code[0], suffix) != ("c", "parquet")  # it has no complex numbers
    ],
)
def test_op_as_numpy_has_it(op, code, suffix, tmp_path):
    random = np.random.default_rng(3)
    ranks = [random.integers(0, 4, 1001).astype(code) for _ in range(5)]
    names = [f"r{rank}.{suffix}" for rank in range(5)]
    for name, rank in zip(names, ranks, strict=True):
        if suffix == "npy":
            np.save(tmp_path / name, rank)
        elif suffix == "bin":
            rank.tofile(tmp_path / name)
        else:
            pq.write_table(pa.table({"x": rank}), tmp_path / name)
    with np.errstate(all="ignore"):
        expected = fold(_OPS[op][0], *ranks)
    outcome = reduce("--op", op, "--type", code, *names, "--to", "raw", cwd=tmp_path)
    assert outcome == (0, expected.tobytes(), "")


def test_fold_is_from_the_left_in_the_order_given(tmp_path):
    ranks = [np.array([value]) for value in (1.0, 1e16, -1e16, 3.0)]
    for rank, array in enumerate(ranks):
        np.save(tmp_path / f"r{rank}.npy", array)
    names = [f"r{rank}.npy" for rank in range(4)]
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 2, 0, 3), (1, 0, 3, 2)):
        outcome = reduce("--op", "sum", *(names[i] for i in order), "--to", "raw", cwd=tmp_path)
        assert outcome.out == fold(np.add, *(ranks[i] for i in order)).tobytes()
    assert reduce("--op", "sum", *names, "--to", "text", cwd=tmp_path).out == b"3.0\n"
    assert reduce("--op", "sum", *names[1:], names[0], "--to", "text", cwd=tmp_path).out == b"4.0\n"


def test_one_rank_is_its_copy_whatever_the_op(tmp_path):
    """No op touches it: a truth value stays what it was, and so do the bits of a NaN."""
    np.array([5, 0, -1], "i4").tofile(tmp_path / "a.bin")
    assert reduce("--op", "lor", "--type", "logical", "a.bin", "--to", "text", cwd=tmp_path).out == b"5\n0\n-1\n"
    octets = np.array([0x7FF8_0000_0000_0123, 0xFFF0_0000_0000_0001], "u8").tobytes()
    (tmp_path / "b.bin").write_bytes(octets)
    assert reduce("--op", "sum", "--type", "double", "b.bin", cwd=tmp_path) == (0, octets, "")


def test_maxloc_of_thirty_doubles(tmp_path):
    """The example of the standard: the greatest value of each element, and the rank that has it."""
    random = np.random.default_rng(5)
    values = random.integers(0, 5, (4, 30)).astype("f8")
    for rank in range(4):
        pairs = np.zeros(30, PAIR)
        pairs["value"], pairs["index"] = values[rank], rank
        pairs.tofile(tmp_path / f"r{rank}.bin")
    names = [f"r{rank}.bin" for rank in range(4)]
    for op, best, where in (("maxloc", np.max, np.argmax), ("minloc", np.min, np.argmin)):
        outcome = reduce("--op", op, "--type", "double_int", *names, cwd=tmp_path)
        assert outcome.status == 0
        result = np.frombuffer(outcome.out, PAIR)
        np.testing.assert_array_equal(result["value"], best(values, axis=0))
        np.testing.assert_array_equal(result["index"], where(values, axis=0))
        assert outcome.out == result.copy().tobytes()


@pytest.mark.parametrize("word", ["double", "MPI_DOUBLE", "Double_Precision", "real8", "<f8", "f8", "=f8"])
def test_type_that_agrees_with_npy(word, folder):
    assert reduce("--op", "sum", "--type", word, "a.npy", "b.npy", "--to", "raw", cwd=folder).out == (A + B).tobytes()


@pytest.mark.parametrize("suffix", ["npy", "parquet", "arrow"])
def test_type_that_does_not_agree(suffix, folder):
    with unchanged(folder):
        outcome = reduce("--op", "sum", "--type", "long", f"a.{suffix}", "-o", "out", cwd=folder)
        refused(outcome, 3, f"a.{suffix}", "MPI_LONG")


def test_type_is_what_the_summary_tells(folder):
    np.save(folder / "i.npy", np.arange(3, dtype="i4"))
    for word, name in (("int", "MPI_INT"), ("integer", "MPI_INTEGER"), ("int32_t", "MPI_INT32_T")):
        outcome = run("reduce", "--op", "sum", "--type", word, "i.npy", "--to", "text", cwd=folder)
        assert f"3 x {name}," in outcome.err
    assert "3 x MPI_INT32_T," in run("reduce", "--op", "sum", "i.npy", "--to", "text", cwd=folder).err


# Formats in


@pytest.mark.parametrize("suffix", ["npy", "parquet", "arrow"])
def test_format_is_known_by_its_content(suffix, folder):
    os.rename(folder / f"a.{suffix}", folder / "a")
    os.rename(folder / f"b.{suffix}", folder / "b.dat")
    assert reduce("--op", "sum", "a", "b.dat", "--to", "raw", cwd=folder) == (0, (A + B).tobytes(), "")


def test_from_names_the_format(folder):
    os.rename(folder / "a.npy", folder / "a.dat.bin")
    words = ("--op", "sum", "a.dat.bin", "--to", "text")
    refused(reduce(*words, cwd=folder), 3, "npy")
    assert reduce(*words, "--from", "npy", cwd=folder).out == b"1.5\n2.0\n-3.0\n"
    outcome = reduce(*words, "--from", "raw", "--type", "double", "--offset", "128", cwd=folder)
    assert outcome.out == b"1.5\n2.0\n-3.0\n"
    refused(reduce(*words, "--from", "parquet", cwd=folder), 3, "a.dat.bin", "parquet")


def test_ranks_of_different_formats(folder):
    words = ("--op", "sum", "--type", "double")
    expected = fold(np.add, A, B, C, A)
    for ranks in (
        ("a.bin", "b.npy", "c.parquet", "a.arrow"),
        ("a.npy", "b.bin", "c.arrow", "a.parquet"),
        ("a.parquet", "b.arrow", "c.bin", "a.npy"),
    ):
        assert reduce(*words, *ranks, "--to", "raw", cwd=folder) == (0, expected.tobytes(), "")
    outcome = reduce(*words, "a.npy", "b.bin", "c.parquet", "a.bin", cwd=folder)
    np.testing.assert_array_equal(loaded(outcome.out), expected)


@pytest.mark.parametrize("order", ["<", ">"])
def test_raw_of_either_byte_order(order, tmp_path):
    for name, array in (("a", A), ("b", B)):
        (tmp_path / name).write_bytes(b"16 bytes of head" + array.astype(f"{order}f8").tobytes() + b"tail")
    word = {"<": "little", ">": "big"}[order]
    expected = (A + B).astype(f"{order}f8").tobytes()
    for words in (("--type", "double", "--byte-order", word), ("--type", f"{order}f8")):
        outcome = reduce("--op", "sum", *words, "--offset", "16", "--count", "3", "a", "b", cwd=tmp_path)
        assert outcome == (0, expected, "")
    outcome = reduce("--op", "sum", *words, "--offset", "24", "--count", "1", "a", "b", cwd=tmp_path)
    assert outcome == (0, expected[8:16], "")
    outcome = reduce("--op", "sum", *words, "--offset", "40", "--count", "0", "a", "b", cwd=tmp_path)
    assert outcome == (0, b"", "")


def test_byte_order_said_twice(folder):
    words = ("--op", "sum", "--type", "<f8", "--byte-order", "big", "a.bin")
    refused(reduce(*words, cwd=folder), 2, "--byte-order", "big", "<f8")
    assert reduce(*words[:-2], "little", "a.bin", cwd=folder) == (0, A.tobytes(), "")


@pytest.mark.parametrize("words", ["--offset 8", "--count 3", "--byte-order big"])
def test_description_of_raw_files_where_there_is_none(words, folder):
    refused(reduce("--op", "sum", *words.split(), "a.npy", cwd=folder), 2, "raw")


def test_last_pair_of_a_raw_file_without_its_padding(tmp_path):
    pairs = pairs_of([(1.0, 5), (2.0, 6)])
    (tmp_path / "whole.bin").write_bytes(pairs.tobytes())
    (tmp_path / "cut.bin").write_bytes(pairs.tobytes()[:-4])
    words = ("--op", "maxloc", "--type", "double_int", "whole.bin", "cut.bin")
    assert reduce(*words, "--to", "text", cwd=tmp_path) == (0, b"1.0 5\n2.0 6\n", "")


# What is kept of npy


@pytest.mark.parametrize("shape", [(), (6,), (2, 3), (1, 2, 3), (3, 2, 1, 1)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("code", ["<f8", ">f8", "<i2", ">i2", "|u1", "|b1", ">c8"])
def test_npy_keeps_shape_order_and_byte_order(shape, order, code, tmp_path):
    count = int(np.prod(shape))
    ranks = [np.array(np.arange(start, start + count).reshape(shape), code, order=order) for start in (0, 1)]
    for name, rank in zip(("a.npy", "b.npy"), ranks, strict=True):
        np.save(tmp_path / name, rank)
    op, function = ("lxor", np.logical_xor) if code == "|b1" else ("sum", np.add)
    outcome = reduce("--op", op, "a.npy", "b.npy", cwd=tmp_path)
    assert outcome.status == 0
    result, expected = loaded(outcome.out), fold(function, *ranks)
    assert (result.dtype.str, result.shape) == (code, shape)
    assert result.flags.f_contiguous == expected.flags.f_contiguous
    np.testing.assert_array_equal(result, expected)
    assert (len(outcome.out) - result.nbytes) % 64 == 0


def test_npy_of_different_byte_orders_is_like_the_root(tmp_path):
    np.save(tmp_path / "big.npy", A.astype(">f8"))
    np.save(tmp_path / "little.npy", B.astype("<f8"))
    for ranks, root, code in (
        (("big.npy", "little.npy"), "0", ">f8"),
        (("big.npy", "little.npy"), "1", "<f8"),
        (("little.npy", "big.npy"), "0", "<f8"),
    ):
        result = loaded(reduce("--op", "sum", *ranks, "--root", root, cwd=tmp_path).out)
        assert result.dtype.str == code
        np.testing.assert_array_equal(result, A + B)


@pytest.mark.parametrize("dtype", [PAIR, PACKED, PAIR.newbyteorder(">"), PACKED.newbyteorder(">")], ids=str)
def test_npy_keeps_how_pairs_lie(dtype, tmp_path):
    renamed = np.dtype({"names": ["energy", "cell"], "formats": [dtype[0], dtype[1]], **_places(dtype)})
    np.save(tmp_path / "a.npy", np.array([(1.0, 7), (4.0, 8), (2.0, 6)], renamed))
    np.save(tmp_path / "b.npy", np.array([(3.0, 1), (0.5, 2), (2.0, 3)], dtype))
    outcome = reduce("--op", "maxloc", "a.npy", "b.npy", cwd=tmp_path)
    result = loaded(outcome.out)
    assert result.dtype == renamed
    assert result.tolist() == [(3.0, 1), (4.0, 8), (2.0, 3)]


def _places(dtype: np.dtype) -> dict[str, object]:
    return {"offsets": [dtype.fields[name][1] for name in dtype.names], "itemsize": dtype.itemsize}


def test_npy_of_packed_and_padded_pairs_together(tmp_path):
    rows = [(1.0, 7), (4.0, 8)]
    np.save(tmp_path / "packed.npy", np.array(rows, PACKED))
    np.save(tmp_path / "padded.npy", np.array(rows[::-1], PAIR))
    np.array(rows, PAIR).tofile(tmp_path / "raw.bin")
    words = ("--op", "minloc", "--type", "double_int")
    expected = [(1.0, 7), (1.0, 7)]
    assert loaded(reduce(*words, "packed.npy", "padded.npy", "raw.bin", cwd=tmp_path).out).tolist() == expected
    outcome = reduce(*words, "packed.npy", "padded.npy", "raw.bin", "--to", "raw", cwd=tmp_path)
    assert outcome.out == pairs_of(expected).tobytes()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_of_each_version(version, tmp_path):
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array(file, A.reshape(3, 1), version=version)
    result = loaded(reduce("--op", "sum", "a.npy", "a.npy", cwd=tmp_path).out)
    np.testing.assert_array_equal(result, (A + A).reshape(3, 1))


# What is kept of parquet


def test_parquet_keeps_schema_columns_and_compression(tmp_path):
    """Of rank 0: types, order and metadata of the columns, and how each is compressed."""
    random = np.random.default_rng(11)
    fields = [
        pa.field("z", pa.int32(), nullable=False, metadata={"unit": "K"}),
        pa.field("a", pa.float64(), metadata={"unit": "m/s"}),
        pa.field("m", pa.uint8()),
        pa.field("flag", pa.bool_()),
    ]
    schema = pa.schema(fields[:3], metadata={"run": "7", "made by": "a test"})
    tables = [
        pa.table(
            [pa.array(random.integers(0, 9, 1000), pa.int32()), random.random(1000), random.integers(0, 9, 1000, "u1")],
            schema,
        )
        for _ in range(2)
    ]
    compression = {"z": "gzip", "a": "none", "m": "zstd"}
    pq.write_table(tables[0], tmp_path / "a.parquet", compression=compression, row_group_size=300)
    pq.write_table(tables[1].replace_schema_metadata({"run": "8"}), tmp_path / "b.parquet", row_group_size=77)
    succeeded(reduce("--op", "sum", "a.parquet", "b.parquet", "-o", "sum.parquet", cwd=tmp_path))
    with pq.ParquetFile(tmp_path / "sum.parquet") as file:
        assert file.schema_arrow.equals(schema, check_metadata=True)
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        assert [group.num_rows for group in groups] == [300, 300, 300, 100]
        codecs = [[group.column(i).compression for i in range(3)] for group in groups]
        assert codecs == [["GZIP", "UNCOMPRESSED", "ZSTD"]] * 4
        result = file.read()
    for name in ("z", "a", "m"):
        expected = np.add(tables[0][name].to_numpy(), tables[1][name].to_numpy())
        np.testing.assert_array_equal(result[name].to_numpy(), expected)


def test_parquet_columns_chosen(tmp_path):
    table = pa.table({"x": [1, 2], "name": ["a", "b"], "y": [3.0, 4.0], "z": [5, 6]})
    pq.write_table(table, tmp_path / "a.parquet")
    words = ("--op", "sum", "a.parquet", "a.parquet")
    refused(reduce(*words, "-o", "out.parquet", cwd=tmp_path), 3, "a.parquet", "'name'", "--columns")
    succeeded(reduce(*words, "--columns", "z,y", "-o", "out.parquet", cwd=tmp_path))
    assert pq.read_table(tmp_path / "out.parquet").to_pydict() == {"y": [6.0, 8.0], "z": [10, 12]}
    assert reduce(*words, "--columns", "z,y", "--to", "csv", cwd=tmp_path).out == b"z,y\n10,6.0\n12,8.0\n"
    assert reduce(*words, "--columns", "x", "--to", "raw", cwd=tmp_path).out == np.array([2, 4]).tobytes()
    refused(reduce(*words, "--columns", "x,x", cwd=tmp_path), 2, "--columns", "twice")
    refused(reduce(*words, "--columns", "x,", cwd=tmp_path), 2, "--columns")


def test_parquet_columns_in_different_places(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "y": [3.0, 4.0]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"y": [5.0, 6.0], "x": [7, 8]}), tmp_path / "b.parquet")
    words = ("--op", "sum", "a.parquet", "b.parquet")
    refused(reduce(*words, "--to", "csv", cwd=tmp_path), 3, "b.parquet", "'y'", "'x'")
    assert reduce(*words, "--columns", "x,y", "--to", "csv", cwd=tmp_path).out == b"x,y\n8,8.0\n10,10.0\n"


def test_parquet_pairs_as_structure_and_as_two_columns(tmp_path):
    values, indices = [1.0, 4.0, 2.0], pa.array([7, 8, 6], pa.int32())
    kind = pa.struct([("v", pa.float64()), ("i", pa.int32())])
    rows = [{"v": v, "i": i} for v, i in ((3.0, 1), (0.5, 2), (2.0, 3))]
    pq.write_table(pa.table({"v": values, "other": ["a", "b", "c"], "i": indices}), tmp_path / "two.parquet")
    pq.write_table(pa.table({"best": pa.array(rows, kind)}), tmp_path / "struct.parquet")
    np.save(tmp_path / "npy.npy", np.array([(0.0, 0), (9.0, 9), (0.0, 0)], PACKED))
    expected = [(3.0, 1), (9.0, 9), (2.0, 3)]
    words = ("--op", "maxloc", "--pair", "v,i", "two.parquet", "two.parquet")
    succeeded(reduce(*words, "-o", "two_out.parquet", cwd=tmp_path))
    assert pq.read_table(tmp_path / "two_out.parquet").to_pydict() == {"v": values, "i": indices.to_pylist()}
    words = ("--op", "maxloc", "struct.parquet", "npy.npy", "struct.parquet")
    succeeded(reduce(*words, "-o", "out.parquet", cwd=tmp_path))
    result = pq.read_table(tmp_path / "out.parquet")
    assert result.schema.field("best").type == kind
    assert result["best"].to_pylist() == [{"v": v, "i": i} for v, i in expected]
    assert reduce(*words, "--to", "csv", cwd=tmp_path).out == b"best.value,best.index\n3.0,1\n9.0,9\n2.0,3\n"


@pytest.mark.parametrize("words", ["--pair v", "--pair v,i,j", "--pair v,v", "--pair v,i --columns v"])
def test_pair_that_is_none(words, tmp_path):
    pq.write_table(pa.table({"v": [1.0], "i": pa.array([1], pa.int32())}), tmp_path / "a.parquet")
    with unchanged(tmp_path):
        refused(reduce("--op", "maxloc", *words.split(), "a.parquet", cwd=tmp_path), 2, "--pair")


# Formats out


@pytest.mark.parametrize(
    ("name", "words", "start"),
    [
        ("out.npy", "", b"\x93NUMPY"),
        ("OUT.NPY", "", b"\x93NUMPY"),
        ("out.bin", "", (A + B).tobytes()),
        ("out.raw", "", (A + B).tobytes()),
        ("out.parquet", "", b"PAR1"),
        ("out.pq", "", b"PAR1"),
        ("out.arrow", "", b"ARROW1"),
        ("out.txt", "", b"11.5\n2.25\n2.0\n"),
        ("out.csv", "", b"value\n11.5\n2.25\n2.0\n"),
        ("out.json", "", b'{"buffers": ['),
        ("out", "", b"\x93NUMPY"),
        ("out.dat", "--to npy", b"\x93NUMPY"),
        ("out.npy", "--to raw", (A + B).tobytes()),
        ("out.csv", "--to npy", b"\x93NUMPY"),
        ("out.bin", "--to table", b"element  value\n      0   11.5\n"),
        ("-", "--to parquet", b"PAR1"),
        ("-", "--to text", b"11.5\n"),
        ("-", "", b"\x93NUMPY"),
    ],
)
def test_format_of_the_output(name, words, start, folder):
    outcome = reduce("--op", "sum", "a.npy", "b.npy", "-o", name, *words.split(), cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    assert (outcome.out if name == "-" else (folder / name).read_bytes()).startswith(start)


@pytest.mark.parametrize("suffix", ["npy", "parquet", "arrow", "bin"])
def test_standard_output_in_the_format_of_the_inputs(suffix, folder):
    words = ("--type", "double", f"a.{suffix}", f"b.{suffix}", "c.npy")
    out = reduce("--op", "sum", *words, cwd=folder).out
    if suffix == "npy":
        result = loaded(out)
    elif suffix == "parquet":
        result = pq.read_table(pa.BufferReader(out))["x"].to_numpy()
    elif suffix == "arrow":
        result = pa.ipc.open_file(out).read_all()["x"].to_numpy()
    else:
        result = np.frombuffer(out)
    np.testing.assert_array_equal(result, fold(np.add, A, B, C))


def test_pairs_become_parquet_and_come_back(tmp_path):
    pairs = pairs_of([(1.0, 5), (2.0, 6)])
    pairs.tofile(tmp_path / "a.bin")
    succeeded(reduce("--op", "maxloc", "--type", "double_int", "a.bin", "-o", "a.parquet", cwd=tmp_path))
    table = pq.read_table(tmp_path / "a.parquet")
    assert [field.type for field in table.schema] == [pa.struct([("value", pa.float64()), ("index", pa.int32())])]
    assert reduce("--op", "maxloc", "a.parquet", "--to", "raw", cwd=tmp_path) == (0, pairs.tobytes(), "")


def test_what_parquet_cannot_hold(tmp_path):
    np.save(tmp_path / "z.npy", np.zeros(3, "c16"))
    np.save(tmp_path / "g.npy", np.zeros(3, "g"))
    with unchanged(tmp_path):
        for name, datatype in (("z.npy", "MPI_C_DOUBLE_COMPLEX"), ("g.npy", "MPI_LONG_DOUBLE")):
            refused(reduce("--op", "sum", name, "-o", "out.parquet", cwd=tmp_path), 3, datatype, "column")


_TEXTS = [
    (np.array([1.5, np.nan, np.inf, -np.inf, -0.0]), "sum", "1.5\nnan\ninf\n-inf\n-0.0\n"),
    (np.array([0.1, 1e-7, 1e30], "f4"), "sum", "0.1\n1e-07\n1e+30\n"),
    (np.array([0.1, 500.5], "f2"), "sum", "0.1\n500.5\n"),
    (np.array([1 / 3, 1e300]), "sum", "0.3333333333333333\n1e+300\n"),
    (np.array([2**63 - 1, -(2**63)]), "sum", "9223372036854775807\n-9223372036854775808\n"),
    (np.array([2**64 - 1, 0], "u8"), "sum", "18446744073709551615\n0\n"),
    (np.array([True, False]), "lor", "1\n0\n"),
    (np.array([1 + 2j, -0.5j]), "sum", "1.0 2.0\n-0.0 -0.5\n"),
    (np.array([(1.0, 7), (4.0, 8)], PAIR), "maxloc", "1.0 7\n4.0 8\n"),
    (np.array([[1, 2], [3, 4]], "i2"), "sum", "1\n2\n3\n4\n"),
    (np.zeros(0), "sum", ""),
]


@pytest.mark.parametrize(("array", "op", "text"), _TEXTS)
def test_text(array, op, text, tmp_path):
    np.save(tmp_path / "a.npy", array)
    assert reduce("--op", op, "a.npy", "--to", "text", cwd=tmp_path) == (0, text.encode(), "")


@pytest.mark.parametrize(("array", "op", "text"), _TEXTS)
def test_csv(array, op, text, tmp_path):
    np.save(tmp_path / "a.npy", array)
    head = "value,index" if op == "maxloc" else "real,imag" if array.dtype.kind == "c" else "value"
    outcome = reduce("--op", op, "a.npy", "--to", "csv", cwd=tmp_path)
    assert outcome == (0, f"{head}\n{text.replace(' ', ',')}".encode(), "")


def test_csv_of_columns_with_odd_names(tmp_path):
    pq.write_table(pa.table({"a,b": [1], 'say "x"': [2.0], "line\nend": [3], "größe": [4]}), tmp_path / "a.parquet")
    outcome = reduce("--op", "sum", "a.parquet", "--to", "csv", cwd=tmp_path)
    assert outcome.out.decode() == '"a,b","say ""x""",line\\nend,größe\n1,2.0,3,4\n'


@pytest.mark.parametrize(("array", "op", "text"), _TEXTS)
def test_json(array, op, text, tmp_path):
    np.save(tmp_path / "a.npy", array)
    outcome = reduce("--op", op, "a.npy", "--to", "json", cwd=tmp_path)
    (buffer,) = json.loads(outcome.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))["buffers"]
    assert (buffer["name"], buffer["count"]) == ("", array.size)
    assert buffer["datatype"].startswith("MPI_")
    elements = [element if isinstance(element, list) else [element] for element in buffer["data"]]
    assert "".join(" ".join(map(str, element)) + "\n" for element in elements) == text


def test_json_of_columns(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], 'q"': [0.5, float("nan")]}), tmp_path / "a.parquet")
    outcome = reduce("--op", "sum", "a.parquet", "a.parquet", "--to", "json", cwd=tmp_path)
    assert json.loads(outcome.out) == {
        "buffers": [
            {"name": "x", "datatype": "MPI_INT64_T", "count": 2, "data": [2, 4]},
            {"name": 'q"', "datatype": "MPI_DOUBLE", "count": 2, "data": [1.0, "nan"]},
        ]
    }


def test_table_of_many_elements(tmp_path):
    np.save(tmp_path / "a.npy", np.array([(i / 2, i) for i in range(1000)], PAIR))
    lines = reduce("--op", "maxloc", "a.npy", "--to", "table", cwd=tmp_path).out.decode().splitlines()
    assert lines == [
        "element  value  index",
        *(f"{i:7}  {i / 2:5}  {i:5}" for i in range(10)),
        "    ...  (985 more)",
        *(f"{i:7}  {i / 2:5}  {i:5}" for i in range(995, 1000)),
    ]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17])
def test_table_leaves_out_only_what_it_says(count, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(count))
    lines = reduce("--op", "sum", "a.npy", "--to", "table", cwd=tmp_path).out.decode().splitlines()
    assert lines[0] == "element  value"
    assert len(lines) == 1 + min(count, 16)
    assert ("    ...  (2 more)" in lines) == (count == 17)


# In and out of pipes and terminals


@pytest.mark.parametrize("suffix", ["npy", "parquet", "arrow", "bin"])
@pytest.mark.parametrize("way", ["file", "pipe"])
def test_standard_input(suffix, way, folder):
    content = (folder / f"b.{suffix}").read_bytes()
    words = ("reduce", "-q", "--op", "sum", "--type", "double", f"a.{suffix}", "-", "--to", "raw")
    if way == "file":
        outcome = run(*words, cwd=folder, stdin=content)
    else:
        read, write = os.pipe()
        os.write(write, content)
        os.close(write)
        outcome = run(*words, cwd=folder, stdin=read)
        os.close(read)
    assert outcome == (0, (A + B).tobytes(), "")


def test_standard_input_as_the_only_rank_and_first(folder):
    words = ("--op", "sum", "--to", "text", "--type", "double")
    assert reduce(*words, "-", cwd=folder, stdin=A.tobytes()).out == b"1.5\n2.0\n-3.0\n"
    assert reduce(*words, "-", "b.npy", cwd=folder, stdin=A.tobytes()).out == b"11.5\n2.25\n2.0\n"
    outcome = reduce("--op", "sum", "-", cwd=folder, stdin=A.tobytes())
    refused(outcome, 2, "standard input", "--type")


def test_shell_pipeline(folder):
    script = '"$@" <(cat a.npy) <(cat b.npy) | "$1" reduce -q --op sum - <(cat c.npy) -o out.npy'
    assert shell(script, "reduce", "-q", "--op", "sum", cwd=folder) == (0, b"", "")
    np.testing.assert_array_equal(np.load(folder / "out.npy"), fold(np.add, A, B, C))


def on_terminal(*words: str, cwd: Path) -> tuple[Outcome, str]:
    """Run with a terminal as standard output; return the outcome and what is seen."""
    master, slave = pty.openpty()
    outcome = Child(*words, cwd=cwd, stdout=slave).finish()
    os.close(slave)
    seen = b""
    with open(master, "rb", buffering=0) as terminal:
        try:
            while part := terminal.read(65536):
                seen += part
        except OSError:  # the other end is closed
            pass
    return outcome, seen.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("suffix", ["npy", "parquet", "arrow", "bin"])
@pytest.mark.parametrize("to", [(), ("--to", "raw"), ("--to", "parquet"), ("-o", "-")])
def test_terminal_shows_a_table(suffix, to, folder):
    words = ("reduce", "-q", "--op", "sum", "--type", "double", f"a.{suffix}", f"b.{suffix}", *to)
    outcome, seen = on_terminal(*words, cwd=folder)
    assert outcome == (0, b"", "")
    name = "x" if suffix in ("parquet", "arrow") else "value"
    assert [line.split() for line in seen.splitlines()] == [
        ["element", name],
        ["0", "11.5"],
        ["1", "2.25"],
        ["2", "2.0"],
    ]


def test_terminal_shows_pairs_and_a_summary(tmp_path):
    np.save(tmp_path / "a.npy", np.array([(i, 9 - i) for i in range(30)], PAIR))
    outcome, seen = on_terminal("reduce", "--op", "maxloc", "a.npy", "a.npy", cwd=tmp_path)
    assert (outcome.status, outcome.out) == (0, b"")
    assert "2 ranks, 30 x MPI_DOUBLE_INT" in outcome.err
    assert seen.splitlines()[0].split() == ["element", "value", "index"]
    assert seen.splitlines()[11].split() == ["...", "(15", "more)"]
    assert seen.splitlines()[-1].split() == ["29", "29.0", "-20"]


@pytest.mark.parametrize(("to", "expected"), [("csv", "value\n11.5\n2.25\n2.0\n"), ("text", "11.5\n2.25\n2.0\n")])
def test_terminal_shows_text_that_was_asked_for(to, expected, folder):
    outcome, seen = on_terminal("reduce", "-q", "--op", "sum", "a.npy", "b.npy", "--to", to, cwd=folder)
    assert (outcome, seen) == ((0, b"", ""), expected)


def test_file_named_at_a_terminal_is_binary(folder):
    outcome, seen = on_terminal("reduce", "-q", "--op", "sum", "a.npy", "b.npy", "-o", "out.npy", cwd=folder)
    assert (outcome, seen) == ((0, b"", ""), "")
    np.testing.assert_array_equal(np.load(folder / "out.npy"), A + B)


# Over what is there


@pytest.mark.parametrize("flag", ["-f", "--force", "-O", "--overwrite"])
def test_force(flag, folder):
    with unchanged(folder):
        refused(reduce("--op", "sum", "a.npy", "b.npy", "-o", "c.npy", cwd=folder), 2, "c.npy", "--force")
    succeeded(reduce("--op", "sum", "a.npy", "b.npy", "-o", "c.npy", flag, cwd=folder))
    np.testing.assert_array_equal(np.load(folder / "c.npy"), A + B)


@pytest.mark.parametrize("root", ["0", "1", "2"])
@pytest.mark.parametrize("suffix", ["npy", "bin", "parquet", "arrow"])
def test_in_place_over_the_root(root, suffix, folder):
    names = [f"{name}.{suffix}" for name in "abc"]
    before = {name: (folder / name).read_bytes() for name in names}
    words = ("--op", "sum", "--type", "double", *names, "--in-place", "--root", root)
    assert reduce(*words, cwd=folder) == (0, b"", "")
    target = names[int(root)]
    assert {name for name in names if (folder / name).read_bytes() != before[name]} == {target}
    outcome = reduce("--op", "sum", "--type", "double", target, "--to", "raw", cwd=folder)
    assert outcome == (0, fold(np.add, A, B, C).tobytes(), "")


def test_in_place_keeps_what_is_around_a_raw_buffer(tmp_path):
    for name, array in (("a", A), ("b", B)):
        (tmp_path / name).write_bytes(b"head of " + name.encode() * 8 + array.astype(">f8").tobytes() + b"tail" * 9)
    words = ("--op", "sum", "--type", ">f8", "--offset", "16", "--count", "3", "a", "b", "--in-place", "--root", "1")
    succeeded(reduce(*words, cwd=tmp_path))
    expected = b"head of " + b"b" * 8 + (A + B).astype(">f8").tobytes() + b"tail" * 9
    assert (tmp_path / "b").read_bytes() == expected


def test_in_place_keeps_the_header_of_npy(tmp_path):
    text = b"{'shape': (3,), 'fortran_order': False, 'descr': '>f8'}".ljust(300) + b"\n"
    head = b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text
    (tmp_path / "a.npy").write_bytes(head + A.astype(">f8").tobytes())
    np.save(tmp_path / "b.npy", B)
    succeeded(reduce("--op", "sum", "a.npy", "b.npy", "--in-place", cwd=tmp_path))
    assert (tmp_path / "a.npy").read_bytes() == head + (A + B).astype(">f8").tobytes()


def test_in_place_keeps_schema_and_compression_of_parquet(tmp_path):
    schema = pa.schema([pa.field("x", pa.float64(), metadata={"unit": "m"})], metadata={"run": "7"})
    pq.write_table(pa.table([A], schema), tmp_path / "a.parquet", compression="gzip", row_group_size=2)
    pq.write_table(pa.table({"x": B}), tmp_path / "b.parquet")
    (tmp_path / "a.parquet").chmod(0o640)
    succeeded(reduce("--op", "sum", "a.parquet", "b.parquet", "--in-place", cwd=tmp_path))
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        assert file.schema_arrow.equals(schema, check_metadata=True)
        assert [file.metadata.row_group(i).column(0).compression for i in range(2)] == ["GZIP", "GZIP"]
        np.testing.assert_array_equal(file.read()["x"].to_numpy(), A + B)
    assert (tmp_path / "a.parquet").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("words", "status", "reasons"),
    [
        (("a.npy", "b.npy", "-o", "out"), 2, ("--in-place", "--output")),
        (("a.npy", "b.npy", "--root", "2"), 2, ("root 2",)),
        (("a.npy", "b.npy", "--to", "csv"), 2, ("--in-place", "--to")),
        (("-", "b.npy", "--type", "double"), 2, ("--in-place", "standard input")),
        (("a.npy", "b.npy", "--type", "int"), 3, ("a.npy", "MPI_INT")),
        (("two.parquet", "two.parquet", "--columns", "x"), 2, ("--in-place", "columns")),
        (("missing.npy", "b.npy"), 4, ("missing.npy",)),
    ],
)
def test_in_place_refused(words, status, reasons, folder):
    pq.write_table(pa.table({"x": [1], "y": [2]}), folder / "two.parquet")
    with unchanged(folder):
        outcome = reduce("--op", "sum", *words, "--in-place", cwd=folder, stdin=A.tobytes())
        refused(outcome, status, *reasons)


def test_in_place_over_a_device(folder):
    words = ("--op", "sum", "--type", "double", "--count", "3", "/dev/zero", "a.bin", "--in-place")
    with unchanged(folder):
        refused(reduce(*words, cwd=folder), 2, "/dev/zero")


def test_root_is_the_model_of_the_result(folder):
    for root, start in (("0", b"\x93NUMPY"), ("1", B.tobytes()[:0]), ("2", b"PAR1")):
        words = ("--op", "sum", "--type", "double", "a.npy", "b.bin", "c.parquet", "--root", root)
        outcome = reduce(*words, cwd=folder)
        assert outcome.out.startswith(start or fold(np.add, A, B, C).tobytes())


# What is said


def test_summary(folder):
    outcome = run("reduce", "--op", "sum", "-j", "1", "a.npy", "b.npy", "c.npy", "-o", "out.npy", cwd=folder)
    line = "mpired: MPI_SUM of 3 ranks, 3 x MPI_DOUBLE, NaN propagates, 1 worker -> out.npy (npy)\n"
    assert outcome == (0, b"", line)
    outcome = run("reduce", "--op", "band", "--type", "int", "-j", "1", "a.bin", "--to", "text", cwd=folder)
    assert outcome.err == "mpired: MPI_BAND of 1 rank, 6 x MPI_INT, 1 worker -> standard output (text)\n"


def test_summary_of_columns(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "y": [3.0, 4.0], "z": [5, 6]}), tmp_path / "a.parquet")
    outcome = run("reduce", "--op", "sum", "a.parquet", "-o", "out.parquet", cwd=tmp_path)
    assert outcome.err.startswith("mpired: MPI_SUM of 1 rank, 2 x MPI_INT64_T and 2 more columns, NaN propagates, ")


def test_quiet_and_verbose(folder):
    words = ("reduce", "--op", "sum", "a.npy", "b.npy", "-o", "out.npy", "-f")
    assert run(*words, "-q", cwd=folder).err == ""
    assert run(*words, "--quiet", cwd=folder).err == ""
    for flag in ("-v", "--verbose"):
        lines = run(*words, flag, cwd=folder).err.splitlines()
        assert len(lines) == 2
        assert all(line.startswith("mpired: ") for line in lines)
        assert "segment" in lines[1]


def test_summary_as_json(folder):
    outcome = run("reduce", "--op", "mpi_sum", "a.npy", "b.npy", "-o", "out.npy", "--json", "-j", "1", cwd=folder)
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (0, b"", 1)
    summary = json.loads(outcome.err)
    expected = {
        "op": "MPI_SUM",
        "buffers": [{"name": "", "datatype": "MPI_DOUBLE", "count": 3}],
        "nranks": 2,
        "nbytes": 48,
        "nan": "propagates",
        "workers": 1,
        "root": 0,
        "output": "out.npy",
        "format": "npy",
    }
    assert {name: summary[name] for name in expected} == expected


def test_data_and_messages_do_not_mix(folder):
    outcome = run("reduce", "--op", "sum", "a.bin", "b.bin", "--type", "double", "-v", "--json", cwd=folder)
    assert (outcome.status, outcome.out) == (0, (A + B).tobytes())


def test_environment_sets_options_and_is_told(folder):
    words = ("reduce", "--op", "sum", "a.bin", "b.bin")
    env = {"MPIRED_TYPE": "double", "MPIRED_TO": "text", "MPIRED_JOBS": "1"}
    outcome = run(*words, cwd=folder, env=env)
    assert outcome.out == b"11.5\n2.25\n2.0\n"
    given = outcome.err.rstrip().partition("; from the environment: ")[2].split(", ")
    assert sorted(given) == ["--jobs (MPIRED_JOBS)", "--to (MPIRED_TO)", "--type (MPIRED_TYPE)"]
    outcome = run(*words, "--to", "csv", "-j", "1", cwd=folder, env=env)
    assert outcome.out == b"value\n11.5\n2.25\n2.0\n"
    assert outcome.err.rstrip().endswith("; from the environment: --type (MPIRED_TYPE)")
    assert "environment" not in run(*words, "--type", "double", cwd=folder).err


@pytest.mark.parametrize(
    ("name", "value"), [("MPIRED_OP", "max"), ("OP", "max"), ("TYPE", "float"), ("REDUCE_OP", "max"), ("JOBS", "x")]
)
def test_environment_that_is_not_asked(name, value, folder):
    outcome = run("reduce", "--op", "sum", "--type", "double", "a.bin", "b.bin", cwd=folder, env={name: value})
    assert (outcome.status, outcome.out) == (0, (A + B).tobytes())
    refused(run("reduce", "a.npy", cwd=folder, env={name: value}), 2, "--op")


def test_environment_that_makes_no_sense(folder):
    outcome = run("reduce", "--op", "sum", "a.npy", cwd=folder, env={"MPIRED_JOBS": "many"})
    refused(outcome, 2, "jobs", "many")


@pytest.mark.parametrize("variable", ["MPIRED_FORCE", "MPIRED_OVERWRITE"])
@pytest.mark.parametrize("report", ["-q", "--json", "-v"])
def test_environment_is_never_silent(variable, report, folder):
    words = ("reduce", report, "--op", "sum", "a.npy", "b.npy", "-o", "c.npy")
    outcome = run(*words, cwd=folder, env={variable: "1"})
    assert outcome.status == 0
    assert f"from the environment: --overwrite ({variable})" in outcome.err
    np.testing.assert_array_equal(np.load(folder / "c.npy"), A + B)


def test_quiet_from_the_environment_says_so(folder):
    outcome = run("reduce", "--op", "sum", "a.npy", "-o", "new.npy", cwd=folder, env={"MPIRED_QUIET": "1"})
    assert outcome == (0, b"", "mpired: from the environment: --quiet (MPIRED_QUIET)\n")


def test_info_of_a_file_with_other_columns(folder):
    """A column that is no number is shown; to reduce the others they must be chosen."""
    pq.write_table(pa.table({"s": ["u", "v"], "d": [1.0, 2.0], "": [1, 2]}), folder / "mixed.parquet")
    outcome = run("info", "mixed.parquet", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.decode().splitlines()[1:] == [
        "  d: 2 x MPI_DOUBLE",
        "  '': 2 x MPI_INT64_T",
        "  s: string, no buffer",
    ]
    described = json.loads(run("info", "--json", "mixed.parquet", cwd=folder).out)
    assert described[0]["other_columns"] == [{"name": "s", "type": "string", "count": None, "shape": None}]
    refused(reduce("--op", "sum", "mixed.parquet", cwd=folder), 3, "'s' is string", "--columns d,")
    succeeded(reduce("--op", "sum", "mixed.parquet", "--columns", "d", "-o", "d.npy", cwd=folder))


def test_a_repetition_does_not_combine_its_own_result(folder):
    def command():
        ranks = sorted(path.name for path in folder.glob("*.npy"))
        return reduce("--op", "sum", "-f", "-o", "total.npy", *ranks, cwd=folder)

    succeeded(command())
    with unchanged(folder):
        refused(command(), 2, "total.npy: is the file of rank 3, an input of this command", "--root R and --in-place")
    assert np.load(folder / "total.npy").tolist() == (A + B + C).tolist()


@pytest.mark.parametrize("name", ["a.npy", "./a.npy", "symlink.npy", "link.npy"])
def test_an_output_that_is_an_input_by_any_name_is_refused(name, folder):
    (folder / "symlink.npy").symlink_to("a.npy")
    os.link(folder / "a.npy", folder / "link.npy")
    words = ("reduce", "-q", "-f", "--op", "sum", "-o", name)
    with unchanged(folder):
        refused(run(*words, "b.npy", "a.npy", cwd=folder), 2, f"{name}: is the file of rank 1,")
        refused(run(*words, "b.npy", "--group-b", "a.npy", cwd=folder), 2, f"{name}: is the file of rank 0 of group B,")
        refused(shell('"$@" - < a.npy', *words, "b.npy", cwd=folder), 2, f"{name}: is the file of rank 1,")
        words = ("get-accumulate", "-q", "-f", "--op", "sum", "--fetch", name, "b.npy", "a.npy")
        refused(run(*words, cwd=folder), 2, f"{name}: is the file of the origin,")
    succeeded(run("reduce", "-q", "--op", "sum", "b.npy", "a.npy", "--root", "1", "--in-place", cwd=folder))
    assert np.load(folder / "a.npy").tolist() == (A + B).tolist()


def test_records_are_not_packed_onto_themselves(folder):
    (folder / "link.bin").symlink_to("a.bin")
    words = ("-q", "-f", "--type", "double", "a.bin", "-o")
    with unchanged(folder):
        refused(run("pack", *words, "link.bin", cwd=folder), 2, "link.bin: is the file of the records")
        refused(run("unpack", *words, "link.bin", cwd=folder), 2, "link.bin: is the file of the packed elements")
        refused(run("unpack", *words, "x.npy", cwd=folder), 2, "x.npy: would be npy", "raw binary")
        refused(run("unpack", *words, "x.nc", cwd=folder), 2, "x.nc: would be netCDF", "raw binary")


@pytest.mark.parametrize("name", ["x.nc", "x.H5", "x.npz", "x.npy.gz", "x.root", "x.fits", "x.pkl", "x.tsv", "x.zarr"])
@pytest.mark.parametrize("suffix", ["npy", "parquet", "bin"])
def test_a_result_never_has_the_suffix_of_another_format(suffix, name, folder):
    words = ("--op", "sum", "--type", "double", f"a.{suffix}", f"b.{suffix}")
    with unchanged(folder):
        refused(reduce(*words, "-o", name, cwd=folder), 2, f"{name}: would be", "--to")
        refused(run("scan", "-q", *words, "-o", f"{{rank}}{name}", cwd=folder), 2, f"0{name}: would be", "--to")
    succeeded(reduce(*words, "-o", name, "--to", "raw", cwd=folder))
    assert (folder / name).read_bytes() == (A + B).tobytes()


@pytest.mark.parametrize("name", ["x.dat", "x.npy2", "x.out", "x.sav", "x.0x"])
def test_a_suffix_that_no_format_has_needs_a_format(name, folder):
    for suffix in ("npy", "parquet", "arrow"):
        with unchanged(folder):
            outcome = reduce("--op", "sum", f"a.{suffix}", "-o", name, cwd=folder)
            refused(outcome, 2, f"{name}: no format has the suffix", f"--to {suffix}")
    raw = ("--op", "sum", "--type", "double", "a.bin", "b.bin", "-o", name)
    succeeded(reduce(*raw, cwd=folder))
    assert (folder / name).read_bytes() == (A + B).tobytes()


@pytest.mark.parametrize("name", ["x", "out.0", "out.0017", ".hidden", "a.b/x"])
def test_a_name_without_a_suffix_gets_the_format_of_the_inputs(name, folder):
    (folder / "a.b").mkdir()
    succeeded(reduce("--op", "sum", "a.npy", "b.npy", "-o", name, cwd=folder))
    assert np.load(folder / name).tolist() == (A + B).tolist()


def test_fetched_and_made_files_have_suffixes_of_formats_too(folder):
    with unchanged(folder):
        words = ("get-accumulate", "--op", "sum", "--fetch", "old.nc", "a.npy", "b.npy")
        refused(run(*words, cwd=folder), 2, "old.nc: would be netCDF", "--to")
        words = ("accumulate", "--op", "sum", "--create", "3", "t.h5", "a.npy")
        refused(run(*words, cwd=folder), 2, "--create: ", "t.h5 would be HDF5", "another name")
        refused(run("pack", "--type", "double", "a.bin", "-o", "x.mat", cwd=folder), 2, "x.mat: would be", "--to")


def test_current_directory_is_gone(folder):
    script = f'mkdir gone; cd gone; rmdir ../gone; "$@" {folder}/a.npy -o new.npy'
    refused(shell(script, "reduce", "-q", "--op", "sum", cwd=folder), 4, "mpired: new.npy: No such file")
    script = f'mkdir gone; cd gone; rmdir ../gone; "$@" {folder}/a.npy --to raw'
    assert shell(script, "reduce", "-q", "--op", "sum", cwd=folder) == (0, A.tobytes(), "")


@pytest.mark.parametrize("way", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "the terminal's name"])
def test_no_way_to_a_terminal_is_binary(way, folder):
    master, slave = pty.openpty()
    target = os.ttyname(slave) if way.startswith("the") else way
    child = Child("reduce", "-q", "--op", "sum", "a.npy", "b.npy", "-o", target, cwd=folder, stdout=slave)
    outcome = child.finish()
    shown = os.read(master, 10_000).decode()
    os.close(master)
    os.close(slave)
    assert (outcome.status, outcome.err) == (0, "")
    assert shown.split() == ["element", "value", "0", "11.5", "1", "2.25", "2", "2.0"]


def test_file_size_limit_of_standard_output_names_it(folder):
    with open(folder / "large.bin", "wb") as file:
        file.truncate(1 << 20)
    script = 'ulimit -f 100; "$@" > out'
    outcome = shell(script, "reduce", "-q", "--op", "sum", "--type", "double", "large.bin", cwd=folder)
    refused(outcome, 4, "mpired: standard output, kept in ", "File too large")


# Effort


@pytest.mark.parametrize("size", ["200M", "200MiB", "200mb", "1G", "0.5T", "209715200", "1 G"])
def test_memory_sizes(size, folder):
    outcome = reduce("--op", "sum", "a.npy", "b.npy", "--to", "raw", "--max-memory", size, cwd=folder)
    if size == "0.5T":
        refused(outcome, 2, "--max-memory", "0.5T")
    else:
        assert outcome == (0, (A + B).tobytes(), "")


@pytest.mark.parametrize("words", ["-j 1", "-j 2", "--jobs 7", "-j 0", "-j 1 --max-memory 100M", ""])
def test_jobs_do_not_show(words, tmp_path):
    """Large enough that the pool is used where it may be."""
    random = np.random.default_rng(17)
    ranks = [random.random(1_500_001) for _ in range(5)]
    for rank, array in enumerate(ranks):
        np.save(tmp_path / f"r{rank}.npy", array)
    names = [f"r{rank}.npy" for rank in range(5)]
    succeeded(reduce("--op", "sum", *names, *words.split(), "-o", "out.npy", cwd=tmp_path))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), fold(np.add, *ranks))


def test_jobs_are_told(tmp_path):
    with open(tmp_path / "a.bin", "wb") as file:
        file.truncate(32 << 20)
    words = ("reduce", "--op", "sum", "--type", "int", "a.bin", "a.bin", "-o", "out.bin", "-f", "--json")
    for jobs, workers in (("1", 1), ("2", 2), ("3", 3)):
        assert json.loads(run(*words, "-j", jobs, cwd=tmp_path).err)["workers"] == workers

    def one_core() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    assert json.loads(run(*words, cwd=tmp_path, setup=one_core).err)["workers"] == 1


# The other commands


def test_info(folder):
    outcome = run("info", "a.npy", "b.parquet", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.decode().splitlines() == [
        "a.npy: npy, 152 bytes",
        "  3 x MPI_DOUBLE, shape (3,), C order, little-endian",
        f"b.parquet: parquet, {(folder / 'b.parquet').stat().st_size} bytes",
        "  x: 3 x MPI_DOUBLE",
    ]


def test_info_of_raw(folder):
    outcome = run("info", "a.bin", cwd=folder)
    assert outcome == (0, b"a.bin: raw, 24 bytes\n  says nothing of its elements; --type says what they are\n", "")
    outcome = run("info", "--type", ">i4", "--offset", "4", "--count", "2", "a.bin", cwd=folder)
    assert outcome.out.decode() == "a.bin: raw, 24 bytes\n  2 x MPI_INT32_T, big-endian\n"


def test_info_as_json(folder):
    np.save(folder / "f.npy", np.zeros((2, 3), ">i2", order="F"))
    outcome = run("info", "--json", "f.npy", "a.parquet", cwd=folder)
    described = json.loads(outcome.out)
    assert described[0]["file"] == "f.npy"
    assert described[0]["format"] == "npy"
    assert described[0]["buffers"] == [
        {
            "name": "",
            "datatype": "MPI_INT16_T",
            "count": 6,
            "shape": [2, 3],
            "order": "Fortran",
            "datarep": None,
            "byte_order": "big",
            "nulls": 0,
        }
    ]
    assert (described[0]["obstacle"], described[0]["once_keys"]) == (None, {"count": 0, "oldest": []})
    assert [(b["name"], b["datatype"], b["count"]) for b in described[1]["buffers"]] == [("x", "MPI_DOUBLE", 3)]


def test_info_tells_of_the_good_and_of_the_bad(folder):
    (folder / "bad.npy").touch()
    outcome = run("info", "a.npy", "bad.npy", "missing.npy", "b.npy", cwd=folder)
    assert outcome.status == 3
    assert [line for line in outcome.out.decode().splitlines() if not line.startswith(" ")] == [
        "a.npy: npy, 152 bytes",
        "b.npy: npy, 152 bytes",
    ]
    assert outcome.err.count("\n") == 1
    assert "2 of 4 files" in outcome.err
    assert json.loads(run("info", "--json", "a.npy", "bad.npy", cwd=folder).out)[0]["file"] == "a.npy"


def test_info_needs_a_file(folder):
    refused(run("info", cwd=folder), 2, "FILE")


_PREDEFINED = [
    "MAX",
    "MIN",
    "SUM",
    "PROD",
    "LAND",
    "BAND",
    "LOR",
    "BOR",
    "LXOR",
    "BXOR",
    "MAXLOC",
    "MINLOC",
    "REPLACE",
    "NO_OP",
]


def test_ops(folder):
    outcome = run("ops", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    assert [line.split()[0].upper() for line in outcome.out.decode().splitlines()[1:15]] == _PREDEFINED
    rows = json.loads(run("ops", "--json", cwd=folder).out)
    assert [row["name"] for row in rows] == [f"MPI_{name}" for name in _PREDEFINED]
    datatypes = {row["name"]: set(row["datatypes"]) for row in rows}
    assert {"MPI_DOUBLE", "MPI_INT", "MPI_COMPLEX"} <= datatypes["MPI_SUM"]
    assert "MPI_COMPLEX" not in datatypes["MPI_MAX"]
    assert datatypes["MPI_MAXLOC"] == datatypes["MPI_MINLOC"] >= {"MPI_DOUBLE_INT", "MPI_2REAL"}
    assert [row["commute"] for row in rows] == [True] * 12 + [False] * 2


def test_types(folder):
    outcome = run("types", cwd=folder)
    assert (outcome.status, outcome.err) == (0, "")
    lines = {line.split()[0]: line for line in outcome.out.decode().splitlines()}
    assert "12     16" in lines["MPI_DOUBLE_INT"]
    assert "not available" in lines["MPI_REAL16"]
    rows = {row["name"]: row for row in json.loads(run("types", "--json", cwd=folder).out)}
    assert (rows["MPI_SHORT_INT"]["size"], rows["MPI_SHORT_INT"]["extent"]) == (6, 8)
    assert rows["MPI_REAL16"]["numpy"] is None
    assert rows["MPI_DOUBLE"]["numpy"] == "<f8"
    assert "MPI_LONG_LONG" in rows["MPI_LONG_LONG_INT"]["synonyms"]


@pytest.mark.parametrize(
    "words", [(), ("reduce",), ("ops",), ("types",), ("info",), ("pack",), ("unpack",)], ids=" ".join
)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(words, flag, tmp_path):
    outcome = run(*words, flag, cwd=tmp_path)
    assert (outcome.status, outcome.err) == (0, "")
    text = outcome.out.decode()
    assert text.startswith(f"Usage: {' '.join(('mpired', *words))} [OPTIONS]")
    assert "\b" not in text
    assert "\\b" not in text
    if words:
        assert f"\n    mpired {words[0]}" in text.replace("      ", "    ")


def test_help_has_every_option(tmp_path):
    text = run("reduce", "--help", cwd=tmp_path).out.decode()
    for option in (
        *("--op", "--type", "--from", "--to", "-o, --output", "-f, -O, --force, --overwrite", "-j, --jobs"),
        *("-q, --quiet", "-v, --verbose", "--columns", "--pair", "--offset", "--count", "--byte-order", "--root"),
        *("--in-place", "--max-memory", "--json", "--types", "--datarep"),
    ):
        assert f"  {option} " in text


def test_every_command_has_a_line_of_help(tmp_path):
    text = run("--help", cwd=tmp_path).out.decode()
    context = click.Context(cli)
    for name in cli.list_commands(context):
        assert f"\n  {name} " in text
        assert run(name, "--help", cwd=tmp_path).status == 0


def test_version(tmp_path):
    import mpired

    assert run("--version", cwd=tmp_path) == (0, f"mpired {mpired.__version__}\n".encode(), "")


def test_no_command_is_answered_with_help(tmp_path):
    outcome = run(cwd=tmp_path)
    assert (outcome.status, outcome.out) == (2, b"")
    assert outcome.err.startswith("Usage: mpired")
    refused(run("reduse", cwd=tmp_path), 2, "reduse")


@pytest.mark.parametrize(
    "words", ["--op sum a.npy b.npy --to raw", "a.npy --op sum b.npy --to raw", "-qj1 --op=sum --to=raw -- a.npy b.npy"]
)
def test_options_in_any_place(words, folder):
    assert reduce(*words.split(), cwd=folder) == (0, (A + B).tobytes(), "")


# Other ways to start it

_HOSTILE = "raise SystemExit('the folder of the data was searched for modules')\n"
_NAMES = (
    "numpy",
    "json",
    "click",
    "mpired",
    "pyarrow",
    "signal",
    "typing",
    "concurrent",
    "multiprocessing",
    "encodings",
)


@pytest.mark.parametrize("start", [[COMMAND], [sys.executable, "-m", "mpired"], [sys.executable, "-P", "-m", "mpired"]])
def test_folder_of_the_data_is_not_searched_for_modules(start, folder):
    # Without -P a mpired.py there is what -m asks for.
    for name in set(_NAMES) - ({"mpired"} if start[1:] == ["-m", "mpired"] else set()):
        (folder / f"{name}.py").write_text(_HOSTILE)
    for to in ("raw", "json", "parquet"):
        words = [*start, "reduce", "-q", "--op", "sum", "a.parquet", "b.parquet", "--to", to]
        done = subprocess.run(words, cwd=folder, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    assert subprocess.run([*start, "--version"], cwd=folder, capture_output=True, check=True).stdout[:7] == b"mpired "


def test_workers_do_not_search_the_folder_of_the_data(folder):
    for name in _NAMES:
        (folder / f"{name}.py").write_text(_HOSTILE)
    with open(folder / "large.bin", "wb") as file:
        file.truncate(32 << 20)
    words = ("reduce", "-q", "--op", "sum", "--type", "double", "large.bin", "large.bin", "-j", "2", "-o", "out.bin")
    assert installed(*words, cwd=folder) == (0, b"", "")


def test_module_is_the_command(folder):
    words = ("reduce", "--op", "sum", "a.npy", "bad.npy")
    as_module = subprocess.run([sys.executable, "-m", "mpired", *words], cwd=folder, capture_output=True, check=False)
    refused(Outcome(as_module.returncode, as_module.stdout, as_module.stderr.decode()), 4, "bad.npy")
    assert installed(*words, cwd=folder) == (as_module.returncode, as_module.stdout, as_module.stderr.decode())
