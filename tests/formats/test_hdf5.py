"""HDF5 files among the ranks, compared with h5py and NumPy: links, filters, missing values, packing, damage."""

from __future__ import annotations

import gzip
import json

import h5py
import numpy as np
import pytest
from command import refused, run, succeeded, unchanged

import mpired
from mpired.errors import MpiredError


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
    succeeded(run("reduce", "-q", "--op", "sum", *words, cwd=cwd))


def test_result_is_like_the_first_file(members, tmp_path):
    reduce("-o", "sum.h5", *members, cwd=tmp_path)
    with h5py.File(tmp_path / "sum.h5") as new, h5py.File(members[0]) as old:
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


def test_any_number_of_workers_gives_the_same_file(members, tmp_path):
    for jobs in "12":
        reduce("-j", jobs, "-o", f"by{jobs}.h5", *members, cwd=tmp_path)
    assert (tmp_path / "by1.h5").read_bytes() == (tmp_path / "by2.h5").read_bytes()


@pytest.mark.parametrize(
    ("form", "filters"),
    [("f4", (None, None, "lzf")), (">f4", (True, 4, "gzip")), ("i8", (None, 0, "gzip")), ("i1", (True, 9, "gzip"))],
)
@pytest.mark.parametrize("chunks", [(1, 1, 5, 6), (2, 2, 3, 4), (4, 3, 5, 6), (3, 1, 2, 2)])
def test_chunks_of_any_form(tmp_path, chunks, form, filters):
    shuffle, level, compression = filters
    options = {"shuffle": shuffle, "compression": compression, "compression_opts": level}
    arrays = [np.random.default_rng(i).integers(-60, 60, (4, 3, 5, 6)).astype(form) for i in range(2)]
    for i, array in enumerate(arrays):
        with h5py.File(tmp_path / f"m{i}.h5", "w") as file:
            file.create_dataset("v", data=array, chunks=chunks, maxshape=(None,) * 4, fillvalue=7, **options)
    reduce("-j", "2", "-o", "s.h5", "m0.h5", "m1.h5", cwd=tmp_path)
    with h5py.File(tmp_path / "s.h5", "r+") as file:
        np.testing.assert_array_equal(file["v"][()], (arrays[0] + arrays[1]).astype(form), strict=True)
        assert (file["v"].chunks, file["v"].compression, file["v"].compression_opts) == (chunks, compression, level)
        file["v"].resize((9, 9, 9, 9))
        assert (file["v"][4:] == 7).all()
        assert (file["v"][:, :, :, 6:] == 7).all()


def test_deflated_elements_of_odd_forms(tmp_path):
    tid = h5py.h5t.STD_I32LE.copy()
    tid.set_precision(20)  # the others are padding
    for i in range(2):
        with h5py.File(tmp_path / f"m{i}.h5", "w") as file:
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((3,))
            plist.set_deflate(4)
            made = h5py.h5d.create(file.id, b"v", tid, h5py.h5s.create_simple((3,)), plist)
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([-5, 1, i], "i4"))
    reduce("-o", "s.h5", "m0.h5", "m1.h5", cwd=tmp_path)
    with h5py.File(tmp_path / "s.h5") as file:
        assert file["v"][()].tolist() == [-10, 2, 1]


def test_steps_through_an_array_larger_than_the_memory():
    from mpired.formats.hierarchy import selections

    array = np.arange(5 * 7 * 11).reshape(5, 7, 11)
    for chunk in [None, (2, 3, 4), (1, 1, 11)]:
        for memory in (8, 100, 1000, 1 << 20):
            for start in (0, 1, 76, 384):
                found = [array[at].reshape(-1)[skip:] for skip, at in selections(array.shape, chunk, 8, start, memory)]
                np.testing.assert_array_equal(np.concatenate(found), array.reshape(-1)[start:])


