"""The commands whose results go to the ranks: what each writes, in each format, from few ranks and from many."""

from __future__ import annotations

import functools
import json
import operator
import os
import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import measured, refused, run, shell, succeeded, unchanged
from rankwise import COUNT, NPY, NRANKS, RAW, SAID, SUM, numbers, prefix, results, same

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
def ops(folder):
    (folder / "ops.py").write_text(OPS)
    return folder


def minus(lower, upper):
    return 2 * lower - upper


@pytest.mark.parametrize(("op", "combine", "form"), [("sum", operator.add, "npy"), ("ops.py:minus", minus, "parquet")])
def test_what_each_rank_gets(ops, op, combine, form):
    """Of an op that does not commute in the order of the ranks."""
    folds = [functools.reduce(combine, map(numbers, range(rank + 1))) for rank in range(NRANKS)]
    whole = folds[-1]
    calls = {
        ("scan",): folds,
        ("exscan",): [None, *folds[:-1]],
        ("exscan", "--exscan-first", "identity"): [0 * whole, *folds[:-1]],
        ("allreduce",): [whole] * NRANKS,
        ("allreduce", "--link"): [whole] * NRANKS,
        ("reduce-scatter", "--counts", "3,0,4,5"): [whole[:3], whole[3:3], whole[3:7], whole[7:]],
        ("reduce-scatter-block",): np.split(whole, NRANKS),
    }
    paths = [ops / f"out_{rank}.{form}" for rank in range(NRANKS)]
    for words, expected in calls.items():
        for path in paths:
            path.unlink(missing_ok=True)
        succeeded(run(*words, "-q", "--op", op, *NPY, "-o", f"out_{{rank}}.{form}", cwd=ops))
        assert [path.exists() for path in paths] == [each is not None for each in expected], words
        found = [
            np.load(path) if form == "npy" else pq.read_table(path).column(0).to_numpy()
            for path in paths
            if path.exists()
        ]
        assert same(found, [each for each in expected if each is not None]), words
        assert len({path.stat().st_ino for path in paths if path.exists()}) == (1 if "--link" in words else len(found))


def test_links_can_be_made_again(folder):
    for to in "npy", "parquet":
        for _ in range(2):
            succeeded(run("allreduce", *SUM, "-f", "--link", *NPY, "-o", f"out_{{rank}}.{to}", cwd=folder))
        assert (folder / f"out_0.{to}").stat().st_nlink == NRANKS
        succeeded(run("reduce", *SUM, *NPY, "-o", f"out.{to}", cwd=folder))
        assert (folder / f"out_0.{to}").read_bytes() == (folder / f"out.{to}").read_bytes()


def test_neutral_elements(tmp_path):
    pairs = np.zeros(2, np.dtype([("value", "f8"), ("index", "i4")], align=True))
    rows = [("prod", np.zeros(2, "f4"), 1), ("max", np.zeros(2, "f4"), -np.inf), ("min", np.zeros(2, "f4"), np.inf)]
    rows += [("max", np.zeros(2, int), -(2**63)), ("band", np.zeros(2, int), -1), ("land", np.zeros(2, int), 1)]
    rows += [("maxloc", pairs, (-np.inf, 2**31 - 1)), ("minloc", pairs, (np.inf, 2**31 - 1))]
    for op, rank, expected in rows:
        np.save(tmp_path / "r.npy", rank)
        words = ("exscan", "-qf", "--op", op, "--exscan-first", "identity", "r.npy", "-o", "out_{rank}.npy")
        succeeded(run(*words, cwd=tmp_path))
        assert np.load(tmp_path / "out_0.npy").tolist() == [expected] * 2, op


def test_exscan_of_one_rank_writes_nothing(folder):
    before = sorted(os.listdir(folder))
    outcome = run("exscan", "--op", "sum", NPY[0], "-o", "out_{rank}.npy", cwd=folder)
    assert (outcome.status, "0 files" in outcome.err, sorted(os.listdir(folder))) == (0, True, before)


def test_the_order_of_an_array_stays_and_a_block_of_it_has_one_dimension(tmp_path):
    for rank in range(2):
        np.save(tmp_path / f"r{rank}.npy", np.asfortranarray(np.arange(6).reshape(2, 3) * (rank + 1)))
    succeeded(run("scan", *SUM, "r0.npy", "r1.npy", "-o", "out_{rank}.npy", cwd=tmp_path))
    result = np.load(tmp_path / "out_1.npy")
    assert (result.flags.f_contiguous, result.tolist()) == (True, (np.arange(6).reshape(2, 3) * 3).tolist())
    succeeded(run("reduce-scatter", *SUM, "--counts", "6", "r0.npy", "-f", "-o", "out_{rank}.npy", cwd=tmp_path))
    assert np.load(tmp_path / "out_0.npy").tolist() == [0, 3, 1, 4, 2, 5]  # as they lie in the file


