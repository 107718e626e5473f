"""Prints docs/options.md, from the rows of `mpired.options`; `make docs` writes it."""

import textwrap
from collections.abc import Iterator, Mapping

import click

from mpired.cli import cli
from mpired.collectives.table import COLLECTIVES
from mpired.options import OPTIONS, SECTIONS, Option, keyword

HEAD = """# Options

Written by `make docs` from the table of options; do not edit.

Each option has a flag on the command line and a keyword in Python: `max_memory` for `--max-memory`. The environment
variable `MPIRED_<OPTION>` sets an option for all commands: `MPIRED_MAX_MEMORY=2G` stands for `--max-memory 2G`. A flag
overrides the variable, and each command lists on standard error the options that the environment sets. Only these
options cannot be set by a variable, because they name code to load or decide what a single command does: {exceptions}.

A flag with different meanings has a row for each meaning.
"""


def _without_variable(taken: Mapping[tuple[str, str], list[str]]) -> str:
    """Return the flags that have no environment variable; some only mean that in certain commands."""
    every = [(keyword(key), row) for key, row in OPTIONS.items() if row.flags]
    usual = {row.long_flags[0] for _, row in every if row.variables}
    flags: dict[str, list[str]] = {}
    for name, row in every:
        if not row.variables:
            flags.setdefault(row.long_flags[0], []).extend(taken[name, row.help])
    named = [
        f"`{flag}`" + (f" of {' and '.join(dict.fromkeys(flags[flag]))}" if flag in usual else "") for flag in flags
    ]
    return ", ".join(named)


_GROUPS = {
    "the collectives": tuple(f"`{row}`" for row in COLLECTIVES),
    "the collectives except `reduce-local`": tuple(f"`{row}`" for row in COLLECTIVES if row != "reduce-local"),
    "the one-sided commands": ("`accumulate`", "`get-accumulate`", "`fetch-and-op`", "`compare-and-swap`"),
}


def _shortened(commands: list[str]) -> str:
    """Return the names of commands, those of a whole group as one."""
    for title, group in _GROUPS.items():
        if set(group) <= set(commands):
            commands = [title, *(name for name in commands if name not in group)]
    return ", ".join(commands)


def main() -> None:
    """Print the page."""
    context = click.Context(cli)
    taken: dict[tuple[str, str], list[str]] = {}
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        for parameter in command.params if command else ():
            if row := getattr(parameter, "row", None):
                taken.setdefault((parameter.name or "", row.help), []).append(f"`{name}`")
    head = HEAD.format(exceptions=_without_variable(taken)).split("\n\n")
    print("\n\n".join(textwrap.fill(part, 120) for part in head))
    for section in SECTIONS:
        print(f"\n## {section}\n\n| option | meaning | commands |\n| --- | --- | --- |")
        for name, row in _rows(section):
            print(f"| {_flags(row)} | {_meaning(name, row)} | {_shortened(taken[name, row.help])} |")


def _rows(section: str) -> Iterator[tuple[str, Option]]:
    """Yield the options of a section with their keywords, each meaning once."""
    for key, row in OPTIONS.items():
        if row.section == section and row.flags:
            yield keyword(key), row


def _flags(row: Option) -> str:
    flags = " ".join(f"`{flag}`" for flag in (row.flags or "").replace("/", " ").split())
    return f"{flags} `{row.kind.metavar}`" if row.kind.metavar else flags


def _meaning(name: str, row: Option) -> str:
    """Return the help with the values, and with the default and the keyword where these do not follow from it."""
    parts = [row.help.replace("|", "\\|")]
    if words := getattr(row.kind, "words", ()):
        parts.append(f"One of {', '.join(f'`{word}`' for word in words)}.")
    if row.default not in (None, (), False) and "default" not in row.help:
        parts.append(f"Default `{row.default}`.")
    if f"--{name.replace('_', '-')}" not in (row.flags or "").replace("/", " ").split():
        parts.append(f"In Python `{name}`.")
    return " ".join(parts)


if __name__ == "__main__":
    main()