@pytest.mark.parametrize("chunks", [None, (2,)])
def test_missing_and_packed_values(tmp_path, chunks):
    ranks = [[1, 2, -9, 4], [1, -9, -9, 5]]
    for i, values in enumerate(ranks):
        with h5py.File(tmp_path / f"m{i}.h5", "w") as file:
            for name in ("plain", "packed"):
                data = file.create_dataset(name, data=np.array(values, "i2"), chunks=chunks)
                data.attrs["_FillValue"] = np.int16(-9)
            data.attrs["scale_factor"], data.attrs["add_offset"] = 0.5, 100.0
    words = ("reduce", "--op", "sum", "-o", "s.h5", "m0.h5", "m1.h5")
    refused(run(*words, cwd=tmp_path), 3, "'packed' is packed by `scale_factor` and `add_offset`", "--unpack")
    refused(run(*words, "--columns", "plain", cwd=tmp_path), 3, "1 missing element", "--nulls ignore")
    succeeded(run(*words, "-q", "--unpack", "--nulls", "ignore", cwd=tmp_path))
    with h5py.File(tmp_path / "s.h5") as file:
        assert file["plain"][()].tolist() == [2, 2, -9, 9]
        fill = file["packed"].attrs["_FillValue"][0]
        assert file["packed"][()].tolist() == [201.0, 101.0, fill, 204.5]
        assert list(file["packed"].attrs) == ["_FillValue"]
        assert file["packed"].dtype == np.float64


def low_level(file, name, tid, values):
    made = h5py.h5d.create(file.id, name.encode(), tid, h5py.h5s.create_simple(values.shape))
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, values)


def test_numbers_that_numpy_has_not(tmp_path):
    short, odd = h5py.h5t.IEEE_F16LE.copy(), h5py.h5t.STD_I32LE.copy()
    short.set_fields(15, 7, 8, 0, 7)
    short.set_ebias(127)
    odd.set_size(3)
    values = np.array([1, 2.5, -3], "f4")
    for i in range(2):
        with h5py.File(tmp_path / f"m{i}.h5", "w") as file:
            low_level(file, "bfloat16", short, values)
    reduce("-o", "s.h5", "m0.h5", "m1.h5", cwd=tmp_path)
    with h5py.File(tmp_path / "s.h5") as file:
        assert file["bfloat16"][()].tolist() == [2, 5, -6]
    succeeded(run("accumulate", "-q", "--op", "sum", "m0.h5", "m1.h5", cwd=tmp_path))
    with h5py.File(tmp_path / "m0.h5", "a") as file:
        assert file["bfloat16"][()].tolist() == [2, 5, -6]
        low_level(file, "odd", odd, values.astype("i4"))
    outcome = run("info", "m0.h5", cwd=tmp_path)
    assert b"odd: 3 x elements of 24 bits of a type that NumPy has not" in outcome.out
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
    with (
        h5py.File(tmp_path / "s.h5") as total,
        h5py.File(tmp_path / "m.h5") as mean,
        h5py.File(tmp_path / "m0.h5") as one,
    ):
        for name in ("four", "free"):
            assert total[name][()].tolist() == (whole * 3).tolist()
            assert mean[name][()].tolist() == whole.tolist()
            assert total[name].scaleoffset == 0
        assert total["free"].compression == "gzip"
        np.testing.assert_allclose(total["digits"][()], one["digits"][()] * 3, rtol=1e-15)
    words = ("accumulate", "-q", "--op", "sum")
    with unchanged(tmp_path / "m0.h5"):
        reason = "'four' has elements of 4 bits, which new ones may not fit"
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


def test_what_is_no_file_of_its_own_leads_to_no_other(tmp_path):
    for name, values in {"links.h5": np.arange(3.0) * 10, "other.h5": np.arange(3.0)}.items():
        with h5py.File(tmp_path / name, "w") as file:
            file["y"] = values
    with h5py.File(tmp_path / "links.h5", "a") as file:
        file["x"] = h5py.ExternalLink("other.h5", "y")
    (tmp_path / "links.h5.gz").write_bytes(gzip.compress((tmp_path / "links.h5").read_bytes()))
    words = ("reduce", "--op", "sum", "--follow-links", "--columns", "x", "-o", "s.npy", "links.h5.gz")
    reason = "'x' is stored in another file (other.h5:y), and compressed files, streams and objects of a store"
    with unchanged(tmp_path):
        refused(run(*words, cwd=tmp_path), 3, reason)


