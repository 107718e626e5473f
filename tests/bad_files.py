"""Good and bad files of every format, and the refusals of bad ones."""

import io
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from tables import THREE, bytes_of

Content = bytes | Callable[[], bytes]


class Case(NamedTuple):
    """A refusal: a name for it, the files, the words, the exit status, what the line must say."""

    label: str
    files: Mapping[str, Content]
    words: tuple[str, ...]
    status: int
    reasons: tuple[str, ...]


def npy(header: str | bytes, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """Return an npy file with any header."""
    text = header if isinstance(header, bytes) else header.encode("latin-1")
    if not text.endswith(b"\n"):
        text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text + data


def npy_of(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def header(descr: str = "'<f8'", order: str = "False", shape: str = "(3,)", more: str = "") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, {more}}}"


def parquet(columns: Mapping[str, object], **settings: object) -> bytes:
    return bytes_of(pa.table(columns), "parquet", **settings)


DATA = THREE.tobytes()


def furnish(where: Path) -> Path:
    (where / "good.npy").write_bytes(npy_of(THREE))
    (where / "good.bin").write_bytes(DATA)
    (where / "good.parquet").write_bytes(parquet({"x": THREE}))
    (where / "good.arrow").write_bytes(bytes_of(pa.table({"x": THREE}), "arrow"))
    (where / "out").write_bytes(b"the old result")
    return where


def zip_of(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


class Payload:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("the-payload-ran",)


PICKLED = pickle.dumps([Payload()] * 3)
