"""The codecs and types of Zarr: bombs, cut chunks, strings, pickles, and what zarr does not know."""

from __future__ import annotations

import json
import os
import warnings
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from command import measured, refused, run, succeeded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import numcodecs
    import zarr

import mpired

pytestmark = pytest.mark.filterwarnings("ignore")
VERSIONS = pytest.mark.parametrize("version", [2, 3])
DRAW = np.random.default_rng(21)


def _document(path, **changes):
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | changes))


@VERSIONS
def test_a_chunk_of_blosc_that_is_cut_off(tmp_path, version):
    codec = zarr.codecs.BloscCodec() if version == 3 else numcodecs.Blosc()
    values = np.random.default_rng(3).standard_normal((2, 12)).astype("f4")
    for i, name in enumerate(("whole", "cut")):
        data = zarr.create_array(
            tmp_path / f"{name}.zarr",
            name="a",
            shape=(12,),
            chunks=(12,),
            dtype="f4",
            compressors=codec,
            zarr_format=version,
        )
        data[:] = values[i]
    reduced = mpired.reduce([str(tmp_path / "whole.zarr"), str(tmp_path / "cut.zarr")], op="sum")
    np.testing.assert_array_equal(reduced, values[0] + values[1])
    chunk = tmp_path / ("cut.zarr/a/c/0" if version == 3 else "cut.zarr/a/0")
    for nbytes in (24, 10):
        os.truncate(chunk, nbytes)
        refused(run("reduce", "-q", "--op", "sum", "whole.zarr", "cut.zarr", cwd=tmp_path), 3, "cut.zarr", "cut off")


CODECS = {
    "zstd": {"level": 1}, "lz4": {}, "blosc": {"cname": "zstd"}, "gzip": {"level": 1}, "zlib": {}, "bz2": {},
    "lzma": {"preset": 1},
}  # fmt: skip


def with_chunks(path, version, codec, values, **settings):
    """Write an array, and return the file of its only chunk, and what compresses such."""
    compressor = numcodecs.get_codec({"id": codec, **settings})
    if version == 3 and codec in {"zstd", "blosc", "gzip"}:
        given = {"zstd": zarr.codecs.ZstdCodec, "blosc": zarr.codecs.BloscCodec, "gzip": zarr.codecs.GzipCodec}[codec]()
    elif version == 3:
        given = zarr.registry.get_codec_class(f"numcodecs.{codec}")(**settings)
    else:
        given = compressor
    group = zarr.create_group(path, zarr_format=version)
    array = group.create_array("v", shape=values.shape, chunks=values.shape, dtype=values.dtype, compressors=given)
    array[...] = values
    return path / ("v/c/0" if version == 3 else "v/0"), compressor


@VERSIONS
@pytest.mark.parametrize("codec", CODECS)
def test_chunks_that_unfold_to_more_than_their_shape(tmp_path, version, codec):
    values = DRAW.integers(0, 9, 1 << 16).astype("i4")
    chunk, compressor = with_chunks(tmp_path / "r.zarr", version, codec, values, **CODECS[codec])
    np.testing.assert_array_equal(mpired.reduce([tmp_path / "r.zarr"], "max"), values)
    chunk.write_bytes(compressor.encode(np.zeros(16 << 20, "i1")))
    refused(run("reduce", "-q", "--op", "max", "r.zarr", cwd=tmp_path), 3, "r.zarr: ", "cannot reshape")
    chunk.write_bytes(compressor.encode(values[:-1]))
    refused(run("reduce", "-q", "--op", "max", "r.zarr", cwd=tmp_path), 3, "r.zarr: ")


@VERSIONS
@pytest.mark.parametrize("codec", ["zstd", "blosc", "gzip"])
def test_bombs_take_little_memory(tmp_path, version, codec):
    values = np.arange(1 << 16, dtype="f8")
    chunk, compressor = with_chunks(tmp_path / "r.zarr", version, codec, values, **CODECS[codec])
    chunk.write_bytes(compressor.encode(np.zeros((64 if codec == "gzip" else 400) << 17)))
    if codec == "gzip":
        chunk.write_bytes(chunk.read_bytes() * 3)
    status, peak, err = measured("reduce", "-q", "--op", "max", "r.zarr", cwd=tmp_path)
    reason = "a chunk of array 'v' unfolds to more than the 524288 bytes of its shape"
    assert (status, err.count("\n"), reason in err) == (3, 1, True), err
    assert peak < 250 << 20


