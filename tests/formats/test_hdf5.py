"""HDF5 files among the ranks, compared with h5py and NumPy: chunks, filters, types, missing values, packing, damage."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from command import refused, run, succeeded, unchanged
from rows import together
from setups import without

import mpired


def make(path, scale=1.0):
    with h5py.File(path, "w", track_order=True) as file:
        file.attrs["title"] = "a run"
        x = file.create_dataset("x", data=np.linspace(0, 1, 6))
        x.make_scale("x")
        z = file.create_dataset("z", data=np.arange(24.0).reshape(4, 6) * scale)
        z.attrs["units"] = "K"
        z.dims[1].attach_scale(x)
        group = file.create_group("deep/er", track_order=True)
        data = (np.arange(70, dtype="i4") * int(scale)).reshape(7, 10)
        chunked = group.create_dataset(
            "counts", data=data, chunks=(3, 4), maxshape=(None, 10), compression="gzip", shuffle=True, fletcher32=True
        )
        chunked.attrs["of"] = "things"
        group.create_dataset("names", data=np.array(["a", "bc"], dtype=h5py.string_dtype()))
        file.create_dataset("big", data=np.arange(5, dtype=">f4") * scale)
        file["again"] = h5py.SoftLink("/deep/er/counts")
        file["hard"] = file["z"]
        group["loop"] = file["/"]
    return str(path)


@pytest.fixture
def members(tmp_path):
    return [make(tmp_path / f"m{i}.h5", scale) for i, scale in enumerate((1, 10, 100))]


def reduce(*words, cwd):
    succeeded(run("reduce", "-q", "-f", "--op", "sum", *words, cwd=cwd))


def test_result_is_like_the_first_file_by_any_number_of_workers(members, tmp_path):
    for jobs in "12":
        reduce("-j", jobs, "-o", f"by{jobs}.h5", *members, cwd=tmp_path)
    assert (tmp_path / "by1.h5").read_bytes() == (tmp_path / "by2.h5").read_bytes()
    with h5py.File(tmp_path / "by2.h5") as new, h5py.File(members[0]) as old:
        assert list(new) == list(old)
        assert dict(new.attrs) == dict(old.attrs)
        for name in ("z", "deep/er/counts", "big"):
            like, made = old[name], new[name]
            np.testing.assert_array_equal(made[()], like[()] * 111, strict=True)
            assert dict(made.attrs).keys() == dict(like.attrs).keys()
            for what in ("chunks", "compression", "compression_opts", "shuffle", "fletcher32", "maxshape"):
                assert getattr(made, what) == getattr(like, what)
        np.testing.assert_array_equal(new["x"][()], old["x"][()])
        assert new["deep/er/names"].asstr()[()].tolist() == ["a", "bc"]
        assert new["z"].dims[1]["x"] == new["x"]
        assert new["again"] == new["deep/er/counts"]
        assert new["hard"] == new["z"]
    found = mpired.reduce(members, op="max", columns=["z", "big"])
    np.testing.assert_array_equal(found["z"], np.arange(24.0).reshape(4, 6) * 100)


CHUNKS = [
    ((1, 1, 5, 6), "f4", {"compression": "lzf"}),
    ((2, 2, 3, 4), ">f4", {"shuffle": True, "compression": "gzip", "compression_opts": 4}),
    ((4, 3, 5, 6), "i8", {"compression": "gzip", "compression_opts": 0}),
    ((3, 1, 2, 2), "i1", {"shuffle": True, "compression": "gzip", "compression_opts": 9}),
    ((2, 2, 3, 4), "i8", {}),
]


def test_chunks_of_any_form(tmp_path):
    with together(tmp_path) as case:
        for chunks, form, filters in CHUNKS:
            arrays = [np.random.default_rng(i).integers(-60, 60, (4, 3, 5, 6)).astype(form) for i in range(2)]
            with case(chunks, form, filters) as folder:
                for i, array in enumerate(arrays):
                    with h5py.File(folder / f"m{i}.h5", "w") as file:
                        maxshape = (None,) * 4
                        file.create_dataset("v", data=array, chunks=chunks, maxshape=maxshape, fillvalue=7, **filters)
                reduce("-j", "2", "-o", "s.h5", "m0.h5", "m1.h5", cwd=folder)
                with h5py.File(folder / "s.h5", "r+") as file:
                    made = file["v"]
                    np.testing.assert_array_equal(made[()], (arrays[0] + arrays[1]).astype(form), strict=True)
                    assert (made.chunks, made.compression) == (chunks, filters.get("compression"))
                    assert made.compression_opts == filters.get("compression_opts")
                    made.resize((9, 9, 9, 9))
                    assert (made[4:] == 7).all()
                    assert (made[:, :, :, 6:] == 7).all()


def test_steps_through_an_array_larger_than_the_memory():
    from mpired.formats.arrays import selections

    array = np.arange(5 * 7 * 11).reshape(5, 7, 11)
    for chunk in [(), (2, 3, 4), (1, 1, 11)]:
        for memory in (8, 100, 1000, 1 << 20):
            for start in (0, 1, 76, 384):
                every = list(selections(array.shape, chunk, 8, start, memory // 2))
                assert all(array[at].shape == shape for _, at, shape in every)
                found = [array[at].reshape(-1)[skip:] for skip, at, _ in every]
                np.testing.assert_array_equal(np.concatenate(found), array.reshape(-1)[start:])


def low_level(file, name, tid, values, chunk=None):
    """Write values as elements of a type, deflated in chunks."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if chunk:
        plist.set_chunk(chunk)
        plist.set_deflate(4)
    made = h5py.h5d.create(file.id, name.encode(), tid, h5py.h5s.create_simple(values.shape), plist)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)


