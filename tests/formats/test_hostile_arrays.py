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
from bad_files import npy_of, zip_of
from command import measured, refused, run, unchanged
from rows import together

import mpired


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype="F64", shape=(2,), offsets=(0, 16), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def deflated(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def changed_checksum():
    content = bytearray(deflated(a=np.arange(6.0)))
    content[content.index(b"PK\1\2") + 16] ^= 1  # of the first member in the directory
    return bytes(content)


NPY = npy_of(np.arange(3.0))
SAFETENSORS = {
    "a header longer than the file": (safetensors({"a": tensor()}, bytes(16), 1 << 40), "the header claims"),
    "not a JSON": (safetensors(b"{" * 99), "not a JSON"),
    "deep JSON": (safetensors(b'{"a":' + b"[" * 200_000), "not a JSON"),
    "a list": (safetensors(b"[1]"), "is not an object"),
    "a key twice": (safetensors(b'{"a":{},"a":{}}'), "a key is there twice"),
    "too few bytes": (safetensors({"a": tensor(shape=(3,))}, bytes(16)), "needs 24 bytes, and has 16"),
    "a huge shape": (safetensors({"a": tensor(shape=(1 << 62, 1 << 62))}, bytes(16)), "bytes, and has 16"),
    "a negative shape": (safetensors({"a": tensor(shape=(-2,))}, bytes(16)), "they are not sizes"),
    "a true shape": (safetensors({"a": tensor(shape=(True, 2))}, bytes(16)), "they are not sizes"),
    "an overlap": (safetensors({"a": tensor(), "b": tensor(offsets=(8, 24))}, bytes(24)), "begins at byte 8"),
    "a gap": (safetensors({"a": tensor(), "b": tensor(offsets=(24, 40))}, bytes(40)), "begins at byte 24"),
    "more behind": (safetensors({"a": tensor()}, bytes(17)), "have 16 bytes, and the file has 17"),
    "metadata that are numbers": (safetensors({"__metadata__": {"a": 1}}), "not strings by name"),
    "another key": (safetensors({"a": tensor(more=1)}, bytes(16)), "has not exactly"),
}
NPZ = {
    "a member that is no array": (zip_of(("a.npy", NPY), ("b.txt", b"x")), "member 'b.txt'", "is no .npy array"),
    "a member that ends early": (zip_of(("a.npy", NPY[:-1])), "member 'a.npy'", "expected 24 data bytes"),
    "a bomb": (zip_of(("a.npy", NPY.replace(b"(3,), }", b"(1<<62,)"))), "member 'a.npy'", "not a valid npy file"),
    "objects": (zip_of(("a.npy", npy_of(np.array([{}])))), "bad.npz", "pickled code and never loaded"),
    "no member": (zip_of(), "bad.npz", "is a zip archive"),
    "another checksum": (changed_checksum(), "bad.npz: ", "Bad CRC-32", "'a.npy'"),  # told where all is inflated
}


def test_npz_and_safetensors(tmp_path):
    cases = [("bad.safetensors", "not a valid safetensors file", *row) for row in SAFETENSORS.items()]
    cases += [("bad.npz", "", *row) for row in NPZ.items()]
    with together(tmp_path) as case:
        for file, also, name, (content, *reasons) in cases:
            with case(name) as folder:
                (folder / file).write_bytes(content)
                with unchanged(folder):
                    outcome = run("reduce", "--op", "sum", file, "-o", "o.npy", cwd=folder)
                    refused(outcome, 3, file, also, *reasons)


def test_a_deflated_bomb_is_read_in_blocks(tmp_path):
    """Its header claims little, and it goes on for ever."""
    with zipfile.ZipFile(tmp_path / "bad.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", NPY + bytes(1 << 28))
    words = ("reduce", "--op", "sum", "--max-memory", "300M", "bad.npz", "-o", "o.npy")
    refused(run(*words, cwd=tmp_path), 3, "expected 24 data bytes for the shape (3,), found 268435480")


def test_a_chunk_of_hdf5_that_unfolds_to_more_than_its_elements(tmp_path):
    with h5py.File(tmp_path / "bomb.h5", "w") as file:
        dataset = file.create_dataset("x", (1000,), "f8", chunks=(1000,), compression="gzip")
        dataset.id.write_direct_chunk((0,), zlib.compress(bytes(400 << 20), 1))
    with unchanged(tmp_path):
        status, peak, err = measured("reduce", "--op", "sum", "bomb.h5", "bomb.h5", "-o", "sum.h5", cwd=tmp_path)
    assert (status, err.count("\n")) == (3, 1)
    assert "bomb.h5: cannot be read" in err
    assert peak < 400 << 20


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
    reason = "array 'y' is encoded by filter 32099, for which HDF5 needs a plugin; set HDF5_PLUGIN_PATH"
    refused(run("reduce", "--op", "max", "t.h5", "-o", "o.h5", cwd=tmp_path), 3, "t.h5: ", reason)
    info = run("info", "t.h5", cwd=tmp_path)
    assert info.status == (3 if kind == "coordinate" else 0)
    if kind != "coordinate":
        assert "y: 3 x elements encoded by filter 32099" in info.out.decode()
        assert mpired.reduce([tmp_path / "t.h5"] * 2, "sum", columns=["x"]).tolist() == [0, 2, 4]
