"""Tables whose rows one test tries: all rows that fail are told together."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
from command import refused, run, unchanged

Test = Callable[..., None]
_LONGEST = 200  # characters of a row in a message


def each(names: str, rows: Collection[object]) -> Callable[[Test], Test]:
    """Let a test try each row of a table, which are its arguments `names`; its fixtures are made once."""
    arguments = names.split(", ")
    assert rows, "the table is empty"

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def tried(**fixtures: object) -> None:
            told = []
            for row in rows:
                values = row if len(arguments) > 1 else [row]
                try:
                    test(**fixtures, **dict(zip(arguments, values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    if "from pytest-timeout" in str(error):  # which ends a test once
                        raise
                    known = isinstance(error, AssertionError | pytest.fail.Exception)
                    line = traceback.extract_tb(error.__traceback__)[1].lineno
                    reason = str(error) if known else traceback.format_exc()
                    told.append(f"{repr(row)[:_LONGEST]}, line {line}: {reason}")
            if told:
                pytest.fail(f"{len(told)} of {len(rows)} rows:\n\n" + "\n\n".join(told), pytrace=False)

        signature = inspect.signature(test)
        others = [each for name, each in signature.parameters.items() if name not in arguments]
        tried.__signature__ = signature.replace(parameters=others)
        return tried

    return decorate


def check_refused(cwd: Path, words: str | Sequence[str], status: int, *reasons: str, **settings: object) -> None:
    """Check that a command is refused for these reasons, and changes nothing."""
    with unchanged(cwd):
        refused(run(*(words.split() if isinstance(words, str) else words), cwd=cwd, **settings), status, *reasons)