def test_files_elsewhere_are_read_only_if_that_is_wanted(tmp_path):
    make(tmp_path / "other.h5")
    layout = h5py.VirtualLayout((4, 6), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "z", (4, 6))
    (tmp_path / "bytes").write_bytes(bytes(8) + np.arange(4.0).tobytes())
    with h5py.File(tmp_path / "links.h5", "w") as file:
        file["out"] = h5py.ExternalLink("other.h5", "/z")
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("stored", (4,), "f8", external=[("bytes", 8, 32)])
    for name, where in {"out": "other.h5:/z", "virtual": "a virtual dataset", "stored": "bytes"}.items():
        words = ("reduce", "--op", "sum", "--columns", name, "-o", "s.h5", "links.h5", "links.h5")
        refused(run(*words, cwd=tmp_path), 3, f"{name!r} is stored in another file ({where})", "--follow-links")
        succeeded(run(*words, "-q", "--force", "--follow-links", cwd=tmp_path))
        with h5py.File(tmp_path / "s.h5") as file, h5py.File(tmp_path / "other.h5") as other:
            expected = np.arange(4.0) if name == "stored" else other["z"][()]
            np.testing.assert_array_equal(file[name][()], expected * 2)
        words = ("accumulate", "--op", "sum", "--follow-links", "--columns", name, "links.h5", "links.h5")
        with unchanged(tmp_path):
            refused(run(*words, cwd=tmp_path), 3, "which targets do not include")
    words = ("reduce", "--op", "sum", "--follow-links", "links.h5", "--columns")
    (tmp_path / "bytes").write_bytes(bytes(39))
    refused(run(*words, "stored", cwd=tmp_path), 3, "'stored' is stored in other files, and 'bytes' has 39 bytes of 40")
    (tmp_path / "bytes").write_bytes(bytes(32))
    with h5py.File(tmp_path / "links.h5", "a") as file:
        del file["out"]
    with h5py.File(tmp_path / "other.h5", "a") as other:
        other.move("z", "y")
        del other["hard"]
    refused(run(*words, "virtual", cwd=tmp_path), 3, "is stored in other files, and 'other.h5' has no array 'z'")
    (tmp_path / "other.h5").unlink()
    refused(run(*words, "virtual", cwd=tmp_path), 3, "is stored in other files, and there is no 'other.h5'")


def link(target):
    return lambda file: file.__setitem__("a", h5py.ExternalLink(*target))


def virtual(*sources):
    """Make datasets, each of another one."""

    def make_all(file):
        for name, path, array in sources:
            layout = h5py.VirtualLayout((4,), "f8")
            layout[:] = h5py.VirtualSource(path, array, (4,))
            file.create_virtual_dataset(name, layout)

    return make_all


ITSELF = "'a' is a virtual dataset that is made of itself"
LEADING_NOWHERE = {
    "no file": (link(("none.h5", "/v")), "'a' is stored in another file (none.h5:/v), which cannot be opened"),
    "no array": (link(("other.h5", "/w")), "'a' is stored in another file (other.h5:/w), which cannot be opened"),
    "circle of links": (link(("r.h5", "/a")), "'a' is stored in another file (r.h5:/a), which cannot be opened"),
    "group": (link(("other.h5", "/")), "'a' is stored in another file (other.h5:/), and is a group there"),
    "no source": (virtual(("a", "none.h5", "v")), "'a' is stored in other files, and there is no 'none.h5'"),
    "itself": (virtual(("a", "r.h5", "a")), ITSELF),
    "itself, here": (virtual(("a", ".", "a")), ITSELF),
    "each other": (virtual(("a", ".", "b"), ("b", ".", "a")), ITSELF),
    "each other, by another file": (virtual(("a", "other.h5", "back")), ITSELF),
    "a link to such": (link(("circle.h5", "/a")), ITSELF),
}


