"""Prints docs/options.md, from the rows of `mpired.options`; `make docs` writes it."""

from typing import is_typeddict

import click

import mpired.options
from mpired.cli import cli
from mpired.collectives.table import COLLECTIVES
from mpired.options import rows

HEAD = """# Options

Written by `make docs`; do not edit. A test compares this page with what the program has.

An option has a flag on the command line and a keyword in Python. Most can be set by an environment variable too; a
flag overrides it, and every command says on standard error which options the environment set. Where one flag means
different things for different commands, it has a line for each.
"""


_GROUPS = {
    "the collectives": tuple(f"`{row}`" for row in COLLECTIVES),
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
    print(HEAD)
    print("| option | meaning | Python | environment | default | commands |")
    print("| --- | --- | --- | --- | --- | --- |")
    seen = set()
    for group in filter(is_typeddict, vars(mpired.options).values()):
        for name, row in rows(group).items():
            if row.hidden or (name, row.help) in seen:
                continue
            seen.add((name, row.help))
            flags = " ".join(
                [f"`{row.flags.replace(' ', '` `')}`", f"`{row.kind.metavar}`" if row.kind.metavar else ""]
            )
            words = getattr(row.kind, "words", ())
            values = f" One of {', '.join(f'`{word}`' for word in words)}." if words else ""
            variables = " ".join(f"`{each}`" for each in row.variables)
            default = "" if row.default in (None, (), False) else f"`{row.default}`"
            used = _shortened(taken[name, row.help])
            meaning = row.help.replace("|", "\\|") + values
            cells = (flags.strip(), meaning, f"`{name}`", variables, default, used)
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
