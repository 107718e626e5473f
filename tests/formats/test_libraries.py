"""The libraries of formats: one that is broken is told by its name."""

from __future__ import annotations

import os
import subprocess

import h5py
import numpy as np
import pytest
from command import COMMAND, PIP, unchanged
from rows import together


@pytest.fixture
def ranks(tmp_path):
    """Return three contiguous files and three in chunks, of which rank i has i + 1 everywhere."""
    made = {kind: [f"{kind}{i}.h5" for i in range(3)] for kind in ("contiguous", "chunked")}
    for kind, names in made.items():
        for i, name in enumerate(names):
            with h5py.File(tmp_path / name, "w") as file:
                file.create_dataset("x", data=np.full(100, i + 1.0), chunks=(10,) if kind == "chunked" else None)
    return made


@pytest.fixture
def fake(tmp_path_factory):
    """Return what runs the command with another text of a package."""

    def environment(name, text):
        package = tmp_path_factory.mktemp("path") / name
        package.mkdir()
        (package / "__init__.py").write_text(text)
        return os.environ | {"PYTHONPATH": str(package.parent)}

    return environment


def installed(*words, **settings):
    done = subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False, **settings)
    return done.returncode, done.stdout, done.stderr


def test_one_that_is_broken_is_told(ranks, fake, tmp_path):
    """By one line that names it, not the file, and not only where its file is first; what it prints is no output."""
    np.save(tmp_path / "one.npy", np.ones(100))
    (tmp_path / "r.zarr").mkdir()
    array = '{"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "<f8", "order": "C", "fill_value": 0.0, '
    (tmp_path / "r.zarr" / ".zarray").write_text(f'{array}"compressor": null, "filters": null}}')
    with together(tmp_path) as case:
        for error, library, out, *names in (
            ("ValueError('numpy.dtype size changed')", "h5py", "o.npy", *ranks["contiguous"]),
            ("ImportError('no such name')", "h5py", "o.npy", *ranks["chunked"]),
            ("ValueError('numpy.dtype size changed')", "zarr", "o.npy", "r.zarr"),
            ("ImportError('no such name')", "h5py", "o.h5", "one.npy"),
            ("ImportError('no such name')", "zarr", "o.zarr.zip", "one.npy"),
        ):
            with case(error, library, names), unchanged(tmp_path):
                env = fake(library, f"raise {error}")
                outcome = installed("reduce", "--op", "sum", "-o", out, *names, cwd=tmp_path, env=env)
                what = error.replace("('", ": ").removesuffix("')")
                way_out = f"install it again with `{PIP} install --force-reinstall {library}`"
                assert outcome == (2, "", f"mpired: {library}: cannot be imported ({what}); {way_out}\n")
    env = fake("h5py", "print('hello'); raise ValueError('no')")
    status, out, err = installed("info", *ranks["contiguous"], cwd=tmp_path, env=env)
    assert (status, out, err.splitlines()[0]) == (2, "", "hello")