def test_numbers_that_numpy_has_not(tmp_path):
    """As bfloat16, of 20 bits among 32, of 24 bits, and of quadruple precision."""
    short, narrow, odd = h5py.h5t.IEEE_F16LE.copy(), h5py.h5t.STD_I32LE.copy(), h5py.h5t.STD_I32LE.copy()
    short.set_fields(15, 7, 8, 0, 7)
    short.set_ebias(127)
    narrow.set_precision(20)
    odd.set_size(3)
    large = h5py.h5t.IEEE_F64LE.copy()
    large.set_size(16)
    large.set_precision(128)
    large.set_fields(127, 112, 15, 0, 112)
    large.set_ebias(16383)
    values = np.array([1, 2.5, -3], "f4")
    for i in range(2):
        with h5py.File(tmp_path / f"m{i}.h5", "w") as file:
            low_level(file, "bfloat16", short, values)
            low_level(file, "narrow", narrow, np.array([-5, 1, i], "i4"), chunk=(3,))
    reduce("-o", "s.h5", "m0.h5", "m1.h5", cwd=tmp_path)
    succeeded(run("accumulate", "-q", "--op", "sum", "--columns", "bfloat16", "m0.h5", "m1.h5", cwd=tmp_path))
    for name in ("s.h5", "m0.h5"):
        with h5py.File(tmp_path / name) as file:
            assert file["bfloat16"][()].tolist() == [2, 5, -6]
            assert file["narrow"][()].tolist() == ([-10, 2, 1] if name == "s.h5" else [-5, 1, 0])
    with h5py.File(tmp_path / "m0.h5", "a") as file:
        low_level(file, "odd", odd, values.astype("i4"))
        h5py.h5d.create(file.id, b"large", large, h5py.h5s.create_simple((3,)))
        file["nothing"] = h5py.Empty("f8")
    outcome = run("info", "m0.h5", cwd=tmp_path)
    succeeded(outcome)
    for name, nbits in {"odd": 24, "large": 128}.items():
        assert f"{name}: 3 x elements of {nbits} bits of a type that NumPy has not" in outcome.out.decode()
    assert "  nothing: no elements; carried into results as it is\n" in outcome.out.decode()
    reduce("-o", "t.h5", "--columns", "bfloat16", "m0.h5", "m1.h5", cwd=tmp_path)


def test_filters_that_leave_bits_out(tmp_path):
    whole, real = np.arange(8), np.linspace(0, 1, 8)
    for i in range(3):
        with h5py.File(tmp_path / f"m{i}.h5", "w") as file:
            file.create_dataset("four", data=whole, chunks=(4,), scaleoffset=4)
            file.create_dataset("free", data=whole, chunks=(4,), scaleoffset=0, compression="gzip")
            file.create_dataset("digits", data=real, chunks=(4,), scaleoffset=2)
    reduce("-o", "s.h5", "m0.h5", "m1.h5", "m2.h5", cwd=tmp_path)
    succeeded(run("reduce", "-q", "--op", "mean", "-o", "m.h5", "m0.h5", "m1.h5", cwd=tmp_path))
    total, mean, one = (h5py.File(tmp_path / f"{name}.h5") for name in ("s", "m", "m0"))
    with total, mean, one:
        for name in ("four", "free"):
            assert total[name][()].tolist() == (whole * 3).tolist()
            assert mean[name][()].tolist() == whole.tolist()
            assert total[name].scaleoffset == 0
        assert total["free"].compression == "gzip"
        np.testing.assert_allclose(total["digits"][()], one["digits"][()] * 3, rtol=1e-15)
    words = ("accumulate", "-q", "--op", "sum")
    with unchanged(tmp_path):
        reason = "'four' has elements of fewer bits than <i8, which new ones may not fit"
        refused(run(*words, "--columns", "four", "m0.h5", "m1.h5", cwd=tmp_path), 3, reason)
    succeeded(run(*words, "--columns", "free", "m0.h5", "m1.h5", cwd=tmp_path))


