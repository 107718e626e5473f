"""Good and bad files of every format, and the refusals of bad ones."""

from __future__ import annotations

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


def parquet(table: pa.Table | Mapping[str, object], **settings: object) -> bytes:
    return bytes_of(pa.table(table) if isinstance(table, Mapping) else table, "parquet", **settings)


def arrow(table: pa.Table, suffix: str = "arrow") -> bytes:
    return bytes_of(table, suffix)


DATA = THREE.tobytes()


def furnish(where: Path) -> Path:
    (where / "good.npy").write_bytes(npy_of(THREE))
    (where / "good.bin").write_bytes(DATA)
    (where / "good.parquet").write_bytes(parquet({"x": THREE}))
    (where / "good.arrow").write_bytes(arrow(pa.table({"x": THREE})))
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


def _footer(content: bytes) -> bytes:
    nbytes = int.from_bytes(content[-8:-4], "little")
    return content[-8 - nbytes : -8]


def with_footer(content: bytes, footer: bytes) -> bytes:
    return content[: -8 - len(_footer(content))] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def _varint(number: int) -> bytes:
    """Return a signed number as Thrift's compact protocol writes it."""
    number = number << 1 if number >= 0 else (-number << 1) - 1
    return length(number)


def length(number: int) -> bytes:
    octets = b""
    while number > 0x7F:
        octets += bytes([number & 0x7F | 0x80])
        number >>= 7
    return octets + bytes([number])


def patched_footer(content: bytes, old: bytes, new: bytes) -> bytes:
    footer = _footer(content)
    assert old in footer
    return with_footer(content, footer.replace(old, new))


def claiming_rows(claimed: int) -> bytes:
    """Return a file of 12345 doubles whose footer claims another number in all places."""
    content = parquet({"x": np.zeros(12345)}, compression="none")
    return patched_footer(content, b"\x16" + _varint(12345), b"\x16" + _varint(claimed))


def flipped_page(compression: str) -> bytes:
    """Return a file with page checksums and one bit of a value changed."""
    content = bytearray(
        parquet(
            {"x": THREE},
            write_page_checksum=True,
            compression=compression,
            use_dictionary=False,
            write_statistics=False,
        )
    )
    at = content.index(THREE[:1].tobytes())
    content[at] ^= 1
    return bytes(content)


def two_columns_of_one_name() -> bytes:
    return parquet(pa.Table.from_arrays([pa.array(THREE), pa.array(THREE)], ["x", "x"]))


def column(array: object, kind: pa.DataType | None = None) -> Callable[[], bytes]:
    return lambda: parquet({"x": pa.array(array, kind)})


def nulls(**settings: object) -> Callable[[], bytes]:
    return lambda: parquet({"x": pa.array([None, 2.0, None])}, **settings)


def arrow_of_1000() -> bytes:
    return arrow(pa.table({"x": np.zeros(1000)}))


def arrow_claiming(claimed: int) -> bytes:
    """Return a file of 1000 doubles whose record batch claims another number."""
    content = arrow_of_1000()
    old, new = (1000).to_bytes(8, "little"), claimed.to_bytes(8, "little", signed=True)
    assert old in content
    return content.replace(old, new)
