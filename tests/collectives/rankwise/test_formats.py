"""Results for the ranks in each format, and what lies around their elements."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import refused, run, succeeded, unchanged
from rankwise import COUNT, NPY, NRANKS, RAW, SAID, SUM, numbers, prefix, results, same


def test_raw_results_have_no_header_and_the_byte_order_of_their_rank(folder):
    succeeded(run("scan", *SUM, *SAID, *RAW, "-o", "out_{rank}.bin", cwd=folder))
    for rank in range(NRANKS):
        assert (folder / f"out_{rank}.bin").read_bytes() == struct.pack(f">{COUNT}q", *prefix(rank))


def test_in_place_keeps_what_lies_around(folder):
    succeeded(run("scan", *SUM, *SAID, *RAW, "--in-place", cwd=folder))
    for rank in range(NRANKS):
        expected = b"head" + struct.pack(f">{COUNT}q", *prefix(rank)) + b"tail %d" % rank
        assert (folder / RAW[rank]).read_bytes() == expected


def test_in_place_blocks_lie_between_header_and_trailer(folder):
    succeeded(run("reduce-scatter-block", *SUM, *SAID, *RAW, "--in-place", cwd=folder))
    whole = prefix(NRANKS - 1)
    for rank in range(NRANKS):
        expected = b"head" + struct.pack(">3q", *whole[3 * rank : 3 * rank + 3]) + b"tail %d" % rank
        assert (folder / RAW[rank]).read_bytes() == expected


def test_in_place_exscan_leaves_the_first_rank_alone(folder):
    before = (folder / NPY[0]).stat()
    succeeded(run("exscan", *SUM, *NPY, "--in-place", cwd=folder))
    after = (folder / NPY[0]).stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    assert same(results(folder, "r{}.npy", range(1, NRANKS)), [prefix(rank) for rank in range(NRANKS - 1)])


def test_in_place_each_rank_keeps_its_format_and_byte_order(folder):
    np.save(folder / "r1.npy", numbers(1).astype(">i8"))
    pq.write_table(pa.table({"x": numbers(2)}), folder / "r2.parquet", compression="zstd")
    ranks = ("r0.npy", "r1.npy", "r2.parquet")
    succeeded(run("allreduce", *SUM, *ranks, "--in-place", cwd=folder))
    assert np.load(folder / "r0.npy").tolist() == prefix(2).tolist()
    second = np.load(folder / "r1.npy")
    assert (second.dtype, second.tolist()) == (np.dtype(">i8"), prefix(2).tolist())
    file = pq.ParquetFile(folder / "r2.parquet")
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.read().to_pydict() == {"x": prefix(2).tolist()}


def test_each_result_has_the_format_of_its_rank(folder):
    """Where neither an option nor the name says another."""
    succeeded(run("scan", *SUM, "r0.npy", "r1.npy", "-o", "out_{rank}", cwd=folder))
    assert same([np.load(folder / "out_1")], [prefix(1)])
    succeeded(run("scan", *SUM, "r0.npy", "r1.npy", "-o", "text_{rank}", "--to", "text", cwd=folder))
    assert (folder / "text_1").read_text() == "".join(f"{number}\n" for number in prefix(1))


def test_columns_pairs_and_schema(tmp_path):
    for rank in range(3):
        table = pa.table({"v": [1.5 * rank, 9.0 - rank], "i": pa.array([rank, rank], pa.int32()), "s": ["x", "y"]})
        pq.write_table(table, tmp_path / f"r{rank}.parquet")
    ranks = tuple(f"r{rank}.parquet" for rank in range(3))
    with unchanged(tmp_path):
        refused(run("scan", *SUM, *ranks, "-o", "out_{rank}.parquet", cwd=tmp_path), 3, "--columns v,i")
    succeeded(run("scan", *SUM, "--columns", "i", *ranks, "-o", "out_{rank}.parquet", cwd=tmp_path))
    assert pq.read_table(tmp_path / "out_2.parquet").to_pydict() == {"i": [3, 3]}
    words = ("scan", "-q", "--op", "maxloc", "--pair", "v,i", *ranks, "-o", "best_{rank}.parquet")
    succeeded(run(*words, cwd=tmp_path))
    assert pq.read_table(tmp_path / "best_2.parquet").to_pydict() == {"v": [3.0, 9.0], "i": [2, 0]}
    with unchanged(tmp_path):
        outcome = run("scan", *SUM, "--columns", "i", *ranks, "--in-place", cwd=tmp_path)
        refused(outcome, 2, "would lose everything")


def test_standard_input_is_a_rank(folder):
    words = ("scan", *SUM, "r0.npy", "-", "-o", "out_{rank}.npy")
    succeeded(run(*words, cwd=folder, stdin=(folder / "r1.npy").read_bytes()))
    assert same(results(folder, ranks=range(2)), [prefix(0), prefix(1)])
    with unchanged(folder):
        content = (folder / "r1.npy").read_bytes()
        words = ("scan", *SUM, "r0.npy", "-", "-o", "{stem}_.npy")
        refused(run(*words, cwd=folder, stdin=content), 2, "standard input", "no name")
        refused(run("scan", *SUM, "r0.npy", "-", "--in-place", cwd=folder, stdin=content), 2, "standard input")


def test_external32(folder):
    """Big-endian, without padding, LONG in four bytes (MPI-4.1, 14.5.2)."""
    for rank in range(NRANKS):
        (folder / f"e{rank}.bin").write_bytes(struct.pack(f">{COUNT}i", *numbers(rank)))
    ranks = tuple(f"e{rank}.bin" for rank in range(NRANKS))
    said = ("--type", "long", "--datarep", "external32")
    succeeded(run("scan", *SUM, *said, *ranks, "-o", "out_{rank}.bin", cwd=folder))
    for rank in range(NRANKS):
        assert (folder / f"out_{rank}.bin").read_bytes() == struct.pack(f">{COUNT}i", *prefix(rank))
    words = ("exscan", "-q", "--op", "max", "--exscan-first", "identity", *said, *ranks, "-o", "x_{rank}.bin")
    with unchanged(folder):  # the lowest number of 64 bits has no form in 32
        refused(run(*words, cwd=folder), 3, "x_0.bin", "element 0")
    succeeded(run("reduce-scatter-block", *SUM, *said, *ranks, "--in-place", cwd=folder))
    parts = [(folder / rank).read_bytes() for rank in ranks]
    assert b"".join(parts) == struct.pack(f">{COUNT}i", *prefix(NRANKS - 1))
    assert set(map(len, parts)) == {12}


def test_raw_results_of_other_formats_have_the_byte_order_that_is_said(folder):
    succeeded(run("scan", *SUM, "--byte-order", "big", *NPY, "-o", "out_{rank}.bin", cwd=folder))
    assert (folder / "out_3.bin").read_bytes() == struct.pack(f">{COUNT}q", *prefix(3))
    with unchanged(folder):
        refused(run("scan", *SUM, "--byte-order", "big", *NPY, "-o", "x_{rank}.npy", cwd=folder), 2, "--byte-order")


def test_derived_datatypes_with_a_user_op(tmp_path):
    (tmp_path / "op.py").write_text(
        "def swap(a, b, count, datatype):\n    b['f0'] += a['f0']\n    b['f1'] *= a['f1']\n"
    )
    form = np.dtype([("f0", "i4"), ("f1", "f8")], align=True)
    for rank in range(3):
        np.save(tmp_path / f"r{rank}.npy", np.array([(rank + 1, rank + 2.0)] * 4, form))
    ranks = tuple(f"r{rank}.npy" for rank in range(3))
    succeeded(run("scan", "-q", "--op", "op.py:swap", *ranks, "-o", "out_{rank}.npy", cwd=tmp_path))
    assert np.load(tmp_path / "out_2.npy").tolist() == [(6, 24.0)] * 4
    with unchanged(tmp_path):
        refused(run("scan", *SUM, *ranks, "-o", "x_{rank}.npy", cwd=tmp_path), 3, "MPI_SUM", "user-defined ops only")


RECORD = np.dtype([("id", "i8"), ("energy", "f8"), ("tag", "S8")])
ENERGY = ("--from", "raw", "--type", "resized(0,24,struct([1],[8],[double]))")


@pytest.fixture
def records(tmp_path):
    """Three ranks of records, and an op that adds a field of theirs."""
    (tmp_path / "op.py").write_text("def add(a, b, count, datatype):\n    b['f0'] += a['f0']\n")
    for rank in range(3):
        np.array([(10 * rank + i, 0.5 * i + rank, f"tag{rank}{i}") for i in range(5)], RECORD).tofile(
            tmp_path / f"r{rank}.rec"
        )
    return tmp_path


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (("reduce-local", "r0.rec", "r1.rec"), {1: (0, 1)}),
        (("reduce", "--in-place", "--root", "2", "r0.rec", "r1.rec", "r2.rec"), {2: (0, 1, 2)}),
        (("scan", "--in-place", "r0.rec", "r1.rec", "r2.rec"), {1: (0, 1), 2: (0, 1, 2)}),
        (("scan", "--in-place", "--byte-order", "big", "r0.rec", "r1.rec"), {}),
    ],
)
def test_what_lies_between_entries_stays_in_place(words, changed, records):
    old = [np.fromfile(records / f"r{rank}.rec", RECORD) for rank in range(3)]
    succeeded(run(words[0], "-q", "--op", "op.py:add", *ENERGY, *words[1:], cwd=records))
    for rank in range(3):
        new = np.fromfile(records / f"r{rank}.rec", RECORD)
        assert new[["id", "tag"]].tolist() == old[rank][["id", "tag"]].tolist()
        if "big" not in words:
            total = sum(old[each]["energy"] for each in changed.get(rank, (rank,)))
            assert new["energy"].tolist() == total.tolist()


def test_the_padding_of_the_neutral_element_is_zero(tmp_path):
    pairs = np.zeros(500, [("value", "g"), ("index", "i1"), ("pad", "V15")])
    pairs["value"] = np.arange(500)
    pairs.tofile(tmp_path / "r.bin")
    words = ("--op", "maxloc", "--type", "pair(long double,int8_t)", "--exscan-first", "identity", "r.bin", "r.bin")
    succeeded(run("exscan", "-q", *words, "-o", "out_{rank}.bin", cwd=tmp_path))
    octets = np.fromfile(tmp_path / "out_0.bin", np.uint8).reshape(500, 32)
    assert not octets[:, 10:16].any()
    assert not octets[:, 17:].any()


def test_all_columns_may_be_named_in_place(tmp_path):
    for rank in range(2):
        columns = {"v": [1.0, 2.0], "i": pa.array([5 - rank, rank], pa.int32())}
        pq.write_table(pa.table(columns), tmp_path / f"r{rank}.parquet")
    ranks = ("r0.parquet", "r1.parquet")
    with unchanged(tmp_path):
        refused(run("scan", *SUM, "--columns", "v", *ranks, "--in-place", cwd=tmp_path), 2, "--in-place", "lose")
    succeeded(run("reduce-local", "-q", "--op", "maxloc", "--pair", "v,i", *ranks, cwd=tmp_path))
    assert pq.read_table(tmp_path / "r1.parquet").to_pydict() == {"v": [1, 2], "i": [4, 0]}
    succeeded(run("scan", *SUM, "--columns", "i,v", *ranks, "--in-place", cwd=tmp_path))
    assert pq.read_table(tmp_path / "r1.parquet").to_pydict() == {"v": [2, 4], "i": [9, 0]}