@VERSIONS
def test_chunks_of_more_texts_than_they_have_room_for(tmp_path, version):
    group = zarr.create_group(tmp_path / "r.zarr", zarr_format=version)
    group.create_array("v", data=np.arange(3.0))
    texts = group.create_array("t", shape=(2,), dtype=str, compressors=None)
    texts[...] = np.array(["ab", "c"], object)
    words = ("reduce", "-q", "-f", "--op", "max", "r.zarr", "-o", "s.zarr.zip")
    succeeded(run(*words, cwd=tmp_path))
    with zarr.storage.ZipStore(tmp_path / "s.zarr.zip", mode="r") as store:
        assert zarr.open_group(store, mode="r")["t"][...].tolist() == ["ab", "c"]
    chunk = tmp_path / "r.zarr" / ("t/c/0" if version == 3 else "t/0")
    chunk.write_bytes((3).to_bytes(4, "little") + chunk.read_bytes()[4:])
    refused(run(*words, cwd=tmp_path), 3, "r.zarr: ", "data seem truncated")


@VERSIONS
def test_zstd_that_declares_nothing(tmp_path, version):
    values = np.arange(1 << 14, dtype="i4")
    chunk, _ = with_chunks(tmp_path / "r.zarr", version, "zstd", values)
    for content, reason in (
        (values.tobytes(), None),
        (bytes(64 << 20), "cannot be read"),
        (bytes(400 << 20), "cannot be read"),
    ):
        with pa.CompressedOutputStream(chunk, "zstd") as stream:
            stream.write(content)
        if reason is None:
            np.testing.assert_array_equal(mpired.reduce([tmp_path / "r.zarr"], "max"), values)
        else:
            refused(run("reduce", "-q", "--op", "max", "r.zarr", cwd=tmp_path), 3, "r.zarr: ", reason)


def test_pickles_are_never_loaded(tmp_path):
    zarr.create_group(tmp_path / "r.zarr", zarr_format=2).create_array("v", shape=(2,), dtype="f8")
    _document(tmp_path / "r.zarr/v/.zarray", dtype="|O", filters=[{"id": "pickle"}])
    refused(run("reduce", "--op", "sum", "r.zarr", cwd=tmp_path), 3, "pickle, which is never loaded")


def test_strings_of_the_codec_that_numcodecs_names(tmp_path):
    for rank in range(2):
        group = zarr.create_group(tmp_path / f"r{rank}.zarr")
        group.create_array("v", data=np.arange(2.0))
        group.create_array("t", shape=(2,), dtype=str, compressors=None)[...] = np.array(["ab", "c"], object)
        document = tmp_path / f"r{rank}.zarr/t/zarr.json"
        _document(document, codecs=[{"name": "numcodecs.vlen-utf8"}])
    text = run("info", "r0.zarr", cwd=tmp_path).out.decode()
    assert "t: 2 x strings, shape (2,), chunks of (2,), vlen-utf8; carried into results as it is" in text
    succeeded(run("reduce", "-q", "--op", "sum", "r0.zarr", "r1.zarr", "-o", "s.zarr.zip", cwd=tmp_path))
    with zipfile.ZipFile(tmp_path / "s.zarr.zip") as archive:
        assert archive.read("t/zarr.json") == document.read_bytes()
        assert archive.read("t/c/0") == (tmp_path / "r1.zarr/t/c/0").read_bytes()
    chunk = tmp_path / "r1.zarr/t/c/0"
    chunk.write_bytes(chunk.read_bytes().replace(b"ab", b"ax"))
    refused(
        run("reduce", "-q", "--op", "sum", "r0.zarr", "r1.zarr", cwd=tmp_path), 3, "'t' differs from that of rank 0"
    )


UNKNOWN = {"v": {"data_type": "float8"}, "w": {"codecs": [{"name": "none such"}]}, "x": {"attributes": [1]}}


@pytest.mark.parametrize("consolidated", [False, True])
def test_arrays_that_zarr_does_not_open_are_listed(tmp_path, consolidated):
    group = zarr.create_group(tmp_path / "r.zarr")
    for name in ("u", *UNKNOWN):
        group.create_array(name, data=np.arange(3.0))
    if consolidated:
        zarr.consolidate_metadata(tmp_path / "r.zarr")
    for name, changes in UNKNOWN.items():
        _document(tmp_path / f"r.zarr/{name}/zarr.json", **changes)
    text = run("info", "r.zarr", cwd=tmp_path).out.decode()
    for name in UNKNOWN:
        assert f"{name}: elements of unknown type" in text
    words = ("reduce", "-q", "--op", "sum", "r.zarr", "-o", "s.zarr.zip")
    refused(run(*words, cwd=tmp_path), 3, "array 'v' cannot be opened (", "float8", "choose with --columns u")
    succeeded(run(*words, "--columns", "u", cwd=tmp_path))
    with zarr.storage.ZipStore(tmp_path / "s.zarr.zip", mode="r") as store:
        assert zarr.open_group(store, mode="r")["u"][:].tolist() == [0, 1, 2]
