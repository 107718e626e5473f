"""Damaged files of every format: the same bits or one error on one line, and never the end of the process."""

import io
import json
import struct
from functools import partial

import h5py
import numpy as np
import pytest
import safetensors.numpy
from bad_files import npy_of, zip_of
from command import in_child
from format_files import RANKS, ROWS, WRITERS
from rows import check_refused, together
from tables import SMALLEST

import mpired
from mpired.errors import MpiredError
from mpired.formats import decoding

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(4, dtype="i2")}
DRAW = np.random.default_rng(5)


def _npz():
    file = io.BytesIO()
    np.savez_compressed(file, **ARRAYS, t=np.array(["x", "yz"]))
    return file.getvalue()


def _hdf5():
    file = io.BytesIO()
    with h5py.File(file, "w") as new:
        chunked = {"chunks": (2, 3), "compression": "gzip", "shuffle": True, "fletcher32": True}
        new.create_dataset("deep/a", data=np.arange(24.0).reshape(4, 6), **chunked).attrs["units"] = "K"
        new["b"] = np.arange(4, dtype=">i2")
    return file.getvalue()


PLAIN = ("raw", "npy", "arrows", "bundle", "zarr", "netcdf")
WHOLE = {
    **{f"plain{ROWS[form].suffixes[0]}": WRITERS[form](RANKS[0]) for form in PLAIN},
    **{name: SMALLEST[name] for name in ("pages2.parquet", "zstd.arrow")},
    "deflated.npz": _npz(),
    "metadata.safetensors": safetensors.numpy.save(ARRAYS, {"made": "by hand"}),
    "groups.h5": _hdf5(),
}


class Looks:
    """Looks at files that were made of a whole one."""

    def __init__(self, bench, name):
        self.whole, self.bench = WHOLE[name], bench
        self.path, self.other = bench.folder / name, bench.folder / f"other_{name}"
        options = {"type": "double"} if name == "plain.bin" else {"nulls": "ignore"} if name.endswith(".nc") else {}
        self.calls = [("max", options)]
        if name in {"pages2.parquet", "zstd.arrow"}:
            self.calls = [("max", {"columns": "x"}), ("maxloc", {"columns": "p"})]

    def bits(self):
        """Return the bits of all arrays of both files."""
        found = [mpired.reduce([self.other, self.path], op, **options) for op, options in self.calls]
        arrays = (list(each.values()) if isinstance(each, dict) else [each] for each in found)
        return [array.tobytes() for each in arrays for array in each]

    def outcome(self, content):
        """Return 0 for the bits of the whole file, 1 for others, and else the status of an error on one line."""
        self.path.write_bytes(content)
        try:
            return int(self.bits() != self.expected)
        except MpiredError as error:
            return error.exit_status if "\n" not in str(error) else str(error)

    def at(self, contents):
        """Return what came of each content; a child looks at some of them."""

        def look(some):
            self.bench.setup()
            vars(decoding)["_INSPECT_SECONDS"] = 1  # some damage lets the library go round in a circle
            for path in (self.other, self.path):
                path.write_bytes(self.whole)
            self.expected = self.bits()
            return list(map(self.outcome, some))

        contents = list(contents)
        parts = (contents[start : start + 100] for start in range(0, len(contents), 100))
        return [outcome for part in parts for outcome in in_child(partial(look, part))]


@pytest.mark.filterwarnings("ignore")  # of elements that damage makes missing ones
@pytest.mark.parametrize("name", WHOLE)
def test_damaged_files(bench, name, long, record_property):
    """They are cut off, a bit of them is flipped, or eight bytes of them are ones; with `--long` in every place."""
    looks, whole = Looks(bench, name), WHOLE[name]

    def some(places, count):
        return places if long else sorted(DRAW.choice(places, min(count, len(places)), replace=False).tolist())

    def flipped(bit):
        return whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :]

    cut = looks.at(whole[:length] for length in [*some(range(0, len(whole), 16), 8), len(whole) - 1])
    assert set(cut) <= {0, 3}
    assert 3 in cut
    changed = [flipped(bit) for bit in some(range(8 * len(whole)), 10)]
    changed += [whole[:at] + b"\xff" * 8 + whole[at + 8 :] for at in some(range(len(whole)), 5)]
    outcomes = looks.at(changed)
    assert set(outcomes) <= {0, 1, 3, 5}
    record_property("tried", len(cut) + len(outcomes))


def tensors_of(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype="F64", shape=(2,), offsets=(0, 16), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def changed_checksum():
    content = bytearray(_npz())
    content[content.index(b"PK\1\2") + 16] ^= 1  # of the first member in the directory
    return bytes(content)


NPY = npy_of(np.arange(3.0))
SAFETENSORS = {
    "a header longer than the file": (tensors_of({"a": tensor()}, bytes(16), 1 << 40), "the header claims"),
    "not a JSON": (tensors_of(b"{" * 99), "not a JSON"),
    "deep JSON": (tensors_of(b'{"a":' + b"[" * 200_000), "not a JSON"),
    "a list": (tensors_of(b"[1]"), "is not an object"),
    "a key twice": (tensors_of(b'{"a":{},"a":{}}'), "a key is there twice"),
    "too few bytes": (tensors_of({"a": tensor(shape=(3,))}, bytes(16)), "needs 24 bytes, and has 16"),
    "a huge shape": (tensors_of({"a": tensor(shape=(1 << 62, 1 << 62))}, bytes(16)), "bytes, and has 16"),
    "a negative shape": (tensors_of({"a": tensor(shape=(-2,))}, bytes(16)), "they are not sizes"),
    "a true shape": (tensors_of({"a": tensor(shape=(True, 2))}, bytes(16)), "they are not sizes"),
    "an overlap": (tensors_of({"a": tensor(), "b": tensor(offsets=(8, 24))}, bytes(24)), "begins at byte 8"),
    "a gap": (tensors_of({"a": tensor(), "b": tensor(offsets=(24, 40))}, bytes(40)), "begins at byte 24"),
    "more behind": (tensors_of({"a": tensor()}, bytes(17)), "have 16 bytes, and the file has 17"),
    "metadata that are numbers": (tensors_of({"__metadata__": {"a": 1}}), "not strings by name"),
    "another key": (tensors_of({"a": tensor(more=1)}, bytes(16)), "has not exactly"),
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
    rows = [("bad.safetensors", "not a valid safetensors file", *row) for row in SAFETENSORS.items()]
    rows += [("bad.npz", "", *row) for row in NPZ.items()]
    with together(tmp_path) as case:
        for file, also, name, (content, *reasons) in rows:
            with case(name) as folder:
                (folder / file).write_bytes(content)
                check_refused(folder, f"reduce --op sum {file} -o o.npy", 3, file, also, *reasons)
