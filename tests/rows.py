"""Tables whose rows one test tries, with the folders of cases and the refusals: all that fail are told together."""

import contextlib
import functools
import inspect
import shlex
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from command import refused, run, unchanged

Test = Callable[..., None]
Case = Callable[..., contextlib.AbstractContextManager[Path]]
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


def check_refusals(folder: Path, rows: Iterable[tuple[object, ...]], **settings: object) -> None:
    """Check that commands are refused: rows of a command line, or its words, the status, and reasons.

    A reason may be several that are separated by " / ". The settings are those of `Child`.
    """

    @each("row", list(rows))
    def check(row: tuple[object, ...]) -> None:
        line, status, *reasons = row
        words = shlex.split(line) if isinstance(line, str) else line
        check_refused(folder, words, status, *(each for reason in reasons for each in reason.split(" / ")), **settings)

    check()


@contextlib.contextmanager
def together(tmp_path: Path) -> Iterator[Case]:
    """Give the context of a case: it takes the names of the case, and gives a new folder; there must be a case."""
    ncases, failed = 0, []

    @contextlib.contextmanager
    def case(*names: object) -> Iterator[Path]:
        nonlocal ncases
        folder = tmp_path / f"case{ncases}"
        folder.mkdir()
        ncases += 1
        try:
            yield folder
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - the other cases are tried too
            failed.append(f"{' '.join(map(str, names))}: {type(error).__name__}: {error}")

    yield case
    assert ncases > 0
    if failed:
        pytest.fail("\n\n".join([f"{len(failed)} of {ncases} cases:", *failed]), pytrace=False)
