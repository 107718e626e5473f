"""Files of named arrays, each with a shape of its own: npz and safetensors. What is expected comes from NumPy."""

import json
import struct
import zipfile
import zlib

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from command import refused, run, succeeded
from rows import check_refusals, together

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
MAX = ("reduce", "-q", "-f", "--op", "max")


def save(path, arrays, *, deflated=False):
    if path.suffix == ".safetensors":
        safetensors.numpy.save_file({name: np.asarray(array) for name, array in arrays.items()}, path)
    else:
        (np.savez_compressed if deflated else np.savez)(path, **arrays)


def check(path, expected):
    found = safetensors.numpy.load_file(path) if path.suffix == ".safetensors" else dict(np.load(path))
    assert found.keys() == expected.keys()
    for name, array in ((name, np.asarray(array)) for name, array in expected.items()):
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def maxima(*ranks):
    return {name: np.maximum.reduce([np.asarray(rank[name]) for rank in ranks]) for name in ranks[0]}


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_arrays_are_combined_by_their_names(suffix, tmp_path):
    """In any order; the chosen ones are updated, too. Other arrays or another shape are refused."""
    turned = RANKS[0] | {"layer/w": np.ascontiguousarray(RANKS[0]["layer/w"].T)}
    fewer = {name: array for name, array in RANKS[0].items() if name != "one"}
    files = {"a": RANKS[0], "b": dict(reversed(RANKS[1].items())), "c": RANKS[2], "turned": turned, "fewer": fewer}
    for name, arrays in files.items():
        save(tmp_path / f"{name}.{suffix}", arrays)
    noun, out = "tensors" if suffix == "safetensors" else "arrays", tmp_path / f"o.{suffix}"
    words = f"reduce --op max -o o.{suffix}"
    rows = [
        (f"{words} a.X fewer.X", 3, f"rank 1 has 4 {noun}, but rank 0 / has 5, and this file lacks 'one'; choose"),
        (f"{words} a.X turned.X", 3, "rank 1 has shape (5, 4) in 'layer/w', but rank 0"),
        (
            "accumulate --op max a.X fewer.X",
            3,
            f"has 4 {noun}, but the target has 5, and this file lacks 'one'; choose",
        ),
        ("accumulate --op max c.X a.X fewer.X", 3, f"has 4 {noun}, but / has 5, and this file lacks 'one'"),
    ]
    check_refusals(tmp_path, [(line.replace(".X", f".{suffix}"), *rest) for line, *rest in rows])
    ranks = [f"{name}.{suffix}" for name in "abc"]
    succeeded(run(*MAX, *ranks, "-o", out.name, cwd=tmp_path))
    check(out, maxima(*RANKS))
    succeeded(run("accumulate", "-q", "--op", "max", *ranks[:2], ranks[0], cwd=tmp_path))
    check(tmp_path / ranks[0], maxima(*RANKS[:2]))
    succeeded(run("accumulate", "-q", "--op", "replace", "--columns", "layer/*", ranks[0], ranks[2], cwd=tmp_path))
    check(tmp_path / ranks[0], maxima(*RANKS[:2]) | {name: RANKS[2][name] for name in ("layer/w", "layer/b")})


def test_texts_and_times_are_carried(tmp_path):
    with together(tmp_path) as case:
        for deflated in (False, True):
            with case(deflated) as folder:
                others = TEXTS | {"names": np.array(["a", "bce"])}
                ranks = [RANKS[0] | TEXTS, TEXTS | RANKS[1], RANKS[2] | others]
                names = [f"{rank}.npz" for rank in range(3)]
                for name, arrays in zip(names, ranks, strict=True):
                    save(folder / name, arrays, deflated=deflated)
                succeeded(run(*MAX, *names[:2], "-o", "o.npz", cwd=folder))
                check(folder / "o.npz", maxima(*RANKS[:2]) | TEXTS)
                reasons = "'names' differs from that of rank 0 ('0.npz')", "with --no-check-coordinates"
                refused(run(*MAX, *names, "-o", "x.npz", cwd=folder), 3, *reasons)
                succeeded(run(*MAX, *names, "--no-check-coordinates", "-o", "o.npz", cwd=folder))
                check(folder / "o.npz", maxima(*RANKS) | TEXTS)
                succeeded(run(*MAX, *names[:2], "--columns", "when", "-o", "o.npz", cwd=folder))
                assert np.array_equal(np.load(folder / "o.npz")["when"], TEXTS["when"], equal_nan=True)


