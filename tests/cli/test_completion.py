"""What is offered to shells that complete a line, and the script of bash that asks."""

import os
import shlex
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from command import in_child, run, shell
from rows import each

from mpired.cli import COMPLETION, cli

COMMANDS = cli.list_commands(click.Context(cli))
OFFERED = {"FILE", "PATH", "PATTERN", "OLD", "RANK...", "OP", "TYPE"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A file of data and one with ops."""
    for name in ("cells.parquet", "my_ops.py"):
        (tmp_path / name).touch()
    return tmp_path


def asked(line: str, folder: Path) -> list[tuple[str, ...]]:
    """Return what is offered for the end of a line: kinds and words."""
    words = shlex.split(line)
    place = len(words) if line.endswith(" ") else len(words) - 1
    variables = {"_MPIRED_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(place)}
    outcome = run(cwd=folder, env=variables)
    assert (outcome.status, outcome.err) == (0, "")
    return [tuple(each.split(",", 1)) for each in outcome.out.decode().splitlines() if each]


def test_every_argument_and_every_path_is_completed(folder):
    asked = [
        (name, max(parameter.opts, key=len) if isinstance(parameter, click.Option) else "")
        for name in COMMANDS
        for parameter in cli.get_command(click.Context(cli), name).params
        if isinstance(parameter, click.Argument)
        or (parameter.metavar or getattr(parameter.type, "name", "")) in OFFERED
    ]
    assert len(asked) > 50

    def unanswered() -> list[tuple[str, str]]:
        os.chdir(folder)
        found = []
        for name, flag in asked:
            os.environ |= {"COMP_WORDS": f"mpired {name} {flag} ", "COMP_CWORD": "3" if flag else "2"}
            if not BashComplete(cli, {}, "mpired", COMPLETION).complete():
                found.append((name, flag))
        return found

    assert in_child(unanswered) == []


FORMATS = "raw npy parquet arrow arrows npz safetensors hdf5 netcdf zarr"


@each("line, words", [
    ("mpired ", " ".join(sorted(COMMANDS))),
    ("mpired --v", "--version"),
    ("mpired reduce --over", "--overflow --overwrite"),
    ("mpired reduce --overflow ", "warn wrap error"),
    ("mpired completion ", "bash zsh fish"),
    ("mpired reduce --op max,mean,max", "max,mean,maxloc"),
    ("mpired locate --op maxloc,", "maxloc,minloc"),
    ("mpired accumulate --op max,m", ""),
    ("mpired get-accumulate --op no", "no_op"),
    ("mpired accumulate --op no", ""),
    ("mpired accumulate --target-type int16_", "int16_t"),
    ("mpired info --from ", FORMATS),
    ("mpired reduce --to c", "csv"),
])  # fmt: skip
def test_words_that_are_offered(line, words, folder):
    assert sorted(word for kind, word in asked(line, folder) if kind == "plain") == sorted(words.split())


def test_the_script_works_in_bash(folder):
    script = 'eval "$("$1" completion bash)"; COMP_WORDS=(mpired reduce --op maxl) COMP_CWORD=3'
    assert shell(f'{script}; _mpired_completion "$1"; echo "${{COMPREPLY[@]}}"', cwd=folder) == (0, b"maxloc\n", "")
