"""Options from the environment, which a command always tells of, once."""

from __future__ import annotations

import numpy as np
from command import run
from rows import check_refused, each
from three_ranks import A, B


def test_environment_sets_options_and_is_told(folder):
    words = ("reduce", "--op", "sum", "a.bin", "b.bin")
    env = {"MPIRED_TYPE": "double", "MPIRED_TO": "text", "MPIRED_JOBS": "1"}
    outcome = run(*words, cwd=folder, env=env)
    assert outcome.out == b"11.5\n2.25\n2.0\n"
    given = outcome.err.rstrip().partition("; from the environment: ")[2].split(", ")
    assert sorted(given) == ["--jobs (MPIRED_JOBS)", "--to (MPIRED_TO)", "--type (MPIRED_TYPE)"]
    outcome = run(*words, "--to", "csv", "-j", "1", cwd=folder, env=env)
    assert outcome.out == b"value\n11.5\n2.25\n2.0\n"
    assert outcome.err.rstrip().endswith("; from the environment: --type (MPIRED_TYPE)")
    assert "environment" not in run(*words, "--type", "double", cwd=folder).err


@each("name, value", [("MPIRED_OP", "max"), ("OP", "max"), ("TYPE", "float"), ("REDUCE_OP", "max"), ("JOBS", "x")])
def test_environment_that_is_not_asked(name, value, folder):
    outcome = run("reduce", "--op", "sum", "--type", "double", "a.bin", "b.bin", cwd=folder, env={name: value})
    assert (outcome.status, outcome.out) == (0, (A + B).tobytes())
    check_refused(folder, "reduce a.npy", 2, "--op", env={name: value})


@each(
    "words, env, told",
    [
        ("info --json a.npy", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
        ("reduce -q --op sum a.npy --to text", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
        ("accumulate -q --op sum a.npy b.npy", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
        ("accumulate --json --op sum a.npy b.npy", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
        ("fetch-and-op --op sum a.npy 1", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
        ("pack -q a.bin -o d.npy", {"MPIRED_TYPE": "double"}, "--type (MPIRED_TYPE)"),
        ("reduce --op sum a.npy -o new.npy", {"MPIRED_QUIET": "1"}, "--quiet (MPIRED_QUIET)"),
        ("reduce -v --op sum a.npy b.npy -o c.npy", {"MPIRED_FORCE": "1"}, "--overwrite (MPIRED_FORCE)"),
        ("reduce --json --op sum a.npy b.npy -o c.npy", {"MPIRED_OVERWRITE": "1"}, "--overwrite (MPIRED_OVERWRITE)"),
    ],
)
def test_an_option_of_the_environment_is_told_once_by_every_command(words, env, told, folder):
    outcome = run(*words.split(), cwd=folder, env=env)
    assert outcome.status == 0, outcome.err
    assert outcome.err.count("from the environment: ") == 1
    assert outcome.err.endswith(f"from the environment: {told}\n") or "-v" in words


@each(
    "words, status",
    [
        ("reduce --op sum a.npy b.npy", 2),
        ("reduce --op nope a.npy b.npy", 2),
        ("reduce --op sum a.npy b.npy --offset=-1", 2),
        ("reduce --op sum a.npy missing.npy", 4),
        ("accumulate --op sum a.npy b.npy", 2),
        ("fetch-and-op --op sum missing.npy 1", 4),
        ("info a.npy", 2),
    ],
)
def test_an_option_of_the_environment_is_told_by_a_failure_too(words, status, folder):
    told = "; from the environment: --columns (MPIRED_COLUMNS)"
    check_refused(folder, words, status, told, env={"MPIRED_COLUMNS": "x"})


def test_environment_that_makes_no_sense(folder):
    check_refused(folder, "reduce --op sum a.npy", 2, "jobs", "many", env={"MPIRED_JOBS": "many"})


@each("shell", ["bash_source", "zsh_source", "bash_complete", "nonsense"])
def test_completion_is_asked_for_without_words(shell, folder):
    """A command with words is done, not taken for a question of the shell."""
    np.save(folder / "a.npy", A)
    words = ("accumulate", "-q", "--op", "sum", "a.npy", "b.npy")
    assert run(*words, cwd=folder, env={"_MPIRED_COMPLETE": shell}) == (0, b"", "")
    assert np.load(folder / "a.npy").tolist() == (A + B).tolist()
