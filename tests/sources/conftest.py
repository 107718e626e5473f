"""The command where URLs lead to the server of the fixture `store`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import Outcome, refused, run, succeeded
from object_store import Store


class Remote:
    """The command in an empty folder, with the server."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder

    def run(self, *words: str, env: dict[str, str | None] | None = None, **settings: object) -> Outcome:
        return run(*words, cwd=self.folder, env={**self.store.environment, **(env or {})}, **settings)

    def reduce(self, *words: str, **settings: object) -> Outcome:
        return self.run("reduce", "-q", *words, **settings)

    def reduced(self, *words: str, **settings: object) -> bytes:
        """Return the output of `reduce`, which has no message."""
        outcome = self.reduce(*words, **settings)
        succeeded(outcome)
        return outcome.out

    def refuses(self, status: int, *reasons: str, words: tuple[str, ...], **settings: object) -> None:
        """Check that a command is refused, and leaves nothing new."""
        before = set(self.folder.iterdir())
        refused(self.run(*words, **settings), status, *reasons)
        assert set(self.folder.iterdir()) == before

    def python(self, program: str, *words: str) -> str:
        """Return what a program prints, which has no message."""
        environment = {**os.environ, **{name: value for name, value in self.store.environment.items() if value}}
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            capture_output=True, text=True, env=environment, cwd=self.folder, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


@pytest.fixture
def remote(store, tmp_path):
    return Remote(store, tmp_path)