def test_in_place_where_it_lies_or_by_a_new_file(members, tmp_path):
    before = bytearray((tmp_path / "m0.h5").read_bytes())
    for name in ("big", "deep/er/counts"):
        succeeded(run("accumulate", "-q", "--op", "sum", "--columns", name, members[0], members[1], cwd=tmp_path))
        if name == "big":  # nothing but its elements has changed
            with h5py.File(members[0]) as file:
                at = file["big"].id.get_offset()
            before[at : at + 20] = (np.arange(5, dtype=">f4") * 11).tobytes()
            assert (tmp_path / "m0.h5").read_bytes() == before
    with h5py.File(members[0]) as file:
        assert file["big"][()].tolist() == [0, 11, 22, 33, 44]
        np.testing.assert_array_equal(file["deep/er/counts"][()].reshape(-1), np.arange(70) * 11)
        assert file["z"][0, 1] == 1


def test_the_way_out_of_nulls_on_integers_is_one(tmp_path):
    """In the warning and in the refusal: the same call with what they name goes through."""
    for i in range(2):
        with h5py.File(tmp_path / f"r{i}.h5", "w") as file:
            file["a"] = np.array([[1, -2], [5 - i, 4]], "i4")
            file["a"].attrs["missing_value"] = np.int32(-4)
            file["b"] = np.arange(3, dtype="u1")
    words = ("reduce", "-q", "-f", "--op", "sum", "--nulls", "ignore", "r0.h5", "r1.h5", "-o")
    found = run(*words, "s.h5", cwd=tmp_path)
    assert "of a came out as its fill value (-4)" in found.err
    assert "use --to parquet with --columns a\n" in found.err
    refused(run(*words, "s.npz", cwd=tmp_path), 2, "use --to parquet with --columns a, or say with --missing")
    succeeded(run(*words, "s.parquet", "--to", "parquet", "--columns", "a", cwd=tmp_path))
    found = run("accumulate", "-q", "--op", "sum", "r0.h5", "r1.h5", cwd=tmp_path)
    assert found.err.endswith("give its attributes other values\n")


def test_tables_with_text_are_listed(tmp_path):
    """They hide no other array, whether the text has a length or not."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["fixed"] = np.array([(b"ab", 1.5), (b"cd", 2.5)], [("name", "S4"), ("x", "f8")])
        file.create_dataset("any", (2,), np.dtype([("name", h5py.string_dtype()), ("x", "f8")]))
        file["opaque"], file["y"] = np.void(b"abc"), np.arange(3.0)
    assert [each.name for each in mpired.info(tmp_path / "a.h5").buffers] == ["y"]
    with pytest.raises(mpired.MpiredError, match="choose with `columns='y'`"):
        mpired.reduce([tmp_path / "a.h5"], "sum")
    assert mpired.reduce([tmp_path / "a.h5"] * 2, "sum", columns=["y"]).tolist() == [0, 2, 4]


def test_refusals(members, tmp_path):
    with h5py.File(members[1], "r+") as file:
        file["x"][2] = 7
    with h5py.File(tmp_path / "bomb.h5", "w") as file:
        file.create_dataset("v", (1 << 40,), "f8", chunks=(1 << 16,), compression="gzip")
    with h5py.File(tmp_path / "chunk.h5", "w") as file:
        file.create_dataset("v", (1 << 24,), "f8", chunks=(1 << 24,), compression="gzip")[0] = 1
    words = ("reduce", "--op", "sum", "-o", "s.npy")
    with together(tmp_path) as case:
        for names, status, *reasons in (
            (members, 3, "'x' differs from that of rank 0", "--no-check-coordinates"),
            (["bomb.h5"], 3, "'v' claims 8796093022208 bytes"),
            (["chunk.h5"], 3, "unfolds to 134217728 bytes"),
        ):
            with case(names), unchanged(tmp_path):
                refused(run(*words, *names, cwd=tmp_path), status, *reasons)
        with case("no library"):
            refused(run(*words, members[0], cwd=tmp_path, setup=without("h5py")), 2, "install 'mpired[hdf5]'")
