"""Fixtures for all tests."""

import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import object_store
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import template
from needs import needs
from values import A, B, C, folder_in_memory

from mpired.engines import pool
from mpired.engines.worker import results
from mpired.files.mounts import mount_of_device
from mpired.ops import native

pytest.register_assert_rewrite("bad_files", "command", "format_files", "rows", "running", "updates")

# xarray loads Dask where it is installed, and that changes how this process pickles errors and finds packages. What
# tests Dask starts processes of its own.
sys.modules["dask"] = None  # type: ignore[assignment]

# Users have modules compiled once; without that most of the time of a command would be the compiler's.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What a shell runs in the background ignores SIGINT, and under nohup SIGHUP; commands of the tests would inherit that.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


LARGE_PAGE = 2 << 20
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long`, which `make test-long` sets."""
    parser.addoption("--long", action="store_true", help="run the tests that have a long form, in that, and no others")


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker for what a machine may not have; and tests combine numbers as they like."""
    config.addinivalue_line("filterwarnings", "ignore::mpired.errors.OverflowWarning")
    config.addinivalue_line(
        "markers", "needs(name, ...): skip the test where one of these is missing; see tests/needs.py"
    )
    config.addinivalue_line("markers", "sampled(n): run one in n of the parameters; with --long all")
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):  # a process that runs tests
        from command import become_command  # whose assertions are rewritten first

        template.start(become_command)
        _fork_workers()


def _fork_workers() -> None:
    """Let calls fork workers as commands do, whatever threads wait; new interpreters take ten times as long."""
    tests, can_fork = os.getpid(), pool.can_fork
    pool.can_fork = lambda: os.getpid() == tests or can_fork()


def pytest_unconfigure() -> None:
    """End what was started."""
    template.stop()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--long`, leave out what has no long form; without, most parameters of what is sampled."""
    if config.getoption("--long"):
        items[:] = [
            item
            for item in items
            if "long" in getattr(item, "fixturenames", ()) or item.get_closest_marker("sampled") is not None
        ]
        return
    met: Counter[str] = Counter()
    named = tuple(word.partition("::")[2] for word in config.args if "::" in word)  # these run
    chosen, left_out = [], []
    for item in items:
        marker = item.get_closest_marker("sampled")
        place, name = item.nodeid.partition("[")[0], item.nodeid.partition("::")[2]
        is_left_out = marker and met[place] % marker.args[0] and not name.startswith(named)
        (left_out if is_left_out else chosen).append(item)
        met[place] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen


def pytest_collection_finish() -> None:
    """Ask for large pages for what is imported then: all forks of this process copy a tenth of its tables of pages."""
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, inode, *_ = line.split()
        start, stop = (int(address, 16) for address in addresses.split("-"))
        start, stop = -(-start // LARGE_PAGE) * LARGE_PAGE, stop // LARGE_PAGE * LARGE_PAGE
        if rights == "rw-p" and inode == "0" and start < stop:
            for advice in (MADV_HUGEPAGE, MADV_COLLAPSE):  # which old kernels do not know
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), advice)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look for what the markers of a test name, before its fixtures are made."""
    for marker in item.iter_markers("needs"):
        needs(*marker.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """In CI nothing may be skipped."""
    report = yield
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome, report.longrepr = "failed", f"with CI=true nothing may be skipped: {report.longrepr[2]}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With `--long`, tell how much was tried."""
    tried: Counter[str] = Counter()
    if terminalreporter.config.getoption("--long"):
        for report in terminalreporter.stats.get("passed", ()):
            tried[report.nodeid.partition("[")[0]] += dict(report.user_properties).get("tried", 0)
    for test, count in tried.items():
        terminalreporter.write_line(f"{count:7} tried, 0 failed: {test}")


@pytest.fixture
def monkeypatch() -> Iterator[pytest.MonkeyPatch]:
    """That of pytest; commands are forked from a process with its changes."""
    with pytest.MonkeyPatch.context() as patch:
        template.patches.append(patch)
        yield patch
        template.patches.remove(patch)


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """Whether the crash tests have time."""
    return bool(request.config.getoption("--long"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three ranks of three doubles as npy, parquet, arrow and raw; many tests have another folder."""
    for name, array in zip("abc", (A, B, C), strict=True):
        np.save(tmp_path / f"{name}.npy", array)
        array.tofile(tmp_path / f"{name}.bin")
        table = pa.table({"x": array})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        with pa.ipc.new_file(tmp_path / f"{name}.arrow", table.schema) as file:
            file.write_table(table)
    return tmp_path


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
    """A file system of its own, in memory, with the given mount options."""
    needs("mount")
    folder = tmp_path / "mounted"

    def mount(options: str) -> Path:
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
        mount_of_device.cache_clear()  # another file system may have had the number of its device
        return folder

    yield mount
    if os.path.ismount(folder):
        subprocess.run(["umount", folder], check=True)


@pytest.fixture(params=["numpy", "c"])
def either_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The kernels of NumPy, then the compiled ones, which take blocks of any length here."""
    if request.param == "c":
        needs("gcc")
    monkeypatch.setenv(native.VARIABLE, str(int(request.param == "c")))
    monkeypatch.setattr(native, "LEAST_BYTES", 1)
    native.forget()
    assert (native.obstacle() == "") == (request.param == "c"), f"{native.obstacle()}; `make` compiles the kernels"
    yield request.param
    native.forget()


@pytest.fixture
def as_root() -> None:
    """Tests that take rights away need root."""
    needs("root")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Run segments in this process, in no order, and keep of each fold how many workers and segments it has."""
    seen = []

    def run(function, items, jobs, **_):
        if not isinstance(items, Sequence):  # what a worker is asked as it goes, such as to inspect a file
            for item in items:
                yield from results(function, item)
            return
        seen.append((jobs, len(items)))
        for item in random.Random(len(items)).sample(items, len(items)):
            yield from results(function, item)

    monkeypatch.setattr("mpired.engines.pool.run", run)
    for module in ("mpired.formats.decoding", "mpired.collectives.run"):
        monkeypatch.setattr(f"{module}.be_quiet", lambda: None)
    return seen


@pytest.fixture
def cut_into(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make blocks small, and let little data be enough for a pool."""

    def cut(nbytes):
        for name in ("_BLOCK_BYTES", "_STREAMED_BLOCK_BYTES", "_REOPENING_BLOCK_BYTES", "_SEGMENT_BYTES"):
            monkeypatch.setattr(f"mpired.collectives.plan.{name}", nbytes)
        monkeypatch.setattr("mpired.collectives.plan.SMALL_NBYTES", 0)

    return cut


@pytest.fixture(scope="session")
def _object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object_store.Store]:
    with object_store.served(tmp_path_factory.mktemp("objects")) as store:
        yield store


@pytest.fixture
def store(_object_server: object_store.Store) -> object_store.Store:
    """An S3 server on loopback with an empty bucket, in a process of its own; `env=store.environment` leads there."""
    _object_server.tell("clear")
    return _object_server
