"""Damaged files of every format: the same bits or one error on one line, and never the end of the process."""

from __future__ import annotations

import io
import tempfile
import zipfile
from functools import partial
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
import safetensors.numpy
import zarr
from command import in_child
from format_files import RANKS, ROWS, WRITERS
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


def _netcdf(form):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.nc"
        with netCDF4.Dataset(path, "w", format=form) as new:
            new.createDimension("t", None)
            new.createDimension("x", 3)
            new.createVariable("a", "f8", ("t", "x"), fill_value=-9.0)[:] = np.arange(12.0).reshape(4, 3)
            new.createVariable("b", "i2", ("t",))[:] = np.arange(4)
            new.createVariable("t", "f8", ("t",)).units = "days since 2000-01-01"
            new["t"][:] = np.arange(4)
        return path.read_bytes()


def _zarr():
    file = io.BytesIO()
    store: dict[str, zarr.core.buffer.Buffer] = {}
    group = zarr.create_group(zarr.storage.MemoryStore(store), zarr_format=2)
    group.create_array("a", data=np.arange(12.0).reshape(4, 3), chunks=(2, 2))
    with zipfile.ZipFile(file, "w") as archive:
        for key in sorted(store):
            archive.writestr(key, store[key].to_bytes())
    return file.getvalue()


# The other formats are below with more in each file.
PLAIN = ("raw", "npy", "npz", "arrows", "mini", "bundle")
WHOLE = {
    **{f"{form}{ROWS[form].suffixes[0]}": WRITERS[form](RANKS[0]) for form in PLAIN},
    **SMALLEST,
    "deflated.npz": _npz(),
    "metadata.safetensors": safetensors.numpy.save(ARRAYS, {"made": "by hand"}),
    "groups.h5": _hdf5(),
    "classic.nc": _netcdf("NETCDF3_CLASSIC"),
    "cdf5.nc": _netcdf("NETCDF3_64BIT_DATA"),
    "netcdf4.nc": _netcdf("NETCDF4"),
    "blosc.zarr.zip": _zarr(),
}


class Looks:
    """Looks at files that were made of a whole one."""

    def __init__(self, bench, name):
        self.whole, self.bench = WHOLE[name], bench
        self.path, self.other = bench.folder / name, bench.folder / f"other_{name}"
        options = {"type": "double"} if name == "raw.bin" else {"nulls": "ignore"} if name.endswith(".nc") else {}
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
            vars(decoding)["_LOOK_SECONDS"] = 1  # some damage lets the library go round in a circle
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
