"""The summary of a command, as a line and as JSON."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run
from three_ranks import A, B


def test_summary(folder):
    outcome = run("reduce", "--op", "sum", "-j", "1", "a.npy", "b.npy", "c.npy", "-o", "out.npy", cwd=folder)
    line = "mpired: sum of 3 ranks, 3 x float64, NaN propagates, 1 worker -> out.npy (npy)\n"
    assert outcome == (0, b"", line)
    outcome = run("reduce", "--op", "band", "--type", "int", "-j", "1", "a.bin", "--to", "text", cwd=folder)
    assert outcome.err == "mpired: band of 1 rank, 6 x int32, 1 worker -> standard output (text)\n"


def test_summary_of_columns(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "y": [3.0, 4.0], "z": [5, 6]}), tmp_path / "a.parquet")
    outcome = run("reduce", "--op", "sum", "a.parquet", "-o", "out.parquet", cwd=tmp_path)
    assert outcome.err.startswith("mpired: sum of 1 rank, 2 x int64 and 2 more, NaN propagates, ")


def test_quiet_and_verbose(folder):
    words = ("reduce", "--op", "sum", "a.npy", "b.npy", "-o", "out.npy", "-f")
    assert run(*words, "-q", cwd=folder).err == ""
    assert run(*words, "--quiet", cwd=folder).err == ""
    for flag in ("-v", "--verbose"):
        lines = run(*words, flag, cwd=folder).err.splitlines()
        assert all(line.startswith("mpired: ") for line in lines)
        assert "segment" in lines[1]
        assert lines[-1].endswith(" s in all")


@pytest.mark.parametrize("words", [("reduce", "-o", "out.npy.xz"), ("scan", "-o", "out_{rank}.npy.gz")])
def test_verbose_names_the_compressing(words, folder):
    outcome = run(*words, "-v", "--op", "sum", "a.npy", "b.npy", cwd=folder)
    assert (outcome.status, outcome.err.count(" s compressing results\n")) == (0, 1)


def test_verbose_names_the_steps_in_their_order(folder, cut_into):
    """Each once, with its seconds, which sum to less than all."""
    cut_into(8)
    words = ("reduce", "-v", "--op", "sum", "a.npy", "b.npy", "-o", "out.parquet", "-f", "-j", "2")
    (folder / "out.parquet").touch()
    told = [line.split(" ", 3)[1:] for line in run(*words, cwd=folder).err.splitlines() if " s " in line]
    assert [step for _, _, step in told] == [
        "opening and checking the ranks",
        "waiting for locks",
        "combining the ranks",
        "starting workers",
        "encoding results",
        "bringing results to the disk",
        "putting results in place",
        "in all",
    ]
    *steps, (whole, _, _) = told
    assert all(float(seconds) >= 0 for seconds, _, _ in steps)
    assert sum(float(seconds) - 0.001 for seconds, _, _ in steps) <= float(whole)


def test_summary_as_json(folder):
    outcome = run("reduce", "--op", "mpi_sum", "a.npy", "b.npy", "-o", "out.npy", "--json", "-j", "1", cwd=folder)
    assert (outcome.status, outcome.err, outcome.out.count(b"\n")) == (0, "", 1)
    summary = json.loads(outcome.out)
    expected = {
        "op": "MPI_SUM",
        "buffers": [
            {"name": "", "datatype": "MPI_DOUBLE", "dtype": "float64", "count": 3, "stored": None, "unpacked": None}
        ],
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
