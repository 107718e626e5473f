"""The commands whose results go to the ranks: what they write, under which names, and what they refuse."""

from __future__ import annotations

import functools
import json
import operator
import os
import signal
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import COMMAND, installed, measured, refused, run, shell, succeeded, unchanged

NRANKS, COUNT = 4, 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four ranks as npy, and as raw files with a header and a trailer, in big-endian order."""
    for rank in range(NRANKS):
        array = numbers(rank)
        np.save(tmp_path / f"r{rank}.npy", array)
        (tmp_path / f"r{rank}.bin").write_bytes(b"head" + array.astype(">i8").tobytes() + b"tail %d" % rank)
    return tmp_path


def numbers(rank: int) -> np.ndarray:
    return np.array([(rank + 3) * (i + 1) % 11 - 4 for i in range(COUNT)])


def prefix(rank: int, first: int = 0) -> np.ndarray:
    """Sum the ranks up to this one."""
    return functools.reduce(operator.add, [numbers(each) for each in range(first, rank + 1)])


NPY = tuple(f"r{rank}.npy" for rank in range(NRANKS))
RAW = tuple(f"r{rank}.bin" for rank in range(NRANKS))
SAID = ("--type", ">i8", "--offset", "4", "--count", str(COUNT))
SUM = ("-q", "--op", "sum")


def results(folder: Path, pattern: str = "out_{}.npy", ranks: range = range(NRANKS)) -> list[np.ndarray]:
    return [np.load(folder / pattern.format(rank)) for rank in ranks]


def same(mine: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    return [array.tolist() for array in mine] == [array.tolist() for array in theirs]


# What each command writes


def test_scan(folder):
    succeeded(run("scan", *SUM, *NPY, "-o", "out_{rank}.npy", cwd=folder))
    assert same(results(folder), [prefix(rank) for rank in range(NRANKS)])


def test_exscan_gives_the_first_rank_no_file(folder):
    succeeded(run("exscan", *SUM, *NPY, "-o", "out_{rank}.npy", cwd=folder))
    assert not (folder / "out_0.npy").exists()
    assert same(results(folder, ranks=range(1, NRANKS)), [prefix(rank) for rank in range(NRANKS - 1)])


@pytest.mark.parametrize(
    ("op", "neutral"),
    [("sum", 0), ("prod", 1), ("max", -(2**63)), ("min", 2**63 - 1), ("band", -1), ("bor", 0), ("land", 1)],
)
def test_exscan_gives_the_first_rank_the_neutral_element_if_asked(folder, op, neutral):
    words = ("exscan", "-q", "--op", op, "--exscan-first", "identity", *NPY, "-o", "out_{rank}.npy")
    succeeded(run(*words, cwd=folder))
    assert np.load(folder / "out_0.npy").tolist() == [neutral] * COUNT


def test_neutral_elements_of_pairs_and_floats(tmp_path):
    pairs = np.zeros(2, np.dtype([("value", "f8"), ("index", "i4")], align=True))
    np.save(tmp_path / "pairs.npy", pairs)
    np.save(tmp_path / "floats.npy", np.zeros(2, "f4"))
    for op, expected in ("maxloc", (-np.inf, 2**31 - 1)), ("minloc", (np.inf, 2**31 - 1)):
        words = ("exscan", "-q", "-f", "--op", op, "--exscan-first", "identity", "pairs.npy", "-o", "out_{rank}.npy")
        succeeded(run(*words, cwd=tmp_path))
        assert np.load(tmp_path / "out_0.npy").tolist() == [expected] * 2
    for op, number in ("max", -np.inf), ("min", np.inf), ("prod", 1):
        words = ("exscan", "-q", "-f", "--op", op, "--exscan-first", "identity", "floats.npy", "-o", "out_{rank}.npy")
        succeeded(run(*words, cwd=tmp_path))
        assert np.load(tmp_path / "out_0.npy").tolist() == [number] * 2


def test_exscan_of_one_rank_writes_nothing(folder):
    before = sorted(os.listdir(folder))
    outcome = run("exscan", "--op", "sum", NPY[0], "-o", "out_{rank}.npy", cwd=folder)
    assert outcome.status == 0
    assert "0 files" in outcome.err
    assert sorted(os.listdir(folder)) == before


def test_allreduce(folder):
    succeeded(run("allreduce", *SUM, *NPY, "-o", "out_{rank}.npy", cwd=folder))
    assert same(results(folder), [prefix(NRANKS - 1)] * NRANKS)
    assert len({(folder / f"out_{rank}.npy").stat().st_ino for rank in range(NRANKS)}) == NRANKS


@pytest.mark.parametrize("to", ["npy", "parquet", "arrow", "csv"])
def test_allreduce_to_links(folder, to):
    succeeded(run("allreduce", *SUM, "--link", *NPY, "-o", f"out_{{rank}}.{to}", cwd=folder))
    succeeded(run("reduce", *SUM, *NPY, "-o", f"out.{to}", cwd=folder))
    paths = [folder / f"out_{rank}.{to}" for rank in range(NRANKS)]
    assert len({path.stat().st_ino for path in paths}) == 1
    assert paths[0].read_bytes() == (folder / f"out.{to}").read_bytes()


def test_links_can_be_made_again(folder):
    for _ in range(2):
        succeeded(run("allreduce", *SUM, "-f", "--link", *NPY, "-o", "out_{rank}.npy", cwd=folder))
    assert (folder / "out_0.npy").stat().st_nlink == NRANKS


def test_reduce_scatter(folder):
    succeeded(run("reduce-scatter", *SUM, "--counts", "3,0,4,5", *NPY, "-o", "out_{rank}.npy", cwd=folder))
    whole = prefix(NRANKS - 1)
    assert same(results(folder), [whole[:3], whole[3:3], whole[3:7], whole[7:]])


def test_reduce_scatter_block(folder):
    succeeded(run("reduce-scatter-block", *SUM, *NPY, "-o", "out_{rank}.bin", cwd=folder))
    parts = [np.fromfile(folder / f"out_{rank}.bin", "i8") for rank in range(NRANKS)]
    assert same(parts, list(prefix(NRANKS - 1).reshape(NRANKS, -1)))


def test_a_block_of_an_array_has_one_dimension(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray(np.arange(6).reshape(2, 3)))
    succeeded(run("reduce-scatter", *SUM, "--counts", "6", "a.npy", "-o", "out_{rank}.npy", cwd=tmp_path))
    assert np.load(tmp_path / "out_0.npy").tolist() == [0, 3, 1, 4, 2, 5]  # as they lie in the file


def test_a_scan_of_arrays_has_their_shape_and_order(tmp_path):
    for rank in range(2):
        np.save(tmp_path / f"r{rank}.npy", np.asfortranarray(np.arange(6).reshape(2, 3) * (rank + 1)))
    succeeded(run("scan", *SUM, "r0.npy", "r1.npy", "-o", "out_{rank}.npy", cwd=tmp_path))
    result = np.load(tmp_path / "out_1.npy")
    assert result.flags.f_contiguous
    assert result.tolist() == (np.arange(6).reshape(2, 3) * 3).tolist()


def test_reduce_local_replaces_the_second_file(folder):
    outcome = run("reduce-local", "--op", "sum", NPY[0], NPY[1], cwd=folder)
    assert outcome.status == 0
    assert "MPI_Reduce_local with MPI_SUM" in outcome.err
    assert np.load(folder / NPY[1]).tolist() == prefix(1).tolist()
    assert np.load(folder / NPY[0]).tolist() == numbers(0).tolist()


def test_reduce_local_of_a_file_and_itself(folder):
    outcome = run("reduce-local", "--op", "sum", NPY[0], NPY[0], cwd=folder)
    assert f"warning: the origin {NPY[0]} is the same file as the target {NPY[0]}" in outcome.err
    assert np.load(folder / NPY[0]).tolist() == (2 * numbers(0)).tolist()
    assert run("reduce-local", "-q", "--op", "sum", NPY[0], NPY[0], cwd=folder).err == ""


@pytest.mark.parametrize("words", [(), NPY[:1], NPY[:3]])
def test_reduce_local_takes_two_files(folder, words):
    with unchanged(folder):
        refused(run("reduce-local", *SUM, *words, cwd=folder), 2, "reduce-local --help")


def test_reduce_local_keeps_the_order_of_its_operands(tmp_path):
    (tmp_path / "op.py").write_text("def minus(a, b):\n    return a - b\n")
    np.save(tmp_path / "a.npy", np.array([10]))
    np.save(tmp_path / "b.npy", np.array([3]))
    succeeded(run("reduce-local", "-q", "--op", "op.py:minus", "a.npy", "b.npy", cwd=tmp_path))
    assert np.load(tmp_path / "b.npy").tolist() == [7]


# Raw files, and what lies around their elements


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
    assert (folder / NPY[0]).stat() == before
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
        refused(outcome, 2, "would lose the columns")


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


# Two groups


def test_two_groups(folder):
    words = ("allreduce", *SUM, "r0.npy", "--group-b", "r1.npy", "r2.npy", "r3.npy", "-o", "out_{group}{rank}.npy")
    succeeded(run(*words, cwd=folder))
    assert same(results(folder, "out_{}.npy", ["a0", "b0", "b2"]), [prefix(3, 1), numbers(0), numbers(0)])


def test_the_group_ends_at_the_next_option(folder):
    words = ("allreduce", "--group-b", "r2.npy", "r3.npy", *SUM, "r0.npy", "r1.npy", "-o", "out_{group}{rank}.npy")
    succeeded(run(*words, cwd=folder))
    assert same(results(folder, "out_{}.npy", ["a1", "b1"]), [prefix(3, 2), prefix(1)])


def test_reduce_of_two_groups_goes_to_the_root_in_the_first(folder):
    outcome = run("reduce", *SUM, "r0.npy", "--group-b", "r1.npy", "r2.npy", "--to", "raw", cwd=folder)
    assert (outcome.status, outcome.out) == (0, prefix(2, 1).tobytes())


def test_reduce_scatter_between_groups(folder):
    words = ("reduce-scatter", *SUM, "--counts", "5,7", "--counts-b", "12", "r0.npy", "r1.npy", "--group-b", "r2.npy")
    succeeded(run(*words, "-o", "out_{group}{rank}.npy", cwd=folder))
    expected = [numbers(2)[:5], numbers(2)[5:], prefix(1)]
    assert same(results(folder, "out_{}.npy", ["a0", "a1", "b0"]), expected)
    with unchanged(folder):
        words = ("reduce-scatter", *SUM, "--counts", "5,7", "r0.npy", "r1.npy", "--group-b", "r2.npy")
        refused(run(*words, "-o", "x_{group}{rank}.npy", cwd=folder), 2, "--counts-b", "is missing")


@pytest.mark.parametrize("verb", ["scan", "exscan"])
def test_scans_are_not_for_two_groups(folder, verb):
    with unchanged(folder):
        outcome = run(verb, *SUM, "r0.npy", "-o", "out_{rank}.npy", "--group-b", "r1.npy", cwd=folder)
        refused(outcome, 2, f"no {verb} between two groups", "MPI-4.1, 6.11")


@pytest.mark.parametrize("words", [("--group-b",), ("--group-b", "-q")])
def test_a_group_without_ranks(folder, words):
    with unchanged(folder):
        refused(run("allreduce", "--op", "sum", "r0.npy", *words, cwd=folder), 2, "--group-b")


def test_groups_that_disagree(folder):
    np.save(folder / "short.npy", np.arange(3))
    np.save(folder / "float.npy", np.zeros(COUNT))
    for name, reason in ("short.npy", "count 3"), ("float.npy", "MPI_DOUBLE"):
        with unchanged(folder):
            words = ("allreduce", *SUM, "r0.npy", "--group-b", name, "-o", "out_{group}.{rank}.npy")
            refused(run(*words, cwd=folder), 3, name, reason, "rank 0 of group B", "rank 0 of group A")


def test_groups_are_not_in_place(folder):
    for verb in "allreduce", "reduce", "reduce-scatter-block":
        with unchanged(folder):
            outcome = run(verb, *SUM, "r0.npy", "--in-place", "--group-b", "r1.npy", cwd=folder)
            refused(outcome, 2, "--in-place", "two groups")


# Names


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("{rank}", ["0", "1", "2", "3"]),
        ("x{rank:03d}.npy", ["x000.npy", "x001.npy", "x002.npy", "x003.npy"]),
        ("x{rank:5}", ["x    0", "x    1", "x    2", "x    3"]),
        ("{stem}.sum.npy", ["r0.sum.npy", "r1.sum.npy", "r2.sum.npy", "r3.sum.npy"]),
        ("{rank}{{0}}", ["0{0}", "1{0}", "2{0}", "3{0}"]),
        ("{group}-{stem}-{rank}", ["a-r0-0", "a-r1-1", "a-r2-2", "a-r3-3"]),
    ],
)
def test_names(folder, pattern, names):
    before = set(os.listdir(folder))
    succeeded(run("scan", *SUM, *NPY, "-o", pattern, cwd=folder))
    assert sorted(set(os.listdir(folder)) - before) == names


def test_names_in_folders(folder):
    for rank in range(NRANKS):
        (folder / f"run{rank}").mkdir()
    succeeded(run("scan", *SUM, *NPY, "-o", "run{rank}/sum.npy", cwd=folder))
    assert same(results(folder, "run{}/sum.npy"), [prefix(rank) for rank in range(NRANKS)])
    assert [os.listdir(folder / f"run{rank}") for rank in range(NRANKS)] == [["sum.npy"]] * NRANKS


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("sum.npy", "one name"),
        ("{group}.npy", "one name"),
        ("{{rank}}.npy", "one name"),
        ("{}.npy", "has the field {}"),
        ("{rank!r}", "has the field"),
        ("{rank:x}", "has the field"),
        ("{rank:1000000000d}", "has the field"),
        ("{rank.__class__}", "has the field"),
        ("{0}", "has the field"),
        ("{stem:>9}", "has the field"),
        ("{rank", "no pattern"),
        ("rank}", "no pattern"),
        ("", "one name"),
        ("-", "one name"),
        ("/dev/null", "one name"),
    ],
)
def test_patterns_that_are_none(folder, pattern, reason):
    with unchanged(folder):
        refused(run("scan", *SUM, *NPY, "-o", pattern, cwd=folder), 2, reason)


def test_stems_that_collide(folder):
    (folder / "other").mkdir()
    np.save(folder / "other" / "r0.npy", numbers(0))
    with unchanged(folder):
        outcome = run("scan", *SUM, "r0.npy", "other/r0.npy", "-o", "{stem}.out", cwd=folder)
        refused(outcome, 2, "r0.out", "ranks 0 and 1")


def test_names_that_a_link_makes_one(folder):
    (folder / "real").mkdir()
    (folder / "d0").symlink_to("real")
    (folder / "d1").symlink_to("real")
    with unchanged(folder):
        refused(run("scan", *SUM, "r0.npy", "r1.npy", "-o", "d{rank}/x", cwd=folder), 2, "ranks 0 and 1")


def test_a_file_that_is_two_ranks_cannot_be_replaced_by_both(folder):
    with unchanged(folder):
        refused(run("scan", *SUM, "r0.npy", "r1.npy", "r0.npy", "--in-place", cwd=folder), 2, "ranks 0 and 2")


def test_groups_whose_names_collide(folder):
    with unchanged(folder):
        words = ("allreduce", *SUM, "r0.npy", "--group-b", "r1.npy", "-o", "out_{rank}.npy")
        refused(run(*words, cwd=folder), 2, "group A", "group B", "{group}")


def test_a_result_is_not_another_ranks_input(folder):
    with unchanged(folder):
        words = ("scan", *SUM, "-f", "r1.npy", "r0.npy", "-o", "r{rank}.npy")
        refused(run(*words, cwd=folder), 2, "r0.npy", "is the file of rank 1", "--in-place")


def test_a_result_replaces_its_own_input_in_place_only(folder):
    with unchanged(folder):
        for force in ((), ("-f",)):
            outcome = run("scan", *SUM, *force, *NPY, "-o", "{stem}.npy", cwd=folder)
            refused(outcome, 2, "r0.npy: is the file of rank 0", "--in-place")
    succeeded(run("scan", *SUM, "--in-place", *NPY, cwd=folder))
    assert same(results(folder, "r{}.npy"), [prefix(rank) for rank in range(NRANKS)])


def test_a_result_is_not_another_groups_input(folder):
    with unchanged(folder):
        words = ("allreduce", *SUM, "-f", "r0.npy", "--group-b", "r1.npy", "-o", "r{rank}.npy")
        refused(run(*words, cwd=folder), 2)


def test_all_existing_files_are_listed(folder):
    for rank in 1, 3:
        (folder / f"out_{rank}.npy").write_bytes(b"old")
    with unchanged(folder):
        outcome = run("scan", *SUM, *NPY, "-o", "out_{rank}.npy", cwd=folder)
        refused(outcome, 2, "2 of 4 outputs", "out_1.npy: is there already", "out_3.npy: is there already")
    succeeded(run("scan", *SUM, "-f", *NPY, "-o", "out_{rank}.npy", cwd=folder))
    assert same(results(folder), [prefix(rank) for rank in range(NRANKS)])


def test_streams_cannot_be_results(folder):
    for rank in range(NRANKS):
        os.mkfifo(folder / f"fifo{rank}")
    with unchanged(folder):
        refused(run("scan", *SUM, *NPY, "-o", "fifo{rank}", cwd=folder), 2, "4 of 4", "is a stream")
        refused(run("scan", *SUM, *NPY, "-o", "/dev/fd/{rank}", cwd=folder), 2, "is a stream")


def test_somewhere_to_write_must_be_said(folder):
    with unchanged(folder):
        refused(run("scan", *SUM, *NPY, cwd=folder), 2, "--output", "{rank}", "--in-place")
        refused(run("scan", *SUM, *NPY, "-o", "{rank}", "--in-place", cwd=folder), 2, "--in-place")


# Counts


@pytest.mark.parametrize(
    ("counts", "status", "reason"),
    [
        ("3,0,5", 3, "there are 3 for 4 ranks"),
        ("3,0,4,6", 3, "sum to 13, but every rank has 12"),
        ("3,,4,5", 2, "are no counts"),
        ("-3,5,5,5", 2, "are no counts"),
        ("a", 2, "are no counts"),
        ("9999999999999999999,0,0,0", 2, "between 0 and 2**63 - 1"),
    ],
)
def test_counts_that_do_not_fit(folder, counts, status, reason):
    with unchanged(folder):
        words = ("reduce-scatter", *SUM, f"--counts={counts}", *NPY, "-o", "out_{rank}.npy")
        refused(run(*words, cwd=folder), status, reason)


def test_counts_are_needed(folder):
    with unchanged(folder):
        refused(run("reduce-scatter", *SUM, *NPY, "-o", "out_{rank}.npy", cwd=folder), 2, "--counts")


def test_equal_blocks_need_a_multiple(folder):
    with unchanged(folder):
        words = ("reduce-scatter-block", *SUM, *NPY, "r0.npy", "-o", "out_{rank}.npy")
        refused(run(*words, cwd=folder), 3, "12 elements are no 5 equal blocks")


@pytest.mark.parametrize("verb", ["scan", "exscan", "allreduce", "reduce-scatter-block"])
def test_no_elements(tmp_path, verb):
    for rank in range(3):
        np.save(tmp_path / f"r{rank}.npy", np.zeros(0))
    words = (verb, *SUM, "r0.npy", "r1.npy", "r2.npy", "-o", "out_{rank}.npy")
    succeeded(run(*words, cwd=tmp_path))
    assert np.load(tmp_path / "out_2.npy").tolist() == []


# Options that all share with reduce


@pytest.mark.parametrize("verb", ["scan", "exscan", "allreduce", "reduce-scatter-block"])
def test_illegal_requests_leave_no_file(folder, verb):
    with unchanged(folder):
        for words, status, reason in [
            (("--op", "maxloc", *NPY), 3, "MPI_MAXLOC"),
            (("--op", "nosuch", *NPY), 2, "nosuch"),
            (("--op", "replace", *NPY), 3, "accumulate"),
            (("--op", "sum", "missing.npy", "r0.npy"), 4, "missing.npy"),
            (("--op", "sum", "r0.npy", "r0.bin"), 2, "--type"),
            (("--op", "sum"), 2, "at least one file"),
        ]:
            refused(run(verb, *words, "-o", "out_{rank}.npy", cwd=folder), status, reason)


def test_options_of_other_calls_are_unknown(folder):
    with unchanged(folder):
        for verb, option in ("scan", "--link"), ("allreduce", "--counts=1"), ("scan", "--root=1"), ("exscan", "--link"):
            refused(run(verb, *SUM, *NPY, "-o", "out_{rank}.npy", option, cwd=folder), 2, option.split("=")[0])


def test_summary(folder):
    outcome = run("scan", "--op", "sum", *NPY, "-o", "out_{rank}.npy", cwd=folder)
    assert outcome.err == (
        "mpired: MPI_Scan with MPI_SUM of 4 ranks, 12 x MPI_INT64_T, 1 worker -> 4 files, out_{rank}.npy (npy)\n"
    )


def test_summary_as_json(folder):
    outcome = run("exscan", "--json", "--op", "max", *NPY, "-o", "out_{rank}.npy", cwd=folder)
    summary = json.loads(outcome.err)
    expected = {"call": "MPI_Exscan", "op": "MPI_MAX", "nranks": 4, "noutputs": 3, "output": "out_{rank}.npy",
                "format": "npy", "nbytes": 3 * 8 * COUNT}  # fmt: skip
    assert {name: summary[name] for name in expected} == expected  # the last rank is in no result


def test_the_order_of_the_ranks_is_doubted(folder):
    np.save(folder / "r10.npy", numbers(0))
    words = ("--op", "sum", "r0.npy", "r10.npy", "r2.npy")
    assert "r10.npy came before r2.npy" in run("scan", *words, "-o", "out_{rank}.npy", cwd=folder).err
    assert "came before" not in run("allreduce", *words, "-f", "-o", "out_{rank}.npy", cwd=folder).err  # integers


def test_verbose_tells_of_hard_links(folder):
    os.link(folder / "r0.npy", folder / "other")
    outcome = run("scan", "-v", "--op", "sum", *NPY, "--in-place", cwd=folder)
    assert "r0.npy is a hard link" in outcome.err


def test_environment(folder):
    outcome = run(
        "scan", "--op", "sum", *NPY, "-o", "out_{rank}.npy", cwd=folder, env={"MPIRED_TO": "text", "MPIRED_JOBS": "1"}
    )
    assert "from the environment" in outcome.err
    assert (folder / "out_0.npy").read_text().splitlines()[0] == str(numbers(0)[0])


# User-defined ops


OPS = """
import mpired