def test_reduce_local_replaces_the_second_file(ops):
    outcome = run("reduce-local", "--op", "sum", *NPY[:2], cwd=ops)
    assert (outcome.status, "MPI_Reduce_local with sum" in outcome.err) == (0, True)
    assert same(results(ops, "r{}.npy", range(2)), [numbers(0), prefix(1)])
    outcome = run("reduce-local", "--op", "sum", NPY[0], NPY[0], cwd=ops)
    assert f"warning: the origin {NPY[0]} is the same file as the target {NPY[0]}" in outcome.err
    assert np.load(ops / NPY[0]).tolist() == (2 * numbers(0)).tolist()
    succeeded(run("reduce-local", *SUM, NPY[0], NPY[0], cwd=ops))
    succeeded(run("reduce-local", "-q", "--op", "ops.py:minus", *NPY[2:], cwd=ops))
    assert np.load(ops / NPY[3]).tolist() == minus(numbers(2), numbers(3)).tolist()


def test_user_ops_that_have_no_neutral_element_or_fail_leave_all_as_it_was(ops):
    np.save(ops / "r3.npy", np.full(COUNT, 7))
    np.save(ops / "r2.npy", np.full(COUNT, 7) - prefix(1))
    out = ("-o", "out_{rank}.npy")
    with unchanged(ops):
        words = ("exscan", "-q", "--exscan-first", "identity", "--op", "ops.py:fails_late", *NPY, *out)
        refused(run(*words, cwd=ops), 3, "neutral element", "identity=")
        for op, reason in ("fails_late", "a seven"), ("dies", "status 3"):
            for where in (("--in-place",), out):
                refused(run("scan", "-q", "--op", f"ops.py:{op}", *NPY, *where, cwd=ops), 7, reason)


@pytest.mark.parametrize("verb", ["scan", "exscan", "allreduce", "reduce-scatter-block"])
def test_no_elements(tmp_path, verb):
    np.save(tmp_path / "r.npy", np.zeros(0))
    succeeded(run(verb, *SUM, "r.npy", "r.npy", "r.npy", "-o", "out_{rank}.npy", cwd=tmp_path))
    assert np.load(tmp_path / "out_2.npy").tolist() == []


# Two groups


def test_two_groups(folder):
    rows = [
        (
            "allreduce r0.npy --group-b r1.npy r2.npy r3.npy",
            {"a0": prefix(3, 1), "b0": numbers(0), "b1": numbers(0), "b2": numbers(0)},
        ),
        # The group ends at the next option.
        (
            "allreduce --group-b r2.npy r3.npy --to npy r0.npy r1.npy",
            {"a0": prefix(3, 2), "a1": prefix(3, 2), "b0": prefix(1), "b1": prefix(1)},
        ),
        (
            "reduce-scatter --counts 5,7 --counts-b 12 r0.npy r1.npy --group-b r2.npy",
            {"a0": numbers(2)[:5], "a1": numbers(2)[5:], "b0": prefix(1)},
        ),
    ]
    for line, expected in rows:
        for path in folder.glob("out_*"):
            path.unlink()
        succeeded(run(*line.split(), *SUM, "-o", "out_{group}{rank}.npy", cwd=folder))
        found = {path.stem.removeprefix("out_"): np.load(path).tolist() for path in folder.glob("out_*")}
        assert found == {name: each.tolist() for name, each in expected.items()}, line
    outcome = run("reduce", *SUM, "r0.npy", "--group-b", "r1.npy", "r2.npy", "--to", "raw", cwd=folder)
    assert (outcome.status, outcome.out) == (0, prefix(2, 1).tobytes())


# Names


