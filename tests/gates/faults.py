"""Break the program in small ways, one at a time, and list those that no test has noticed: `make faults`.

faults.toml has a table a fault: its name says what it breaks; `old` are the lines of `file` in mpired/ that `new`
replaces, and `tests` are those that should notice. Each is put into a copy of the tree. Noticed means that a test
failed that passes without the fault.

    make faults                              all of them, in ten minutes
    make faults ARGS='journal "the lock"'    those whose names have one of these words
"""

import argparse
import ast
import contextlib
import itertools
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = Path(__file__).with_suffix(".toml")
LIMIT = 900  # seconds after which the tests of a fault are taken for hung
_AT_ONCE = 20  # tests of one process, where no fault is tried
_SOME_FAILED = 1  # the exit status of pytest; others mean that a fault broke more than what its name says


class Fault(NamedTuple):
    """A row of the table."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def path(self) -> str:
        """The file in a tree."""
        return f"mpired/{self.file}"


def table() -> list[Fault]:
    """Read the faults."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return [Fault(name, row["file"], row["old"], row["new"], tuple(row["tests"])) for name, row in rows.items()]


def staleness(fault: Fault) -> Iterator[str]:
    """Say why a fault does not fit the tree any more: code or tests have moved."""
    count = (ROOT / fault.path).read_text(encoding="utf-8").count(fault.old) if (ROOT / fault.path).exists() else 0
    if count != 1:
        yield f"{fault.path} has the old lines {count} times, and they must be there once"
    if fault.old == fault.new or not 1 <= len(fault.old.strip("\n").splitlines()) <= 2:
        yield "a fault is a change of one or two lines"
    if not fault.tests:
        yield "no test is named"
    for test in fault.tests:
        file, _, function = test.partition("::")
        path = ROOT / "tests" / file
        names = _functions(path) if path.is_file() else set()
        if not names or (function and function.partition("[")[0] not in names):
            yield f"there is no test {test}"


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


class Copy:
    """A copy of the tree, in which the tests run on its own mpired, and the commands that they start, too."""

    _times = itertools.count(1_000_000_000)

    def __init__(self, root: Path) -> None:
        root.chmod(0o755)  # some tests become another user
        self.root = root
        words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        found = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        for name in map(os.fsdecode, filter(None, found.split(b"\0"))):
            if (ROOT / name).is_file():  # git also lists what was just removed
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        self._compile_kernels()

    def _compile_kernels(self) -> None:
        subprocess.run([sys.executable, "build_kernels.py"], cwd=self.root, check=True, stdout=subprocess.DEVNULL)

    def replace(self, file: str, old: str, new: str) -> None:
        """Change a file; its time is one that it never had, so that no compiled form of it is used again."""
        path = self.root / file
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
        os.utime(path, (when := next(self._times), when))
        if path.suffix == ".c":
            self._compile_kernels()

    def run(self, tests: Sequence[str], *options: str) -> tuple[int | None, str]:
        """Run tests, and return the exit status of pytest, None if it came to no end, and what it printed."""
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        words += [f"tests/{test}" for test in tests]
        environment = os.environ | {"PYTHONPATH": str(self.root)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a copy is compiled once
        process = subprocess.Popen(
            words, cwd=self.root, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip
        try:
            return self._ended(process)
        finally:  # a fault may leave processes behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    @staticmethod
    def _ended(process: subprocess.Popen[str]) -> tuple[int | None, str]:
        try:
            out, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired as error:
            return None, error.output.decode(errors="replace") if isinstance(error.output, bytes) else ""
        return process.returncode, out

    def outcome(self, fault: Fault) -> tuple[bool, str]:
        """Run the tests of a fault with it; tell whether it was noticed, and by what."""
        self.replace(fault.path, fault.old, fault.new)
        try:
            status, out = self.run(fault.tests, "-x")
        finally:
            shutil.copy2(ROOT / fault.path, self.root / fault.path)
            self.replace(fault.path, "", "")
        failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(.+?)(?: - |$)", out, re.MULTILINE)
        if status == _SOME_FAILED and failed:
            return True, failed[1]
        return False, "its tests pass" if status == 0 else f"pytest ended with status {status}:\n{out[-2000:]}"


@contextlib.contextmanager
def borrowed(copies: queue.SimpleQueue[Copy]) -> Iterator[Copy]:
    """Take a copy that is free, and give it back."""
    copy = copies.get()
    try:
        yield copy
    finally:
        copies.put(copy)


def parts(tests: Iterable[str]) -> Iterator[list[str]]:
    """Yield tests in parts of one process each; those that pytest finds only if they are named have their own."""
    by_name, others = [], []
    for test in sorted(tests):
        (by_name if Path(test.partition("::")[0]).name.startswith("test_") else others).append(test)
    for found in (by_name, others):
        yield from (found[start : start + _AT_ONCE] for start in range(0, len(found), _AT_ONCE))


def main() -> int:
    """Print a line a fault, then how many were noticed; the exit status is 1 if any was not, 2 if none can be tried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only faults whose names have one of these")
    parser.add_argument("--jobs", type=int, default=2, help="copies at work at a time (default: 2)")
    options = parser.parse_args()
    faults = [each for each in table() if not options.words or any(word in each.name for word in options.words)]
    stale = [f"{fault.name}: {reason}" for fault in faults for reason in staleness(fault)]
    if stale or not faults:
        print(*stale or ["no fault has such a name"], sep="\n")
        return 2
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mpired-faults-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        Path(folder).chmod(0o755)
        roots = [Path(folder, str(number)) for number in range(options.jobs)]
        for root in roots:
            root.mkdir()
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in pool.map(Copy, roots):
            free.put(copy)

        def passed(tests: Sequence[str]) -> tuple[int | None, str]:
            with borrowed(free) as copy:
                return copy.run(tests)

        def tried(fault: Fault) -> bool:
            with borrowed(free) as copy:
                begun = time.monotonic()
                noticed, what = copy.outcome(fault)
            seconds = time.monotonic() - begun
            print(f"{'noticed' if noticed else 'NOT NOTICED'} in {seconds:.0f} s: {fault.name} ({what})", flush=True)
            return noticed

        for status, out in pool.map(passed, parts({test for fault in faults for test in fault.tests})):
            if status != 0:
                pool.shutdown(wait=False, cancel_futures=True)
                print(f"{out}\nwithout any fault the tests have to pass")
                return 2
        unnoticed = [fault.name for fault, noticed in zip(faults, pool.map(tried, faults), strict=True) if not noticed]
    noticed = len(faults) - len(unnoticed)
    print(f"\n{len(faults)} faults, {noticed} noticed in {time.monotonic() - started:.0f} s")
    print(*(f"not noticed: {name}" for name in unnoticed), sep="\n", end="\n" if unnoticed else "")
    return bool(unnoticed)


if __name__ == "__main__":
    sys.exit(main())
