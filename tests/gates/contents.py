"""Digests of the files of a folder, equal on each machine for equal contents.

If a format has several forms of the same content, its library reads the file, and the digest is of the content.
"""

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
    """Return the start of the SHA-256 digest."""
    return hashlib.sha256(data).hexdigest()[:16]


def _array(stored: Any) -> list[object]:
    array = np.ma.getdata(stored)
    if array.dtype.names:  # without the padding
        return [name for field in array.dtype.names for name in (field, *_array(array[field]))]
    data = array.tobytes() if array.dtype != object else repr(array.tolist()).encode()
    return [array.dtype.str, array.shape, digest(data)]


def _attributes(stored: Any) -> dict[str, str]:
    return {name: repr(np.asarray(stored[name]).tolist()) for name in sorted(stored) if "DIMENSION" not in name.upper()}


def _schema(schema: pa.Schema) -> list[object]:
    return [(field.name, str(field.type), field.nullable) for field in schema] + sorted((schema.metadata or {}).items())


def _of_zarr(path: Path) -> list[object]:
    store = zarr.storage.ZipStore(path, mode="r") if path.suffix == ".zip" else zarr.storage.LocalStore(path)
    group = zarr.open_group(store, mode="r")
    return [[name, *_array(array[...]), _attributes(dict(array.attrs))] for name, array in sorted(group.arrays())]


def _of_hdf5(path: Path) -> list[object]:
    contents: list[object] = []
    with h5py.File(path) as file:
        contents.append(_attributes(file.attrs) if "_NCProperties" not in file.attrs else {})
        file.visititems(
            lambda name, each: contents.append(
                [name, *(_array(each[()]) if isinstance(each, h5py.Dataset) else []), _attributes(each.attrs)]
            )
        )
    return contents


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
    b"MPIREDK1": lambda path: ["keys of --once", path.stat().st_size],  # which are of paths, with dates
}


def content(path: Path) -> object:
    """Return the content of a file as its library reads it, or None if no library does."""
    if path.is_dir() or path.suffix == ".zip":
        return _of_zarr(path)
    head = path.read_bytes()[:8]
    reader = next((each for magic, each in READERS.items() if head.startswith(magic)), None)
    if reader is None and path.suffix == ".npz":
        reader = _of_npz
    return reader(path) if reader else None


class Known(NamedTuple):
    """A file: a digest of its bytes, which is made quickly, and the text in the record."""

    raw: str
    recorded: str


def _files(folder: Path, below: str = "") -> Iterator[tuple[str, Path]]:
    """Yield files and stores of a folder by name, without the files that Python compiles."""
    for each in sorted(folder.iterdir()):
        if each.is_dir() and not each.is_symlink() and not (each / "zarr.json").exists():
            if each.name != "__pycache__":
                yield from _files(each, f"{below}{each.name}/")
        else:
            yield f"{below}{each.name}", each


def _raw(path: str) -> str:
    """Return a digest of bytes, mode and names. It is quick: each case needs it of all files."""
    status = os.lstat(path)
    result = hashlib.sha256(f"{status.st_mode:o}".encode())
    if stat.S_ISLNK(status.st_mode):
        result.update(os.readlink(path).encode())
    elif stat.S_ISDIR(status.st_mode):
        for name in sorted(os.listdir(path)):
            result.update(f"{name} {_raw(f'{path}/{name}')}".encode())
    elif stat.S_ISREG(status.st_mode):
        descriptor = os.open(path, os.O_RDONLY)
        result.update(f"{status.st_nlink} ".encode() + os.read(descriptor, status.st_size))
        os.close(descriptor)
    return result.hexdigest()


def _recorded(path: Path, mask: Callable[[str], str]) -> str:
    status = path.lstat()
    more = f" {status.st_nlink} names" if path.is_file() and status.st_nlink > 1 else ""
    if not path.is_dir() and status.st_mode & 0o777 != USUAL_MODE:
        more += f" mode {status.st_mode & 0o777:o}"
    if path.is_symlink():
        return f"link to {mask(os.readlink(path))}"
    if not path.is_file() and not path.is_dir():
        return f"special file{more}"
    try:
        what = content(path)
    except Exception as error:  # noqa: BLE001 - the library cannot read it
        what = None if path.is_file() else type(error).__name__
    data = path.read_bytes() if what is None else repr(what).encode()
    with contextlib.suppress(UnicodeDecodeError):
        data = mask(data.decode()).encode()
    return digest(data) + more


def state(folder: Path, before: dict[str, Known], mask: Callable[[str], str]) -> dict[str, Known]:
    """Return the files of a folder by name. If the bytes are as before, the text in the record is too."""
    files = {}
    for name, path in _files(folder):
        raw = _raw(str(path))
        known = before.get(name)
        files[name] = known if known and known.raw == raw else Known(raw, _recorded(path, mask))
    return files


def changes(before: dict[str, Known], after: dict[str, Known], mask: Callable[[str], str]) -> dict[str, str]:
    """Return the text in the record of each new, changed or removed file."""
    changed = {mask(name): each.recorded for name, each in after.items() if each != before.get(name)}
    return dict(sorted((changed | dict.fromkeys(before.keys() - after.keys(), "removed")).items()))
