"""What a message offers to who has slipped: something that works, and that the command has."""

import os
import re

import click
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from command import refused, run
from rows import check_refused, each

from mpired.cli import cli

PAIRS = np.array([(1.0, 2, 3)], [("a", "f8"), ("b", "i4"), ("c", "i4")])


@pytest.fixture
def folder(tmp_path):
    """Ranks as npy, with columns, and files that hold something else."""
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.arange(3.0))
    columns = {"energy": [1.5, 2.5], "cell": pa.array([1, 2], pa.int32()), "hits": [3, 4]}
    pq.write_table(pa.table(columns), tmp_path / "cells.parquet")
    pq.write_table(pa.table(columns | {"name": ["x", "y"]}), tmp_path / "named.parquet")
    np.save(tmp_path / "records.npy", PAIRS)
    (tmp_path / "t.csv").write_text("x\n1\n")
    (tmp_path / "mine.py").write_text("f = max\n")
    (tmp_path / "as.npy").write_bytes(b"ARROW1 and no more")
    times = {"s": ["a"], "t": pa.array([1], pa.timestamp("us", "UTC")), "x": [1.0]}
    pq.write_table(pa.table(times), tmp_path / "t.parquet")
    np.save(tmp_path / "t.npy", np.array([True, False]))
    pa.feather.write_feather(pa.table({"x": [True, False]}), tmp_path / "t.arrow", "uncompressed")
    return tmp_path


@each("words, status, reasons", [
    # ops, and those that the command takes
    ("reduce --op sum a.npy b.npy -output a.npy", 2, ["-output: is an option with one dash; write --output"]),
    ("reduce --op summ a.npy b.npy", 2, ["summ", "sum?"]),
    ("accumulate --op nces a.npy b.npy", 2, ["the ops are max, ", ", minloc, replace\n"]),
    ("reduce --op average a.npy b.npy", 2, ["average: is not an MPI op; did you mean mean"]),
    *((f"reduce --op {op} a.npy b.npy", 2, [f"{op}: is not an MPI op", "; did you mean quantile:0.9?"])
      for op in ("percentile", "percentile:90", "p90")),
    ("reduce --op mine:f a.npy b.npy", 7, ["mine:f: there is no module mine; for the file write mine.py:f"]),
    ("reduce --op sum --threads 2 a.npy", 2, ["No such option '--threads'; did you mean --jobs?"]),
    ("ops max", 2, ["max: is an op, and there is no such file"]),
    # commands
    ("reduc a.npy", 2, ["reduc", "did you mean reduce?"]),
    # options that are for other files, of which only the wrong one is named
    ("reduce --op sum a.npy --datarep external32 --offset 8", 2,
     ["--offset and --datarep: only for raw files, and there is none; leave them out\n"]),
    ("reduce --op sum --max-memory 1KX a.npy", 2, ["--max-memory", "K is 1024"]),
    # files
    ("fetch-and-op --op sum t.csv 1", 3, ["is csv by its suffix, which mpired does not read"]),
    ("compare-and-swap as.npy 0 1", 3, ["holds arrow by its first bytes, but its suffix means npy; rename it"]),
    ("accumulate --op sum nix.npy a.npy", 4, ["nix.npy", "--create"]),
    ("compare-and-swap nix.npy 1 2", 4, ["nix.npy: No such file or directory\n"]),
    ("accumulate --op sum --create t.bin a.npy", 2, ["t.bin", "--type"]),
    ("diff t.csv a.npy", 3, ["read its bytes with --from raw and --type uint8_t\n"]),
    ("reduce --op sum --type int t.csv", 3, ["read its bytes with --from raw\n"]),
    ("reduce --op sum a.npy b.npy out.npy", 4, ["out.npy", "--output"]),  # as for nces
    # elements that a target has no place for
    *((f"{command} --op sum t.{form} t.{form}", 3, ["as 1 in a new file by `mpired reduce --op sum --accumulate-in "])
      for command in ("reduce-local", "reduce --in-place", "accumulate") for form in ("npy", "arrow")),
    ("reduce --op sum t.npy t.npy", 3, ["take true as 1 with --accumulate-in int64_t;"]),
    ("reduce-local --op sum a.npy t.npy", 3, ["; convert to one datatype\n"]),
    # columns
    ("reduce-scatter --op sum --counts 1 t.parquet -o o{rank}.npy", 3, ["column 's' holds string"]),
    ("get-accumulate --op no_op --to raw --columns t t.parquet", 3, ["has no form in raw; use --to parquet"]),
    ("reduce --op maxloc --pair energy,name named.parquet", 3, ["'name' holds string", "two columns of numbers"]),
])  # fmt: skip
def test_a_slip_is_answered_with_a_way_out(words, status, reasons, folder):
    """Of options only those of the command are named."""
    check_refused(folder, words, status, *reasons)
    message = run(*words.split(), cwd=folder).err
    assert "`op=" not in message
    command = cli.get_command(click.Context(cli), words.split()[0])
    if command and "did you mean" not in message and "; `mpired" not in message:
        own = {flag for parameter in command.params for flag in parameter.opts} | {"--help"}
        assert set(re.findall(r"--[a-z-]+", message)) <= own


@each("words, hint", [
    ("accumulate -q --op sum --target-disp 0 a.npy t.parquet --columns x", "; raise the limit of processes"),
    ("reduce -q --jobs 2 --op sum t.parquet --columns x", "; use --jobs 1, or raise the limit of processes"),
])  # fmt: skip
def test_a_way_out_that_the_command_does_not_have_is_left_out(words, hint, folder):
    def few_processes() -> None:
        def fork() -> int:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        os.fork = fork

    check_refused(folder, words, 4, f"Resource temporarily unavailable){hint}\n", setup=few_processes)


def test_names_of_columns_may_have_commas(folder):
    names = ("a,b", 'c"d', '"e"', "f'g")
    pq.write_table(pa.table({name: [number + 0.5] for number, name in enumerate(names)}), folder / "odd.parquet")
    pq.write_table(pa.table({"a,b": [7], "c": [0.5]}), folder / "other.parquet")
    for text, value in (('"a,b"', 0.5), ('c"d', 1.5), ('"""e"""', 2.5), ("f'g", 3.5), ('"f\'g"', 3.5)):
        outcome = run("reduce", "--op", "sum", "odd.parquet", "--columns", text, "--to", "text", cwd=folder)
        assert outcome.out.decode().splitlines()[-1] == str(value), text
    words = ("--op", "maxloc", "other.parquet", "--pair", 'c,"a,b"', "--to", "json")
    assert run("reduce", *words, cwd=folder).status == 0
    words = ("--op", "sum", "other.parquet", "--columns", "c", "--keep", '"a,b"', "-o", "kept.parquet")
    assert run("reduce", *words, cwd=folder).status == 0
    assert pq.read_table(folder / "kept.parquet").column_names == ["a,b", "c"]
    message = run("reduce", "--op", "band", "other.parquet", cwd=folder).err
    assert "; choose with --columns '\"a,b\"'" in message
    for slip in ('"a,b', '"a,b"c'):
        refused(run("reduce", "--op", "sum", "odd.parquet", "--columns", slip, cwd=folder), 2, "--columns", "quote")
