"""Tables of commands that are refused, tried one after another."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from command import refused, run, unchanged

Case = tuple[str | tuple[str, ...], int, *tuple[str, ...]]
"""The words of a command, the status, and what its message says."""


def check_refusals(folder: Path, cases: Iterable[Case], **settings: object) -> None:
    """Check that commands are refused and leave the folder as it is; the settings are those of `Child`."""
    cases, wrong = list(cases), []
    assert cases
    for command, status, *reasons in cases:
        words = command.split() if isinstance(command, str) else command
        try:
            with unchanged(folder):
                refused(run(*words, cwd=folder, **settings), status, *reasons)
        except AssertionError as error:
            wrong.append(f"{command}: {error}")
    assert not wrong, "\n".join(wrong)
