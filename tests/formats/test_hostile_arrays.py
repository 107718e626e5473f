"""Damaged files of arrays: a result or one error on one line, and never the end of the process."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib

import h5py
import numpy as np
import pytest
from command import measured, refused, run, unchanged

import mpired


def _header(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _tensor(dtype="F64", shape=(2,), offsets=(0, 16), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


BAD_SAFETENSORS = {
    "a header longer than the file": (_header({"a": _tensor()}, bytes(16), 1 << 40), "the header claims"),
    "not a JSON": (_header(b"{" * 99), "not a JSON"),
    "deep JSON": (_header(b'{"a":' + b"[" * 200_000), "not a JSON"),
    "a list": (_header(b"[1]"), "is not an object"),
    "a key twice": (_header(b'{"a":{},"a":{}}'), "a key is there twice"),
    "too few bytes": (_header({"a": _tensor(shape=(3,))}, bytes(16)), "needs 24 bytes, and has 16"),
    "a huge shape": (_header({"a": _tensor(shape=(1 << 62, 1 << 62))}, bytes(16)), "bytes, and has 16"),
    "a negative shape": (_header({"a": _tensor(shape=(-2,))}, bytes(16)), "not a string and lists of counts"),
    "a true shape": (_header({"a": _tensor(shape=(True, 2))}, bytes(16)), "not a string and lists of counts"),
    "an overlap": (_header({"a": _tensor(), "b": _tensor(offsets=(8, 24))}, bytes(24)), "begins at byte 8"),
    "a gap": (_header({"a": _tensor(), "b": _tensor(offsets=(24, 40))}, bytes(40)), "begins at byte 24"),
    "more behind": (_header({"a": _tensor()}, bytes(17)), "have 16 bytes, and the file has 17"),
    "metadata that are numbers": (_header({"__metadata__": {"a": 1}}), "not strings by name"),
    "another key": (_header({"a": _tensor(more=1)}, bytes(16)), "has not exactly"),
}


@pytest.mark.parametrize("case", BAD_SAFETENSORS)
def test_headers_of_safetensors(case, tmp_path):
    content, reason = BAD_SAFETENSORS[case]
    (tmp_path / "bad.safetensors").write_bytes(content)
    with unchanged(tmp_path):
        words = ("--op", "sum", "bad.safetensors", "-o", "o.npy")
        refused(run("reduce", *words, cwd=tmp_path), 3, "bad.safetensors: ", reason, "not a valid safetensors file")


def _zip(*members, method=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def _npy(array, **changes):
    file = io.BytesIO()
    np.save(file, array)
    content = file.getvalue()
    for old, new in changes.items():
        content = content.replace(old.encode(), new.encode())
    return content


ARRAY = _npy(np.arange(3.0))
BAD_NPZ = {
    "a member that is no array": (_zip(("a.npy", ARRAY), ("b.txt", b"x")), "member 'b.txt'", "is no .npy array"),
    "a member that ends early": (_zip(("a.npy", ARRAY[:-1])), "member 'a.npy'", "expected 24 data bytes"),
    "a bomb": (_zip(("a.npy", ARRAY.replace(b"(3,), }", b"(1<<62,)"))), "member 'a.npy'", "not a valid npy file"),
    "objects": (_zip(("a.npy", _npy(np.array([{}])))), "bad.npz", "pickled code and never loaded"),
    "no member": (_zip(), "bad.npz", "is a zip archive"),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_members_of_npz(case, tmp_path):
    content, *reasons = BAD_NPZ[case]
    (tmp_path / "bad.npz").write_bytes(content)
    with unchanged(tmp_path):
        refused(run("reduce", "--op", "sum", "bad.npz", "-o", "o.npy", cwd=tmp_path), 3, *reasons)


def test_a_deflated_bomb_is_read_in_blocks(tmp_path):
    """Its header claims little, and it goes on for ever."""
    content = _zip(("a.npy", ARRAY + bytes(1 << 28)), method=zipfile.ZIP_DEFLATED)
    (tmp_path / "bad.npz").write_bytes(content)
    words = ("reduce", "--op", "sum", "--max-memory", "300M", "bad.npz", "-o", "o.npy")
    refused(run(*words, cwd=tmp_path), 3, "expected 24 data bytes for the shape (3,), found 268435480")


def test_a_checksum_that_does_not_fit(tmp_path):
    """It is looked at where all of a member is inflated."""
    np.savez_compressed(tmp_path / "z.npz", a=np.arange(6.0))
    content = bytearray((tmp_path / "z.npz").read_bytes())
    at = content.index(b"PK\1\2") + 16  # of the first member in the directory
    content[at] ^= 1
    (tmp_path / "z.npz").write_bytes(content)
    with unchanged(tmp_path):
        refused(
            run("reduce", "--op", "sum", "z.npz", "-o", "o.npz", cwd=tmp_path), 3, "z.npz: ", "Bad CRC-32", "'a.npy'"
        )


def test_a_chunk_of_hdf5_that_unfolds_to_more_than_its_elements(tmp_path):
    with h5py.File(tmp_path / "bomb.h5", "w") as file:
        dataset = file.create_dataset("x", (1000,), "f8", chunks=(1000,), compression="gzip")
        dataset.id.write_direct_chunk((0,), zlib.compress(bytes(800 << 20), 9))
    with unchanged(tmp_path):
        status, peak, err = measured("reduce", "--op", "sum", "bomb.h5", "bomb.h5", "-o", "sum.h5", cwd=tmp_path)
    assert (status, err.count("\n")) == (3, 1)
    assert "bomb.h5: cannot be read" in err
    assert peak < 450 << 20


def test_a_number_of_hdf5_that_is_larger_than_those_of_numpy(tmp_path):
    large = h5py.h5t.IEEE_F64LE.copy()
    large.set_size(16)
    large.set_precision(128)
    large.set_fields(127, 112, 15, 0, 112)
    large.set_ebias(16383)
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["x"] = np.arange(3.0)
        h5py.h5d.create(file.id, b"y", large, h5py.h5s.create_simple((3,)))
    info = run("info", "t.h5", cwd=tmp_path)
    assert (info.status, info.err) == (0, "")
    assert "y: 3 x elements of 128 bits of a type that NumPy has not" in info.out.decode()
    assert mpired.reduce([tmp_path / "t.h5"] * 2, "sum", columns=["x"]).tolist() == [0, 2, 4]


@pytest.mark.parametrize("kind", ["numbers", "text", "coordinate"])
def test_an_array_of_hdf5_whose_filter_is_missing(kind, tmp_path):
    """A text hides nothing else; a coordinate that cannot be compared does."""
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((3,))
    settings.set_filter(32099, h5py.h5z.FLAG_OPTIONAL, ())
    tid = h5py.h5t.py_create(np.dtype("S8" if kind == "text" else "f8"))
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["x"] = np.arange(3.0)
        array = h5py.Dataset(h5py.h5d.create(file.id, b"y", tid, h5py.h5s.create_simple((3,)), settings))
        array.id.write_direct_chunk((0,), bytes(24))
        if kind == "coordinate":
            array.make_scale("y")
            file["x"].dims[0].attach_scale(array)
    reason = "array 'y' is encoded by filter 32099, for which HDF5 needs a plugin, and HDF5_PLUGIN_PATH has none"
    refused(run("reduce", "--op", "max", "t.h5", "-o", "o.h5", cwd=tmp_path), 3, "t.h5: ", reason)
    info = run("info", "t.h5", cwd=tmp_path)
    assert info.status == (3 if kind == "coordinate" else 0)
    if kind != "coordinate":
        assert ("elements that cannot be read" in info.out.decode()) == (kind == "text")
        assert mpired.reduce([tmp_path / "t.h5"] * 2, "sum", columns=["x"]).tolist() == [0, 2, 4]
