"""HDF5 results: copies of the first rank's file with other elements, or files with objects created as those there."""

from __future__ import annotations

import h5py
import netCDF4
import numpy as np
import pytest
from command import run, succeeded, unchanged
from rows import together

from mpired.formats import hdf5_results

SETTINGS = {"SOURCE_DATE_EPOCH": "86400"}
VALUES = np.linspace(0, 1, 20_000)
VERSIONS = ["earliest", "v108", "latest"]
COUNTS = [8, 9, 40]  # nine links or attributes lie in another form than eight
CHUNKS = {"whole": {}, "chunked": {"chunks": (2,), "compression": "gzip", "shuffle": True, "maxshape": (None,)}}


def reduce(folder, *words):
    succeeded(run("reduce", "-q", "-f", "--op", *words, cwd=folder, env=SETTINGS))


def make(path, **options):
    with h5py.File(path, "w", **options) as file:
        for name, value in {"first": 1, "history": "made", "last": "text"}.items():
            file.attrs[name] = value
        file["x"] = VALUES
        file.create_dataset("g/y", data=np.arange(3000, dtype=">i2"), track_times=True)
        file["g"].attrs["of"] = file["x"].ref
        file["x"].attrs["long"] = np.arange(500)
        file.attrs["main"] = file["g/y"].ref
        file["name"] = "a text"
        file["soft"] = h5py.SoftLink("/g/y")
        file["hard"] = file["x"]


@pytest.mark.parametrize("options", [{}, {"track_order": True}, {"libver": "latest"}, {"userblock_size": 512}])
def test_result_is_a_copy(options, tmp_path):
    make(tmp_path / "r.h5", **options)
    before = (tmp_path / "r.h5").read_bytes()
    written = []
    for _ in range(2):
        reduce(tmp_path, "sum", "-o", "o.h5", "r.h5", "r.h5")
        written.append((tmp_path / "o.h5").read_bytes())
    assert written[0] == written[1]
    assert (tmp_path / "r.h5").read_bytes() == before
    assert len(written[0]) < 1.1 * len(before)
    with h5py.File(tmp_path / "o.h5") as new, h5py.File(tmp_path / "r.h5") as old:
        assert list(new) == list(old)
        assert sorted(new.attrs) == sorted(old.attrs)
        assert [name for name in new.attrs if name != "main"] == [name for name in old.attrs if name != "main"]
        assert new.attrs["history"].endswith("\nmade")
        np.testing.assert_array_equal(new["x"][()], VALUES * 2)
        np.testing.assert_array_equal(new["soft"][()], np.arange(3000) * 2)
        assert new[new["g"].attrs["of"]] == new["hard"] == new["x"]
        assert new[new.attrs["main"]] == new["g/y"]
        assert new["name"].asstr()[()] == "a text"
        assert new["x"].id.get_offset() == old["x"].id.get_offset()
        np.testing.assert_array_equal(new["x"].attrs["long"], np.arange(500))


def test_result_of_netcdf_is_a_copy(tmp_path):
    with netCDF4.Dataset(tmp_path / "r.nc", "w") as file:
        file.createDimension("x", len(VALUES))
        file.createVariable("v12", "f8", "x")[:] = VALUES
        file.createVariable("v3", "f4", "x")[:] = VALUES
    reduce(tmp_path, "sum", "-o", "o.nc", "r.nc", "r.nc")
    with netCDF4.Dataset(tmp_path / "o.nc") as new, netCDF4.Dataset(tmp_path / "r.nc") as old:
        assert list(new.variables) == list(old.variables)
        np.testing.assert_array_equal(new["v12"][:], VALUES * 2)
        assert (new["v3"].dimensions, new.ncattrs()) == (("x",), ["history"])
    with h5py.File(tmp_path / "o.nc") as new, h5py.File(tmp_path / "r.nc") as old:
        assert new["v12"].id.get_offset() == old["v12"].id.get_offset()


@pytest.mark.parametrize("deleted", [False, True])
def test_nothing_stays_of_what_results_have_not(deleted, tmp_path):
    """Neither an array that is not chosen, nor many bytes of one that is deleted in the first file."""
    secret = np.full(8000 if deleted else 800, 0x5A5A5A5A5A5A5A5A)
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file["secret"], file["x"] = secret, VALUES
        if deleted:
            del file["secret"]
    reduce(tmp_path, "max", "--columns", "x", "-o", "o.h5", "r.h5", "r.h5")
    octets = (tmp_path / "o.h5").read_bytes()
    assert len(octets) < 1.1 * VALUES.nbytes
    assert b"Z" * 1000 not in octets


def test_times_of_changes_are_not_in_results(tmp_path):
    plist = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    plist.set_obj_track_times(True)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V18, h5py.h5f.LIBVER_LATEST)
    name = str(tmp_path / "r.h5").encode()
    with h5py.File(h5py.h5f.create(name, h5py.h5f.ACC_TRUNC, fcpl=plist, fapl=access)) as file:
        file.attrs["history"] = "made"
        file["x"] = VALUES
    reduce(tmp_path, "sum", "-o", "o.h5", "r.h5", "r.h5")
    with h5py.File(tmp_path / "o.h5") as file:
        assert h5py.h5o.get_info(file["/"].id).mtime == 0
        np.testing.assert_array_equal(file["x"][()], VALUES * 2)


