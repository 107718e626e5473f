"""Objects of HDF5 that are created as those of another file are: members, attributes, chunks, types of any version."""

from __future__ import annotations

import collections

import h5py
import netCDF4
import numpy as np
import pytest
from command import run, succeeded

from mpired.formats import hierarchy

VERSIONS = ["earliest", "v108", "latest"]
COUNTS = [8, 9, 40]  # nine links or attributes lie in another form than eight
CHUNKS = {"whole": {}, "chunked": {"chunks": (2,), "compression": "gzip", "shuffle": True, "maxshape": (None,)}}


def properties(dataset):
    plist = dataset.id.get_create_plist()
    filters = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
    order = plist.get_attr_creation_order(), plist.get_attr_phase_change()
    return dataset.maxshape, dataset.chunks, filters, order, float(dataset.fillvalue), list(dataset.attrs.items())


@pytest.mark.sampled(5)
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
        succeeded(run("reduce", "-q", "--op", op, "-o", f"{op}.h5", "r.h5", "r.h5", cwd=tmp_path))
        with h5py.File(tmp_path / f"{op}.h5") as new, h5py.File(tmp_path / "r.h5") as old:
            for path in ("/", "g/h"):
                assert list(new[path]) == list(old[path])
                assert [*new[path].attrs.items()] == [*old[path].attrs.items()]
            names = [f"{folder}m{number}" for folder in ("", "g/h/") for number in range(count)]
            for name in names:
                np.testing.assert_array_equal(new[name][()], old[name][()] * times)
                assert properties(new[name]) == properties(old[name])
                assert new[name].dtype == ("i4" if op == "sum" else "f8")


@pytest.mark.parametrize("zlib", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_groups_of_netcdf(count, zlib, tmp_path):
    with netCDF4.Dataset(tmp_path / "r.nc", "w") as file:
        file.createDimension("t", None)
        file.createDimension("x", 3)
        group = file.createGroup("g")
        for number in range(count):
            group.createVariable(f"m{number}", "f8", ("t", "x"), zlib=zlib)[:] = np.full((2, 3), number)
            group[f"m{number}"].setncatts({f"a{each}": each for each in range(count)})
    succeeded(run("reduce", "-q", "--op", "sum", "-o", "o.nc", "r.nc", "r.nc", cwd=tmp_path))
    with netCDF4.Dataset(tmp_path / "o.nc") as new, netCDF4.Dataset(tmp_path / "r.nc") as old:
        assert list(new["g"].variables) == list(old["g"].variables)
        for name, like in old["g"].variables.items():
            made = new["g"][name]
            np.testing.assert_array_equal(made[:], like[:] * 2)
            assert (made.dimensions, made.filters(), made.ncattrs()) == (("t", "x"), like.filters(), like.ncattrs())


def test_types_of_the_latest_version(tmp_path):
    with h5py.File(tmp_path / "r.h5", "w", libver="latest") as file:
        file["x"] = np.arange(3) * 1j
        file["x"].attrs["c"] = 2j
        file["kept"] = np.zeros(3, h5py.enum_dtype({"a": 0}, basetype="i4"))
        file["pairs"] = np.zeros(3, [("value", "f8"), ("index", "i4")])
    for op, name in {"sum": "x", "maxloc": "pairs"}.items():
        words = ("--columns", name, "--keep", "kept", "-o", f"{op}.h5")
        succeeded(run("reduce", "-q", "--op", op, *words, "r.h5", "r.h5", cwd=tmp_path))
        with h5py.File(tmp_path / f"{op}.h5") as new, h5py.File(tmp_path / "r.h5") as old:
            np.testing.assert_array_equal(new[name][()], old[name][()] * 2 if op == "sum" else old[name][()])
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
    succeeded(run("reduce", "-q", "--op", "mean", "-o", "o.h5", "r.h5", "r.h5", cwd=tmp_path))
    with h5py.File(tmp_path / "o.h5") as file:
        for name, layout in {"few": h5py.h5d.COMPACT, "many": h5py.h5d.CONTIGUOUS}.items():
            np.testing.assert_array_equal(file[name][()], np.arange(len(file[name]), dtype="f8"), strict=True)
            assert file[name].id.get_create_plist().get_layout() == layout


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_attributes_are_opened_by_their_names_once(version, ordered, tmp_path, monkeypatch):
    """To open one by its number takes the library as long as to sort all."""
    names = [f"a{number}" for number in range(300)]
    with h5py.File(tmp_path / "r.h5", "w", libver=version, track_order=ordered) as file:
        dataset = file.create_dataset("d", data=np.arange(6.0), track_order=ordered)
        for number, name in enumerate(names):
            dataset.attrs[name] = number
    opened: collections.Counter[str] = collections.Counter()

    class Counted:
        iterate = staticmethod(h5py.h5a.iterate)

        @staticmethod
        def open(identifier, name):
            opened[name.decode()] += 1
            return h5py.h5a.open(identifier, name)

    with h5py.File(tmp_path / "r.h5") as file, monkeypatch.context() as patch:
        patch.setattr(hierarchy, "h5a", Counted)
        found = [each.name.decode() for each in hierarchy.each_attribute(file["d"].id)]
    assert opened == dict.fromkeys(names, 1)
    assert found == names if ordered else sorted(found) == sorted(names)
    succeeded(run("reduce", "-q", "--op", "max", "-o", "o.h5", "r.h5", "r.h5", cwd=tmp_path))
    with h5py.File(tmp_path / "o.h5") as new, h5py.File(tmp_path / "r.h5") as old:
        assert [*new["d"].attrs.items()] == [*old["d"].attrs.items()]


def test_other_names_of_an_array_that_is_left_out(tmp_path):
    """They are left out, too: the array would be that of the first rank."""
    for rank in range(2):
        with h5py.File(tmp_path / f"r{rank}.h5", "w") as file:
            file["a/first"] = file["x"] = np.arange(3.0) + rank
            file["b/second"] = file["third"] = file["a/first"]
    for name, left in {"x": {"x"}, "a/first": {"a/first", "b/second", "third"}}.items():
        words = ("--columns", name, "-o", "o.h5", "--force", "r0.h5", "r1.h5")
        succeeded(run("reduce", "-q", "--op", "sum", *words, cwd=tmp_path))
        with h5py.File(tmp_path / "o.h5") as file:
            found = [f"{group}{name}" for group in ("a/", "b/", "") for name in file[group or "/"]]
            assert left == {name for name in found if isinstance(file[name], h5py.Dataset)}
            for each in left:
                np.testing.assert_array_equal(file[each][()], [1, 3, 5])
