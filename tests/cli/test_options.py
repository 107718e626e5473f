"""What holds for the options of all commands, and options from the environment, which are always told."""

from __future__ import annotations

import contextlib

import click
import numpy as np
from click_commands import COMMANDS, OPTIONS
from command import refused, run
from rows import check_refused, each
from three_ranks import A, B

from mpired.cli import cli


@each("command, option, flag", [(*row, flag) for row in OPTIONS for flag in (*row[1].opts, *row[1].secondary_opts)])
def test_an_option_has_always_a_value_or_never(command, option, flag):
    """A value that may be left out would take the file behind it for itself."""

    def value(*words):
        # The option of help is kept with the command, so it has to be the one that the group gives.
        context = click.Context(COMMANDS[command], parent=click.Context(cli, **cli.context_settings))
        return COMMANDS[command].make_parser(context).parse_args([flag, *words])[0][option.name]

    with contextlib.suppress(click.BadOptionUsage):  # which says that it needs a value
        assert value() == value("file")


_LONG = "9x" * 21_000
_WORDS = {
    "reduce-scatter": "--op sum --counts 3 a.npy",
    "fetch-and-op": "--op sum a.npy 1",
    "compare-and-swap": "a.npy 1 2",
    "reduce-local": "--op sum a.npy b.npy",
    "accumulate": "--op sum a.npy b.npy",
    "get-accumulate": "--op sum a.npy b.npy",
    "pack": "--type double a.npy -o out.bin",
    "unpack": "--type double a.npy -o out.bin",
    "diff": "a.npy b.npy",
    "locate": "--op maxloc a.npy",
    **dict.fromkeys(("info", "show", "recover"), "missing.npy"),
    **dict.fromkeys(("ops", "types", "help", "examples", "completion"), ""),
    **dict.fromkeys(("reduce", "allreduce", "scan", "exscan", "reduce-scatter-block"), "--op sum a.npy -o out{rank}"),
}


def _kind(option):
    return id(getattr(getattr(option, "row", None), "kind", option))


_LONG_WORDS = [
    [f"--{_LONG}"],
    *([name, *words.split(), _LONG] for name, words in _WORDS.items()),
    *{
        (_kind(option), option.nargs): [name, *_WORDS[name].split(), option.opts[-1], *[_LONG] * option.nargs]
        for name, option in OPTIONS
        if name in _WORDS and not option.is_flag
    }.values(),  # an option of each kind
    ["fetch-and-op", "--op", "no_op", "a.npy", _LONG],
]


@each("words", _LONG_WORDS)
def test_a_message_has_an_end_however_long_a_word_is(words, tmp_path):
    """Its beginning and its end are there: what it is about, and the way out."""
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.arange(3.0))
    outcome = run(*words, cwd=tmp_path)
    assert len(outcome.err) < 6000
    assert all(line.startswith("mpired: ") for line in outcome.err.splitlines())
    if outcome.status:
        refused(outcome, outcome.status)
        assert outcome.status in {2, 3, 4, 7}


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
