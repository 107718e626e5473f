"""Files that change, or are replaced, while they are read."""

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bad_files import DATA, THREE, npy_of
from command import Child, open_fifo, reduce, refused, snapshot
from rows import each

import mpired
from mpired.sources.local import LocalSource


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


_CHANGES = {
    "replaced": _replace,
    "cut": lambda path: os.truncate(path, 100),
    "appended to": lambda path: os.truncate(path, 1000),
    "written anew": lambda path: (path.write_bytes(path.read_bytes()), os.utime(path, ns=(0, 1))),
    "removed": os.unlink,
}


@each("change", _CHANGES)
def test_file_that_changes_between_check_and_read(change, folder):
    """The second rank is a FIFO: when it is opened, the first has been checked, and nothing has been read of it."""
    (folder / "good.npy").write_bytes(npy_of(THREE))
    (folder / "slow.npy").unlink(missing_ok=True)
    os.mkfifo(folder / "slow.npy")
    child = Child("reduce", "-q", "--op", "sum", "good.npy", "slow.npy", "-o", "out", "-f", cwd=folder)
    with open_fifo(folder / "slow.npy") as fifo:
        _CHANGES[change](folder / "good.npy")
        with_change = snapshot(folder)
        fifo.write(npy_of(THREE))
    if change == "removed":
        refused(child.finish(), 4, "good.npy", "No such file")
    else:
        refused(child.finish(), 3, "good.npy", "changed while being read")
    assert snapshot(folder) == with_change


def at_reads(change: Callable[[int], object]) -> Callable[[], None]:
    """Return a setup that calls a function before each read of elements, with the number of the read."""

    def setup() -> None:
        original, reads = os.preadv, itertools.count()

        def preadv(*arguments: object) -> int:
            change(next(reads))
            return original(*arguments)

        os.preadv = preadv

    return setup


@each("name", ["good.npy", "good.bin"])
@each("change", ["cut", "appended to"])
def test_file_that_changes_while_it_is_read(name, change, folder):
    """Whoever changes it goes on with that, so that it is read in vain a few times."""
    (folder / "good.npy").write_bytes(npy_of(THREE))
    (folder / "good.bin").write_bytes(DATA)
    words = ("--op", "sum", "--type", "double", name, name, "-o", "out", "-f")
    refused(reduce(*words, cwd=folder, setup=at_reads(lambda _: _CHANGES[change](Path(name)))), 3, name)
    assert (folder / "out").read_bytes() == b"the old result"


def test_a_file_that_is_replaced_at_its_last_read_is_refused(folder):
    """A file too large to be read when it is inspected: only its status can show a change during the last read."""
    (folder / "good.npy").write_bytes(npy_of(np.arange(10_000.0)))
    # Each attempt reads the start, and then all elements.
    setup = at_reads(lambda number: _replace(Path("good.npy")) if number % 2 else None)
    refused(reduce("--op", "sum", "good.npy", "-o", "out", "-f", cwd=folder, setup=setup), 3, "good.npy: changed while")
    assert (folder / "out").read_bytes() == b"the old result"


@each("times", [1, 2, 1000])
def test_file_that_is_replaced_while_it_is_read_is_read_again(times, folder):
    """A writer that comes in between, as `accumulate` does, is no reason to fail; one that does so each time is."""
    (folder / "good.npy").write_bytes(npy_of(THREE))

    def change(number: int) -> None:
        if number < times:
            Path("other").write_bytes(npy_of(THREE * 5))
            os.replace("other", "good.npy")

    outcome = reduce("--op", "sum", "good.npy", "good.npy", "--to", "npy", cwd=folder, setup=at_reads(change))
    if times == 1000:
        refused(outcome, 3, "good.npy: changed while being read")
    else:
        assert outcome == (0, npy_of(THREE * 10), "")


def test_a_change_within_the_second_of_a_coarse_file_time_is_noticed(folder):
    """A file system with times of one second: two changes within it look alike, so that the reader waits before."""
    path = folder / "good.npy"

    def write(factor: int) -> None:
        with path.open("r+b") as file:
            file.seek(-len(DATA), 2)
            file.write((THREE * factor).tobytes())
        os.utime(path, (int(time.time()),) * 2)

    time.sleep(1 - time.time() % 1)  # so that both changes would be in one second
    write(10)
    setup = at_reads(lambda number: write(100) if number == 1 else None)  # between the first rank and the second
    outcome = reduce("--op", "sum", "good.npy", "good.npy", "--to", "npy", cwd=folder, setup=setup)
    assert outcome == (0, npy_of(THREE * 200), "")


def test_files_that_are_replaced_together_are_of_one_state(tmp_path, monkeypatch):
    """Two files are replaced together when the first of them is inspected: each alone would be whole."""
    paths = [tmp_path / "p.npy", tmp_path / "q.npy"]
    inspected: list[str] = []

    def replace(value: int) -> None:
        for path in paths:
            np.save(tmp_path / "new.npy", np.full(3, value))
            (tmp_path / "new.npy").replace(path)

    def inspect(name, *args, original=LocalSource.inspected):
        source = original(name, *args)
        inspected.append(name)
        if len(inspected) == 1:
            replace(5)
        return source

    replace(6)
    monkeypatch.setattr(LocalSource, "inspected", inspect)
    assert mpired.reduce(paths, "bxor", jobs=1).tolist() == [0, 0, 0]
    assert len(inspected) == 4
