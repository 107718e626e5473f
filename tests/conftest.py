"""Fixtures for all tests."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from values import folder_in_memory

pytest.register_assert_rewrite("command")

# Users have modules compiled once; without that most of the time of a command would be the compiler's.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell starts what it runs in the background with SIGINT ignored, and commands of the tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long`, which `make test-long` sets."""
    parser.addoption("--long", action="store_true", help="run crash tests in their long forms")


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """Whether the crash tests have time."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """One folder for all tests of a file: the ranks of one lie over those of the one before."""
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can get to."""
    folder = Path(tempfile.mkdtemp(prefix="mpired-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system of its own, in memory, with the given mount options; this needs root."""
    folder = tmp_path / "mounted"

    def mount(options: str) -> Path:
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.fail(f"these tests need root and the right to mount: {done.stderr.strip()}")
        return folder

    yield mount
    if os.path.ismount(folder):
        subprocess.run(["umount", folder], check=True)


@pytest.fixture
def as_root() -> None:
    """Tests that take rights away need root."""
    if os.geteuid() != 0:
        pytest.fail("this test needs root, to become a user without rights")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Run segments in this process, in no order, and keep of each fold how many workers and segments it has."""
    seen = []

    def run(function, items, jobs, **_):
        items = list(items)
        seen.append((jobs, len(items)))
        return (function(item) for item in random.Random(len(items)).sample(items, len(items)))

    monkeypatch.setattr("mpired.engines.pool.run", run)
    return seen


@pytest.fixture
def cut_into(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make blocks small, and let little data be enough for a pool."""

    def cut(nbytes):
        for name in ("_BLOCK_BYTES", "_STREAMED_BLOCK_BYTES", "_REOPENING_BLOCK_BYTES", "_SEGMENT_BYTES"):
            monkeypatch.setattr(f"mpired.collectives.plan.{name}", nbytes)
        monkeypatch.setattr("mpired.collectives.plan._SMALL_BYTES", 0)

    return cut
