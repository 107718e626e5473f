"""The commands as click has them, and their options."""

import click

from mpired.cli import cli

COMMANDS = {name: cli.get_command(click.Context(cli), name) for name in cli.list_commands(click.Context(cli))}
OPTIONS = [
    (name, option)
    for name, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, click.Option)
]
"""Each option of each command, with the name of that."""
