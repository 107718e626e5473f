"""`reduce --in-place` into arrays of a file, where they lie: all else of the file stays."""

import os
import shutil
import struct
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
from command import run, succeeded
from rows import check_refusals


def made(path: Path, factor: float) -> str:
    """Make a file with an array in one piece, one beside it, and what is no number."""
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["grp/v"] = (np.arange(5) * factor).astype(">f4")
            file["w"] = np.arange(3, dtype="i2")
            file["names"] = np.array(["a", "bc"], dtype=h5py.string_dtype())
            file["grp/v"].attrs["units"] = "K"
    else:
        with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
            file.createDimension("x", 5)
            file.createDimension("y", 3)
            file.createVariable("v", "f4", "x")[:] = np.arange(5) * factor
            file.createVariable("w", "i2", "y")[:] = np.arange(3)
            file["v"].units, file.history = "K", "by hand"
    return str(path)


@pytest.mark.parametrize(("suffix", "linked"), [(".h5", False), (".nc", True)])
def test_nothing_else_of_the_file_changes(tmp_path, suffix, linked):
    first, second = made(tmp_path / f"a{suffix}", 1), made(tmp_path / f"b{suffix}", 10)
    name = "grp/v" if suffix == ".h5" else "v"
    before = bytearray(Path(first).read_bytes())
    values = (np.arange(5) * 1).astype(">f4").tobytes()
    assert before.count(values) == 1
    if linked:
        os.link(first, tmp_path / "link")
    succeeded(run("reduce", "-q", "--op", "sum", "--in-place", "--columns", name, first, second, cwd=tmp_path))
    at_ = before.index(values)
    before[at_ : at_ + 20] = (np.arange(5) * 11).astype(">f4").tobytes()
    assert Path(first).read_bytes() == before
    assert not linked or (tmp_path / "link").samefile(first)


def test_arrays_with_bytes_in_common(tmp_path):
    """A file that no library writes: each array is within it, and the result would depend on the order."""
    with h5py.File(tmp_path / "r.h5", "w", libver="earliest") as file:
        file["a"], file["b"] = np.arange(10.0), np.arange(10.0)
        first, second = (file[name].id.get_offset() for name in "ab")
    whole = (tmp_path / "r.h5").read_bytes()
    place = struct.pack("<QQ", second, 80)
    assert whole.count(place) == 1
    (tmp_path / "r.h5").write_bytes(whole.replace(place, struct.pack("<QQ", first + 40, 80)))
    shutil.copy(tmp_path / "r.h5", tmp_path / "o.h5")
    reason = "r.h5: arrays 'a' and 'b' have bytes in common; the file is damaged"
    calls = ("reduce --in-place", "accumulate", "accumulate --commit journal")
    check_refusals(tmp_path, [(f"{call} --op sum r.h5 o.h5", 3, reason) for call in calls])
