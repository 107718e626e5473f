"""`mpired examples`: copies into a new directory, or nothing."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from command import refused, run, succeeded
from rows import check_refused, each

ROOT = Path(__file__).parents[2]


@each("directory", ["new", "empty", "empty/.", "."])
def test_examples_are_copied_into_a_new_or_an_empty_directory(directory, tmp_path):
    folder = tmp_path / f"for {directory.replace('/', '_')}"
    folder.mkdir()
    if directory.startswith("empty"):
        (folder / "empty").mkdir()
    succeeded(run("examples", "-q", directory, cwd=folder))
    for name in ("sample_data", "examples"):
        copies, originals = folder / directory / name, ROOT / name
        there = {path.relative_to(originals) for path in originals.rglob("*") if "__pycache__" not in path.parts}
        assert {path.relative_to(copies) for path in copies.rglob("*")} == there
        files = [path for path in there if (originals / path).is_file()]
        assert all((copies / path).read_bytes() == (originals / path).read_bytes() for path in files)
    assert os.access(folder / directory / "sample_data/counts_0.npy", os.W_OK)
    words = ("reduce", "-q", "--op", "examples/ops.py:sum_or_max", "sample_data/counts_0.npy", "--to", "text")
    assert run(*words, cwd=folder / directory).out.startswith(b"2\n6\n1\n")


@each(
    "directory, status, reason",
    [
        ("full", 2, "already exists, and is not an empty directory; name a new one"),
        ("full/file", 2, "already exists, and is not an empty directory; name a new one"),
        ("missing/new", 4, "No such directory: missing"),
    ],
)
def test_examples_are_not_copied_over_anything(directory, status, reason, tmp_path):
    (tmp_path / "full").mkdir(exist_ok=True)
    (tmp_path / "full/file").touch()
    check_refused(tmp_path, ("examples", directory), status, f"mpired: {directory}: {reason}")


@each("directory", ["new", "empty"])
def test_nothing_is_left_of_a_copy_that_fails(directory, tmp_path):
    (tmp_path / "empty").mkdir(exist_ok=True)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    refused(run("examples", directory, cwd=tmp_path, setup=limit), 4, f"{directory}: File too large")
    assert os.listdir(tmp_path) == ["empty"]
    assert os.listdir(tmp_path / "empty") == []
