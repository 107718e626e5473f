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

import mpired

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


def _npz(path, arrays):
    np.savez(path, **arrays)


def _deflated(path, arrays):
    np.savez_compressed(path, **arrays)


def _safetensors(path, arrays):
    safetensors.numpy.save_file({name: np.asarray(array) for name, array in arrays.items()}, path, {"made": "by hand"})


FORMS = {
    "npz": (_npz, ".npz", np.load),
    "deflated": (_deflated, ".npz", np.load),
    "safetensors": (_safetensors, ".safetensors", safetensors.numpy.load_file),
}
every_form = pytest.mark.parametrize("bench", FORMS, indirect=True)


class Bench:
    """Ranks of one format in a folder."""

    def __init__(self, folder, form):
        self.folder = folder
        self.save, self.suffix, self.load = FORMS[form]

    def write(self, ranks, stem="r"):
        names = [f"{stem}{i}{self.suffix}" for i in range(len(ranks))]
        for name, arrays in zip(names, ranks, strict=True):
            self.save(self.folder / name, arrays)
        return names

    def read(self, name):
        found = self.load(self.folder / name)
        return {key: found[key] for key in found}

    def run(self, *words):
        succeeded(run(*words[:1], "-q", *words[1:], cwd=self.folder))


@pytest.fixture
def bench(request, tmp_path):
    return Bench(tmp_path, request.param)


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


@every_form
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_every_array_is_a_buffer(bench, jobs):
    ranks = bench.write(RANKS)
    bench.run("reduce", "--op", "max", "-j", jobs, *ranks, "-o", f"max{bench.suffix}")
    same(bench.read(f"max{bench.suffix}"), folded(np.maximum, *RANKS))
    bench.run("scan", "--op", "max", *ranks, "-o", f"s{{rank}}{bench.suffix}")
    same(bench.read(f"s1{bench.suffix}"), folded(np.maximum, *RANKS[:2]))
    bench.run("allreduce", "--op", "max", *ranks, "-o", f"a{{rank}}{bench.suffix}")
    assert len({(bench.folder / f"a{rank}{bench.suffix}").read_bytes() for rank in range(3)}) == 1


@every_form
def test_arrays_are_chosen_by_names_and_patterns(bench):
    ranks = bench.write(RANKS)
    for words, names in (
        (("--columns", "layer/*"), {"layer/w", "layer/b"}),
        (("--variables", "one,mas?"), {"one", "mask"}),
    ):
        bench.run("reduce", "--op", "min", *words, *ranks, "-f", "-o", f"o{bench.suffix}")
        expected = folded(np.minimum, *RANKS)
        same(bench.read(f"o{bench.suffix}"), {name: expected[name] for name in names})
    with unchanged(bench.folder):
        outcome = run("reduce", "--op", "max", "--columns", "l?yer", *ranks, "-o", "x.npy", cwd=bench.folder)
        noun = {".safetensors": "tensor", ".h5": "dataset", ".nc": "variable"}.get(bench.suffix, "array")
        refused(outcome, 3, f"3 of 3 ranks: no {noun} like 'l?yer'", f"; its {noun}s are 'layer/")


@every_form
def test_arrays_in_another_order(bench):
    ranks = bench.write([RANKS[0], dict(reversed(RANKS[1].items()))])
    bench.run("reduce", "--op", "max", *ranks, "-o", f"o{bench.suffix}")
    same(bench.read(f"o{bench.suffix}"), folded(np.maximum, *RANKS[:2]))
    bench.run("accumulate", "--op", "max", *ranks)
    same(bench.read(ranks[0]), folded(np.maximum, *RANKS[:2]))
    bench.run("accumulate", "--op", "max", *ranks, ranks[0])


