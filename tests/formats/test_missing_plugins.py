"""Filters of HDF5 and codecs of Zarr that are not installed, and the package with those of HDF5."""

from __future__ import annotations

import sys
import warnings

import h5py
import numpy as np
from command import refused, run
from rows import together

with warnings.catch_warnings():
    warnings.simplefilter("ignore")

import mpired

NAMED = {32004: "lz4", 32026: "blosc2", 32099: None}  # netCDF4 has others; None: no package is known to have it
PIP = f"{sys.executable} -m pip install hdf5plugin"


def inverted(values):
    return (values.view(np.uint8) ^ 255).tobytes()


def encoded(path, code, values, mask=0):
    """Write an array of two chunks that a filter of h5py has not encoded, beside a plain one."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((len(values) // 2,))
    settings.set_filter(code, h5py.h5z.FLAG_OPTIONAL, ())
    with h5py.File(path, "w") as file:
        file["plain"] = values
        space = h5py.h5s.create_simple(values.shape)
        array = h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.py_create(values.dtype), space, settings))
        for start in 0, len(values) // 2:
            part = values[start:][: len(values) // 2]
            content = part.tobytes() if mask else inverted(part)
            array.id.write_direct_chunk((start,), content, filter_mask=mask)


def test_a_filter_is_named_with_what_installs_it(tmp_path):
    with together(tmp_path) as case:
        for code, name in NAMED.items():
            with case(code) as folder:
                encoded(folder / "r.h5", code, np.arange(6.0))
                named = f"{name} (filter {code})" if name else f"filter {code}"
                way_out = f"install it with `{PIP}`" if name else "set HDF5_PLUGIN_PATH"
                info = run("info", "r.h5", cwd=folder).out.decode()
                assert f"x: 6 x elements encoded by {named}, shape (6,); {way_out}" in info, info
                reason = f"r.h5: array 'x' is encoded by {named}, for which HDF5 needs a plugin; {way_out}"
                for words in "reduce --op sum", "locate --op maxloc", "reduce --op sum --columns x":
                    refused(run(*words.split(), "r.h5", cwd=folder), 3, reason)
                assert mpired.reduce([folder / "r.h5"], "sum", columns="plain").tolist() == [*range(6)]


def test_a_type_that_the_library_lacks_is_not_damage(tmp_path):
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["v"] = [1.0]
        h5py.h5d.create(file.id, b"when", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((3,)))
    status, out, _ = run("diff", "t.h5", "t.h5", cwd=tmp_path)
    assert (status, b"when: not compared, t.h5: cannot be read, the library does not support it (" in out) == (3, True)
