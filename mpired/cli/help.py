"""`mpired help`."""

from __future__ import annotations

import click

from mpired.cli import cli
from mpired.cli.messages import EXIT_STATUS, show


@click.command(epilog=EXIT_STATUS)
@click.argument(
    "command",
    required=False,
    metavar="[COMMAND]",
    shell_complete=lambda context, _parameter, begun: cli.shell_complete(context, begun),
)
@click.pass_context
def help(context: click.Context, *, command: str | None) -> None:  # noqa: A001 - the name of the command
    """Show the help of a COMMAND, as `mpired COMMAND --help` does; without one, the list of all.

    \b
    Examples:
      mpired help
      mpired help reduce
    """
    above = context.find_root()
    asked = cli.resolve_command(above, [command])[1] if command else None
    show((click.Context(asked, above, command) if asked else above).get_help())
