"""Virtual datasets of HDF5 of a pattern of names: no file is opened without leave, and each of them is looked at."""

from __future__ import annotations

import os

import h5py
import numpy as np
import pytest
from command import refused, run, succeeded, unchanged

WORDS = ("reduce", "-q", "--op", "sum", "--to", "text", "v.h5", "v.h5", "--columns")
LOOKED_AT = {
    "text": (lambda path: path.write_text("no HDF5"), "is stored in other files, and 'b1.h5' cannot be opened ("),
    "pipe": (os.mkfifo, "is stored in other files, and 'b1.h5' is not a regular file"),
    "itself": (lambda path: pattern(path, "b%b.h5", "v"), "is a virtual dataset that is made of itself"),
}


def pattern(path, names, array):
    """Make a file whose dataset `array` has as many blocks of four elements as there are files of the pattern."""
    source, unlimited = h5py.h5s.create_simple((4,)), h5py.h5s.UNLIMITED
    space, now = (h5py.h5s.create_simple((4,), (unlimited,)) for _ in range(2))
    space.select_hyperslab((0,), (unlimited,), (4,), (4,))
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_virtual(space, names.encode(), b"v", source)
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(4.0)
        h5py.h5d.create(file.id, array.encode(), h5py.h5t.IEEE_F64LE, now, made)


@pytest.fixture
def blocks(tmp_path):
    for number in range(3):
        with h5py.File(tmp_path / f"b{number}.h5", "w") as file:
            file["v"] = np.arange(4.0) + number
    pattern(tmp_path / "v.h5", "b%b.h5", "me")
    return tmp_path


def test_all_blocks_of_a_pattern(blocks):
    outcome = run(*WORDS, "me", "--follow-links", cwd=blocks)
    succeeded(outcome)
    with h5py.File(blocks / "v.h5") as file:
        assert [*map(float, outcome.out.split())] == (file["me"][()] * 2).tolist()
        assert len(file["me"]) == 12
    words = ("reduce", "-q", "--op", "mean", "--follow-links", "-o", "o.h5", "v.h5", "v.h5")
    succeeded(run(*words, cwd=blocks))
    with h5py.File(blocks / "v.h5") as file, h5py.File(blocks / "o.h5") as new:
        assert file["me"].maxshape == (None,)
        np.testing.assert_array_equal(new["me"][()], file["me"][()])


@pytest.mark.parametrize("case", LOOKED_AT)
def test_every_block_is_looked_at(blocks, case):
    """An error is of the array alone."""
    (blocks / "b1.h5").unlink()
    make, reason = LOOKED_AT[case]
    make(blocks / "b1.h5")
    refused(run(*WORDS, "me", "--follow-links", cwd=blocks), 3, f"v.h5: 'me' {reason}", "choose with --columns x")
    succeeded(run(*WORDS, "x", "--follow-links", cwd=blocks))


def test_nothing_is_opened_without_leave(blocks):
    """The library opens the files for the length alone; a pipe that nobody writes to would hold it for ever."""
    (blocks / "b0.h5").unlink()
    os.mkfifo(blocks / "b0.h5")
    pattern(blocks / "v.h5", f"{blocks}/b%b.h5", "me")
    outcome = run("info", "v.h5", cwd=blocks)
    succeeded(outcome)
    assert "me: 4 x elements in another file (a virtual dataset)" in outcome.out.decode()
    refused(run(*WORDS, "me", cwd=blocks), 3, "'me' is stored in another file (a virtual dataset)", "--follow-links")
    succeeded(run(*WORDS, "x", cwd=blocks))


def test_a_percent_sign_is_written_twice(tmp_path):
    with h5py.File(tmp_path / "50%b.h5", "w") as file:
        file["v"] = np.arange(4.0)
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource("50%%b.h5", "v", (4,))
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file.create_virtual_dataset("me", layout)
    outcome = run(*WORDS, "me", "--follow-links", cwd=tmp_path)
    succeeded(outcome)
    assert [*map(float, outcome.out.split())] == [0, 2, 4, 6]
    (tmp_path / "50%b.h5").unlink()
    (tmp_path / "50%b.h5").mkdir()
    with unchanged(tmp_path / "v.h5"):
        refused(run(*WORDS, "me", "--follow-links", cwd=tmp_path), 3, "'50%b.h5' is not a regular file")
