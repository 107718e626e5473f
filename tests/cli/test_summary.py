"""The summary of a command, as a line and as JSON."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
from command import run
from three_ranks import A, B


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
    assert (outcome.status, outcome.err, outcome.out.count(b"\n")) == (0, "", 1)
    summary = json.loads(outcome.out)
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
