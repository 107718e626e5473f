"""The commands as click has them, and their options."""

import click

from mpired.cli import cli

COMMANDS = {name: cli.get_command(click.Context(cli), name) for name in cli.list_commands(click.Context(cli))}
_PARAMETERS = [(name, each) for name, command in COMMANDS.items() for each in command.params]
OPTIONS = [(name, each) for name, each in _PARAMETERS if isinstance(each, click.Option)]
"""Each option of each command, with the name of that."""