@pytest.mark.parametrize("way", ["link", "virtual", "elements"])
def test_no_copy_of_what_is_in_another_file(way, tmp_path):
    """The places of elements there are no places here, and nothing is written there."""
    (folder := tmp_path / "in").mkdir()
    with h5py.File(folder / "o.h5", "w") as file:
        file["before"], file["v"] = np.arange(9), VALUES
    (folder / "bytes").write_bytes(VALUES.tobytes())
    with h5py.File(folder / "r.h5", "w") as file:
        file["x"] = VALUES
        if way == "link":
            file["a"] = h5py.ExternalLink(str(folder / "o.h5"), "/v")
        elif way == "virtual":
            layout = h5py.VirtualLayout(VALUES.shape, "f8")
            layout[:] = h5py.VirtualSource(folder / "o.h5", "v", VALUES.shape)
            file.create_virtual_dataset("a", layout)
        else:
            file.create_dataset("a", VALUES.shape, "f8", external=[("bytes", 0, VALUES.nbytes)])
    with unchanged(folder):
        reduce(folder, "sum", "--follow-links", "-o", "../n.h5", "r.h5", "r.h5")
    with h5py.File(tmp_path / "n.h5") as file:
        for name in "ax":
            np.testing.assert_array_equal(file[name][()], VALUES * 2)
            assert file.get(name, getlink=True).__class__ is h5py.HardLink


def properties(dataset):
    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
    order = plist.get_attr_creation_order(), plist.get_attr_phase_change()
    return dataset.maxshape, dataset.chunks, filters, order, float(dataset.fillvalue), list(dataset.attrs.items())


@pytest.mark.sampled(7)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("count", COUNTS)
def test_groups_of_any_number(count, chunks, version, ordered, tmp_path):
    with h5py.File(tmp_path / "r.h5", "w", libver=version, track_order=ordered) as file:
        for group in (file, file.create_group("g/h", track_order=ordered)):
            for number in reversed(range(count)):
                values = np.arange(6, dtype="i4") * number
                made = group.create_dataset(f"m{number}", data=values, fillvalue=7, **CHUNKS[chunks])
                made.attrs["a"] = group.attrs[f"a{number}"] = number
                group["m0" if not number else made.name].attrs[f"b{number}"] = number
        for number in range(count):
            made.attrs[f"c{number}"] = number
    for op, times in {"sum": 2, "mean": 1}.items():
        reduce(tmp_path, op, "-o", f"{op}.h5", "r.h5", "r.h5")
        with h5py.File(tmp_path / f"{op}.h5") as new, h5py.File(tmp_path / "r.h5") as old:
            for path in ("/", "g/h"):
                assert list(new[path]) == list(old[path])
                assert [*new[path].attrs.items()] == [*old[path].attrs.items()]
            for name in (f"{folder}m{number}" for folder in ("", "g/h/") for number in range(count)):
                np.testing.assert_array_equal(new[name][()], old[name][()] * times)
                assert properties(new[name]) == properties(old[name])
                assert new[name].dtype == ("i4" if op == "sum" else "f8")


def test_groups_of_netcdf(tmp_path):
    with together(tmp_path) as case:
        for count, zlib in zip(COUNTS, (True, False, True), strict=True):
            with case(count, zlib) as folder:
                with netCDF4.Dataset(folder / "r.nc", "w") as file:
                    file.createDimension("t", None)
                    file.createDimension("x", 3)
                    group = file.createGroup("g")
                    for number in range(count):
                        made = group.createVariable(f"m{number}", "f8", ("t", "x"), zlib=zlib)
                        made[:] = np.full((2, 3), number)
                        made.setncatts({f"a{each}": each for each in range(count)})
                reduce(folder, "sum", "-o", "o.nc", "r.nc", "r.nc")
                with netCDF4.Dataset(folder / "o.nc") as new, netCDF4.Dataset(folder / "r.nc") as old:
                    assert list(new["g"].variables) == list(old["g"].variables)
                    for name, like in old["g"].variables.items():
                        made = new["g"][name]
                        np.testing.assert_array_equal(made[:], like[:] * 2)
                        assert (made.dimensions, made.filters()) == (("t", "x"), like.filters())
                        assert made.ncattrs() == like.ncattrs()


def test_types_of_the_latest_version(tmp_path):
    with h5py.File(tmp_path / "r.h5", "w", libver="latest") as file:
        file["x"] = np.arange(3) * 1j
        file["x"].attrs["c"] = 2j
        file["kept"] = np.zeros(3, h5py.enum_dtype({"a": 0}, basetype="i4"))
        file["pairs"] = np.zeros(3, [("value", "f8"), ("index", "i4")])
    for op, name, times in (("sum", "x", 2), ("maxloc", "pairs", 1)):
        reduce(tmp_path, op, "--columns", name, "--keep", "kept", "-o", f"{op}.h5", "r.h5", "r.h5")
        with h5py.File(tmp_path / f"{op}.h5") as new, h5py.File(tmp_path / "r.h5") as old:
            np.testing.assert_array_equal(new[name][()], old[name][()] * times if times > 1 else old[name][()])
            assert dict(new[name].attrs) == dict(old[name].attrs)


