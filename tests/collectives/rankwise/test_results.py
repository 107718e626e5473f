"""The commands whose results go to the ranks: what each writes, from few ranks and from many."""

from __future__ import annotations

import functools
import operator
import os
from pathlib import Path

import numpy as np
import pytest
from command import measured, refused, run, shell, succeeded, unchanged
from rankwise import COUNT, NPY, NRANKS, SUM, numbers, prefix, results, same


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
    assert "MPI_Reduce_local with sum" in outcome.err
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


@pytest.mark.parametrize(
    ("counts", "status", "reason"),
    [
        ("3,0,5", 3, "has 3 values for 4 ranks"),
        ("3,0,4,6", 3, "sum to 13, but every rank has 12"),
        ("3,,4,5", 2, "are not counts"),
        ("-3,5,5,5", 2, "are not counts"),
        ("a", 2, "are not counts"),
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
        refused(run(*words, cwd=folder), 3, "12 elements do not make 5 equal blocks")


def test_arrays_of_different_lengths_are_not_cut(tmp_path):
    np.savez(tmp_path / "r.npz", short=np.zeros(2), long=np.zeros(4))
    for verb, *counts in (("reduce-scatter-block",), ("reduce-scatter", "--counts", "1,1")):
        with unchanged(tmp_path):
            outcome = run(verb, *SUM, *counts, "r.npz", "r.npz", "-o", "out_{rank}.npz", cwd=tmp_path)
            refused(outcome, 3, "r.npz: has arrays of different lengths", "--columns")


@pytest.mark.parametrize("verb", ["scan", "exscan", "allreduce", "reduce-scatter-block"])
def test_no_elements(tmp_path, verb):
    for rank in range(3):
        np.save(tmp_path / f"r{rank}.npy", np.zeros(0))
    words = (verb, *SUM, "r0.npy", "r1.npy", "r2.npy", "-o", "out_{rank}.npy")
    succeeded(run(*words, cwd=tmp_path))
    assert np.load(tmp_path / "out_2.npy").tolist() == []


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen hundred ranks of ten integers."""
    folder = tmp_path_factory.mktemp("many")
    for rank in range(1500):
        np.full(10, rank + 1).tofile(folder / f"r{rank:04}.bin")
    return folder


@pytest.mark.timeout(300)
def test_more_ranks_than_descriptors(many, tmp_path):
    words = ("scan", *SUM, "--type", "int64_t", *sorted(os.listdir(many)), "-o", f"{tmp_path}/s_{{rank:04d}}.bin")
    assert shell('ulimit -n 64; exec "$@"', *words, cwd=many, timeout=200) == (0, b"", "")
    assert len(os.listdir(tmp_path)) == 1500
    for rank in 0, 1, 63, 64, 700, 1499:
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
