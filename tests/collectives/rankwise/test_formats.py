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
    succeeded(run("scan", *SUM, "--byte-order", "big", *NPY, "-o", "big_{rank}.bin", cwd=folder))
    for name, rank in ("out", 0), ("out", 3), ("big", 3):
        assert (folder / f"{name}_{rank}.bin").read_bytes() == struct.pack(f">{COUNT}q", *prefix(rank))


@pytest.mark.parametrize(("verb", "count"), [("scan", COUNT), ("reduce-scatter-block", 3)])
def test_in_place_keeps_what_lies_around(folder, verb, count):
    succeeded(run(verb, *SUM, *SAID, *RAW, "--in-place", cwd=folder))
    for rank in range(NRANKS):
        elements = prefix(rank) if verb == "scan" else prefix(NRANKS - 1)[3 * rank : 3 * rank + 3]
        expected = b"head" + struct.pack(f">{count}q", *elements) + b"tail %d" % rank
        assert (folder / RAW[rank]).read_bytes() == expected


def test_in_place_exscan_leaves_the_first_rank_alone(folder):
    before = (folder / NPY[0]).stat()
    succeeded(run("exscan", *SUM, *NPY, "--in-place", cwd=folder))
    after = (folder / NPY[0]).stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    assert same(results(folder, "r{}.npy", range(1, NRANKS)), [prefix(rank) for rank in range(NRANKS - 1)])


def test_each_result_has_the_format_of_its_rank(folder):
    """In place, and where neither an option nor the name says another."""
    np.save(folder / "r1.npy", numbers(1).astype(">i8"))
    pq.write_table(pa.table({"x": numbers(2)}), folder / "r2.parquet", compression="zstd")
    ranks = ("r0.npy", "r1.npy", "r2.parquet")
    succeeded(run("scan", *SUM, *ranks, "-o", "out_{rank}", cwd=folder))
    assert same([np.load(folder / "out_1")], [prefix(1)])
    assert pq.read_table(folder / "out_2")["x"].to_pylist() == prefix(2).tolist()
    succeeded(run("scan", *SUM, *ranks, "-o", "text_{rank}", "--to", "text", cwd=folder))
    assert (folder / "text_1").read_text() == "".join(f"{number}\n" for number in prefix(1))
    succeeded(run("allreduce", *SUM, *ranks, "--in-place", cwd=folder))
    first, second = (np.load(folder / name) for name in ranks[:2])
    assert (second.dtype, first.tolist(), second.tolist()) == (np.dtype(">i8"), prefix(2).tolist(), prefix(2).tolist())
    file = pq.ParquetFile(folder / "r2.parquet")
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.read().to_pydict() == {"x": prefix(2).tolist()}


def test_columns_and_pairs(tmp_path):
    ranks = ("r0.parquet", "r1.parquet")
    for rank, name in enumerate(ranks):
        columns = {"v": [1.0, 2.0], "i": pa.array([5 - rank, rank], pa.int32())}
        pq.write_table(pa.table(columns), tmp_path / name)
        pq.write_table(pa.table(columns | {"s": ["x", "y"]}), tmp_path / f"text_{name}")
    with_text = tuple(f"text_{name}" for name in ranks)
    with unchanged(tmp_path):
        refused(run("scan", *SUM, *with_text, "-o", "out_{rank}.parquet", cwd=tmp_path), 3, "--columns v,i")
        for names in ranks, with_text:
            outcome = run("scan", *SUM, "--columns", "i", *names, "--in-place", cwd=tmp_path)
            refused(outcome, 2, "--in-place", "would lose everything")
    succeeded(run("scan", *SUM, "--columns", "i", *with_text, "-o", "out_{rank}.parquet", cwd=tmp_path))
    assert pq.read_table(tmp_path / "out_1.parquet").to_pydict() == {"i": [9, 1]}
    words = ("-q", "--op", "maxloc", "--pair", "v,i")
    succeeded(run("scan", *words, *with_text, "-o", "best_{rank}.parquet", cwd=tmp_path))
    succeeded(run("reduce-local", *words, *ranks, cwd=tmp_path))
    for name in "best_1.parquet", "r1.parquet":
        assert pq.read_table(tmp_path / name).to_pydict() == {"v": [1, 2], "i": [4, 0]}
    succeeded(run("scan", *SUM, "--columns", "i,v", *ranks, "--in-place", cwd=tmp_path))
    assert pq.read_table(tmp_path / "r1.parquet").to_pydict() == {"v": [2, 4], "i": [9, 0]}


def test_standard_input_is_a_rank(folder):
    words = ("scan", *SUM, "r0.npy", "-", "-o", "out_{rank}.npy")
    succeeded(run(*words, cwd=folder, stdin=(folder / "r1.npy").read_bytes()))
    assert same(results(folder, ranks=range(2)), [prefix(0), prefix(1)])


def test_external32(folder):
    """Big-endian, without padding, LONG in four bytes (MPI-4.1, 14.5.2)."""
    ranks = tuple(f"e{rank}.bin" for rank in range(NRANKS))
    for rank, name in enumerate(ranks):
        (folder / name).write_bytes(struct.pack(f">{COUNT}i", *numbers(rank)))
    said = ("--type", "long", "--datarep", "external32")
    succeeded(run("scan", *SUM, *said, *ranks, "-o", "out_{rank}.bin", cwd=folder))
    for rank in range(NRANKS):
        assert (folder / f"out_{rank}.bin").read_bytes() == struct.pack(f">{COUNT}i", *prefix(rank))
    words = ("exscan", "-q", "--op", "max", "--exscan-first", "identity", *said, *ranks, "-o", "x_{rank}.bin")
    with unchanged(folder):  # the lowest number of 64 bits has no form in 32
        refused(run(*words, cwd=folder), 3, "x_0.bin", "element 0")
    succeeded(run("reduce-scatter-block", *SUM, *said, *ranks, "--in-place", cwd=folder))
    parts = [(folder / rank).read_bytes() for rank in ranks]
    assert (b"".join(parts), set(map(len, parts))) == (struct.pack(f">{COUNT}i", *prefix(NRANKS - 1)), {12})


def test_the_padding_of_the_neutral_element_is_zero(tmp_path):
    pairs = np.zeros(500, [("value", "g"), ("index", "i1"), ("pad", "V15")])
    pairs["value"] = np.arange(500)
    pairs.tofile(tmp_path / "r.bin")
    words = ("--op", "maxloc", "--type", "pair(long double,int8_t)", "--exscan-first", "identity", "r.bin", "r.bin")
    succeeded(run("exscan", "-q", *words, "-o", "out_{rank}.bin", cwd=tmp_path))
    octets = np.fromfile(tmp_path / "out_0.bin", np.uint8).reshape(500, 32)
    assert not octets[:, 10:16].any()
    assert not octets[:, 17:].any()
