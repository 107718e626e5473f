"""Filters of HDF5 and codecs of Zarr that are not installed, and the package with those of HDF5."""

from __future__ import annotations

import json
import os
import sys
import warnings

import h5py
import numpy as np
from command import installed, refused, run, succeeded
from rows import together

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import zarr

import mpired

NAMED = {32004: "lz4", 32026: "blosc2", 32099: None}  # netCDF4 has others; None: no package is known to have it
PIP = f"{sys.executable} -m pip install hdf5plugin"
# A package whose filter inverts bits. It is registered in the library of h5py, as hdf5plugin does with its own.
PACKAGE = """
import ctypes, h5py.h5z

FILTER = ctypes.CFUNCTYPE(ctypes.c_size_t, *[ctypes.c_void_p] * 4, *[ctypes.POINTER(ctypes.c_void_p)] * 2)

@FILTER
def inverted(flags, nvalues, values, nbytes, size, place):
    data = (ctypes.c_uint8 * nbytes).from_address(place[0])
    data[:] = bytes(each ^ 255 for each in data)
    return nbytes

class Class(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("version", "id", "encodes", "decodes")), ("name", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in ("can_apply", "set_local")), ("filter", FILTER),
    ]

row = Class(1, 32015, 1, 1, b"zstd", None, None, inverted)
ctypes.CDLL(h5py.h5z.__file__).H5Zregister(ctypes.byref(row))
"""


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


def test_chunks_that_need_no_filter(tmp_path):
    """Where the filter was left out of each chunk, nothing is missing."""
    encoded(tmp_path / "r.h5", 32015, np.arange(6.0), mask=1)
    assert mpired.reduce([tmp_path / "r.h5"] * 2, "sum", columns="x").tolist() == [0, 2, 4, 6, 8, 10]


def test_the_package_is_found(tmp_path):
    (tmp_path / "hdf5plugin.py").write_text(PACKAGE)
    for number in range(2):
        encoded(tmp_path / f"r{number}.h5", 32015, np.arange(6.0) + number)
    env = os.environ | {"PYTHONPATH": f"{tmp_path}"}
    words = ("reduce", "-q", "--op", "sum", "r0.h5", "r1.h5")
    succeeded(installed(*words, "-o", "s.h5", cwd=tmp_path, env=env))
    with h5py.File(tmp_path / "s.h5") as file:
        assert list(file["x"]._filters) == ["32015"]  # noqa: SLF001 - h5py has no other name for it
        chunks = [file["x"].id.read_direct_chunk((start,)) for start in (0, 3)]
    assert chunks == [(0, inverted(np.array(part, float))) for part in ([1, 3, 5], [7, 9, 11])]
    succeeded(installed("accumulate", "-q", "--op", "sum", "r0.h5", "r1.h5", cwd=tmp_path, env=env))
    outcome = installed("diff", "r0.h5", "s.h5", cwd=tmp_path, env=env)
    assert (outcome.status, outcome.err) == (0, "")


def test_a_file_that_is_open_for_writing(tmp_path):
    with h5py.File(tmp_path / "r.h5", "w", libver="latest") as file:
        file["x"] = np.arange(3.0)
        file.swmr_mode = True
        file.flush()
        content = (tmp_path / "r.h5").read_bytes()
    (tmp_path / "copy.h5").write_bytes(content)
    refused(run("info", "copy.h5", cwd=tmp_path), 3, "copy.h5: was not closed", "`h5clear -s`")


def test_codecs_of_zarr(tmp_path):
    """The codec is named; those that numcodecs loads when they are used, too."""
    with together(tmp_path) as case:
        for version, codec in ((2, "foo"), (3, "foo"), (2, "imagecodecs_delta"), (3, "numcodecs.pcodec")):
            with case(version, codec) as folder:
                group = zarr.create_group(folder / "r.zarr", zarr_format=version)
                group.create_array("x", data=np.arange(3.0), compressors=None)
                group.create_array("y", data=np.arange(3.0))
                path = folder / "r.zarr/x" / ("zarr.json" if version == 3 else ".zarray")
                document = json.loads(path.read_text())
                change = (
                    {"codecs": [{"name": codec, "configuration": {}}]}
                    if version == 3
                    else {"compressor": {"id": codec}}
                )
                path.write_text(json.dumps(document | change))
                assert "x: elements of unknown type" in run("info", "r.zarr", cwd=folder).out.decode()
                outcome = run("reduce", "--op", "sum", "r.zarr", cwd=folder)
                refused(
                    outcome, 3, "r.zarr: array 'x' cannot be opened (", codec.removeprefix("numcodecs."), "columns y"
                )


def test_a_type_that_the_library_lacks_is_compared_by_its_bytes(tmp_path):
    for rank in range(2):
        with h5py.File(tmp_path / f"t{rank}.h5", "w") as file:
            file["v"] = [1.0]
            made = h5py.h5d.create(file.id, b"when", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((3,)))
            times = np.array([0, 1, rank], "i4").view("V4")
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, times, h5py.h5t.UNIX_D32LE)
    assert run("diff", "t0.h5", "t0.h5", cwd=tmp_path).status == 0
    status, out, _ = run("diff", "t0.h5", "t1.h5", cwd=tmp_path)
    assert (status, b"when: 1 of 3" in out) == (1, True), out