@every_form
def test_ranks_that_differ(bench):
    fewer = {name: array for name, array in RANKS[0].items() if name != "one"}
    turned = RANKS[0] | {"layer/w": np.ascontiguousarray(RANKS[0]["layer/w"].T)}
    ranks = bench.write([RANKS[0], fewer, turned])
    with unchanged(bench.folder):
        outcome = run("reduce", "--op", "max", *ranks[:2], "-o", "x.npz", cwd=bench.folder)
        noun = "tensor" if bench.suffix == ".safetensors" else "array"
        refused(
            outcome, 3, f"rank 1 has 4 {noun}s, but rank 0", "has 5, and this file lacks 'one'; choose those of all"
        )
        outcome = run("accumulate", "--op", "max", ranks[0], ranks[1], cwd=bench.folder)
        refused(outcome, 3, f"has 4 {noun}s, but the target has 5, and it lacks 'one'; choose with --columns")
        outcome = run("accumulate", "--op", "max", ranks[2], *ranks[:2], cwd=bench.folder)
        refused(outcome, 3, "has 4 arrays, but ", "has 5, and it lacks 'one'")
        outcome = run("reduce", "--op", "max", ranks[0], ranks[2], "-o", "x.npz", cwd=bench.folder)
        refused(outcome, 3, "rank 1 has shape (5, 4) in 'layer/w', but rank 0")


@every_form
def test_a_result_of_another_type_keeps_its_place(bench):
    ranks = bench.write(RANKS)
    bench.run("reduce", "--op", "mean", "--columns", "layer/*", *ranks, "-o", f"mean{bench.suffix}")
    found = bench.read(f"mean{bench.suffix}")
    assert found["layer/b"].dtype == np.float64
    np.testing.assert_allclose(found["layer/b"], np.mean([rank["layer/b"] for rank in RANKS], axis=0), rtol=1e-15)
    np.testing.assert_allclose(found["layer/w"], np.mean([rank["layer/w"] for rank in RANKS], axis=0), rtol=1e-6)


@every_form
def test_updates(bench):
    target, *origins = bench.write(RANKS)
    bench.run("accumulate", "--op", "max", target, *origins)
    same(bench.read(target), folded(np.maximum, *RANKS))
    bench.run("accumulate", "--op", "replace", "--columns", "layer/b", target, origins[0])
    same(bench.read(target), folded(np.maximum, *RANKS) | {"layer/b": RANKS[1]["layer/b"]})
    bench.run("reduce", "--op", "max", "--in-place", "--root", "1", *origins)
    same(bench.read(origins[1]), folded(np.maximum, *RANKS[1:]))
    words = ("reduce", "--op", "max", "--in-place", "--columns", "one", *origins)
    if bench.suffix == ".npz":
        with unchanged(bench.folder):
            refused(run(*words, cwd=bench.folder), 2, "would lose everything that is not chosen")
    else:
        bench.run(*words)
        one = {"one": folded(np.maximum, *RANKS[1:])["one"]}
        same(bench.read(origins[0]), RANKS[1] | one)


@every_form
def test_elements_are_changed_where_no_checksum_is_of_them(bench):
    target, origin, _ = bench.write(RANKS)
    words = (
        "accumulate",
        "--json",
        "--op",
        "max",
        "--columns",
        "layer/w,layer/b",
        "--commit",
        "journal",
        target,
        origin,
    )
    outcome = run(*words, cwd=bench.folder)
    if bench.suffix == ".npz":
        assert outcome.status == 2
        assert "changes elements where they lie, and those of r0.npz are encoded or checked by npz" in outcome.err
    else:
        succeeded(outcome)
        names = ("layer/w", "layer/b")
        expected = RANKS[0] | {name: np.maximum(RANKS[0][name], RANKS[1][name]) for name in names}
        same(bench.read(target), expected)


@every_form
def test_program(bench, monkeypatch):
    monkeypatch.chdir(bench.folder)
    found = mpired.reduce(bench.write(RANKS), op="max")
    expected = folded(np.maximum, *RANKS)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    pairs = mpired.reduce(bench.write(RANKS), op="maxloc", index="rank", columns="layer/w")
    assert np.array_equal(pairs["index"], np.argmax([rank["layer/w"] for rank in RANKS], axis=0))


@every_form
def test_two_arrays_are_pairs(bench):
    parts = [(DRAW.integers(0, 5, 40).astype("f8"), DRAW.integers(0, 9, 40).astype("i4")) for _ in range(2)]
    ranks = bench.write([{"v": value, "i": index} for value, index in parts])
    if bench.save is _deflated:
        with unchanged(bench.folder):
            words = ("reduce", "--op", "maxloc", "--pair", "v,i", *ranks, "-o", "o.npy")
            refused(run(*words, cwd=bench.folder), 3, "'v' is not a plain array of numbers")
        return
    bench.run("reduce", "--op", "maxloc", "--pair", "v,i", *ranks, "--split", "v.npy,i.npy")
    (av, ai), (bv, bi) = parts
    first = (av > bv) | ((av == bv) & (ai < bi))
    assert np.array_equal(np.load(bench.folder / "v.npy"), np.where(first, av, bv))
    assert np.array_equal(np.load(bench.folder / "i.npy"), np.where(first, ai, bi))


