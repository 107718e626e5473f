"""What holds for the options of all commands."""

from __future__ import annotations

import contextlib

import click
import numpy as np
import pytest
from command import refused, run, unchanged

from mpired.cli import cli


def _options():
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for flag in (*parameter.opts, *parameter.secondary_opts):
                    yield pytest.param(command, parameter.name, flag, id=f"{name} {flag}")


@pytest.mark.parametrize(("command", "name", "flag"), list(_options()))
def test_an_option_has_always_a_value_or_never(command, name, flag):
    """A value that may be left out would take the file behind it for itself."""

    def value(*words):
        # The option of help is kept with the command, so it has to be the one that the group gives.
        context = click.Context(command, parent=click.Context(cli, **cli.context_settings))
        return command.make_parser(context).parse_args([flag, *words])[0][name]

    with contextlib.suppress(click.BadOptionUsage):  # which says that it needs a value
        assert value() == value("file")


@pytest.fixture
def folder(tmp_path):
    """Two ranks."""
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.arange(3.0))
    return tmp_path


TOLD = "from the environment: --columns (MPIRED_COLUMNS)"


@pytest.mark.parametrize(
    ("words", "status"),
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
    with unchanged(folder):
        outcome = run(*words.split(), cwd=folder, env={"MPIRED_COLUMNS": "x"})
    refused(outcome, status, f"; {TOLD}")


@pytest.mark.parametrize(
    "words",
    [
        "info --json a.npy",
        "reduce -q --op sum a.npy --to text",
        "accumulate -q --op sum a.npy b.npy",
        "accumulate --json --op sum a.npy b.npy",
        "fetch-and-op --op sum a.npy 1",
    ],
)
def test_an_option_of_the_environment_is_told_once_by_every_command(words, folder):
    outcome = run(*words.split(), cwd=folder, env={"MPIRED_TYPE": "double"})
    assert outcome.status == 0
    assert outcome.err.count("from the environment: ") == 1
    assert "--type (MPIRED_TYPE)" in outcome.err


@pytest.mark.parametrize("shell_name", ["bash_source", "zsh_source", "bash_complete", "nonsense"])
def test_completion_is_asked_for_without_words(shell_name, folder):
    """A command with words is done, not taken for a question of the shell."""
    words = ("accumulate", "-q", "--op", "sum", "a.npy", "b.npy")
    assert run(*words, cwd=folder, env={"_MPIRED_COMPLETE": shell_name}) == (0, b"", "")
    assert np.load(folder / "a.npy").tolist() == [0, 2, 4]


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
_LONG_WORDS = [
    [_LONG],
    [f"--{_LONG}"],
    [f"-{_LONG}"],
    *([name, *words.split(), _LONG] for name, words in _WORDS.items()),
    *([name, *words.split(), f"--{_LONG}"] for name, words in _WORDS.items()),
    *{
        max(parameter.opts, key=len): [name, *words.split(), max(parameter.opts, key=len), *[_LONG] * parameter.nargs]
        for name, words in _WORDS.items()
        for parameter in cli.get_command(click.Context(cli), name).params
        if isinstance(parameter, click.Option) and not parameter.is_flag
    }.values(),  # each option with one of the commands that have it
    ["fetch-and-op", "--op", "no_op", "a.npy", _LONG],
]


@pytest.mark.parametrize("words", [pytest.param(words, id=" ".join(words)[:80]) for words in _LONG_WORDS])
def test_a_message_has_an_end_however_long_a_word_is(words, folder):
    """Its beginning and its end are there: what it is about, and the way out."""
    outcome = run(*words, cwd=folder)
    assert len(outcome.err) < 6000
    assert all(line.startswith("mpired: ") for line in outcome.err.splitlines())
    if outcome.status:
        refused(outcome, outcome.status)
        assert outcome.status in {2, 3, 4, 7}