def test_orders_of_npz_stay(tmp_path):
    arrays = [np.asfortranarray(DRAW.random((3, 4, 5))).astype(">f8", order="K") for _ in range(2)]
    for name, array in {"a": arrays[0], "b": arrays[1], "c": np.ascontiguousarray(arrays[1])}.items():
        save(tmp_path / f"{name}.npz", {"x": array})
        save(tmp_path / f"{name}z.npz", {"x": array}, deflated=True)
    words = ("-q", "--op", "sum")
    for ranks in (("a", "b"), ("a", "c"), ("az", "bz"), ("az", "c")):
        succeeded(run("reduce", "-f", *words, *(f"{rank}.npz" for rank in ranks), "-o", "o.npz", cwd=tmp_path))
        found = np.load(tmp_path / "o.npz")["x"]
        assert (found.flags.f_contiguous, found.dtype) == (True, np.dtype(">f8"))
        assert np.array_equal(found, arrays[0] + arrays[1])
        assert zipfile.ZipFile(tmp_path / "o.npz").testzip() is None
    reason = "cannot be read in Fortran order"
    for command in ("accumulate", "reduce"):
        refused(run(command, *words, "az.npz", "cz.npz", cwd=tmp_path), 3, "cz.npz", reason)
    refused(run("reduce", *words, "bz.npz", "-o", "r.zarr.zip", cwd=tmp_path), 3, "Fortran order", "no form in zarr")
    for target, origin in (("az", "bz"), ("c", "cz")):
        expected = sum(np.load(tmp_path / f"{name}.npz")["x"] for name in (target, origin))
        succeeded(run("accumulate", *words, f"{target}.npz", f"{origin}.npz", cwd=tmp_path))
        assert np.array_equal(np.load(tmp_path / f"{target}.npz")["x"], expected)


def test_members_of_npz_have_their_checksum_before_them_too(tmp_path):
    """As programs need it that read an archive forward, and get to the directory last."""
    save(tmp_path / "r.npz", {"x": DRAW.random(5), "y": np.arange(3)})
    succeeded(run("reduce", "-q", "--op", "sum", "r.npz", "-o", "s.npz", cwd=tmp_path))
    octets = (tmp_path / "s.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "s.npz") as archive:
        for info in archive.infolist():
            assert int.from_bytes(octets[info.header_offset + 14 :][:4], "little") == zlib.crc32(archive.read(info))


SHORT = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


def test_short_types_are_combined_as_float(tmp_path):
    """They are rounded once, at the end."""
    with together(tmp_path) as case:
        for name, code in SHORT.items():
            with case(name) as folder:
                dtype = np.dtype(getattr(ml_dtypes, name))
                arrays = [DRAW.standard_normal((8, 64)).astype(dtype) for _ in range(5)]
                header = json.dumps({"w": {"dtype": code, "shape": [8, 64], "data_offsets": [0, arrays[0].nbytes]}})
                start = struct.pack("<Q", len(header)) + header.encode()
                for rank, array in enumerate(arrays):
                    (folder / f"{rank}.safetensors").write_bytes(start + array.tobytes())
                words = ("reduce", "--op", "mean", *(f"{rank}.safetensors" for rank in range(5)))
                outcome = run(*words, "-o", "o.safetensors", cwd=folder)
                assert outcome.err.startswith(f"mpired: mean of 5 ranks, 512 x float32 of {name},")
                result = (folder / "o.safetensors").read_bytes()
                end = 8 + struct.unpack_from("<Q", result)[0]
                assert json.loads(result[8:end])["w"]["dtype"] == code
                total = np.sum([array.astype("f4") for array in arrays], axis=0, dtype="f8")
                assert result[end:] == (total / 5).astype("f4").astype(dtype).tobytes()
                large = np.full((8, 64), ml_dtypes.finfo(dtype).max)  # exact in float, but for bfloat16
                for rank in range(2):
                    (folder / f"{rank}.safetensors").write_bytes(start + (large / (1, 8)[rank]).astype(dtype).tobytes())
                words = "--op", "sum", "--overflow", "error", "0.safetensors", "1.safetensors"
                for command in (("reduce", *words, "-o", "s.safetensors"), ("accumulate", *words)):
                    outcome = run(*command, cwd=folder)
                    assert (outcome.status, "overflowed 512 times, first in element 0" in outcome.err) == (3, True)


def test_arrays_in_one_table_and_info(tmp_path):
    for rank in range(2):
        save(tmp_path / f"{rank}.npz", {"a": np.arange(3.0), "b": np.arange(6.0).reshape(2, 3), "c": np.arange(3)})
    words = ("reduce", "-q", "--op", "sum", "0.npz", "1.npz")
    reason = "holds columns of one length, but a has 3, b has 6, c has 3 elements; choose some with --columns"
    refused(run(*words, "-o", "o.parquet", cwd=tmp_path), 2, reason)
    assert run(*words, "--columns", "a,c", "--to", "csv", cwd=tmp_path) == (0, b"a,c\n0.0,0\n2.0,2\n4.0,4\n", "")