@mpired.op(commute=False, identity=0)
def minus(invec, inoutvec, count, datatype):
    inoutvec[:] = 2 * invec - inoutvec

def fails_late(lower, upper):
    if (lower == 7).any():
        raise ValueError("a seven")
    return lower + upper

def dies(lower, upper):
    import os
    os._exit(3)
"""


@pytest.fixture
def ops(folder: Path) -> Path:
    (folder / "ops.py").write_text(OPS)
    return folder


def minus(arrays: list[np.ndarray]) -> np.ndarray:
    return functools.reduce(lambda lower, upper: 2 * lower - upper, arrays)


@pytest.mark.parametrize("verb", ["scan", "exscan", "allreduce", "reduce-scatter-block"])
@pytest.mark.parametrize("form", ["npy", "parquet"])
def test_user_ops_keep_the_order(ops, verb, form):
    words = (verb, "-q", "--op", "ops.py:minus", *NPY, "-o", f"out_{{rank}}.{form}")
    succeeded(run(*words, cwd=ops))
    prefixes = [minus([numbers(each) for each in range(rank + 1)]) for rank in range(NRANKS)]
    expected = {
        "scan": prefixes,
        "exscan": [None, *prefixes[:-1]],
        "allreduce": [prefixes[-1]] * NRANKS,
        "reduce-scatter-block": list(prefixes[-1].reshape(NRANKS, -1)),
    }[verb]
    for rank, array in enumerate(expected):
        path = ops / f"out_{rank}.{form}"
        assert path.exists() == (array is not None)
        if array is not None:
            result = np.load(path) if form == "npy" else pq.read_table(path).column(0).to_numpy()
            assert result.tolist() == array.tolist()


def test_user_ops_say_their_neutral_element(ops):
    words = ("exscan", "-q", "--exscan-first", "identity", *NPY, "-o", "out_{rank}.npy")
    succeeded(run(*words, "--op", "ops.py:minus", cwd=ops))
    assert np.load(ops / "out_0.npy").tolist() == [0] * COUNT
    with unchanged(ops):
        refused(run(*words, "-f", "--op", "ops.py:fails_late", cwd=ops), 3, "neutral element", "identity=")


def test_a_user_op_that_fails_leaves_all_as_it_was(ops):
    np.save(ops / "r3.npy", np.full(COUNT, 7))
    np.save(ops / "r2.npy", np.full(COUNT, 7) - prefix(1))
    for op, reason in ("fails_late", "a seven"), ("dies", "status 3"):
        with unchanged(ops):
            refused(run("scan", "-q", "--op", f"ops.py:{op}", *NPY, "--in-place", cwd=ops), 7, reason)
            refused(run("scan", "-q", "--op", f"ops.py:{op}", *NPY, "-o", "out_{rank}.npy", cwd=ops), 7, reason)


# Faults of the installed command


@pytest.mark.needs("strace")
@pytest.mark.parametrize("which", range(1, NRANKS + 1))
@pytest.mark.parametrize("name", ["rename", "renameat", "renameat2"])
def test_killed_at_each_rename(folder, name, which):
    """Python may use any of the three calls; where one is not used, the command comes to its end."""
    inject = ["-f", "-qq", "-o", os.devnull, "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={which}"]
    script = f'exec strace {" ".join(inject)} "$@"'
    outcome = shell(script, "scan", *SUM, *NPY, "--in-place", cwd=folder)
    killed = outcome.status in {-signal.SIGKILL, 128 + signal.SIGKILL}
    assert killed or outcome.status == 0, outcome.err
    done = [np.load(folder / path).tolist() == prefix(rank).tolist() for rank, path in enumerate(NPY)]
    if killed:
        assert 1 < sum(done) + 1 <= NRANKS + 1
        assert any(path.endswith("together") for path in os.listdir(folder))
        assert installed("info", NPY[0], cwd=folder).status == 0
    assert same(results(folder, "r{}.npy"), [prefix(rank) for rank in range(NRANKS)])
    assert not any("mpired" in path for path in os.listdir(folder))


@pytest.mark.needs("strace")
def test_a_kill_reaches_the_renames(folder):
    """The test above has teeth: one of the three calls is the one."""
    killed = 0
    for name in "rename", "renameat", "renameat2":
        for rank in range(NRANKS):
            np.save(folder / f"r{rank}.npy", numbers(rank))
        inject = f"-f -qq -o /dev/null -e trace={name} -e inject={name}:signal=KILL:when=2"
        outcome = shell(f'exec strace {inject} "$@"', "scan", *SUM, *NPY, "--in-place", cwd=folder)
        killed += outcome.status != 0
        installed("info", NPY[0], cwd=folder)
    assert killed == 1


@pytest.mark.needs("strace")
@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("name", ["fsync", "mkdirat", "fallocate"])
def test_an_error_before_the_commit_changes_nothing(folder, name, error):
    script = f'exec strace -f -qq -o /dev/null -e trace={name} -e inject={name}:error={error}:when=1 "$@"'
    with unchanged(folder):
        refused(shell(script, "scan", *SUM, *NPY, "--in-place", cwd=folder), 4)


def test_full_disk_leaves_all_as_it_was(mounted, tmp_path):
    where = mounted("size=1m")
    for rank in range(3):
        np.zeros(1 << 15).tofile(tmp_path / f"r{rank}.bin")
    (where / "out_1").write_bytes(b"old")
    with unchanged(where):
        paths = [str(tmp_path / f"r{rank}.bin") for rank in (0, 1, 2, 0, 1, 2)]
        words = ("scan", "-f", "-q", "--op", "sum", "--type", "double", *paths, "-o", f"{where}/out_{{rank}}")
        refused(installed(*words, cwd=tmp_path), 4, "No space left", "out_")


# Many ranks


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five thousand ranks of ten integers."""
    folder = tmp_path_factory.mktemp("many")
    for rank in range(5000):
        np.full(10, rank + 1).tofile(folder / f"r{rank:04}.bin")
    return folder


