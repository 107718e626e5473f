"""`mpired completion`."""

from __future__ import annotations

import click

from mpired.cli import cli
from mpired.cli.messages import show
from mpired.cli.shells import SHELLS, script


class _Shell(click.Choice[str]):
    """The names of shells; who gives none is told them on the line of the message."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:  # noqa: ARG002 - of click
        """Return what is said after that the argument is missing."""
        return f"It is one of {', '.join(self.choices)}."


@click.command
@click.argument("shell", type=_Shell(list(SHELLS)), metavar="SHELL")
def completion(*, shell: str) -> None:
    """Print the script with which a shell completes commands, options, files, ops, datatypes, columns and formats.

    \b
    bash  eval "$(mpired completion bash)"     in ~/.bashrc
    zsh   eval "$(mpired completion zsh)"      in ~/.zshrc, after compinit
    fish  mpired completion fish | source      in ~/.config/fish/config.fish

    Names of columns come from a parquet or arrow file earlier in the line.

    \b
    Examples:
      mpired completion bash
    """
    show(script(cli, shell))
