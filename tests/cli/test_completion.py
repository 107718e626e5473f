"""What shells complete: typed into bash, zsh and fish on a terminal, and what is offered to them."""

from __future__ import annotations

import contextlib
import os
import pty
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.shell_completion import BashComplete
from command import in_child, run, wait_until
from needs import needs
from quick import commands
from rows import each

from mpired.cli import COMPLETION, cli

SETUPS = {
    "bash": (("bash", "--norc", "--noprofile", "-i"), 'eval "$(mpired completion bash)"'),
    "zsh": (("zsh", "-f", "-i"), 'autoload -U compinit; compinit -u -D; eval "$(mpired completion zsh)"'),
    "fish": (("fish", "--no-config", "-i"), "mpired completion fish | source"),
}
# In the place of `mpired`: it answers the shell, and keeps what it is called with otherwise.
STUB = """#!/bin/sh
if [ -n "$_MPIRED_COMPLETE" ] || [ "$1" = completion ]; then exec '{command}' "$@"; fi
printf '%s\\n' "$@" > typed.new
mv typed.new typed
"""
COMMANDS = cli.list_commands(click.Context(cli))
OFFERED = {"FILE", "PATH", "PATTERN", "OLD", "RANK...", "OP", "TYPE"}
# What is typed, a tab being a tab, and the words that the command gets.
TYPED = {
    "true | mpired exs\t": "exscan",
    "mpired reduce --op maxl\tdata/cells_0\t": "reduce --op maxloc data/cells_0.parquet",
    "mpired reduce --op mean,maxl\t-o dat\t": "reduce --op mean,maxloc -o data",
    "mpired reduce --op my\t": "reduce --op my_ops.py",
    "mpired reduce --fro\tparq\t--type double_i\t": "reduce --from parquet --type double_int",
    "mpired accumulate --overf\twr\tdata/REA\t-": "accumulate --overflow wrap data/README -",
}


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, shell: str, folder: Path) -> None:
        words, setup = SETUPS[shell]
        self._folder, self._shown = folder, b""
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *words],
            cwd=folder,
            **dict.fromkeys(("stdin", "stdout", "stderr"), slave),
            env=os.environ | {"PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder), "TERM": "dumb"},
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        os.write(self._master, f"{setup}\n".encode())

    def _is_there(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._shown += os.read(self._master, 1 << 16)
        return (self._folder / "typed").exists()

    def type(self, line: str) -> list[str]:
        """Type a line, and return the words that the command gets."""
        os.write(self._master, f"{line}\n".encode())
        try:
            wait_until(self._is_there)
        except AssertionError:
            raise AssertionError(self._shown.decode(errors="replace")) from None
        words = (self._folder / "typed").read_text().splitlines()
        (self._folder / "typed").unlink()
        return words

    def end(self) -> None:
        """Hang up."""
        os.close(self._master)
        self._process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two parquet files, another file and one with ops."""
    (tmp_path / "data").mkdir()
    table = pa.table({"energy": np.ones(3)})
    for rank in range(2):
        pq.write_table(table, tmp_path / f"data/cells_{rank}.parquet")
    (tmp_path / "data/README").touch()
    (tmp_path / "my_ops.py").touch()
    return tmp_path


@pytest.fixture
def with_stub(folder: Path, tmp_path_factory) -> Iterator[Path]:
    """The same, with what a shell finds as `mpired`."""
    with commands(tmp_path_factory.mktemp("quick")) as quick:
        (folder / "bin").mkdir()
        (folder / "bin/mpired").write_text(STUB.format(command=quick / "mpired"))
        (folder / "bin/mpired").chmod(0o755)
        yield folder


@pytest.mark.parametrize("shell", SETUPS)
def test_what_is_typed_into_a_shell(shell, with_stub):
    needs(shell)
    folder = with_stub
    terminal = Terminal(shell, folder)
    try:
        for typed, expected in TYPED.items():
            words = [word.rstrip("/") for word in terminal.type(typed)]
            assert words == expected.split(), typed
    finally:
        terminal.end()


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


@each(
    "line, words",
    [
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
    ],
)
def test_words_that_are_offered(line, words, folder):
    assert sorted(word for kind, word in asked(line, folder) if kind == "plain") == sorted(words.split())
