"""`mpired help`, `mpired completion` and `mpired examples`."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import get_completion_class

import mpired
from mpired.cli import COMPLETION, cli, params, signals
from mpired.cli.messages import STATUSES, show, tell_summary
from mpired.files.copying import copy_into
from mpired.options import SUMMARY

_NAMES = ("sample_data", "examples")


@click.command
@click.argument(
    "command",
    required=False,
    metavar="[COMMAND]",
    shell_complete=lambda context, _parameter, begun: cli.shell_complete(context, begun),
)
@click.pass_context
def help(context: click.Context, *, command: str | None) -> None:  # noqa: A001 - the name of the command
    """Show the help of COMMAND, like `mpired COMMAND --help`, or the list of commands.

    `mpired help statuses` lists the exit statuses.

    \b
    Examples:
      mpired help
      mpired help reduce
      mpired help statuses
    """
    above = context.find_root()
    if command == "statuses":
        formatter = above.make_formatter()
        with formatter.section("Exit statuses"):
            formatter.write_dl(list(STATUSES.items()))
        formatter.write("\n`mpired diff`: 0 the files are equal, 1 they differ, 70 internal error.\n")
        show(formatter.getvalue().rstrip())
        return
    asked = cli.resolve_command(above, [command])[1] if command else None
    show((click.Context(asked, above, command) if asked else above).get_help())


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
def completion(*, shell: str) -> None:
    """Print the script with which a shell completes commands, options, files, ops, datatypes and formats.

    \b
    bash  eval "$(mpired completion bash)"     in ~/.bashrc
    zsh   eval "$(mpired completion zsh)"      in ~/.zshrc, after compinit
    fish  mpired completion fish | source      in ~/.config/fish/config.fish

    \b
    Examples:
      mpired completion bash
    """
    if (script := get_completion_class(shell)) is not None:
        source = script(cli, {}, "mpired", COMPLETION).source().strip("\n")
        show(source.replace('string split ","', 'string split -m 1 ","'))  # of fish: a list of ops has commas


@params.command(*SUMMARY, directory="DIR")
def examples(*, directory: str) -> None:
    """Copy the sample data and the example ops into DIR, a new directory or an empty one.

    \b
    Examples:
      mpired examples try-mpired

    The examples of each command's help run there, in the order of the help; DIR/sample_data/README.md
    describes the files.
    """
    package = Path(mpired.__file__).parent
    installed = package / "_examples"  # as pyproject.toml puts them there; a clone has them at its top
    home = installed if installed.is_dir() else package.parent
    copy_into(directory, [home / name for name in _NAMES], on_commit=signals.commit)
    summary = {"copied": _NAMES, "inputs": [], "output": directory}
    tell_summary(summary, f"copied {' and '.join(_NAMES)} -> {directory}; the examples of help run there")
