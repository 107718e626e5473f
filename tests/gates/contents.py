"""What the files of a folder hold, as digests that are the same wherever the same was written.

A file with more than one form of the same content is digested by its content, as the library of the format reads it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

USUAL_MODE = 0o644


def digest(data: bytes) -> str:
    """Return the first characters of the digest."""
    return hashlib.sha256(data).hexdigest()[:16]


def _array(found: Any) -> list[object]:
    array = np.ma.getdata(found)
    if array.dtype.names:  # without the padding, which nobody has to read
        return [name for field in array.dtype.names for name in (field, *_array(array[field]))]
    data = array.tobytes() if array.dtype != object else repr(array.tolist()).encode()
    return [array.dtype.str, array.shape, digest(data)]


def _attributes(found: Any) -> dict[str, str]:
    return {name: repr(np.asarray(found[name]).tolist()) for name in sorted(found) if "DIMENSION" not in name.upper()}


def _schema(schema: pa.Schema) -> list[object]:
    return [(field.name, str(field.type), field.nullable) for field in schema] + sorted((schema.metadata or {}).items())


def _of_zarr(path: Path) -> list[object]:
    store = zarr.storage.ZipStore(path, mode="r") if path.suffix == ".zip" else zarr.storage.LocalStore(path)
    group = zarr.open_group(store, mode="r")
    return [[name, *_array(array[...]), _attributes(dict(array.attrs))] for name, array in sorted(group.arrays())]


def _of_hdf5(path: Path) -> list[object]:
    found: list[object] = []
    with h5py.File(path) as file:
        found.append(_attributes(file.attrs) if "_NCProperties" not in file.attrs else {})
        file.visititems(
            lambda name, each: found.append(
                [name, *(_array(each[()]) if isinstance(each, h5py.Dataset) else []), _attributes(each.attrs)]
            )
        )
    return found


def _of_parquet(path: Path) -> list[object]:
    return [_schema(pq.read_schema(path)), repr(pq.read_table(path).to_pydict())]


def _of_arrow(path: Path) -> list[object]:
    with pa.ipc.open_file(path) as file:
        return [_schema(file.schema), repr(file.read_all().to_pydict())]


def _of_npz(path: Path) -> list[object]:
    with np.load(path) as file:
        return [[name, *_array(file[name])] for name in file.files]


def _of_picture(path: Path) -> list[object]:
    """Return the size: the pixels of letters depend on the version of matplotlib."""
    return list(struct.unpack(">2I", path.read_bytes()[16:24]))


def _of_gzip(path: Path) -> list[object]:
    return [digest(gzip.decompress(path.read_bytes()))]


READERS: dict[bytes, Callable[[Path], list[object]]] = {
    b"\x89HDF": _of_hdf5,
    b"PAR1": _of_parquet,
    b"ARROW1": _of_arrow,
    b"\x89PNG": _of_picture,
    b"\x1f\x8b": _of_gzip,
    b"\x7fELF": lambda _path: ["what a compiler makes"],
}


def content(path: Path) -> object:
    """Return what is in a file, as its library reads it; None for one that none reads."""
    if path.is_dir() or path.suffix == ".zip":
        return _of_zarr(path)
    head = path.read_bytes()[:8]
    reader = next((each for magic, each in READERS.items() if head.startswith(magic)), None)
    if reader is None and path.suffix == ".npz":
        reader = _of_npz
    return reader(path) if reader else None


class Known(NamedTuple):
    """A file: a digest of its bytes, which is quickly made, and what the record has of it."""

    raw: str
    recorded: str


def _files(folder: Path, below: str = "") -> Iterator[tuple[str, Path]]:
    """Yield files and stores of a folder by name; what Python has compiled is none of them."""
    for each in sorted(folder.iterdir()):
        if each.is_dir() and not each.is_symlink() and not (each / "zarr.json").exists():
            if each.name != "__pycache__":
                yield from _files(each, f"{below}{each.name}/")
        else:
            yield f"{below}{each.name}", each


def _raw(path: str) -> str:
    """Return a digest of bytes, mode and names; of every file of every case, so it has to be quick."""
    status = os.lstat(path)
    found = hashlib.sha256(f"{status.st_mode:o}".encode())
    if stat.S_ISLNK(status.st_mode):
        found.update(os.readlink(path).encode())
    elif stat.S_ISDIR(status.st_mode):
        for name in sorted(os.listdir(path)):
            found.update(f"{name} {_raw(f'{path}/{name}')}".encode())
    elif stat.S_ISREG(status.st_mode):
        descriptor = os.open(path, os.O_RDONLY)
        found.update(f"{status.st_nlink} ".encode() + os.read(descriptor, status.st_size))
        os.close(descriptor)
    return found.hexdigest()


def _recorded(path: Path, unchanging: Callable[[str], str]) -> str:
    status = path.lstat()
    more = f" {status.st_nlink} names" if path.is_file() and status.st_nlink > 1 else ""
    if not path.is_dir() and status.st_mode & 0o777 != USUAL_MODE:
        more += f" mode {status.st_mode & 0o777:o}"
    if path.is_symlink():
        return f"link to {unchanging(os.readlink(path))}"
    if not path.is_file() and not path.is_dir():
        return f"special file{more}"
    try:
        what = content(path)
    except Exception as error:  # noqa: BLE001 - a file that its library cannot read, or no store
        what = None if path.is_file() else type(error).__name__
    data = path.read_bytes() if what is None else repr(what).encode()
    with contextlib.suppress(UnicodeDecodeError):
        data = unchanging(data.decode()).encode()
    return digest(data) + more


def state(folder: Path, before: dict[str, Known], unchanging: Callable[[str], str]) -> dict[str, Known]:
    """Return what each file holds; one with the bytes that it had before holds what it held."""
    found = {}
    for name, path in _files(folder):
        raw = _raw(str(path))
        known = before.get(name)
        found[name] = known if known and known.raw == raw else Known(raw, _recorded(path, unchanging))
    return found


def changes(before: dict[str, Known], after: dict[str, Known], unchanging: Callable[[str], str]) -> dict[str, str]:
    """Return what the record has of each file that is new, changed or removed."""
    found = {unchanging(name): each.recorded for name, each in after.items() if each != before.get(name)}
    return dict(sorted((found | dict.fromkeys(before.keys() - after.keys(), "removed")).items()))