@pytest.mark.parametrize("bench", ["npz", "deflated"], indirect=True)
def test_texts_and_times_are_carried(bench):
    ranks = bench.write([RANKS[0] | TEXTS, TEXTS | RANKS[1], RANKS[2] | TEXTS | {"names": np.array(["a", "bce"])}])
    bench.run("reduce", "--op", "max", *ranks[:2], "-o", "o.npz")
    same(bench.read("o.npz"), folded(np.maximum, *RANKS[:2]) | TEXTS)
    bench.run("reduce", "--op", "max", "--columns", "one", *ranks[:2], "-o", "one.npz")
    same(bench.read("one.npz"), {"one": np.float64(1)} | TEXTS)
    with unchanged(bench.folder):
        words = ("reduce", "--op", "max", *ranks, "-o", "x.npz")
        reason = "'names' differs from that of rank 0 ('r0.npz')"
        refused(run(*words, cwd=bench.folder), 3, reason, "with --no-check-coordinates")
    bench.run("reduce", "--op", "max", "--no-check-coordinates", *ranks, "-o", "all.npz")
    same(bench.read("all.npz"), folded(np.maximum, *RANKS) | TEXTS)
    bench.run("reduce", "--op", "max", "--columns", "when", *ranks[:2], "-o", "when.npy")
    assert np.array_equal(np.load(bench.folder / "when.npy"), TEXTS["when"], equal_nan=True)


def test_orders_of_npz_stay(tmp_path):
    arrays = [np.asfortranarray(DRAW.random((3, 4, 5))).astype(">f8", order="K") for _ in range(2)]
    for rank, array in enumerate(arrays):
        np.savez(tmp_path / f"r{rank}.npz", x=array)
    np.savez(tmp_path / "c.npz", x=np.ascontiguousarray(arrays[1]))
    succeeded(run("reduce", "-q", "--op", "sum", "r0.npz", "r1.npz", "-o", "f.npz", cwd=tmp_path))
    succeeded(run("reduce", "-q", "--op", "sum", "r0.npz", "c.npz", "-o", "m.npz", cwd=tmp_path))
    for name in ("f.npz", "m.npz"):
        found = np.load(tmp_path / name)["x"]
        assert found.flags.f_contiguous
        assert found.dtype == np.dtype(">f8")
        assert np.array_equal(found, arrays[0] + arrays[1])
        assert zipfile.ZipFile(tmp_path / name).testzip() is None