def test_elements_that_no_header_holds(tmp_path):
    """Elements that lie in the header of their object may be too many in another type."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    with h5py.File(tmp_path / "r.h5", "w") as file:
        for name, count in {"few": 5, "many": 25_000}.items():
            space = h5py.h5s.create_simple((count,))
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.STD_I16LE, space, plist)
            file[name][...] = np.arange(count)
    reduce(tmp_path, "mean", "-o", "o.h5", "r.h5", "r.h5")
    with h5py.File(tmp_path / "o.h5") as file:
        for name, layout in {"few": h5py.h5d.COMPACT, "many": h5py.h5d.CONTIGUOUS}.items():
            np.testing.assert_array_equal(file[name][()], np.arange(len(file[name]), dtype="f8"), strict=True)
            assert file[name].id.get_create_plist().get_layout() == layout


def only_by_names():
    """Let the library open no attribute by its number, which takes as long as to sort all."""
    plain = h5py.h5a.open

    def opened(*words, **more):
        assert "index" not in more
        return plain(*words, **more)

    h5py.h5a.open = opened


def test_many_attributes(tmp_path):
    names = [f"a{number}" for number in range(300)]
    with together(tmp_path) as case:
        for version, ordered in (("earliest", False), ("v108", True), ("latest", False), ("latest", True)):
            with case(version, ordered) as folder:
                with h5py.File(folder / "r.h5", "w", libver=version, track_order=ordered) as file:
                    dataset = file.create_dataset("d", data=np.arange(6.0), track_order=ordered)
                    for number, name in enumerate(names):
                        dataset.attrs[name] = number
                words = ("reduce", "-q", "--op", "max", "-o", "o.h5", "r.h5", "r.h5")
                succeeded(run(*words, cwd=folder, setup=only_by_names))
                with h5py.File(folder / "o.h5") as new, h5py.File(folder / "r.h5") as old:
                    assert [*new["d"].attrs.items()] == [*old["d"].attrs.items()]


def test_other_names_of_an_array_that_is_left_out(tmp_path):
    """They are left out, too: the array would be that of the first rank."""
    for rank in range(2):
        with h5py.File(tmp_path / f"r{rank}.h5", "w") as file:
            file["a/first"] = file["x"] = np.arange(3.0) + rank
            file["b/second"] = file["third"] = file["a/first"]
    for name, left in {"x": {"x"}, "a/first": {"a/first", "b/second", "third"}}.items():
        reduce(tmp_path, "sum", "--columns", name, "-o", "o.h5", "r0.h5", "r1.h5")
        with h5py.File(tmp_path / "o.h5") as file:
            found = [f"{group}{name}" for group in ("a/", "b/", "") for name in file[group or "/"]]
            assert left == {name for name in found if isinstance(file[name], h5py.Dataset)}
            for each in left:
                np.testing.assert_array_equal(file[each][()], [1, 3, 5])


DEFLATED = (  # shape, chunks, form, and whether bytes are shuffled
    ((70_000,), (20_000,), "<f8", True),
    ((100, 300), (64, 256), ">i4", True),
    ((7, 330, 200), (1, 330, 200), "|u1", False),
    ((5, 90, 300), (2, 64, 128), "<f8", False),  # rows of chunks are several planes
    ((3, 10), (3, 10), ">i4", True),  # a small chunk, which the library compresses
)


def test_the_library_reads_what_is_in_deflated_chunks(tmp_path, monkeypatch):
    """Which several threads compress: edges of arrays, byte orders and filters, with any number of workers."""
    monkeypatch.setattr(hdf5_results, "DECODED_NBYTES", 400_000)  # so that large planes are written by their rows
    rng = np.random.default_rng(5)
    for case in DEFLATED:
        shape, chunks, dtype, shuffle = case
        ranks = [rng.integers(0, 100, shape).astype(dtype) for _ in range(2)]
        for number, rank in enumerate(ranks):
            with h5py.File(tmp_path / f"{number}.h5", "w") as file:
                file.create_dataset("x", data=rank, chunks=chunks, compression=3, shuffle=shuffle)
        digests = set()
        for jobs in ("1", "3"):
            reduce(tmp_path, "sum", "-j", jobs, "0.h5", "1.h5", "-o", f"sum{jobs}.h5")
            digests.add((tmp_path / f"sum{jobs}.h5").read_bytes())
        assert len(digests) == 1, case
        with h5py.File(tmp_path / "sum3.h5") as file:
            found = file["x"]
            stored = found.dtype, found.chunks, found.compression_opts, found.shuffle
            assert stored == (dtype, chunks, 3, shuffle), case
            assert np.array_equal(found[()], ranks[0] + ranks[1]), case
