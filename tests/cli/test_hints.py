"""What a message offers to who has slipped: something that works."""

from __future__ import annotations

import shlex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import refused, run


@pytest.fixture
def folder(tmp_path):
    """Ranks as npy, with columns, and damaged."""
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.arange(3.0))
    columns = {"energy": [1.5, 2.5], "cell": pa.array([1, 2], pa.int32()), "hits": [3, 4]}
    pq.write_table(pa.table(columns), tmp_path / "cells.parquet")
    pq.write_table(pa.table(columns | {"name": ["x", "y"]}), tmp_path / "named.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("op", "hint"),
    [
        ("argmax", "use maxloc"),
        ("argmin", "use minloc"),
        ("and", "use land"),
        ("product", "use prod"),
        ("summ", "sum?"),
    ],
)
def test_ops_of_other_programs(op, hint, folder):
    refused(run("reduce", "--op", op, "a.npy", "b.npy", cwd=folder), 2, op, hint)


def test_a_third_name_like_that_of_nces_is_the_output(folder):
    refused(run("reduce", "--op", "sum", "a.npy", "b.npy", "out.npy", cwd=folder), 4, "out.npy", "--output")
    outcome = run("reduce", "--op", "sum", "a.npy", "b.npy", "--output", "out.npy", cwd=folder)
    assert (outcome.status, np.load(folder / "out.npy").tolist()) == (0, [0.0, 2.0, 4.0])
    (folder / "out.npy").unlink()
    for words in ("missing.npy a.npy", "a.npy missing.npy -o out.npy"):
        assert "--output" not in run("reduce", "--op", "sum", *words.split(), cwd=folder).err


@pytest.mark.parametrize(
    ("file", "op"), [("cells.parquet", "band"), ("named.parquet", "band"), ("named.parquet", "sum")]
)
def test_columns_are_offered_only_if_the_op_takes_them(file, op, folder):
    message = run("reduce", "--op", op, file, "--to", "csv", cwd=folder).err
    assert ("'name'" if file == "named.parquet" else "'energy'") in message
    flag, columns = shlex.split(message.rstrip().rpartition("; choose with ")[2].partition(", or ")[0])
    assert columns == ("energy,cell,hits" if op == "sum" else "cell,hits")
    assert run("reduce", "--op", op, file, "--to", "csv", flag, columns, cwd=folder).status == 0


def test_no_column_is_offered_where_the_op_takes_none(folder):
    outcome = run("reduce", "--op", "maxloc", "cells.parquet", cwd=folder)
    refused(outcome, 3, "'energy'", "--pair VALUE,INDEX")
    assert "--columns" not in outcome.err
    pairs = run("reduce", "--op", "maxloc", "cells.parquet", "--pair", "energy,cell", "--to", "csv", cwd=folder)
    assert pairs.status == 0
    assert "--columns" not in run("reduce", "--op", "maxloc", "named.parquet", cwd=folder).err


@pytest.mark.parametrize(
    ("word", "hint"),
    [("reduc", "did you mean reduce"), ("acumulate", "did you mean accumulate"), ("sum", "mpired reduce --op sum")],
)
def test_unknown_commands_get_suggestions(word, hint, folder):
    refused(run(word, "a.npy", cwd=folder), 2, word, hint)


def test_nothing_is_suggested_for_a_word_like_no_command(folder):
    refused(run("xyzzy", cwd=folder), 2, "No such command 'xyzzy'; see `mpired --help`")


@pytest.mark.parametrize(("size", "nbytes"), [("1K", 1024), ("2k", 2048), ("1024", 1024), ("1KiB", 1024)])
def test_an_offset_may_be_in_units(size, nbytes, folder):
    (folder / "big.raw").write_bytes(bytes(nbytes) + np.array([7, 8], "i4").tobytes())
    outcome = run(
        "reduce", "-q", "--op", "sum", "--type", "int", "--offset", size, "big.raw", "--to", "text", cwd=folder
    )
    assert (outcome.status, outcome.out) == (0, b"7\n8\n")


def test_ranks_that_are_wrong_for_one_reason_are_told_together(folder):
    names = [f"x{rank}.h5" for rank in range(40)]
    for name in names:
        (folder / name).write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(64))
    message = run("reduce", "--op", "sum", "--type", "double", *names, cwd=folder).err
    assert message.startswith("mpired: 40 of 40 ranks cannot be used: x0.h5, x1.h5, x2.h5, ...: ")
    assert message.count("HDF5") == 1
    some = run("reduce", "--op", "sum", "--type", "double", "a.npy", *names[:5], cwd=folder).err
    assert some.startswith(f"mpired: 5 of 6 ranks cannot be used: {', '.join(names[:5])}: ")


def test_ranks_that_disagree_in_one_way_are_told_together_without_their_numbers(folder):
    for name in "cde":
        np.save(folder / f"{name}.npy", np.arange(4.0))
    message = run("reduce", "--op", "sum", "a.npy", "c.npy", "b.npy", "d.npy", "e.npy", "nix.npy", cwd=folder).err
    assert message == (
        "mpired: 4 of 6 ranks cannot be used: c.npy, d.npy, e.npy: has count 4, but rank 0 ('a.npy') has 3; "
        "nix.npy: No such file or directory\n"
    )


@pytest.mark.parametrize("command", ["reduce", "accumulate", "scan", "fetch-and-op"])
def test_an_op_is_needed(command, folder):
    refused(run(command, "a.npy", "b.npy", cwd=folder), 2, "Missing option '--op'")


def test_help_of_an_unknown_command(folder):
    refused(run("help", "reduc", cwd=folder), 2, "reduc", "did you mean reduce")


def test_a_target_that_is_missing(folder):
    refused(run("accumulate", "--op", "sum", "nix.npy", "a.npy", cwd=folder), 4, "nix.npy", "--create")
    assert "--create" not in run("compare-and-swap", "nix.npy", "1", "2", cwd=folder).err


def test_a_pair_with_a_column_that_is_no_number(folder):
    outcome = run("reduce", "--op", "maxloc", "--pair", "energy,name", "named.parquet", cwd=folder)
    refused(outcome, 3, "column 'name' is string", "two columns of numbers")


def test_a_raw_target_is_made_of_a_declared_type_only(folder):
    refused(run("accumulate", "--op", "sum", "--create", "t.bin", "a.npy", cwd=folder), 2, "t.bin", "--type")
    assert not (folder / "t.bin").exists()