@pytest.mark.timeout(300)
def test_more_ranks_than_descriptors(many, tmp_path):
    words = ("scan", *SUM, "--type", "int64_t", *sorted(os.listdir(many)), "-o", f"{tmp_path}/s_{{rank:04d}}.bin")
    assert shell('ulimit -n 64; exec "$@"', *words, cwd=many, timeout=200) == (0, b"", "")
    assert len(os.listdir(tmp_path)) == 5000
    for rank in 0, 1, 63, 64, 2500, 4999:
        expected = (rank + 1) * (rank + 2) // 2
        assert np.fromfile(tmp_path / f"s_{rank:04}.bin", "i8").tolist() == [expected] * 10


@pytest.mark.timeout(300)
def test_memory_is_flat(tmp_path):
    """As many bytes in few ranks and in many need the same, and less than the data."""
    peaks = {}
    (tmp_path / "in").mkdir()
    for nranks, count in (16, 1 << 19), (256, 1 << 15):
        draw = np.random.default_rng(1)
        paths = []
        for rank in range(nranks):
            paths.append(str(tmp_path / "in" / f"{nranks}_{rank}.bin"))
            draw.random(count).tofile(paths[-1])
        status, peak, err = measured(
            "scan", *SUM, "--type", "double", *paths, "-o", f"{tmp_path}/out_{nranks}_{{rank}}.bin", cwd=tmp_path
        )
        assert (status, err) == (0, "")
        peaks[nranks] = peak
        last = np.fromfile(tmp_path / f"out_{nranks}_{nranks - 1}.bin", "f8")
        expected = functools.reduce(operator.add, [np.fromfile(path, "f8") for path in paths])
        assert last.tobytes() == expected.tobytes()
    assert max(peaks.values()) < 64 << 20  # the bytes of the ranks together
    assert abs(peaks[16] - peaks[256]) < 8 << 20


def test_the_installed_command_has_all_verbs():
    text = installed("--help").out.decode()
    for verb in "allreduce", "scan", "exscan", "reduce-scatter", "reduce-scatter-block", "reduce-local":
        assert f"  {verb} " in text
    assert os.path.exists(COMMAND)
