"""HDF5 results that are copies of the first rank's file with other elements, and files that give no copy."""

from __future__ import annotations

import h5py
import netCDF4
import numpy as np
import pytest
from command import run, succeeded, unchanged

SETTINGS = {"SOURCE_DATE_EPOCH": "86400"}
VALUES = np.linspace(0, 1, 20_000)


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
    return path


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.mark.parametrize("options", [{}, {"track_order": True}, {"libver": "latest"}, {"userblock_size": 512}])
def test_result_is_a_copy(options, folder, tmp_path):
    make(folder / "r.h5", **options)
    words = ("reduce", "-q", "--force", "--op", "sum", "-o", "../o.h5", "r.h5", "r.h5")
    with unchanged(folder):
        succeeded(run(*words, cwd=folder, env=SETTINGS))
    once = (tmp_path / "o.h5").read_bytes()
    succeeded(run(*words, cwd=folder, env=SETTINGS))
    assert (tmp_path / "o.h5").read_bytes() == once
    assert len(once) < 1.1 * (folder / "r.h5").stat().st_size
    with h5py.File(tmp_path / "o.h5") as new, h5py.File(folder / "r.h5") as old:
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
    succeeded(run("reduce", "-q", "--op", "sum", "-o", "o.nc", "r.nc", "r.nc", cwd=tmp_path))
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
    succeeded(run("reduce", "-q", "--op", "max", "--columns", "x", "-o", "o.h5", "r.h5", "r.h5", cwd=tmp_path))
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
    succeeded(run("reduce", "-q", "--op", "sum", "-o", "o.h5", "r.h5", "r.h5", cwd=tmp_path))
    with h5py.File(tmp_path / "o.h5") as file:
        assert h5py.h5o.get_info(file["/"].id).mtime == 0
        np.testing.assert_array_equal(file["x"][()], VALUES * 2)


@pytest.mark.parametrize("way", ["link", "virtual", "elements"])
def test_no_copy_of_what_is_in_another_file(way, folder, tmp_path):
    """The places of elements there are no places here, and nothing is written there."""
    with h5py.File(folder / "o.h5", "w") as file:
        file["before"], file["v"] = np.arange(9), VALUES
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
    (folder / "bytes").write_bytes(VALUES.tobytes())
    words = ("reduce", "-q", "--follow-links", "--op", "sum", "-o", "../n.h5", "r.h5", "r.h5")
    with unchanged(folder):
        succeeded(run(*words, cwd=folder))
    with h5py.File(tmp_path / "n.h5") as file:
        for name in "ax":
            np.testing.assert_array_equal(file[name][()], VALUES * 2)
            assert file.get(name, getlink=True).__class__ is h5py.HardLink
