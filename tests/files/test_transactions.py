"""Transactions of a program: its children, its open files, and files of one name."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command import in_child, unchanged
from values import folder_in_memory

import mpired
from mpired import interrupts
from mpired.files.transaction import Transaction


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as outside:
        for name in ("one", "a/x", "b/y"):
            (outside / name).parent.mkdir(exist_ok=True)
            np.save(outside / f"{name}.npy", np.ones(3))
        yield outside


def test_more_results_than_open_files(folder, long):
    names = [f"r{number}" for number in range(10_000 if long else 500)]

    def write(value: bytes) -> None:
        limit = len(os.listdir("/proc/self/fd")) + 48  # whatever the process of the tests has open
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        with Transaction([str(folder / name) for name in names], overwrite=True) as outputs:
            for draft in outputs.drafts:
                with draft.created() as fd:
                    os.write(fd, value)
            outputs.commit(interrupts.committed)

    for value in (b"new", b"newer"):
        in_child(lambda value=value: write(value))
        assert {(folder / name).read_bytes() for name in names} == {value}
        assert list(folder.rglob(".*")) == []


def test_windows_of_the_same_base_name_and_hard_links(folder):
    np.save(folder / "b/x.npy", np.ones(3))
    window = mpired.Window(folder / "a/x.npy", folder / "b/x.npy", commit="journal")
    for count in (2, 3):
        window.accumulate(folder / "one.npy", "sum", target_rank=0)
        window.accumulate(folder / "one.npy", "sum", target_rank=1)
        assert [np.load(folder / name).tolist() for name in ("a/x.npy", "b/x.npy")] == [[count] * 3] * 2
    os.link(folder / "a/x.npy", folder / "b/z.npy")
    with unchanged(folder), pytest.raises(mpired.errors.UsageError, match="one file twice"):
        mpired.Window(folder / "a/x.npy", folder / "b/z.npy").accumulate(folder / "one.npy", "sum", target_rank=0)
