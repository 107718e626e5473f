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


@pytest.mark.parametrize(
    ("command", "ops"),
    [("reduce", "median, quantile"), ("accumulate", "minloc, replace"), ("fetch-and-op", "minloc, replace, no_op")],
)
def test_an_unknown_op_is_answered_with_those_that_the_command_takes(command, ops, folder):
    refused(run(command, "--op", "nces", "a.npy", "b.npy", cwd=folder), 2, "the ops are max, ", f", {ops}\n")


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
    [
        ("reduc", "did you mean reduce?"),
        ("acumulate", "did you mean accumulate"),
        ("scna", "did you mean scan?"),
        ("sum", "`mpired reduce --op sum`;"),
        ("MPI_MAX", "`mpired reduce --op max`;"),
        ("argmax", "`mpired reduce --op maxloc` with --index rank;"),
        ("mean", "`mpired reduce --op mean`;"),
        ("*", "`mpired reduce --op prod`;"),
        ("replace", "`mpired accumulate --op replace`;"),
        ("no_op", "`mpired get-accumulate --op no_op`;"),
    ],
)
def test_unknown_commands_get_suggestions(word, hint, folder):
    refused(run(word, "a.npy", cwd=folder), 2, word, hint)


@pytest.mark.parametrize("word", ["xyzzy", "covariance", "sum,"])
def test_nothing_is_suggested_for_a_word_like_no_command(word, folder):
    refused(run(word, cwd=folder), 2, f"No such command '{word}'; see `mpired --help`")


@pytest.mark.parametrize(
    ("size", "nbytes"), [("1K", 1024), ("2k", 2048), ("1024", 1024), ("1KiB", 1024), ("1kb", 1024)]
)
def test_an_offset_may_be_in_units(size, nbytes, folder):
    (folder / "big.raw").write_bytes(bytes(nbytes) + np.array([7, 8], "i4").tobytes())
    outcome = run(
        "reduce", "-q", "--op", "sum", "--type", "int", "--offset", size, "big.raw", "--to", "text", cwd=folder
    )
    assert (outcome.status, outcome.out) == (0, b"7\n8\n")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--offset 8", "--offset: only for raw files"),
        ("--count 2", "--count: only for raw files"),
        ("--byte-order big", "--byte-order: only for raw files"),
        ("--datarep external32 --offset 8", "--offset and --datarep: only for raw files"),
        ("--columns x", "--columns: only for files with columns or arrays"),
        ("--pair x,y", "--pair: only for files with columns or arrays"),
    ],
)
def test_only_the_option_that_is_wrong_is_named(words, named, folder):
    outcome = run("reduce", "--op", "sum", *words.split(), "a.npy", "-o", "out.npy", cwd=folder)
    them = "them" if " and " in named.partition(":")[0] else "it"
    assert (outcome.status, outcome.err) == (2, f"mpired: {named}, and there is none; leave {them} out\n")


@pytest.mark.parametrize(("command", "sizes"), [("reduce", 3), ("pack", 2), ("info", 1)])
def test_help_of_a_size_says_what_its_units_are(command, sizes, folder):
    text = " ".join(run(command, "--help", cwd=folder).out.decode().split())
    assert text.count(" SIZE ") == sizes + 1
    assert text.count("SIZE K, KB and KiB are all 1024 bytes") == 1
    refused(run("reduce", "--op", "sum", "--max-memory", "1KX", "a.npy", cwd=folder), 2, "--max-memory", "K is 1024")


