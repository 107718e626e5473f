"""Tables of commands that must be refused."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from command import refused, run, unchanged


def check_refusals(folder: Path, rows: Iterable[tuple[str, int, str]], stdin: bytes = b"") -> None:
    """Run commands in a folder, which must stay as it is: rows of a command line, its status, and what its error has.

    The parts of the error are separated by " / ". All rows that differ are told together.
    """
    rows, wrong = list(rows), []
    assert rows
    for line, status, reasons in rows:
        try:
            with unchanged(folder):
                refused(run(*shlex.split(line), cwd=folder, stdin=stdin), status, *reasons.split(" / "))
        except AssertionError as error:
            wrong.append(f"{line}: {error}")
    assert not wrong, "\n".join(wrong)
