"""The libraries of formats, their filters and types: broken ones, missing ones, and a library that never ends."""

import os
import sys

import h5py
import numpy as np
import pytest
from command import PIP, in_child, installed, refused, run, unchanged
from rows import together

import mpired
from mpired.errors import BufferFileError
from mpired.formats import decoding, hierarchy

NAMED = {32004: "lz4", 32026: "blosc2", 32099: None}  # netCDF4 has others; None: no package is known to have it
PLUGINS = f"{sys.executable} -m pip install hdf5plugin"

BROKEN = [  # what the library raises as it is loaded, the library, and the words of a command
    ("ValueError('numpy.dtype size changed')", "h5py", "r.h5 -o o.npy"),
    ("ImportError('no such name')", "h5py", "chunks.h5 -o o.npy"),
    ("ValueError('numpy.dtype size changed')", "zarr", "r.zarr -o o.npy"),
    ("ImportError('no such name')", "h5py", "one.npy -o o.h5"),
    ("ImportError('no such name')", "zarr", "one.npy -o o.zarr.zip"),
]


def test_one_that_is_broken_is_told(tmp_path, tmp_path_factory):
    """By one line that names it, not the file, and not only where its file is first; what it prints is no output."""
    np.save(tmp_path / "one.npy", np.ones(100))
    with h5py.File(tmp_path / "r.h5", "w") as plain, h5py.File(tmp_path / "chunks.h5", "w") as chunked:
        plain["x"] = np.ones(100)
        chunked.create_dataset("x", data=np.ones(100), chunks=(10,))
    (tmp_path / "r.zarr").mkdir()
    array = '{"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "<f8", "order": "C", "fill_value": 0.0, '
    (tmp_path / "r.zarr" / ".zarray").write_text(f'{array}"compressor": null, "filters": null}}')

    def with_library(name, text):
        folder = tmp_path_factory.mktemp("path")
        (folder / f"{name}.py").write_text(text)
        return {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(folder)}}

    with together(tmp_path) as case:
        for error, library, words in BROKEN:
            with case(error, library, words), unchanged(tmp_path):
                outcome = installed("reduce", "--op", "sum", *words.split(), **with_library(library, f"raise {error}"))
                what = error.replace("('", ": ").removesuffix("')")
                hint = f"install it again with `{PIP} install --force-reinstall {library}`"
                assert outcome == (2, b"", f"mpired: {library}: cannot be imported ({what}); {hint}\n")
    status, out, err = installed("info", "r.h5", **with_library("h5py", "print('hello'); raise ValueError('no')"))
    assert (status, out, err.splitlines()[0]) == (2, b"", "hello")


def encoded(path, code, values):
    """Write an array in a chunk with a filter that h5py has not, beside a plain one."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk(values.shape)
    settings.set_filter(code, h5py.h5z.FLAG_OPTIONAL, ())
    with h5py.File(path, "w") as file:
        file["plain"] = values
        space = h5py.h5s.create_simple(values.shape)
        array = h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(values.dtype), space, settings))
        array.id.write_direct_chunk((0,), values.tobytes())


def test_a_filter_is_named_with_what_installs_it(tmp_path):
    with together(tmp_path) as case:
        for code, name in NAMED.items():
            with case(code) as folder:
                encoded(folder / "r.h5", code, np.arange(6.0))
                named = f"{name} (filter {code})" if name else f"filter {code}"
                hint = f"install it with `{PLUGINS}`" if name else "set HDF5_PLUGIN_PATH"
                info = run("info", "r.h5", cwd=folder).out.decode()
                assert f"x: 6 x elements encoded by {named}, shape (6,); {hint}" in info, info
                reason = f"r.h5: array 'x' is encoded by {named}, for which HDF5 needs a plugin; {hint}"
                for words in "reduce --op sum", "locate --op maxloc", "reduce --op sum --columns x":
                    refused(run(*words.split(), "r.h5", cwd=folder), 3, reason)
                assert mpired.reduce([folder / "r.h5"], "sum", columns="plain").tolist() == [*range(6)]


def test_a_library_that_never_ends(tmp_path, monkeypatch):
    """It is ended after some seconds of the processor, and the file is to blame."""
    for name in ("bad", "good"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"], file.attrs["name"] = np.arange(3.0), name
    plain = hierarchy.HdfFile.__init__

    def opened(self, source, *rest, **more):
        while "bad" in source.name:
            pass
        plain(self, source, *rest, **more)

    def look():
        with pytest.raises(BufferFileError, match=r"bad\.h5: cannot be decoded.*killed by SIGXCPU, after all"):
            mpired.reduce([tmp_path / "bad.h5"], "sum")
        return mpired.reduce([tmp_path / "good.h5"], "sum").tolist()

    monkeypatch.setattr(decoding, "_INSPECT_SECONDS", 1)
    monkeypatch.setattr(hierarchy.HdfFile, "__init__", opened)
    assert in_child(look) == [0, 1, 2]
