"""The codecs and types of Zarr: bombs, cut chunks, strings, pickles, and what zarr does not know."""

from __future__ import annotations

import json
import os
import warnings

import numpy as np
import pytest
from command import measured, refused, run, succeeded
from rows import together

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import numcodecs
    import zarr

import mpired

pytestmark = pytest.mark.filterwarnings("ignore")
VERSIONS = pytest.mark.parametrize("version", [2, 3])
DRAW = np.random.default_rng(21)
CODECS = {
    "zstd": {"level": 1}, "lz4": {}, "blosc": {"cname": "zstd"}, "gzip": {"level": 1}, "zlib": {}, "bz2": {},
    "lzma": {"preset": 1},
}  # fmt: skip
OWN = {"zstd": zarr.codecs.ZstdCodec, "blosc": zarr.codecs.BloscCodec, "gzip": zarr.codecs.GzipCodec}  # of version 3


def change_document(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def with_chunk(folder, version, codec, values):
    """Write an array as r.zarr, and return the file of its only chunk, and what compresses such."""
    compressor = given = numcodecs.get_codec({"id": codec, **CODECS[codec]})
    if version == 3:
        given = OWN[codec]() if codec in OWN else zarr.registry.get_codec_class(f"numcodecs.{codec}")(**CODECS[codec])
    group = zarr.create_group(folder / "r.zarr", zarr_format=version)
    array = group.create_array("v", shape=values.shape, chunks=values.shape, dtype=values.dtype, compressors=given)
    array[...] = values
    return folder / "r.zarr" / ("v/c/0" if version == 3 else "v/0"), compressor


def refuses(folder, *reasons):
    refused(run("reduce", "-q", "-f", "--op", "max", "r.zarr", "-o", "s.zarr.zip", cwd=folder), 3, "r.zarr: ", *reasons)


def written(folder, name):
    """Return an array of the result."""
    with zarr.storage.ZipStore(folder / "s.zarr.zip", mode="r") as store:
        return zarr.open_group(store, mode="r")[name][...].tolist()


@VERSIONS
def test_chunks_of_another_length(tmp_path, version):
    values = DRAW.integers(0, 9, 1 << 16).astype("i4")
    with together(tmp_path) as case:
        for codec in CODECS:
            with case(codec) as folder:
                chunk, compressor = with_chunk(folder, version, codec, values)
                np.testing.assert_array_equal(mpired.reduce([folder / "r.zarr"], "max"), values)
                if codec == "blosc":
                    content = chunk.read_bytes()
                    for nbytes in (24, 10):
                        os.truncate(chunk, nbytes)
                        refuses(folder, "cut off")
                    chunk.write_bytes(content)
                chunk.write_bytes(compressor.encode(np.zeros(1 << 20, "i1")))
                refuses(folder, "cannot reshape")
                chunk.write_bytes(compressor.encode(values[:-1]))
                refuses(folder)


@pytest.mark.parametrize(("version", "codec"), [(2, "zstd"), (3, "zstd"), (3, "blosc"), (2, "gzip")])
def test_bombs_take_little_memory(tmp_path, version, codec):
    chunk, compressor = with_chunk(tmp_path, version, codec, np.arange(1 << 16, dtype="f8"))
    content = compressor.encode(np.zeros((64 if codec == "gzip" else 400) << 17))
    chunk.write_bytes(content * 3 if codec == "gzip" else content)
    status, peak, err = measured("reduce", "-q", "--op", "max", "r.zarr", cwd=tmp_path)
    reason = "a chunk of array 'v' unfolds to more than the 524288 bytes of its shape"
    assert (status, err.count("\n"), reason in err) == (3, 1, True), err
    assert peak < 250 << 20


def test_pickles_are_never_loaded(tmp_path):
    zarr.create_group(tmp_path / "r.zarr", zarr_format=2).create_array("v", shape=(2,), dtype="f8")
    change_document(tmp_path / "r.zarr/v/.zarray", dtype="|O", filters=[{"id": "pickle"}])
    refuses(tmp_path, "array 'v' cannot be opened (", "pickle")


UNKNOWN = {"v": {"data_type": "float8"}, "w": {"codecs": [{"name": "none such"}]}, "x": {"attributes": [1]}}


@pytest.mark.parametrize("consolidated", [False, True])
def test_arrays_that_zarr_does_not_open_are_listed(tmp_path, consolidated):
    group = zarr.create_group(tmp_path / "r.zarr")
    for name in ("u", *UNKNOWN):
        group.create_array(name, data=np.arange(3.0))
    if consolidated:
        zarr.consolidate_metadata(tmp_path / "r.zarr")
    for name, changes in UNKNOWN.items():
        change_document(tmp_path / f"r.zarr/{name}/zarr.json", **changes)
    text = run("info", "r.zarr", cwd=tmp_path).out.decode()
    for words in ("v: elements of unknown type", "w: elements of unknown type", "x: elements of unknown type"):
        assert words in text
    refuses(tmp_path, "array 'v' cannot be opened (", "float8", "choose with --columns u")
    succeeded(run("reduce", "-q", "--op", "sum", "--columns", "u", "r.zarr", "-o", "s.zarr.zip", cwd=tmp_path))
    assert written(tmp_path, "u") == [0, 1, 2]
