"""Files of named arrays, each with a shape of its own: npz and safetensors. What is expected comes from NumPy."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from command import refused, run, succeeded, unchanged

DRAW = np.random.default_rng(17)
RANKS = [
    {
        "layer/w": DRAW.standard_normal((4, 5)).astype("f4"),
        "layer/b": DRAW.integers(-99, 99, 7),
        "mask": DRAW.integers(0, 2, (2, 3, 4), np.int8),
        "empty": np.zeros((0, 3)),
        "one": np.float64(rank),
    }
    for rank in range(3)
]
TEXTS = {"names": np.array(["a", "bcd"]), "when": np.array(["2026-01-02", "NaT"], "M8[D]")}
MAX = ("--op", "max")


def save_npz(path, arrays):
    np.savez(path, **arrays)


def save_deflated(path, arrays):
    np.savez_compressed(path, **arrays)


def save_safetensors(path, arrays):
    safetensors.numpy.save_file({name: np.asarray(array) for name, array in arrays.items()}, path, {"made": "by hand"})


FORMS = {
    "npz": (save_npz, ".npz", np.load),
    "deflated": (save_deflated, ".npz", np.load),
    "safetensors": (save_safetensors, ".safetensors", safetensors.numpy.load_file),
}


class Bench:
    """Ranks of one format in a folder."""

    def __init__(self, folder, form):
        self.folder = folder
        self.save, self.suffix, self.load = FORMS[form]
        self.noun = "tensor" if form == "safetensors" else "array"

    def write(self, ranks, stem="r"):
        names = [f"{stem}{i}{self.suffix}" for i in range(len(ranks))]
        for name, arrays in zip(names, ranks, strict=True):
            self.save(self.folder / name, arrays)
        return names

    def run(self, *words):
        succeeded(run(*words[:1], "-q", *words[1:], cwd=self.folder))

    def reduce(self, *words):
        """Return the arrays of a result."""
        self.run("reduce", "-f", "-o", f"o{self.suffix}", *words)
        return self.read(f"o{self.suffix}")

    def read(self, name):
        found = self.load(self.folder / name)
        return {key: found[key] for key in found}

    def refuses(self, status, *reasons, words):
        with unchanged(self.folder):
            refused(run(*words, cwd=self.folder), status, *reasons)


@pytest.fixture(params=["npz", "safetensors"])
def bench(request, tmp_path):
    return Bench(tmp_path, request.param)


every_form = pytest.mark.parametrize("bench", FORMS, indirect=True)


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in ((name, np.asarray(array)) for name, array in expected.items()):
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def folded(op, *ranks):
    first, *others = ranks
    for other in others:
        first = {name: np.asarray(op(first[name], other[name])).astype(first[name].dtype) for name in first}
    return first


def test_ranks_in_another_order_or_that_differ(bench):
    """Other arrays or another shape are refused, the order of the arrays means nothing."""
    ranks = bench.write([RANKS[0], dict(reversed(RANKS[1].items()))])
    same(bench.reduce(*MAX, *ranks), folded(np.maximum, *RANKS[:2]))
    bench.run("accumulate", *MAX, *ranks)
    same(bench.read(ranks[0]), folded(np.maximum, *RANKS[:2]))
    bench.run("accumulate", *MAX, *ranks, ranks[0])
    fewer = {name: array for name, array in RANKS[0].items() if name != "one"}
    turned = RANKS[0] | {"layer/w": np.ascontiguousarray(RANKS[0]["layer/w"].T)}
    ranks, n = bench.write([RANKS[0], fewer, turned]), f"{bench.noun}s"
    reasons = f"rank 1 has 4 {n}, but rank 0", "has 5, and this file lacks 'one'; choose those of all"
    bench.refuses(3, *reasons, words=("reduce", *MAX, *ranks[:2], "-o", "x.npz"))
    reason = f"has 4 {n}, but the target has 5, and it lacks 'one'; choose with --columns"
    bench.refuses(3, reason, words=("accumulate", *MAX, ranks[0], ranks[1]))
    reasons = "has 4 arrays, but ", "has 5, and it lacks 'one'"
    bench.refuses(3, *reasons, words=("accumulate", *MAX, ranks[2], *ranks[:2]))
    reason = "rank 1 has shape (5, 4) in 'layer/w', but rank 0"
    bench.refuses(3, reason, words=("reduce", *MAX, ranks[0], ranks[2], "-o", "x.npz"))


@every_form
def test_updates(bench):
    target, *origins = bench.write(RANKS)
    bench.run("accumulate", *MAX, target, *origins)
    same(bench.read(target), folded(np.maximum, *RANKS))
    bench.run("accumulate", "--op", "replace", "--columns", "layer/b", target, origins[0])
    same(bench.read(target), folded(np.maximum, *RANKS) | {"layer/b": RANKS[1]["layer/b"]})
    bench.run("reduce", *MAX, "--in-place", "--root", "1", *origins)
    same(bench.read(origins[1]), folded(np.maximum, *RANKS[1:]))
    words = ("reduce", *MAX, "--in-place", "--columns", "one", *origins)
    if bench.suffix == ".npz":
        bench.refuses(2, "would lose everything that is not chosen", words=words)
    else:
        bench.run(*words)
        one = {"one": folded(np.maximum, *RANKS[1:])["one"]}
        same(bench.read(origins[0]), RANKS[1] | one)
    target, origin, _ = bench.write(RANKS)
    words = ("accumulate", *MAX, "--columns", "layer/w,layer/b", "--commit", "journal", target, origin)
    if bench.suffix == ".npz":
        reason = "changes elements where they lie, and those of r0.npz are encoded or checked by npz"
        bench.refuses(2, reason, words=words)
    else:
        bench.run(*words)
        changed = {name: np.maximum(RANKS[0][name], RANKS[1][name]) for name in ("layer/w", "layer/b")}
        same(bench.read(target), RANKS[0] | changed)


@pytest.mark.parametrize("bench", ["npz", "deflated"], indirect=True)
def test_texts_and_times_are_carried(bench):
    ranks = bench.write([RANKS[0] | TEXTS, TEXTS | RANKS[1], RANKS[2] | TEXTS | {"names": np.array(["a", "bce"])}])
    same(bench.reduce(*MAX, *ranks[:2]), folded(np.maximum, *RANKS[:2]) | TEXTS)
    same(bench.reduce(*MAX, "--columns", "one", *ranks[:2]), {"one": np.float64(1)} | TEXTS)
    reasons = "'names' differs from that of rank 0 ('r0.npz')", "with --no-check-coordinates"
    bench.refuses(3, *reasons, words=("reduce", *MAX, *ranks, "-o", "x.npz"))
    same(bench.reduce(*MAX, "--no-check-coordinates", *ranks), folded(np.maximum, *RANKS) | TEXTS)
    when = bench.reduce(*MAX, "--columns", "when", *ranks[:2])["when"]
    assert np.array_equal(when, TEXTS["when"], equal_nan=True)


def test_orders_of_npz_stay(tmp_path):
    arrays = [np.asfortranarray(DRAW.random((3, 4, 5))).astype(">f8", order="K") for _ in range(2)]
    for name, array in {"a": arrays[0], "b": arrays[1], "c": np.ascontiguousarray(arrays[1])}.items():
        np.savez(tmp_path / f"{name}.npz", x=array)
        np.savez_compressed(tmp_path / f"{name}z.npz", x=array)
    sum_ = ("-q", "-f", "--op", "sum")
    for ranks in (("a", "b"), ("a", "c"), ("az", "bz"), ("az", "c")):
        succeeded(run("reduce", *sum_, *(f"{rank}.npz" for rank in ranks), "-o", "o.npz", cwd=tmp_path))
        found = np.load(tmp_path / "o.npz")["x"]
        assert found.flags.f_contiguous
        assert found.dtype == np.dtype(">f8")
        assert np.array_equal(found, arrays[0] + arrays[1])
        assert zipfile.ZipFile(tmp_path / "o.npz").testzip() is None
    reason = "cannot be read in Fortran order"
    refused(run("accumulate", "-q", "--op", "sum", "az.npz", "cz.npz", cwd=tmp_path), 3, "cz.npz", reason)
    refused(run("reduce", *sum_, "bz.npz", "-o", "r.zarr.zip", cwd=tmp_path), 3, "Fortran order", "no form in zarr")
    for target, origin in (("az", "bz"), ("c", "cz")):
        expected = sum(np.load(tmp_path / f"{name}.npz")["x"] for name in (target, origin))
        succeeded(run("accumulate", "-q", "--op", "sum", f"{target}.npz", f"{origin}.npz", cwd=tmp_path))
        assert np.array_equal(np.load(tmp_path / f"{target}.npz")["x"], expected)


def test_members_of_npz_have_their_checksum_before_them_too(tmp_path):
    """As programs need it that read an archive forward, and get to the directory last."""
    np.savez(tmp_path / "r.npz", x=DRAW.random(5), y=np.arange(3))
    succeeded(run("reduce", "-q", "--op", "sum", "r.npz", "-o", "s.npz", cwd=tmp_path))
    octets = (tmp_path / "s.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "s.npz") as archive:
        for info in archive.infolist():
            crc = int.from_bytes(octets[info.header_offset + 14 :][:4], "little")
            assert crc == zlib.crc32(archive.read(info))


SHORT = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


@pytest.mark.parametrize(("name", "code"), SHORT.items())
def test_short_types_are_combined_as_float(name, code, tmp_path):
    """They are rounded once, at the end."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    arrays = [DRAW.standard_normal((8, 64)).astype(dtype) for _ in range(5)]
    ranks = [f"{rank}.safetensors" for rank in range(5)]
    for path, array in zip(ranks, arrays, strict=True):
        header = json.dumps({"w": {"dtype": code, "shape": [8, 64], "data_offsets": [0, array.nbytes]}}).encode()
        (tmp_path / path).write_bytes(struct.pack("<Q", len(header)) + header + array.tobytes())
    outcome = run("reduce", "--op", "mean", *ranks, "-o", "o.safetensors", cwd=tmp_path)
    assert outcome.err.startswith(f"mpired: mean of 5 ranks, 512 x float32 of {name},")
    result = (tmp_path / "o.safetensors").read_bytes()
    end = 8 + struct.unpack_from("<Q", result)[0]
    assert json.loads(result[8:end])["w"]["dtype"] == code
    found = np.frombuffer(result[end:], dtype).reshape(8, 64)
    total = np.sum([array.astype("f4") for array in arrays], axis=0, dtype="f8")
    assert np.array_equal(found.astype("f4"), (total / 5).astype("f4").astype(dtype).astype("f4"))
    succeeded(run("reduce", "-q", "--op", "max", *ranks, "-o", "o.npy", cwd=tmp_path))
    assert np.array_equal(np.load(tmp_path / "o.npy"), np.max([array.astype("f4") for array in arrays], axis=0))