def test_ranks_that_are_wrong_for_one_reason_are_told_together(folder):
    names = [f"x{rank}.h4" for rank in range(40)]
    for name in names:
        (folder / name).write_bytes(b"\x0e\x03\x13\x01" + bytes(64))
    message = run("reduce", "--op", "sum", "--type", "double", *names, cwd=folder).err
    assert message.startswith("mpired: 40 of 40 ranks: HDF4: x0.h4, x1.h4, x2.h4, ...; ")
    assert message.count("HDF4") == 1
    some = run("reduce", "--op", "sum", "--type", "double", "a.npy", *names[:5], cwd=folder).err
    assert some.startswith("mpired: 5 of 6 ranks: HDF4: x0.h4, x1.h4, x2.h4, ... (5 ranks); ")
    few = run("reduce", "--op", "sum", "--type", "double", "a.npy", *names[:3], cwd=folder).err
    assert few.startswith("mpired: 3 of 4 ranks: HDF4: x0.h4, x1.h4, x2.h4; ")


def test_ranks_that_disagree_in_one_way_are_told_together_without_their_numbers(folder):
    for name in "cde":
        np.save(folder / f"{name}.npy", np.arange(4.0))
    message = run("reduce", "--op", "sum", "a.npy", "c.npy", "b.npy", "d.npy", "e.npy", "nix.npy", cwd=folder).err
    assert message == (
        "mpired: 4 of 6 ranks: count 4, but rank 0 ('a.npy') has 3: c.npy, d.npy, e.npy; "
        "give ranks of one count, or skip the others with --skip-bad; "
        "nix.npy: No such file or directory\n"
    )


def test_all_obstacles_are_in_one_message(folder):
    np.savez(folder / "o.npz", x=np.arange(3.0), o=np.array([1], object), p=np.array([1], object))
    outcome = run("reduce", "--op", "max", "--weights", "1,2", "--ddof", "1", "o.npz", "-o", "a.npy", cwd=folder)
    parts = (
        "array 'o': holds Python objects",
        "(also 'p')",
        "--weights: is for",
        "--ddof: is for",
        "a.npy: already exists",
    )
    refused(outcome, 3, *parts)
    outcome = run("reduce", "--op", "mean", "--weights", "1,2", "o.npz", "-o", "new.npz", cwd=folder)
    refused(outcome, 3, "(also 'p')", "--weights: has 2 values for 1 rank; give one for each rank")


@pytest.mark.parametrize(("word", "op"), [("--mean", "mean"), ("--MPI_SUM", "sum"), ("--average", "mean")])
def test_an_op_as_a_flag(word, op, folder):
    outcome = run("reduce", word, "a.npy", cwd=folder)
    refused(outcome, 2, f"No such option '{word}'; did you mean --op {op}? See `mpired reduce --help`")


@pytest.mark.parametrize("command", ["reduce", "accumulate", "scan", "fetch-and-op"])
def test_an_op_is_needed(command, folder):
    refused(run(command, "a.npy", "b.npy", cwd=folder), 2, "Missing option '--op'")


def test_help_of_an_unknown_command(folder):
    refused(run("help", "reduc", cwd=folder), 2, "reduc", "did you mean reduce")
    refused(run("help", "status", cwd=folder), 2, "did you mean `mpired help statuses`? See `mpired --help`")


def test_a_target_that_is_missing(folder):
    refused(run("accumulate", "--op", "sum", "nix.npy", "a.npy", cwd=folder), 4, "nix.npy", "--create")
    assert "--create" not in run("compare-and-swap", "nix.npy", "1", "2", cwd=folder).err


def test_a_pair_with_a_column_that_is_no_number(folder):
    outcome = run("reduce", "--op", "maxloc", "--pair", "energy,name", "named.parquet", cwd=folder)
    refused(outcome, 3, "column 'name' holds string", "two columns of numbers")


def test_a_raw_target_is_made_of_a_declared_type_only(folder):
    refused(run("accumulate", "--op", "sum", "--create", "t.bin", "a.npy", cwd=folder), 2, "t.bin", "--type")
    assert not (folder / "t.bin").exists()


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


def test_ops_takes_a_file_and_no_op(folder):
    refused(run("ops", "max", cwd=folder), 2, "max: is an op, and there is no such file")
