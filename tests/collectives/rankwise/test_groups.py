"""Collectives between two groups."""

from __future__ import annotations

import numpy as np
import pytest
from command import refused, run, succeeded, unchanged
from rankwise import COUNT, SUM, numbers, prefix, results, same


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
