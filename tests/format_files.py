"""The files of every format, with functions that write and read them without mpired, and the command on them."""

import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
import tables
import zarr
from bad_files import npy_of
from command import Outcome, refused, run, succeeded, unchanged
from setups import seeing

from mpired.formats import FORMATS, Format

MINI = (Path(__file__).parents[1] / "examples/mpired-mini/mpired_mini/__init__.py").read_text()
BUNDLE = (Path(__file__).parents[1] / "examples/mpired-bundle/mpired_bundle/__init__.py").read_text()
BUNDLE_CAN = {"has_columns": True, "has_arrays": True, "updatable": True, "in_place": True}
INSTALLED = {
    "mini": Format("mini", (".mini",), b"MINI", updatable=True, place="mpired_mini"),
    "bundle": Format("bundle", (".bundle",), b"BUNDLE\0\0", place="mpired_bundle", **BUNDLE_CAN),
}
ROWS = FORMATS | INSTALLED


def _npz(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, value=array)
    return file.getvalue()


def _hdf5(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as new:
        new["value"] = array
    return file.getvalue()


def _read_hdf5(octets: bytes, _dtype: np.dtype) -> np.ndarray:
    with h5py.File(io.BytesIO(octets)) as file:
        return _only(file)[()]


def _netcdf(array: np.ndarray) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.nc"
        with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_DATA") as new:
            new.createDimension("x", len(array) or None)
            new.createVariable("value", array.dtype, ("x",))[:] = array
        return path.read_bytes()


def _read_netcdf(octets: bytes, dtype: np.dtype) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "old.nc"
        path.write_bytes(octets)
        with netCDF4.Dataset(path) as file:
            return np.ma.getdata(_only(file.variables)[:]).astype(dtype, casting="equiv")


def _mini(array: np.ndarray) -> bytes:
    return b"MINI" + array.dtype.str.encode().ljust(4) + len(array).to_bytes(8, "little") + array.tobytes()


def _bundle(array: np.ndarray) -> bytes:
    text = json.dumps([["value", array.dtype.str, array.shape]]).encode()
    return b"BUNDLE\0\0" + len(text).to_bytes(8, "little") + text + array.tobytes()


def _from_bundle(octets: bytes) -> np.ndarray:
    end = 16 + int.from_bytes(octets[8:16], "little")
    ((_, code, shape),) = json.loads(octets[16:end])
    return np.frombuffer(octets[end:], code).reshape(shape)


def _zarr(array: np.ndarray) -> bytes:
    store: dict[str, zarr.core.buffer.Buffer] = {}
    zarr.create_group(zarr.storage.MemoryStore(store)).create_array("value", data=array)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for key in sorted(store, key=len):
            archive.writestr(key, store[key].to_bytes())
    return file.getvalue()


def _from_zarr(octets: bytes) -> np.ndarray:
    with zipfile.ZipFile(io.BytesIO(octets)) as archive:
        buffer = zarr.core.buffer.default_buffer_prototype().buffer
        store = {name: buffer.from_bytes(archive.read(name)) for name in archive.namelist()}
    group = zarr.open_group(zarr.storage.MemoryStore(store), mode="r")
    return _only({name: np.asarray(array[...]) for name, array in group.arrays()})


def _column(form: str) -> Callable[[np.ndarray], bytes]:
    return lambda array: tables.bytes_of(pa.table({"value": array}), form)


WRITERS: dict[str, Callable[[np.ndarray], bytes]] = {
    "raw": np.ndarray.tobytes,
    "npy": npy_of,
    "parquet": _column("parquet"),
    "arrow": _column("arrow"),
    "arrows": _column("arrows"),
    "npz": _npz,
    "safetensors": lambda array: safetensors.numpy.save({"value": array}),
    "hdf5": _hdf5,
    "netcdf": _netcdf,
    "zarr": _zarr,
    "mini": _mini,
    "bundle": _bundle,
}


def _after(nlines: int) -> Callable[[bytes, np.dtype], np.ndarray]:
    """Return the reader of a text with an element at the end of each line, after a heading."""
    return lambda octets, dtype: np.array([line.split()[-1] for line in octets.decode().splitlines()[nlines:]], dtype)


def _only(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    (array,) = arrays.values()
    return array


READERS: dict[str, Callable[[bytes, np.dtype], np.ndarray]] = {
    "raw": np.frombuffer,
    "npy": lambda octets, _dtype: np.load(io.BytesIO(octets)),
    "parquet": lambda octets, _dtype: pq.read_table(io.BytesIO(octets))["value"].to_numpy(),
    "arrow": lambda octets, _dtype: pa.ipc.open_file(octets).read_all()["value"].to_numpy(),
    "arrows": lambda octets, _dtype: pa.ipc.open_stream(octets).read_all()["value"].to_numpy(),
    "npz": lambda octets, _dtype: _only(np.load(io.BytesIO(octets))),
    "safetensors": lambda octets, _dtype: _only(safetensors.numpy.load(octets)),
    "hdf5": _read_hdf5,
    "netcdf": _read_netcdf,
    "zarr": lambda octets, _dtype: _from_zarr(octets),
    "mini": lambda octets, _dtype: np.frombuffer(octets[16:], octets[4:8].decode().strip()),
    "bundle": lambda octets, _dtype: _from_bundle(octets),
    "text": _after(0),
    "csv": _after(1),
    "table": _after(1),
    "json": lambda octets, dtype: np.array(json.loads(octets)["buffers"][0]["data"], dtype),
}

READABLE = [name for name, row in ROWS.items() if row.readable]
UPDATABLE = [name for name, row in ROWS.items() if row.updatable]
DRAW = np.random.default_rng(20)
RANKS = [DRAW.standard_normal(12) * 10.0**exponent for exponent in (0, 3, -3)]
INTEGERS = [DRAW.integers(-1000, 1000, 12, np.int32) for _ in range(3)]


class Bench:
    """A folder with ranks of one format, and the command that works on them."""

    def __init__(self, folder: Path, site: Path) -> None:
        self.folder = folder
        self.setup = seeing(site)

    def write(self, form: str, arrays: list[np.ndarray], stem: str = "rank") -> list[str]:
        """Write ranks, and return their names."""
        names = [f"{stem}{i}{ROWS[form].suffixes[0]}" for i in range(len(arrays))]
        for name, array in zip(names, arrays, strict=True):
            (self.folder / name).write_bytes(WRITERS[form](array))
        return names

    def read(self, form: str, name: str, dtype: np.dtype) -> np.ndarray:
        return READERS[form]((self.folder / name).read_bytes(), dtype)

    def run(self, *words: str, **settings: object) -> Outcome:
        return run(*words, cwd=self.folder, setup=self.setup, **settings)

    def reduce(self, *words: str) -> bytes:
        outcome = self.run("reduce", "-q", "--op", "sum", *words)
        succeeded(outcome)
        return outcome.out

    def refuses(self, status: int, *reasons: str, words: tuple[str, ...]) -> None:
        """Check that the command refuses, and leaves all files as they are."""
        with unchanged(self.folder):
            refused(self.run(*words), status, *reasons)


def typed(form: str, name: str) -> tuple[str, ...]:
    """Return the words that say what the elements are, where the files do not."""
    return ("--type", name) if ROWS[form].needs_type else ()


def same(one: np.ndarray, other: np.ndarray) -> None:
    assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())
