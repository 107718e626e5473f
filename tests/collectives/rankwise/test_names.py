"""The names of results for the ranks, and the files that they may not replace."""

from __future__ import annotations

import os

import numpy as np
import pytest
from command import refused, run, succeeded, unchanged
from rankwise import NPY, NRANKS, SUM, numbers, prefix, results, same


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
        ("sum.npy", "names one file"),
        ("{group}.npy", "names one file"),
        ("{{rank}}.npy", "names one file"),
        ("{}.npy", "has the field {}"),
        ("{rank!r}", "has the field"),
        ("{rank:x}", "has the field"),
        ("{rank:1000000000d}", "has the field"),
        ("{rank.__class__}", "has the field"),
        ("{0}", "has the field"),
        ("{stem:>9}", "has the field"),
        ("{rank", "not a pattern"),
        ("rank}", "not a pattern"),
        ("", "names one file"),
        ("-", "names one file"),
        ("/dev/null", "names one file"),
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
        refused(outcome, 2, "2 of 4 outputs: already exists: out_1.npy, out_3.npy")
    succeeded(run("scan", *SUM, "-f", *NPY, "-o", "out_{rank}.npy", cwd=folder))
    assert same(results(folder), [prefix(rank) for rank in range(NRANKS)])


def test_streams_cannot_be_results(folder):
    for rank in range(NRANKS):
        os.mkfifo(folder / f"fifo{rank}")
    with unchanged(folder):
        refused(run("scan", *SUM, *NPY, "-o", "fifo{rank}", cwd=folder), 2, "4 of 4 outputs: a stream")
        refused(run("scan", *SUM, *NPY, "-o", "/dev/fd/{rank}", cwd=folder), 2, "4 of 4 outputs: a stream")


def test_somewhere_to_write_must_be_said(folder):
    with unchanged(folder):
        refused(run("scan", *SUM, *NPY, cwd=folder), 2, "--output", "{rank}", "--in-place")
        refused(run("scan", *SUM, *NPY, "-o", "{rank}", "--in-place", cwd=folder), 2, "--in-place")