def test_arrays_in_one_table_and_info(tmp_path):
    for rank in range(2):
        np.savez(tmp_path / f"{rank}.npz", a=np.arange(3.0), b=np.arange(6.0).reshape(2, 3), c=np.arange(3))
    words = ("reduce", "-q", "--op", "sum", "0.npz", "1.npz")
    reason = "holds columns of one length, but a has 3, b has 6, c has 3 elements; choose some with --columns"
    refused(run(*words, "-o", "o.parquet", cwd=tmp_path), 2, reason)
    outcome = run(*words, "--columns", "a,c", "--to", "csv", cwd=tmp_path)
    assert outcome == (0, b"a,c\n0.0,0\n2.0,2\n4.0,4\n", "")
    np.savez_compressed(tmp_path / "r.npz", x=np.zeros((2, 3), "f4"), **TEXTS, no=np.array([{}]))
    assert run("info", "r.npz", cwd=tmp_path).out.decode().splitlines()[1:] == [
        "  x: 6 x MPI_FLOAT (float32), shape (2, 3), C order, little-endian, deflated",
        "  no: 1 x Python objects (|O), shape (1,), deflated; no op takes it",
        "  names: 2 x strings (<U3), shape (2,), deflated; carried into results as it is",
        "  when: 2 x datetime64[D], shape (2,), deflated; carried into results as it is",
    ]