def test_members_of_npz_have_their_checksum_before_them_too(tmp_path):
    """As programs need it that read an archive forward, and get to the directory last."""
    np.savez(tmp_path / "r.npz", x=DRAW.random(5), y=np.arange(3))
    succeeded(run("reduce", "-q", "--op", "sum", "r.npz", "-o", "s.npz", cwd=tmp_path))
    octets = (tmp_path / "s.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "s.npz") as archive:
        for info in archive.infolist():
            crc = int.from_bytes(octets[info.header_offset + 14 :][:4], "little")
            assert crc == zlib.crc32(archive.read(info))


def test_deflated_arrays_in_fortran_order(tmp_path):
    array = np.arange(12.0).reshape(3, 4)
    for name, each in {"f0": np.asfortranarray(array), "f1": np.asfortranarray(array), "c": array}.items():
        np.savez_compressed(tmp_path / f"{name}.npz", x=each)
    np.savez(tmp_path / "stored.npz", x=array)
    sum_ = ("-q", "--op", "sum")
    for number, ranks in enumerate((("f0", "f1"), ("f0", "stored"))):
        names = [f"{rank}.npz" for rank in ranks]
        succeeded(run("reduce", *sum_, *names, "-o", f"s{number}.npz", cwd=tmp_path))
        assert np.array_equal(np.load(tmp_path / f"s{number}.npz")["x"], array * 2)
    for place in ("f0.npz", "stored.npz"):
        succeeded(run("accumulate", *sum_, place, "f1.npz" if place == "f0.npz" else "c.npz", cwd=tmp_path))
        assert np.array_equal(np.load(tmp_path / place)["x"], array * 2)
    refused(run("accumulate", *sum_, "f1.npz", "c.npz", cwd=tmp_path), 3, "c.npz", "cannot be read in Fortran order")
    refused(run("reduce", *sum_, "f1.npz", "-o", "r.zarr.zip", cwd=tmp_path), 3, "Fortran order", "no form in Zarr")


def test_metadata_of_safetensors_stay(tmp_path):
    for rank in range(2):
        _safetensors(tmp_path / f"{rank}.safetensors", {"x": np.arange(3.0)})
    words = ("reduce", "-q", "--op", "sum", "--provenance", "0.safetensors", "1.safetensors", "-o", "o.safetensors")
    succeeded(run(*words, cwd=tmp_path))
    with safetensors.safe_open(tmp_path / "o.safetensors", "np") as file:
        said = file.metadata()
    assert said["made"] == "by hand"
    assert json.loads(said["mpired"])["op"] == "MPI_SUM"


SHORT = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


@pytest.mark.parametrize("name", SHORT)
def test_short_types_are_combined_as_float(name, tmp_path):
    """They are rounded once, at the end."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    arrays = [DRAW.standard_normal((8, 64)).astype(dtype) for _ in range(5)]
    for rank, array in enumerate(arrays):
        header = {"w": {"dtype": SHORT[name], "shape": array.shape, "data_offsets": [0, array.nbytes]}}
        text = json.dumps(header).encode()
        (tmp_path / f"{rank}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + array.tobytes())
    ranks = [f"{rank}.safetensors" for rank in range(5)]
    outcome = run("reduce", "--op", "mean", *ranks, "-o", "o.safetensors", cwd=tmp_path)
    assert outcome.err.startswith(f"mpired: mean of 5 ranks, 512 x float32 of {name},")
    result = (tmp_path / "o.safetensors").read_bytes()
    end = 8 + struct.unpack_from("<Q", result)[0]
    assert json.loads(result[8:end])["w"]["dtype"] == SHORT[name]
    found = np.frombuffer(result[end:], dtype).reshape(8, 64)
    total = np.sum([array.astype("f4") for array in arrays], axis=0, dtype="f8")
    assert found.dtype == dtype
    assert np.array_equal(found.astype("f4"), (total / 5).astype("f4").astype(dtype).astype("f4"))
    succeeded(run("reduce", "-q", "--op", "max", *ranks, "-o", "o.npy", cwd=tmp_path))
    assert np.array_equal(np.load(tmp_path / "o.npy"), np.max([array.astype("f4") for array in arrays], axis=0))


def test_arrays_in_one_table(tmp_path):
    for rank in range(2):
        np.savez(tmp_path / f"{rank}.npz", a=np.arange(3.0), b=np.arange(6.0).reshape(2, 3), c=np.arange(3))
    words = ("reduce", "-q", "--op", "sum", "0.npz", "1.npz")
    with unchanged(tmp_path):
        reason = "holds columns of one length, but a has 3, b has 6, c has 3 elements; choose some with --columns"
        refused(run(*words, "-o", "o.parquet", cwd=tmp_path), 2, reason)
    outcome = run(*words, "--columns", "a,c", "--to", "csv", cwd=tmp_path)
    assert outcome == (0, b"a,c\n0.0,0\n2.0,2\n4.0,4\n", "")


def test_info_of_arrays(tmp_path):
    np.savez_compressed(tmp_path / "r.npz", x=np.zeros((2, 3), "f4"), **TEXTS, no=np.array([{}]))
    outcome = run("info", "r.npz", cwd=tmp_path)
    assert outcome.out.decode().splitlines()[1:] == [
        "  x: 6 x MPI_FLOAT (float32), shape (2, 3), C order, little-endian, deflated",
        "  no: 1 x Python objects (|O), shape (1,), deflated; no op takes it",
        "  names: 2 x strings (<U3), shape (2,), deflated; carried into results as it is",
        "  when: 2 x datetime64[D], shape (2,), deflated; carried into results as it is",
    ]