@pytest.mark.parametrize("case", LEADING_NOWHERE)
def test_arrays_that_lead_nowhere(tmp_path, case):
    """They are errors with their names, and the other arrays of the file can be chosen."""
    build, reason = LEADING_NOWHERE[case]
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["v"] = np.arange(4.0)
        virtual(("back", "r.h5", "a"))(file)
    with h5py.File(tmp_path / "circle.h5", "w") as file:
        virtual(("a", ".", "a"))(file)
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file["ok"] = np.arange(4.0)
        build(file)
    words = ("reduce", "-q", "--op", "sum", "--follow-links", "-o", "s.h5", "r.h5", "r.h5")
    with unchanged(tmp_path):
        refused(run(*words, cwd=tmp_path), 3, f"r.h5: {reason}", "choose with --columns ok")
        refused(run(*words, "--columns", "a", cwd=tmp_path), 3, f"r.h5: {reason}")
    succeeded(run(*words, "--columns", "ok", cwd=tmp_path))
    for more in ((), ("--follow-links",)):
        outcome = run("info", *more, "r.h5", cwd=tmp_path)
        succeeded(outcome)
        assert "1 x" not in outcome.out.decode()


def test_what_is_packed_is_told(tmp_path):
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["t"] = np.arange(3, dtype=">i2")
        file["t"].attrs["scale_factor"] = 0.5
    text = run("info", "p.h5", cwd=tmp_path).out.decode()
    told = "unpack it with --unpack, no op takes it as it is"
    assert f"  t: 3 x packed MPI_INT16_T (int16), shape (3,); {told}\n" in text
    words = ("--op", "max", "--unpack", "p.h5", "-f", "-o", "m.h5")
    assert "NaN propagates, t unpacked and not packed again, 1 worker" in run("reduce", *words, cwd=tmp_path).err
    assert json.loads(run("reduce", "--json", *words, cwd=tmp_path).out)["buffers"][0]["unpacked"] == "int16"
    refused(
        run("accumulate", "--op", "sum", "--unpack", "p.h5", "m.h5", cwd=tmp_path), 3, "packed elements are not updated"
    )


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


def test_info(members, tmp_path):
    with h5py.File(members[0], "a") as file:
        file["nothing"] = h5py.Empty("f8")
    outcome = run("info", members[0], cwd=tmp_path)
    succeeded(outcome)
    text = outcome.out.decode()
    assert "  nothing: no elements; no op takes it\n" in text
    assert "deep/er/counts: 70 x MPI_INT32_T" in text
    assert "chunks of (3, 4), shuffle, deflate 4, fletcher32" in text
    assert "in K" in text


def test_arrays_in_python(members):
    found = mpired.reduce(members, op="max", columns=["z", "big"])
    assert isinstance(found, dict)
    np.testing.assert_array_equal(found["z"], np.arange(24.0).reshape(4, 6) * 100)


def test_coordinates_that_differ(members, tmp_path):
    with h5py.File(members[1], "r+") as file:
        file["x"][2] = 7
    refused(
        run("reduce", "--op", "sum", *members, cwd=tmp_path),
        3,
        "'x' differs from that of rank 0",
        "--no-check-coordinates",
    )


def test_array_that_claims_more_than_its_file_can_hold(tmp_path):
    with h5py.File(tmp_path / "bomb.h5", "w") as file:
        file.create_dataset("v", (1 << 40,), "f8", chunks=(1 << 16,), compression="gzip")
    refused(run("reduce", "--op", "sum", "bomb.h5", cwd=tmp_path), 3, "'v' claims 8796093022208 bytes")
    with h5py.File(tmp_path / "chunk.h5", "w") as file:
        file.create_dataset("v", (1 << 24,), "f8", chunks=(1 << 24,), compression="gzip")[0] = 1
    refused(run("reduce", "--op", "sum", "-o", "s.npy", "chunk.h5", cwd=tmp_path), 3, "unfolds to 134217728 bytes")


def test_without_h5py(members, tmp_path):
    from mpired.formats import hdf5

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(MpiredError, match=r"install 'mpired\[hdf5\]'"):
            mpired.reduce(members, op="sum")


def test_json_of_info_names_each(members, tmp_path):
    (file,) = json.loads(run("info", "--json", members[0], cwd=tmp_path).out)
    assert [each["name"] for each in file["buffers"]] == ["z", "deep/er/counts", "big"]
