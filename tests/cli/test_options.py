"""What holds for the options of all commands."""

from __future__ import annotations

import contextlib

import click
import numpy as np
from command import refused, run
from rows import each

from mpired.cli import cli

COMMANDS = {name: cli.get_command(click.Context(cli), name) for name in cli.list_commands(click.Context(cli))}
OPTIONS = [
    (name, option)
    for name, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, click.Option)
]


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
_LONG_WORDS = [
    [f"--{_LONG}"],
    *([name, *words.split(), _LONG] for name, words in _WORDS.items()),
    *{
        max(option.opts, key=len): [name, *_WORDS[name].split(), max(option.opts, key=len), *[_LONG] * option.nargs]
        for name, option in OPTIONS
        if name in _WORDS and not option.is_flag
    }.values(),  # each option with one of the commands that have it
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