def test_names(folder):
    for rank in range(NRANKS):
        (folder / f"run{rank}").mkdir()
    before = set(os.listdir(folder))
    rows = {
        "{rank}": "0,1,2,3",
        "x{rank:2}": "x 0,x 1,x 2,x 3",
        "x{rank:03d}.npy": "x000.npy,x001.npy,x002.npy,x003.npy",
        "{stem}.sum.npy": "r0.sum.npy,r1.sum.npy,r2.sum.npy,r3.sum.npy",
        "{rank}{{0}}": "0{0},1{0},2{0},3{0}",
        "{group}-{stem}-{rank}": "a-r0-0,a-r1-1,a-r2-2,a-r3-3",
    }
    for pattern, names in rows.items():
        succeeded(run("scan", *SUM, *NPY, "-o", pattern, cwd=folder))
        made = set(os.listdir(folder)) - before
        assert sorted(made) == names.split(","), pattern
        for name in made:
            (folder / name).unlink()
    succeeded(run("scan", *SUM, *NPY, "-o", "run{rank}/sum.npy", cwd=folder))
    assert same(results(folder, "run{}/sum.npy"), [prefix(rank) for rank in range(NRANKS)])


# What is said


def test_summaries_and_warnings(folder):
    scan = ("scan", "--op", "sum", *NPY)
    told = "mpired: MPI_Scan with sum of 4 ranks, 12 x int64, 1 worker -> 4 files, out_{rank}.npy (npy)\n"
    assert run(*scan, "-o", "out_{rank}.npy", cwd=folder).err == told
    summary = json.loads(run("exscan", "--json", "--op", "max", *NPY, "-o", "x_{rank}.npy", cwd=folder).out)
    expected = {"call": "MPI_Exscan", "op": "MPI_MAX", "nranks": 4, "noutputs": 3, "output": "x_{rank}.npy",
                "format": "npy", "nbytes": 3 * 8 * COUNT}  # fmt: skip
    assert {name: summary[name] for name in expected} == expected  # the last rank is in no result
    np.save(folder / "r10.npy", numbers(0))
    words = ("--op", "sum", "r0.npy", "r10.npy", "r2.npy", "-f", "-o", "out_{rank}.npy")
    assert "r10.npy came before r2.npy" in run("scan", *words, cwd=folder).err
    assert "came before" not in run("allreduce", *words, cwd=folder).err  # integers
    variables = {"MPIRED_TO": "text", "MPIRED_JOBS": "1"}
    assert "from the environment" in run(*scan, "-o", "t_{rank}.npy", cwd=folder, env=variables).err
    assert (folder / "t_0.npy").read_text().splitlines()[0] == str(numbers(0)[0])
    os.link(folder / "r0.npy", folder / "other")
    assert "r0.npy is a hard link" in run(*scan, "--in-place", cwd=folder).err


# Many ranks


@pytest.mark.timeout(300)
def test_more_ranks_than_descriptors(tmp_path):
    (tmp_path / "in").mkdir()
    for rank in range(300):
        np.full(10, rank + 1).tofile(tmp_path / "in" / f"r{rank:04}.bin")
    names = sorted(os.listdir(tmp_path / "in"))
    words = ("scan", *SUM, "--type", "int64_t", *names, "-o", "../s_{rank:04d}.bin")
    assert shell('ulimit -n 64; exec "$@"', *words, cwd=tmp_path / "in", timeout=200) == (0, b"", "")
    for rank in 0, 1, 63, 64, 200, 299:
        expected = (rank + 1) * (rank + 2) // 2
        assert np.fromfile(tmp_path / f"s_{rank:04}.bin", "i8").tolist() == [expected] * 10


@pytest.mark.timeout(300)
def test_memory_is_flat(tmp_path):
    """As many bytes in few ranks and in many need the same, and less than the data."""
    peaks = {}
    for nranks, count in (16, 1 << 19), (256, 1 << 15):
        draw = np.random.default_rng(1)
        paths = [f"{nranks}_{rank}.bin" for rank in range(nranks)]
        for path in paths:
            draw.random(count).tofile(tmp_path / path)
        words = ("scan", *SUM, "--type", "double", *paths, "-o", f"out_{nranks}_{{rank}}.bin")
        status, peaks[nranks], err = measured(*words, cwd=tmp_path)
        assert (status, err) == (0, "")
        last = np.fromfile(tmp_path / f"out_{nranks}_{nranks - 1}.bin", "f8")
        expected = functools.reduce(operator.add, [np.fromfile(tmp_path / path, "f8") for path in paths])
        assert last.tobytes() == expected.tobytes()
    assert max(peaks.values()) < 64 << 20  # the bytes of the ranks together
    assert abs(peaks[16] - peaks[256]) < 8 << 20


# Formats, and what is around the elements


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
