"""`mpired examples`."""

from __future__ import annotations

from pathlib import Path

import mpired
from mpired.cli import params, signals
from mpired.cli.messages import tell_summary
from mpired.files.copying import copy_into
from mpired.options import SUMMARY

_NAMES = ("sample_data", "examples")


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
