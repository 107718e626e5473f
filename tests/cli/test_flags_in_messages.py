"""A message names only options that its command has."""

from __future__ import annotations

import re

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import refused, run

from mpired.cli import cli

PAIRS = np.array([(1.0, 2, 3)], [("a", "f8"), ("b", "i4"), ("c", "i4")])


def few_processes() -> None:
    """Let no worker be started."""
    import os

    def fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    os.fork = fork


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    np.save(tmp_path / "records.npy", PAIRS)
    (tmp_path / "t.csv").write_text("x\n1\n")
    (tmp_path / "as.npy").write_bytes(b"ARROW1 and no more")
    pq.write_table(
        pa.table({"s": ["a"], "t": pa.array([1], pa.timestamp("us", "UTC")), "x": [1.0]}), tmp_path / "t.parquet"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("fetch-and-op --op sum t.csv 1", "is csv by its suffix, which mpired does not read"),
        ("accumulate --op sum t.csv a.npy", "is csv by its suffix, which mpired does not read"),
        ("compare-and-swap as.npy 0 1", "holds arrow by its first bytes, but its suffix means npy; rename it"),
        ("fetch-and-op --op sum --byte-order big a.npy 1", "--byte-order: only for raw files, and there is none"),
        ("fetch-and-op --op sum --columns x a.npy 1", "--columns: only for files with columns or arrays"),
        ("compare-and-swap a.npy 1 2", "byte, multi language; `mpired fetch-and-op` takes MPI_DOUBLE (float64)"),
        ("accumulate --op max records.npy records.npy", "no one-sided call takes it"),
        ("reduce-scatter --op sum --counts 1 t.parquet -o o{rank}.npy", "column 's' holds string"),
        ("reduce-local --op sum t.parquet t.parquet", "column 's' holds string"),
        ("get-accumulate --op no_op --to raw --columns t t.parquet", "has no form in raw; use --to parquet"),
    ],
)  # fmt: skip
def test_refusals(words, reason, files):
    name, *others = words.split()
    outcome = run(name, *others, cwd=files)
    refused(outcome, outcome.status, reason)
    command = cli.get_command(click.Context(cli), name)
    own = {flag for parameter in command.params for flag in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", outcome.err)) <= own
    assert "`op=" not in outcome.err


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        ("accumulate -q --op sum --target-disp 0 a.npy t.parquet --columns x", "; raise the limit of processes"),
        ("reduce -q --jobs 2 --op sum t.parquet --columns x", "; use --jobs 1, or raise the limit of processes"),
    ],
)
def test_a_way_out_that_the_command_does_not_have_is_left_out(words, way_out, files):
    outcome = run(*words.split(), cwd=files, setup=few_processes)
    refused(outcome, 4, f"Resource temporarily unavailable){way_out}\n")
