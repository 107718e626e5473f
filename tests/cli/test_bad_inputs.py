"""Bad inputs, row by row: what each is answered with, and that nothing else happens.

The numbers are the rows of bad_inputs.md. A refusal is one line on standard error
that names file and reason, nothing on standard output, and no file touched. Cases that look bad
but are not are here too, with the right result.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import gzip
import io
import itertools
import os
import pickle
import pty
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import (
    COMMAND,
    Child,
    become_nobody,
    installed,
    measured,
    open_fifo,
    reduce,
    refused,
    run,
    shell,
    snapshot,
    succeeded,
    unchanged,
)

import mpired
import mpired.buffers.source
import mpired.storage.calls
from mpired.errors import MpiredError
from mpired.storage import calls

Content = bytes | Callable[[], bytes]

_ACCEPTED: set[int] = set()


def covers(*rows: int) -> Callable[[Callable], Callable]:
    """Mark a test as one of these rows."""
    _ACCEPTED.update(rows)
    return lambda test: test


class Case(NamedTuple):
    """A refusal: the row and a name for it, the files, the words, the exit status, what the line must say."""

    row: int
    label: str
    files: Mapping[str, Content]
    words: tuple[str, ...]
    status: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.row}-{self.label}"


# What lies in the folder of every case: good ranks of three doubles, and a result that must stay.


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
    file = io.BytesIO()
    pq.write_table(pa.table(table) if isinstance(table, Mapping) else table, file, **settings)
    return file.getvalue()


def arrow(table: pa.Table, writer: Callable[..., pa.ipc.RecordBatchStreamWriter] = pa.ipc.new_file) -> bytes:
    file = io.BytesIO()
    with writer(file, table.schema) as sink:
        sink.write_table(table)
    return file.getvalue()


THREE = np.array([1.0, 2.0, 3.0])
DATA = THREE.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Good ranks of three doubles in each format, and an old result."""
    return furnish(tmp_path)


def furnish(where: Path) -> Path:
    (where / "good.npy").write_bytes(npy_of(THREE))
    (where / "good.bin").write_bytes(DATA)
    (where / "good.parquet").write_bytes(parquet({"x": THREE}))
    (where / "good.arrow").write_bytes(arrow(pa.table({"x": THREE})))
    (where / "out").write_bytes(b"the old result")
    return where


def _bad_npy(row: int, label: str, content: Content, *reasons: str, status: int = 3) -> Case:
    words = ("--op", "sum", "good.npy", "bad.npy", "-o", "out", "-f")
    return Case(row, label, {"bad.npy": content}, words, status, ("bad.npy", *reasons))


def _bad_raw(row: int, label: str, content: Content, words: str, *reasons: str, status: int = 3) -> Case:
    arguments = ("--op", "sum", *words.split(), "bad.bin", "-o", "out", "-f")
    return Case(row, label, {"bad.bin": content}, arguments, status, reasons)


def _bad_parquet(row: int, label: str, content: Content, *reasons: str, words: str = "", status: int = 3) -> Case:
    arguments = ("--op", "sum", *words.split(), "bad.parquet", "good.parquet", "-o", "out", "-f")
    return Case(row, label, {"bad.parquet": content}, arguments, status, ("bad.parquet", *reasons))


def _bad_arrow(row: int, label: str, content: Content, *reasons: str) -> Case:
    arguments = ("--op", "sum", "bad.arrow", "good.arrow", "-o", "out", "-f")
    return Case(row, label, {"bad.arrow": content}, arguments, 3, ("bad.arrow", *reasons))


def _bad_words(row: int, label: str, words: str, *reasons: str, status: int = 2) -> Case:
    return Case(row, label, {}, tuple(words.split()), status, reasons)


def _zip(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


class _Payload:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("the-payload-ran",)


_PICKLED = pickle.dumps([_Payload()] * 3)

NPY = (
    _bad_npy(1, "empty", b"", "empty"),
    _bad_npy(2, "magic only", b"\x93NUMPY", "truncated"),
    _bad_npy(2, "magic and version", b"\x93NUMPY\x01\x00", "truncated"),
    _bad_npy(2, "half of the magic", b"\x93NU", "truncated"),
    _bad_npy(3, "text", b"1.0 2.0 3.0\n", "starts with"),
    _bad_npy(3, "gzip", gzip.compress(npy_of(THREE)), "gzip"),
    _bad_npy(3, "pickle", _PICKLED, "is a pickle, which is never loaded"),
    _bad_npy(3, "zeros", bytes(1000), "starts with"),
    _bad_npy(4, "0.1", npy(header(), DATA, b"\x00\x01"), "version 0.1"),
    _bad_npy(4, "1.1", npy(header(), DATA, b"\x01\x01"), "version 1.1"),
    _bad_npy(4, "4.0", npy(header(), DATA, b"\x04\x00"), "version 4.0"),
    _bad_npy(4, "9.0", npy(header(), DATA, b"\x09\x00"), "version 9.0"),
    _bad_npy(5, "header cut", npy_of(THREE)[:80], "truncated"),
    _bad_npy(5, "length cut", npy_of(THREE)[:9], "truncated"),
    _bad_npy(6, "4 GiB header", b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 58, "4294967295"),
    _bad_npy(7, "65537 byte header", npy(header().ljust(65536) + "\n", DATA, b"\x02\x00"), "65537"),
    _bad_npy(9, "1 byte short", npy(header(), DATA[:-1]), "expected 24 data bytes", "found 23"),
    _bad_npy(9, "no data", npy(header()), "expected 24 data bytes", "found 0"),
    _bad_npy(10, "1 byte long", npy(header(), DATA + b"\0"), "expected 24 data bytes", "found 25"),
    _bad_npy(10, "two files in one", npy_of(THREE) * 2, "found 176"),
    _bad_npy(11, "32 GiB claimed", npy(header(shape="(65536, 65536)"), DATA), "34359738368", "found 24"),
    _bad_npy(12, "negative", npy(header(shape="(-3,)"), DATA)),
    _bad_npy(13, "two negative", npy(header(shape="(-3, -1)"), DATA)),
    _bad_npy(14, "2^64 elements", npy(header(shape="(4294967296, 4294967296)"), b""), "found 0"),
    _bad_npy(14, "2^61 doubles", npy(header(shape="(2305843009213693952,)"), b""), "found 0"),
    _bad_npy(14, "overflow by a byte size", npy(header(shape="(1152921504606846976, 2)"), b""), "found 0"),
    _bad_npy(15, "2^63", npy(header(shape="(0, 9223372036854775808)"), b""), "shape"),
    _bad_npy(16, "5000 digits", npy(header(shape=f"({'9' * 5000},)"), DATA)),
    _bad_npy(17, "(True,)", npy(header(shape="(True,)"), DATA[:8]), "shape"),
    _bad_npy(18, "(3.0,)", npy(header(shape="(3.0,)"), DATA)),
    _bad_npy(18, "3", npy(header(shape="3"), DATA), "shape"),
    _bad_npy(18, "[3]", npy(header(shape="[3]"), DATA), "shape"),
    _bad_npy(18, "'3'", npy(header(shape="'3'"), DATA), "shape"),
    _bad_npy(18, "((3,),)", npy(header(shape="((3,),)"), DATA), "shape"),
    _bad_npy(19, "65 dimensions", npy(header(shape=f"({'1, ' * 64}3)"), DATA), "65 dimensions"),
    _bad_npy(20, "pickled objects", npy(header("'|O'"), _PICKLED), "objects"),
    _bad_npy(20, "saved by NumPy", lambda: npy_of(np.array([None, {}, _Payload()], dtype=object)), "objects"),
    _bad_npy(21, "a field of objects", npy(header("[('a', '<f8'), ('b', '|O')]"), bytes(48)), "objects"),
    _bad_npy(22, "V8", npy(header("'|V8'"), DATA), "V8"),
    _bad_npy(22, "V0", npy(header("'|V0'", shape="(10000000000,)"))),
    _bad_npy(22, "S0", npy(header("'|S0'", shape="(10000000000,)"))),
    _bad_npy(22, "S8", npy(header("'|S8'"), DATA), "S8"),
    _bad_npy(22, "S2147483648", npy(header("'|S2147483648'"), DATA)),
    _bad_npy(22, "U3", npy(header("'<U3'"), bytes(36)), "U3"),
    _bad_npy(23, "M8", npy(header("'<M8[ns]'"), DATA), "M8"),
    _bad_npy(23, "m8", npy(header("'<m8[s]'"), DATA), "m8"),
    _bad_npy(24, "f12", npy(header("'<f12'"), bytes(36)), "f12"),
    _bad_npy(24, "f10", npy(header("'<f10'"), bytes(30)), "f10"),
    _bad_npy(26, "three fields", npy(header("[('a', '<f4'), ('b', '<f4'), ('c', '<f4')]"), bytes(36)), "f4"),
    _bad_npy(26, "an array in a field", npy(header("[('a', '<f8', (2,)), ('b', '<i4')]"), bytes(60))),
    _bad_npy(26, "a structure in a field", npy(header("[('a', [('b', '<f8')]), ('c', '<i4')]"), bytes(36))),
    _bad_npy(26, "a pair no type has", npy(header("[('a', '<i4'), ('b', '<f8')]"), bytes(36)), "struct(i4 a, f8 b)"),
    _bad_npy(26, "doubled field", npy(header("[('a', '<f4'), ('a', '<f4')]"), bytes(24)), "one name"),
    _bad_npy(26, "no fields", npy(header("[]"), DATA)),
    _bad_npy(26, "a pair under sum", npy(header("[('a', '<f4'), ('b', '<f4')]"), bytes(24)), "MPI_2REAL"),
    _bad_npy(27, "8", npy(header("8"), DATA), "descr"),
    _bad_npy(27, "None", npy(header("None"), DATA)),
    _bad_npy(27, "'bad'", npy(header("'bad'"), DATA), "bad"),
    _bad_npy(27, "''", npy(header("''"), DATA)),
    _bad_npy(27, "<f7", npy(header("'<f7'"), bytes(21)), "<f7"),
    _bad_npy(27, "f8,f8", npy(header("'f8,f8'"), bytes(48)), "f8,f8"),
    _bad_npy(27, "3f8", npy(header("'3f8'"), bytes(72)), "3f8"),
    _bad_npy(
        27,
        "negative offset",
        npy(header("{'names': ['a', 'b'], 'formats': ['<f8', '<i4'], 'offsets': [0, -8]}"), bytes(36)),
    ),
    _bad_npy(28, "0", npy(header(order="0"), DATA), "fortran_order"),
    _bad_npy(28, "'yes'", npy(header(order="'yes'"), DATA), "fortran_order"),
    _bad_npy(29, "no shape", npy("{'descr': '<f8', 'fortran_order': False}", DATA), "keys"),
    _bad_npy(29, "an extra key", npy(header(more="'more': 1"), DATA), "keys"),
    _bad_npy(29, "no keys", npy("{}", DATA), "keys"),
    _bad_npy(30, "two descr", npy(header(more="'descr': '<f4'"), DATA), "once"),
    _bad_npy(30, "two shapes", npy(header(more="'shape': (3,)"), DATA), "once"),
    _bad_npy(31, "list", npy("['<f8', False, (3,)]", DATA), "keys"),
    _bad_npy(31, "set", npy("{'descr', 'fortran_order', 'shape'}", DATA)),
    _bad_npy(31, "code", npy("__import__('os').mkdir('the-header-ran')", DATA)),
    _bad_npy(31, "code in the shape", npy(header(shape="__import__('os').mkdir('the-header-ran')"), DATA)),
    _bad_npy(31, "arithmetic", npy(header(shape="(1+2,)"), DATA)),
    _bad_npy(31, "more after it", npy(header() + "; 0", DATA)),
    _bad_npy(31, "nothing", npy("", DATA)),
    _bad_npy(32, "list as a key", npy("{['descr']: '<f8', 'fortran_order': False, 'shape': (3,)}", DATA)),
    _bad_npy(32, "bytes as keys", npy("{b'descr': '<f8', b'fortran_order': False, b'shape': (3,)}", DATA)),
    _bad_npy(32, "mixed keys", npy("{'descr': '<f8', 1: False, 'shape': (3,)}", DATA)),
    _bad_npy(33, "9000 minus signs", npy(header(shape=f"({'-' * 9000}3,)"), DATA)),
    _bad_npy(33, "3000 parentheses", npy(header(shape=f"{'(' * 3000}3,{')' * 3000}"), DATA)),
    _bad_npy(33, "9000 brackets", npy("[" * 9000, DATA)),
    _bad_npy(33, "9000 braces", npy("{'descr': " * 6000, DATA)),
    _bad_npy(34, "NUL", npy(header().replace(" ", "\0"), DATA)),
    _bad_npy(34, "NUL in the descr", npy(header("'<f8\0'"), DATA)),
    _bad_npy(34, "bad UTF-8", npy(header("'<f8'").encode() + b"\xff", DATA, b"\x03\x00"), "header"),
    _bad_npy(36, "npz named npy", _zip(("a.npy", npy_of(THREE))), "npz"),
    _bad_npy(36, "empty npz named npy", _zip(), "npz"),
    Case(36, "npz", {"bad.npz": _zip(("a.npy", DATA))}, ("--op", "sum", "bad.npz", "-o", "out", "-f"), 3, ("npz",)),
    Case(36, "empty npz", {"bad.npz": _zip()}, ("--op", "sum", "bad.npz", "-o", "out", "-f"), 3, ("bad.npz", "npz")),
)

RAW = (
    _bad_raw(39, "1001 bytes", bytes(1001), "--type double", "bad.bin", "1001 bytes is not a multiple of 8"),
    _bad_raw(39, "after a header", bytes(1001), "--type double --offset 8", "bad.bin", "993", "multiple of 8"),
    _bad_raw(39, "half a pair", bytes(24), "--type double_int --op maxloc", "bad.bin", "24 bytes", "multiple of 16"),
    _bad_raw(40, "no type", DATA, "", "bad.bin", "--type", status=2),
    _bad_raw(41, "unknown", DATA, "--type nonsense", "nonsense", status=2),
    _bad_raw(41, "nearly right", DATA, "--type duoble", "duoble", "double", status=2),
    _bad_raw(41, "empty", DATA, "--type=", "datatype", status=2),
    _bad_raw(41, "objects", DATA, "--type O", "O", status=2),
    _bad_raw(41, "bytes", DATA, "--type S8", "S8", status=2),
    _bad_raw(41, "text", DATA, "--type U", "U", status=2),
    _bad_raw(41, "void", DATA, "--type V8", "V8", status=2),
    _bad_raw(41, "dates", DATA, "--type <M8[ns]", "<M8[ns]", status=2),
    _bad_raw(41, "a list", DATA, "--type f8,f8", "f8^,f8", status=2),
    _bad_raw(41, "no such width", DATA, "--type <f7", "<f7", status=2),
    _bad_raw(41, "not available", DATA, "--type real16", "MPI_REAL16", "not available"),
    _bad_raw(42, "count beyond the end", DATA, "--type double --count 4", "bad.bin", "3 elements", "--count 4"),
    _bad_raw(42, "offset beyond the end", DATA, "--type double --offset 25", "bad.bin", "24 bytes", "--offset 25"),
    _bad_raw(42, "both", DATA, "--type double --offset 8 --count 3", "bad.bin", "--count 3"),
    _bad_raw(42, "count near 2^63", DATA, "--type double --count 9223372036854775807", "bad.bin", "--count"),
    _bad_raw(42, "negative count", DATA, "--type double --count -1", "--count", "-1", status=2),
    _bad_raw(42, "negative offset", DATA, "--type double --offset -8", "--offset", "-8", status=2),
    _bad_raw(42, "2^63", DATA, "--type double --count 9223372036854775808", "--count", status=2),
    _bad_raw(42, "2^64", DATA, "--type double --offset 18446744073709551616", "--offset", status=2),
    _bad_raw(42, "no number", DATA, "--type double --count 1e3", "--count", "1e3", status=2),
    Case(
        44,
        "one of two empty",
        {"bad.bin": b""},
        ("--op", "sum", "--type", "double", "good.bin", "bad.bin", "-o", "out", "-f"),
        3,
        ("good.bin", "bad.bin", "count 0", "3"),
    ),
    _bad_words(44, "endless device", "--op sum --type double /dev/zero -o out -f", "/dev/zero", "--count"),
    _bad_words(44, "endless npy", "--op sum /dev/zero -o out -f", "/dev/zero"),
)


def _footer(content: bytes) -> bytes:
    nbytes = int.from_bytes(content[-8:-4], "little")
    return content[-8 - nbytes : -8]


def _with_footer(content: bytes, footer: bytes) -> bytes:
    return content[: -8 - len(_footer(content))] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def _varint(number: int) -> bytes:
    """Return a signed number as Thrift's compact protocol writes it."""
    number = number << 1 if number >= 0 else (-number << 1) - 1
    return _length(number)


def _length(number: int) -> bytes:
    octets = b""
    while number > 0x7F:
        octets += bytes([number & 0x7F | 0x80])
        number >>= 7
    return octets + bytes([number])


def _patched_footer(content: bytes, old: bytes, new: bytes) -> bytes:
    footer = _footer(content)
    assert old in footer
    return _with_footer(content, footer.replace(old, new))


def _claiming_rows(claimed: int) -> bytes:
    """Return a file of 12345 doubles whose footer claims another number in all places."""
    content = parquet({"x": np.zeros(12345)}, compression="none")
    return _patched_footer(content, b"\x16" + _varint(12345), b"\x16" + _varint(claimed))


def _flipped_page(compression: str) -> bytes:
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


def _encrypted() -> bytes:
    import pyarrow.parquet.encryption as pe

    class Kms(pe.KmsClient):
        """Keeps no secret: the wrapped key is the key."""

        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:  # noqa: ARG002
            return base64.b64encode(key_bytes)

        def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:  # noqa: ARG002
            return base64.b64decode(wrapped_key)

    factory = pe.CryptoFactory(lambda _config: Kms())
    configuration = pe.EncryptionConfiguration(footer_key="key", column_keys={"key": ["x"]})
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    file = io.BytesIO()
    table = pa.table({"x": THREE})
    with pq.ParquetWriter(file, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return file.getvalue()


def _two_columns_of_one_name() -> bytes:
    return parquet(pa.Table.from_arrays([pa.array(THREE), pa.array(THREE)], ["x", "x"]))


def _column(array: object, kind: pa.DataType | None = None) -> Callable[[], bytes]:
    return lambda: parquet({"x": pa.array(array, kind)})


class _Sixteen(pa.ExtensionType):
    """A type of another program: 16 bytes, which its name makes something else."""

    def __init__(self) -> None:
        super().__init__(pa.binary(16), "other.sixteen")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: pa.DataType, _serialized: bytes) -> _Sixteen:
        return cls()


def _of_another_type() -> bytes:
    return parquet({"x": pa.ExtensionArray.from_storage(_Sixteen(), pa.array([bytes(16)] * 3, pa.binary(16)))})


def _nulls(**settings: object) -> Callable[[], bytes]:
    return lambda: parquet({"x": pa.array([None, 2.0, None])}, **settings)


_PAIR = pa.struct({"value": pa.float64(), "index": pa.int32()})
_STRUCTS = {
    "three fields": [{"a": 1.0, "b": 2, "c": 3}] * 3,
    "text in a field": [{"a": 1.0, "b": "two"}] * 3,
    "structure in a field": [{"a": 1.0, "b": {"c": 2}}] * 3,
}

PARQUET = (
    _bad_parquet(45, "empty", b"", "empty"),
    _bad_parquet(45, "magic only", b"PAR1"),
    _bad_parquet(45, "magic twice", b"PAR1PAR1"),
    _bad_parquet(45, "no footer", b"PAR1" + bytes(4) + b"PAR1"),
    _bad_parquet(45, "2 GiB footer", b"PAR1" + b"\x00\x00\x00\x80" + b"PAR1"),
    _bad_parquet(45, "footer as long as the file", b"PAR1" + bytes(8) + b"\x10\x00\x00\x00PAR1"),
    _bad_parquet(48, "10^14 rows", lambda: _claiming_rows(10**14)),
    _bad_parquet(48, "2^62 rows", lambda: _claiming_rows(2**62)),
    _bad_parquet(48, "-1 rows", lambda: _claiming_rows(-1)),
    _bad_parquet(49, "a flipped bit", lambda: _flipped_page("none"), "CRC"),
    _bad_parquet(50, "with statistics", _nulls(), "2 nulls", "'x'"),
    _bad_parquet(50, "without statistics", _nulls(write_statistics=False), "2 nulls", "'x'"),
    _bad_parquet(50, "integers", _column([1, None, 3]), "1 null", "'x'"),
    _bad_parquet(50, "nothing but nulls", _column([None] * 3, pa.float64()), "3 nulls", "'x'"),
    _bad_parquet(
        51,
        "in a structure",
        _column([{"value": 1.0, "index": 1}, None, {"value": None, "index": 3}], _PAIR),
        "nulls",
        "'x'",
        words="--op maxloc",
    ),
    _bad_parquet(51, "two of one name", _two_columns_of_one_name, "2 columns", "'x'"),
    _bad_parquet(51, "missing", lambda: parquet({"y": THREE, "z": THREE}), "'x'", "'y'", "'z'", words="--columns x"),
    _bad_parquet(51, "missing of a pair", lambda: parquet({"x": THREE}), "'y'", words="--op maxloc --pair x,y"),
    _bad_parquet(51, "no columns", lambda: parquet(pa.table({}))),
    _bad_parquet(52, "string", _column(["a", "b", "c"]), "'x'", "string"),
    _bad_parquet(52, "binary", _column([b"a", b"b", b"c"]), "'x'", "binary"),
    _bad_parquet(52, "list", _column([[1.0], [2.0], [3.0]]), "'x'", "list"),
    _bad_parquet(52, "decimal", _column([1, 2, 3], pa.decimal128(12, 2)), "'x'", "decimal"),
    _bad_parquet(52, "date", _column([1, 2, 3], pa.date32()), "'x'", "date"),
    _bad_parquet(52, "timestamp", _column([1, 2, 3], pa.timestamp("us")), "'x'", "timestamp"),
    _bad_parquet(52, "dictionary", lambda: parquet({"x": pa.array(["a", "b", "a"]).dictionary_encode()}), "'x'"),
    _bad_parquet(52, "extension", _of_another_type, "'x'"),
    _bad_parquet(52, "map", _column([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int32())), "'x'", "map"),
    *(_bad_parquet(52, name, _column(rows), "'x'", words="--op maxloc") for name, rows in _STRUCTS.items()),
    _bad_parquet(54, "datatype", _column([1, 2, 3]), "good.parquet", "MPI_INT64_T", "MPI_DOUBLE"),
    _bad_parquet(54, "name", lambda: parquet({"y": THREE}), "good.parquet", "'x'", "'y'"),
    _bad_parquet(54, "number of columns", lambda: parquet({"x": THREE, "y": THREE}), "good.parquet"),
    _bad_parquet(54, "number of rows", _column([1.0, 2.0]), "good.parquet", "count"),
    _bad_parquet(55, "encrypted", _encrypted),
    # The codec is field 4 of a column's metadata, an i32 before the i64 of field 5.
    _bad_parquet(55, "LZO", lambda: _patched_footer(parquet({"x": THREE}), b"\x15\x02\x16", b"\x15\x06\x16")),
    _bad_parquet(55, "codec 99", lambda: _patched_footer(parquet({"x": THREE}), b"\x15\x02\x16", b"\x15\xc6\x01\x16")),
    _bad_parquet(
        62,
        "2^31 schema elements",
        lambda: _with_footer(parquet({"x": THREE}), b"\x15\x04\x19\xfc" + _length(2**31 - 1)),
    ),
    _bad_parquet(
        62, "2 GiB of text", lambda: _with_footer(parquet({"x": THREE}), b"\x15\x04\x58" + _length(2**31 - 1) + b"xyz")
    ),
    _bad_parquet(61, "deep nesting", lambda: _with_footer(parquet({"x": THREE}), b"\x1c" * 1_000_000)),
    _bad_parquet(62, "npy in parquet", npy_of(THREE), "npy", "suffix"),
    Case(
        63,
        "parquet in npy",
        {"bad.npy": lambda: parquet({"x": THREE})},
        ("--op", "sum", "good.npy", "bad.npy", "-o", "out", "-f"),
        3,
        ("bad.npy", "parquet", "suffix"),
    ),
    Case(
        63,
        "npy in raw",
        {"bad.bin": npy_of(THREE)},
        ("--op", "sum", "--type", "double", "bad.bin", "-o", "out", "-f"),
        3,
        ("bad.bin", "npy", "suffix"),
    ),
)


def _arrow_of_1000() -> bytes:
    return arrow(pa.table({"x": np.zeros(1000)}))


def _arrow_claiming(claimed: int) -> bytes:
    """Return a file of 1000 doubles whose record batch claims another number."""
    content = _arrow_of_1000()
    old, new = (1000).to_bytes(8, "little"), claimed.to_bytes(8, "little", signed=True)
    assert old in content
    return content.replace(old, new)


ARROW = (
    *(_bad_arrow(56, f"{n} rows", lambda n=n: _arrow_claiming(n)) for n in (1001, 10**9, -1, 2**62)),
    _bad_arrow(57, "text", lambda: arrow(pa.table({"x": ["a", "b", "c"]})), "'x'", "string"),
    _bad_arrow(58, "a stream", lambda: arrow(pa.table({"x": THREE}), pa.ipc.new_stream)),
    _bad_arrow(58, "feather version 1", b"FEA1" + bytes(60) + b"FEA1"),
    _bad_arrow(58, "cut", lambda: _arrow_of_1000()[:-1]),
    _bad_arrow(58, "empty", b"", "empty"),
    _bad_arrow(58, "magic only", b"ARROW1\0\0"),
    _bad_arrow(58, "nulls", lambda: arrow(pa.table({"x": [1.0, None, 3.0]})), "1 null", "'x'"),
)

WORDS = (
    _bad_words(59, "folder", "--op sum . -o out -f", "directory", status=3),
    _bad_words(59, "folder among ranks", "--op sum good.npy /tmp/ -o out -f", "/tmp/", "directory", status=3),
    _bad_words(60, "s3", "--op sum s3://bucket/x.parquet -o out -f", "s3://bucket/x.parquet", status=4),
    _bad_words(60, "file", "--op sum file:good.parquet -o out -f", "file:good.parquet", status=4),
    _bad_words(60, "star", "--op sum *.parquet -o out -f", "*.parquet", status=4),
    _bad_words(63, "no inputs", "--op sum -o out -f", "ranks"),
    _bad_words(64, "unknown op", "--op summ good.npy -o out -f", "summ", "sum"),
    _bad_words(64, "empty op", "--op= good.npy -o out -f", "op"),
    _bad_words(64, "no op", "good.npy -o out -f", "--op"),
    _bad_words(64, "bits of doubles", "--op band good.npy -o out -f", "MPI_BAND", "MPI_DOUBLE", status=3),
    _bad_words(64, "pairs of doubles", "--op minloc good.npy -o out -f", "MPI_MINLOC", "MPI_DOUBLE", status=3),
    _bad_words(64, "accumulate only", "--op replace good.npy -o out -f", "MPI_REPLACE", "accumulate", status=3),
    Case(
        65,
        "minloc of int",
        {"bad.bin": bytes(8)},
        ("--op", "minloc", "--type", "int", "bad.bin", "-o", "out", "-f"),
        3,
        ("MPI_MINLOC", "MPI_INT"),
    ),
    Case(
        68,
        "shape",
        {"bad.npy": npy_of(THREE.reshape(3, 1))},
        ("--op", "sum", "good.npy", "bad.npy", "-o", "out", "-f"),
        3,
        ("good.npy", "bad.npy", "(3, 1)", "(3,)"),
    ),
    Case(
        68,
        "count",
        {"bad.npy": npy_of(np.zeros(4))},
        ("--op", "sum", "good.npy", "bad.npy", "-o", "out", "-f"),
        3,
        ("good.npy", "bad.npy", "count 4", "3"),
    ),
    Case(
        68,
        "datatype",
        {"bad.npy": npy_of(THREE.astype("f4"))},
        ("--op", "sum", "good.npy", "bad.npy", "-o", "out", "-f"),
        3,
        ("good.npy", "bad.npy", "MPI_FLOAT", "MPI_DOUBLE"),
    ),
    Case(
        68,
        "several bad ranks",
        {"a.npy": npy_of(np.zeros(4)), "b.npy": b"", "c.npy": npy_of(THREE.astype("f4"))},
        ("--op", "sum", "good.npy", "a.npy", "b.npy", "good.npy", "c.npy", "missing.npy", "-o", "out", "-f"),
        3,
        ("4 of 6 ranks", "a.npy", "b.npy", "c.npy", "missing.npy"),
    ),
    _bad_words(69, "not forced", "--op sum good.npy good.npy -o good.npy", "good.npy", "--in-place"),
    _bad_words(70, "two standard inputs", "--op sum --type double - - -o out -f", "-", "standard input"),
    _bad_words(71, "as many as ranks", "--op sum good.npy good.npy --root 2 -o out -f", "root 2"),
    _bad_words(71, "negative", "--op sum good.npy good.npy --root -1 -o out -f", "root -1"),
    _bad_words(71, "no number", "--op sum good.npy --root x -o out -f", "--root"),
    _bad_words(71, "huge", "--op sum good.npy --root 99999999999999999999 -o out -f", "root"),
    _bad_words(71, "negative jobs", "--op sum good.npy -j -1 -o out -f", "--jobs"),
    _bad_words(71, "little memory", "--op sum good.npy --max-memory 1M -o out -f", "--max-memory"),
    _bad_words(71, "no memory", "--op sum good.npy --max-memory lots -o out -f", "--max-memory", "lots"),
    _bad_words(71, "unknown format", "--op sum good.npy --to excel -o out -f", "--to", "excel"),
    _bad_words(71, "unknown option", "--op sum good.npy --outptu out", "--outptu"),
    _bad_words(75, "no such folder", "--op sum good.npy -o missing/out -f", "missing", "No such file", status=4),
    _bad_words(75, "a folder", "--op sum good.npy -o . -f", ".: ", "directory", status=4),
    _bad_words(75, "below a file", "--op sum good.npy -o good.bin/out -f", "good.bin/out", status=4),
    _bad_words(75, "missing input", "--op sum missing.npy -o out -f", "missing.npy", "No such file", status=4),
    _bad_words(75, "exists", "--op sum good.npy -o out", "out", "--force"),
)

CASES = NPY + RAW + PARQUET + ARROW + WORDS


def place(folder: Path, files: Mapping[str, Content]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_refused(case: Case, folder: Path):
    place(folder, case.files)
    with unchanged(folder):
        refused(reduce(*case.words, cwd=folder), case.status, *case.reasons)


@pytest.mark.parametrize("case", [*NPY[::20], *RAW[::8], *PARQUET[::8], *ARROW[::4], *WORDS[::8]], ids=str)
def test_refused_by_the_installed_command(case: Case, folder: Path):
    place(folder, case.files)
    with unchanged(folder):
        refused(installed("reduce", *case.words, cwd=folder), case.status, *case.reasons)


def test_every_row_is_covered():
    listed = re.findall(r"^\| (\d+) \|", Path(__file__).with_name("bad_inputs.md").read_text(), re.MULTILINE)
    assert [int(row) for row in listed] == list(range(1, len(listed) + 1))
    assert {case.row for case in CASES} | _ACCEPTED == set(range(1, len(listed) + 1))


# npy: what is accepted, and what changes under our hands


@covers(8, 35)
@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("no newline at the end", header().ljust(118).encode()),
        ("no padding", header().encode() + b"\n"),
        ("double quotes", header('"<f8"').replace("'", '"').encode() + b"\n"),
        ("Python 2 integers", header(shape="(3L,)").encode() + b"\n"),
        ("keys in another order", b"{'shape': (3,), 'fortran_order': False, 'descr': '<f8'}\n"),
        ("10001 bytes", header().ljust(10000).encode() + b"\n"),
        ("65535 bytes", header().ljust(65534).encode() + b"\n"),
    ],
)
def test_npy_header_accepted(label, text, folder):
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + DATA
    (folder / "odd.npy").write_bytes(content)
    succeeded(reduce("--op", "sum", "good.npy", "odd.npy", "-o", "sum.npy", cwd=folder))
    np.testing.assert_array_equal(np.load(folder / "sum.npy"), [2.0, 4.0, 6.0])


@covers(11)
def test_claimed_size_takes_no_memory(folder):
    (folder / "bad.npy").write_bytes(npy(header(shape="(65536, 65536)"), DATA[:8]))
    status, peak, err = measured("reduce", "--op", "sum", "bad.npy", cwd=folder)
    assert (status, err.count("\n")) == (3, 1)
    assert peak < 100 << 20


@covers(15, 66)
@pytest.mark.parametrize("shape", ["(0,)", "(0, 9223372036854775807)", "(3, 0, 2)"])
def test_npy_without_elements(shape, folder):
    (folder / "none.npy").write_bytes(npy(header(shape=shape)))
    succeeded(reduce("--op", "sum", "none.npy", "none.npy", "-o", "sum.npy", cwd=folder))
    result = (folder / "sum.npy").read_bytes()
    assert len(result) == 128 if len(shape) < 20 else 192
    assert f"'shape': {shape}".encode() in result


@covers(24)
@pytest.mark.parametrize("code", ["<f16", ">f16", "<c32"])
def test_npy_of_long_double(code, folder):
    np.save(folder / "a.npy", np.array([1, 2, 3], code))
    succeeded(reduce("--op", "sum", "a.npy", "a.npy", "-o", "sum.npy", cwd=folder))
    result = np.load(folder / "sum.npy")
    assert result.dtype.str == code
    np.testing.assert_array_equal(result, np.array([2, 4, 6], code))


@covers(25)
def test_npy_of_the_other_byte_order(folder):
    np.save(folder / "big.npy", THREE.astype(">f8"))
    succeeded(reduce("--op", "sum", "big.npy", "good.npy", "-o", "sum.npy", cwd=folder))
    assert (folder / "sum.npy").read_bytes()[-24:] == np.array([2, 4, 6], ">f8").tobytes()
    assert np.load(folder / "sum.npy").dtype.str == ">f8"


@covers(26)
def test_npy_of_pairs(folder):
    np.save(folder / "a.npy", np.array([(1, 5), (2, 4)], "f4,f4"))
    np.save(folder / "b.npy", np.array([(2, 3), (1, 2)], "f4,f4"))
    succeeded(reduce("--op", "maxloc", "a.npy", "b.npy", "-o", "max.npy", cwd=folder))
    assert np.load(folder / "max.npy").tolist() == [(2, 3), (2, 4)]


@covers(34)
def test_npy_version_3_with_a_name_in_utf8(folder):
    content = npy(header("[('größe', '<f8'), ('rang', '<i4')]", shape="(1,)").encode(), bytes(12), b"\x03\x00")
    (folder / "a.npy").write_bytes(content)
    succeeded(reduce("--op", "minloc", "a.npy", "a.npy", "-o", "min.npy", cwd=folder))
    assert np.load(folder / "min.npy").dtype.names == ("größe", "rang")


@covers(37)
def test_npy_without_dimensions(folder):
    np.save(folder / "a.npy", np.array(4))
    succeeded(reduce("--op", "prod", "a.npy", "a.npy", "-o", "prod.npy", cwd=folder))
    result = np.load(folder / "prod.npy")
    assert (result.shape, result.item()) == ((), 16)


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


def _touch(path: Path) -> None:
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(0, 1))


_CHANGES = {
    "replaced": _replace,
    "cut": lambda path: os.truncate(path, 100),
    "appended to": lambda path: os.truncate(path, 1000),
    "written anew": _touch,
    "removed": os.unlink,
}


@covers(38)
@pytest.mark.parametrize("change", _CHANGES)
def test_file_that_changes_between_check_and_read(change, folder):
    """The second rank is a FIFO: when it is opened, the first has been checked, and nothing has been read of it."""
    os.mkfifo(folder / "slow.npy")
    child = Child("reduce", "-q", "--op", "sum", "good.npy", "slow.npy", "-o", "out", "-f", cwd=folder)
    with open_fifo(folder / "slow.npy") as fifo:
        _CHANGES[change](folder / "good.npy")
        with_change = snapshot(folder)
        fifo.write(npy_of(THREE))
    outcome = child.finish()
    if change == "removed":
        refused(outcome, 4, "good.npy", "No such file")
    else:
        refused(outcome, 3, "good.npy", "changed while being read")
    assert snapshot(folder) == with_change


def at_reads(change: Callable[[], object], times: int | None = None) -> Callable[[], None]:
    """Return a setup that lets a change happen before each read of elements, or before the first few."""

    def setup() -> None:
        original, left = os.preadv, itertools.count() if times is None else iter(range(times))

        def preadv(*arguments: object) -> int:
            if next(left, None) is not None:
                change()
            return original(*arguments)

        os.preadv = preadv

    return setup


@covers(38)
@pytest.mark.parametrize("name", ["good.npy", "good.bin"])
@pytest.mark.parametrize("change", ["replaced", "cut", "appended to"])
def test_file_that_changes_while_it_is_read(name, change, folder):
    """Whoever changes it goes on with that, so that it is read in vain a few times."""
    words = ("--op", "sum", "--type", "double", name, name, "-o", "out", "-f")
    outcome = reduce(*words, cwd=folder, setup=at_reads(lambda: _CHANGES[change](Path(name))))
    refused(outcome, 3, name, *(["changed while being read"] if change == "replaced" else []))
    assert (folder / "out").read_bytes() == b"the old result"


@covers(38)
@pytest.mark.parametrize("times", [1, 2])
def test_file_that_is_replaced_while_it_is_read_is_read_again(times, folder):
    """A writer that comes in between, as `accumulate` does, is no reason to fail."""
    new = npy_of(np.asarray(THREE) * 5)

    def change() -> None:
        Path("other").write_bytes(new)
        os.replace("other", "good.npy")

    outcome = reduce("--op", "sum", "good.npy", "good.npy", "--to", "npy", cwd=folder, setup=at_reads(change, times))
    assert outcome == (0, npy_of(np.asarray(THREE) * 10), "")


def test_a_change_within_the_second_of_a_coarse_file_time_is_noticed(folder):
    """A file system with times of one second: two changes within it look alike, so that the reader waits before."""
    path = folder / "good.npy"

    def write(factor: int) -> None:
        with path.open("r+b") as file:
            file.seek(-len(DATA), 2)
            file.write((THREE * factor).tobytes())
        os.utime(path, (int(time.time()),) * 2)

    def setup() -> None:
        original, reads = os.preadv, itertools.count()

        def preadv(*arguments: object) -> int:
            if arguments[2] == 128 and next(reads) == 1:  # behind the header: between the first rank and the second
                write(100)
            return original(*arguments)

        os.preadv = preadv

    time.sleep(1 - time.time() % 1)  # so that both changes would be in one second
    write(10)
    outcome = reduce("--op", "sum", "good.npy", "good.npy", "--to", "npy", cwd=folder, setup=setup)
    assert outcome == (0, npy_of(THREE * 200), "")


@pytest.mark.parametrize("name", ["good.npy", "good.bin"])
def test_reads_that_give_less_than_asked_for_are_repeated(name, folder):
    def setup() -> None:
        pread, preadv = os.pread, os.preadv
        os.pread = lambda fd, nbytes, offset: pread(fd, min(nbytes, 5), offset)
        os.preadv = lambda fd, buffers, offset: preadv(fd, [memoryview(buffers[0]).cast("B")[:5]], offset)

    outcome = reduce("--op", "sum", "--type", "double", name, name, "--to", "raw", cwd=folder, setup=setup)
    assert outcome == (0, (THREE * 2).tobytes(), "")
    with open(folder / name, "rb") as stdin:
        outcome = reduce("--op", "sum", "--type", "double", "-", name, "--to", "raw", cwd=folder, setup=setup,
                         stdin=stdin.fileno())  # fmt: skip
    assert outcome == (0, (THREE * 2).tobytes(), "")


@pytest.mark.parametrize("number", [errno.EIO, errno.EINTR, errno.EAGAIN])
def test_a_close_that_fails_after_all_was_read_is_no_failure(number, folder):
    def setup() -> None:
        close = os.close

        def failing(fd: int) -> None:
            only_read = not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
            close(fd)
            if only_read:
                raise OSError(number, os.strerror(number))

        os.close = failing

    for name in "good.npy", "good.bin":
        outcome = reduce("--op", "sum", "--type", "double", name, "--to", "raw", cwd=folder, setup=setup)
        assert outcome == (0, DATA, "")


def test_times_in_the_future_are_not_waited_for(folder, monkeypatch):
    os.utime(folder / "good.npy", (2**33, 2**33))
    monkeypatch.setattr(mpired.buffers.source.time, "sleep", None)
    assert mpired.info(folder / "good.npy").buffers[0].count == 3


# raw


@covers(43, 66)
def test_raw_without_elements(folder):
    (folder / "none.bin").touch()
    words = ("--op", "sum", "--type", "double", "none.bin", "none.bin")
    succeeded(reduce(*words, "-o", "sum.bin", cwd=folder))
    assert (folder / "sum.bin").read_bytes() == b""
    succeeded(reduce(*words, "-o", "sum.npy", cwd=folder))
    assert np.load(folder / "sum.npy").shape == (0,)
    assert reduce(*words, cwd=folder) == (0, b"", "")


@covers(44)
def test_part_of_an_endless_device(folder):
    words = ("--op", "sum", "--type", "double", "--count", "3", "/dev/zero", "good.bin")
    assert reduce(*words, cwd=folder) == (0, DATA, "")


@covers(44)
def test_part_of_an_endless_fifo(folder):
    os.mkfifo(folder / "fifo")
    child = Child("reduce", "-q", "--op", "sum", "--type", "double", "--count", "3", "fifo", "good.bin", cwd=folder)
    with open_fifo(folder / "fifo") as fifo:
        fifo.write(DATA + b"more")
        fifo.flush()
        assert child.finish() == (0, (2 * THREE).tobytes(), "")


@covers(44)
def test_fifo_and_pipe_to_their_end(folder):
    os.mkfifo(folder / "fifo")
    read, write = os.pipe()
    child = Child("reduce", "-q", "--op", "sum", "--type", "double", "fifo", "-", "good.bin", cwd=folder, stdin=read)
    os.close(read)
    with open_fifo(folder / "fifo") as fifo:
        fifo.write(DATA)
    with open(write, "wb") as pipe:
        pipe.write(DATA)
    assert child.finish() == (0, (3 * THREE).tobytes(), "")


@covers(44)
def test_terminal_as_input(folder):
    master, slave = pty.openpty()
    with unchanged(folder):
        words = ("--op", "sum", "--type", "double", os.ttyname(slave), "-o", "out", "-f")
        refused(reduce(*words, cwd=folder), 2, "/dev/pts/", "--count")
        refused(reduce(*words[:-4], "-", "-o", "out", "-f", cwd=folder, stdin=slave), 2, "standard input", "--count")
    os.close(master)
    os.close(slave)


@covers(44)
def test_socket_as_input(folder):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        with unchanged(folder):
            words = ("--op", "sum", "--type", "double", "socket", "-o", "out", "-f")
            refused(reduce(*words, cwd=folder), 4, "socket")


# parquet


@covers(46)
def test_parquet_cut_anywhere(tmp_path):
    whole = parquet({"x": THREE}, compression="none", write_statistics=False)
    path = tmp_path / "cut.parquet"
    for nbytes in range(len(whole)):
        path.write_bytes(whole[:nbytes])
        with pytest.raises(MpiredError) as caught:
            mpired.info(path)
        assert caught.value.exit_status == 3
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    path.write_bytes(whole)
    assert mpired.info(path).buffers[0].count == 3


@covers(47)
def test_many_rows_in_few_bytes(tmp_path):
    """Twenty million equal rows in some kilobytes: read as a stream, whatever the footer says of bytes."""
    ones = np.ones(1_000_000, "u1")
    with pq.ParquetWriter(tmp_path / "bomb.parquet", pa.schema({"x": pa.uint8()})) as writer:
        for _ in range(20):
            writer.write_table(pa.table({"x": ones}))
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    words = ("reduce", "-q", "--op", "sum", "bomb.parquet", "bomb.parquet", "--to", "raw", "-o", "sum.bin")
    status, peak, err = measured(*words, "-j", "1", cwd=tmp_path)
    assert (status, err) == (0, "")
    assert np.array_equal(np.fromfile(tmp_path / "sum.bin", "u1"), np.full(20_000_000, 2, "u1"))
    assert peak < 250 << 20


@covers(48)
def test_more_rows_claimed_than_there_are(folder):
    (folder / "bad.parquet").write_bytes(_claiming_rows(20_000))
    with unchanged(folder):
        words = ("--op", "sum", "bad.parquet", "bad.parquet", "-o", "out", "-f")
        refused(reduce(*words, cwd=folder), 3, "bad.parquet")


@covers(49)
def test_page_checksum_of_a_whole_file(folder):
    content = parquet({"x": THREE}, write_page_checksum=True)
    (folder / "checked.parquet").write_bytes(content)
    succeeded(reduce("--op", "sum", "checked.parquet", "good.parquet", "-o", "sum.parquet", cwd=folder))
    assert pq.read_table(folder / "sum.parquet")["x"].to_pylist() == [2.0, 4.0, 6.0]


@covers(53)
@pytest.mark.parametrize(
    ("values", "dtype", "op", "expected"),
    [
        ([2**63, 2**64 - 1, 1], "u8", "max", [2**63, 2**64 - 1, 1]),
        ([2**63, 2**64 - 1, 1], "u8", "sum", [0, 2**64 - 2, 2]),
        ([2**53 + 1, -(2**63), 7], "i8", "max", [2**53 + 1, -(2**63), 7]),
        ([200, 255, 0], "u1", "sum", [144, 254, 0]),
        ([65504, 6e-8, -0.0], "f2", "sum", [np.inf, 1.1920929e-07, -0.0]),
        ([True, False, True], "?", "lxor", [False, False, False]),
        ([True, False, True], "?", "lor", [True, False, True]),
    ],
)
def test_parquet_columns_exactly(values, dtype, op, expected, folder):
    (folder / "a.parquet").write_bytes(parquet({"x": np.array(values, dtype)}))
    words = ("--op", op, "a.parquet", "a.parquet", "-o", "result.parquet")
    succeeded(reduce(*words, "--overflow", "wrap", cwd=folder))
    column = pq.read_table(folder / "result.parquet")["x"]
    assert column.type == pa.from_numpy_dtype(np.dtype(dtype))
    assert column.to_numpy().tobytes() == np.array(expected, dtype).tobytes()


@covers(51)
def test_result_of_many_columns_as_one_array(folder):
    (folder / "two.parquet").write_bytes(parquet({"x": THREE, "y": THREE}))
    with unchanged(folder):
        refused(reduce("--op", "sum", "two.parquet", "--to", "npy", cwd=folder), 2, "x", "y", "--columns")


@covers(60)
def test_names_that_look_like_more_than_names(folder):
    for name in ("*.npy", "file:a.npy", "a b.npy", "@a.npy", "~.npy", "$HOME.npy"):
        (folder / name).write_bytes(npy_of(THREE))
        assert reduce("--op", "sum", name, "--to", "raw", cwd=folder) == (0, DATA, "")


# options and arguments


@covers(63)
@pytest.mark.parametrize("name", ["good.npy", "good.bin"])
def test_one_input_is_its_copy(name, folder):
    words = ("--op", "sum") if name == "good.npy" else ("--op", "sum", "--type", "double")
    assert reduce(*words, name, "--to", "raw", cwd=folder) == (0, DATA, "")


@covers(63, 67)
def test_ten_thousand_inputs_with_few_descriptors(folder):
    def few_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    words = ("--op", "sum", *["good.npy"] * 10_000, "--to", "raw")
    assert reduce(*words, cwd=folder, setup=few_descriptors) == (0, (10_000 * THREE).tobytes(), "")


@covers(67)
def test_a_file_twice_is_two_ranks(folder):
    assert reduce("--op", "sum", "good.npy", "good.npy", "--to", "raw", cwd=folder) == (0, (2 * THREE).tobytes(), "")


def _same(folder: Path) -> str:
    return "good.npy"


def _hard_link(folder: Path) -> str:
    os.link(folder / "good.npy", folder / "hard.npy")
    return "hard.npy"


def _symbolic_link(folder: Path) -> str:
    os.symlink("good.npy", folder / "soft.npy")
    return "soft.npy"


@covers(68, 69)
@pytest.mark.parametrize("way", [_same, _hard_link, _symbolic_link])
@pytest.mark.parametrize("which", ["input", "output"])
def test_output_that_is_an_input(way, which, folder):
    other = way(folder)
    source, target = (other, "good.npy") if which == "input" else ("good.npy", other)
    with unchanged(folder):
        refused(reduce("--op", "sum", source, "-o", target, "-f", cwd=folder), 2, target, "is the file of rank 0")
    succeeded(reduce("--op", "sum", source, "good.npy", "--in-place", cwd=folder))
    np.testing.assert_array_equal(np.load(folder / source), 2 * THREE)
    assert (folder / "soft.npy").is_symlink() or way is not _symbolic_link


@covers(68)
@pytest.mark.parametrize("way", ["{}", "./{}", "link"])
@pytest.mark.parametrize(
    ("words", "name", "what"),
    [
        ("reduce --op sum --types t.toml --type thing r.bin r.bin -o", "t.toml", "the named datatypes"),
        ("reduce --op op.py:add good.npy good.npy --to raw -o", "op.py", "the op"),
        ("reduce --op ./op.so:cos good.npy good.npy --to raw -o", "op.so", "the op"),
        ("reduce --op ./op.so:cos:count good.npy good.npy --to raw -o", "op.so", "the op"),
        ("pack --types t.toml --type thing r.bin --to raw -o", "t.toml", "the named datatypes"),
        ("unpack --types t.toml --type thing r.bin -o", "t.toml", "the named datatypes"),
        ("unpack --types t.toml --type thing r.bin --into", "t.toml", "the named datatypes"),
        ("get-accumulate --op sum --map m.npy good.npy m.npy --fetch", "m.npy", "the origin"),
        ("get-accumulate --op no_op --map m.npy good.npy --fetch", "m.npy", "the map"),
        ("get-accumulate --op sum --types t.toml --type thing r.bin s.bin --fetch", "t.toml", "the named datatypes"),
    ],
)
def test_output_that_is_another_file_of_the_command(words, name, what, way, folder):
    (folder / "t.toml").write_text("thing = 'double'\n")
    (folder / "op.py").write_text("import numpy as np\n\n\ndef add(a, b):\n    return a + b\n")
    shutil.copy(
        next(line.split()[-1] for line in calls.lines("/proc/self/maps") if "/libm.so" in line), folder / "op.so"
    )
    np.save(folder / "m.npy", np.arange(3))
    for rank in ("r.bin", "s.bin"):
        (folder / rank).write_bytes(DATA)
    os.symlink(name, folder / "link")
    target = way.format(name)
    force = () if "--into" in words else ("-f",)
    with unchanged(folder):
        outcome = run(*words.split(), target, *force, cwd=folder)
        refused(outcome, 2, f"{target}: is the file of {what}, an input of this command; name another")


@covers(68)
def test_outputs_of_which_one_is_the_file_of_the_op(folder):
    (folder / "op1.py").write_text("def add(a, b):\n    return a + b\n")
    words = ("scan", "--op", "op1.py:add", "good.npy", "good.npy", "--to", "raw", "-f", "-o", "op{rank}.py")
    with unchanged(folder):
        refused(run(*words, cwd=folder), 2, "op1.py: is the file of the op, an input of this command")


@covers(68)
def test_input_by_its_descriptor(folder):
    def open_it() -> None:
        assert os.open("good.npy", os.O_RDONLY) == 3

    words = ("--op", "sum", "/proc/self/fd/3", "/dev/fd/3", "-f", "-o")
    with unchanged(folder):
        refused(reduce(*words, "good.npy", cwd=folder, setup=open_it), 2, "good.npy", "is the file of rank 1")
    succeeded(reduce(*words, "new.npy", cwd=folder, setup=open_it))
    np.testing.assert_array_equal(np.load(folder / "new.npy"), 2 * THREE)


@covers(72)
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("-dash.npy", "-dash.npy"),
        ("new\nline.npy", r"new\nline.npy"),
        ("\x1b[31mred.npy", r"\x1b[31mred.npy"),
        ("tab\tand\rreturn.npy", r"tab\tand\rreturn.npy"),
        ("no\udcffutf8.npy", "no"),
        ("right-to-left\u202e.npy", r"\u202e"),
        ("naïve 漢字.npy", "naïve 漢字.npy"),
        ("x" * 251 + ".npy", "x" * 251 + ".npy"),
    ],
)
def test_odd_names(name, shown, folder):
    with unchanged(folder):
        refused(reduce("--op", "sum", "-o", "out", "-f", "--", name, cwd=folder), 4, shown, "No such file")
    succeeded(reduce("--op", "sum", f"--output={name}", "-f", "--", "good.npy", "good.npy", cwd=folder))
    np.testing.assert_array_equal(np.load(folder / name), 2 * THREE)
    names = [name, "good.npy", "good.arrow", "good.bin", "good.parquet", "out"]
    assert sorted(os.listdir(folder)) == sorted(names)
    with unchanged(folder):
        refused(reduce("--op", "sum", f"--output={name}", "--", "good.npy", cwd=folder), 2, shown, "--force")
        refused(reduce("--op", "sum", f"--output={name}", "-f", "--", name, cwd=folder), 2, shown, "--in-place")
        refused(reduce("--op", "band", "-o", "out", "-f", "--", name, cwd=folder), 3, "MPI_BAND")
    outcome = run("reduce", "--op", "sum", "--root", "0", "--in-place", "--", name, cwd=folder)
    assert (outcome.status, outcome.err.count("\n")) == (0, 1)
    assert shown in outcome.err
    outcome = run("info", "--", name, cwd=folder)
    assert outcome.status == 0
    assert shown.encode() in outcome.out
    assert outcome.out.count(b"\n") == 2


@covers(72)
@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (("good.npy/", "-o", "out", "-f"), 4, "good.npy/"),
        (("good.npy", "-o", "good.bin/", "-f"), 4, "good.bin/"),
        (("good.npy", "-o", "missing/", "-f"), 4, "missing/"),
        (("", "-o", "out", "-f"), 4, "''"),
        (("good.npy", "-o", "", "-f"), 4, "''"),
        (("x" * 256, "-o", "out", "-f"), 4, "too long"),
        (("good.npy", "-o", "x" * 256, "-f"), 4, "too long"),
    ],
)
def test_impossible_names(words, status, reason, folder):
    with unchanged(folder):
        refused(reduce("--op", "sum", *words, cwd=folder), status, reason)


@covers(73)
@pytest.mark.parametrize("to", [(), ("--to", "raw"), ("--to", "npy")])
def test_terminal_never_gets_binary(to, folder):
    master, slave = pty.openpty()
    child = Child("reduce", "-q", "--op", "sum", "good.npy", "good.npy", *to, cwd=folder, stdout=slave)
    outcome = child.finish()
    shown = os.read(master, 10_000).decode()
    os.close(master)
    os.close(slave)
    assert (outcome.status, outcome.err) == (0, "")
    assert shown.split() == ["element", "value", "0", "2.0", "1", "4.0", "2", "6.0"]


@covers(74)
@pytest.mark.parametrize(
    ("a", "b", "op", "expected"),
    [
        (np.array([2**31 - 1], "i4"), np.array([1], "i4"), "sum", np.array([-(2**31)], "i4")),
        (np.array([-128], "i1"), np.array([-1], "i1"), "prod", np.array([-128], "i1")),
        (np.array([2**63 - 1], "i8"), np.array([2**63 - 1], "i8"), "prod", np.array([1], "i8")),
        (np.array([np.inf, 0.0]), np.array([-np.inf, np.inf]), "sum", np.array([np.nan, np.inf])),
        (np.array([np.inf, 1e308]), np.array([0.0, 1e308]), "prod", np.array([np.nan, np.inf])),
        (np.array([np.nan, 1.0]), np.array([1.0, np.nan]), "max", np.array([np.nan, np.nan])),
        (np.array([np.nan, 1.0]), np.array([1.0, np.nan]), "min", np.array([np.nan, np.nan])),
        (np.array([5e-324]), np.array([5e-324]), "prod", np.array([0.0])),
        (np.array([65504], "f2"), np.array([65504], "f2"), "sum", np.array([np.inf], "f2")),
    ],
)
def test_arithmetic_that_overflows_says_nothing(a, b, op, expected, folder):
    np.save(folder / "a.npy", a)
    np.save(folder / "b.npy", b)
    succeeded(reduce("--op", op, "--overflow", "wrap", "a.npy", "b.npy", "-o", "result.npy", cwd=folder))
    result = np.load(folder / "result.npy")
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


# file system and resources


@covers(75)
def test_outputs_that_are_no_files(folder):
    os.symlink("nowhere.npy", folder / "dangling")
    os.symlink("loop", folder / "loop")
    with unchanged(folder):
        refused(reduce("--op", "sum", "good.npy", "-o", "loop", "-f", cwd=folder), 4, "loop", "symbolic links")
        refused(reduce("--op", "sum", "loop", "-o", "out", "-f", cwd=folder), 4, "loop", "symbolic links")
        assert reduce("--op", "sum", "good.npy", "-o", "/dev/null", cwd=folder) == (0, b"", "")
    succeeded(reduce("--op", "sum", "good.npy", "-o", "dangling", cwd=folder))
    assert (folder / "dangling").is_symlink()
    np.testing.assert_array_equal(np.load(folder / "nowhere.npy"), THREE)


@covers(75)
def test_output_to_a_socket(folder):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        with unchanged(folder):
            refused(reduce("--op", "sum", "good.npy", "-o", "socket", "-f", cwd=folder), 4, "socket")


@covers(75)
def test_output_to_a_fifo(folder):
    os.mkfifo(folder / "fifo")
    with open(os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK), "rb") as fifo:
        succeeded(reduce("--op", "sum", "good.npy", "--to", "raw", "-o", "fifo", cwd=folder))
        assert fifo.read() == DATA
    assert stat.S_ISFIFO((folder / "fifo").stat().st_mode)


@covers(76)
def test_input_without_permission(as_root, open_folder):
    (furnish(open_folder) / "good.npy").chmod(0)
    open_folder.chmod(0o777)
    with unchanged(open_folder):
        words = ("--op", "sum", "good.npy", "-o", "new", "-f")
        outcome = reduce(*words, cwd=open_folder, setup=become_nobody)
        refused(outcome, 4, "good.npy", "Permission denied")


@covers(76)
def test_output_without_permission_is_replaced_where_the_folder_allows(as_root, open_folder):
    """As with any program that writes beside and renames: the folder decides."""
    (furnish(open_folder) / "out").chmod(0o444)
    open_folder.chmod(0o777)
    words = ("--op", "sum", "good.npy", "--to", "raw", "-o", "out", "-f")
    succeeded(reduce(*words, cwd=open_folder, setup=become_nobody))
    assert (open_folder / "out").read_bytes() == DATA
    status = (open_folder / "out").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o444, 65534)


@covers(76)
def test_sticky_folder(as_root, open_folder):
    """In a folder like /tmp nobody replaces the file of somebody else."""
    furnish(open_folder).chmod(0o1777)
    with unchanged(open_folder):
        words = ("--op", "sum", "good.npy", "-o", "out", "-f")
        refused(reduce(*words, cwd=open_folder, setup=become_nobody), 4, "out", "not permitted")


@covers(76)
def test_read_only_file_system(mounted):
    where = mounted("size=1m")
    furnish(where)
    subprocess.run(["mount", "-o", "remount,ro", where], check=True)
    with unchanged(where):
        refused(reduce("--op", "sum", "good.npy", "-o", "new", cwd=where), 4, "new", "Read-only")
        refused(reduce("--op", "sum", "good.npy", "good.npy", "--in-place", cwd=where), 4, "good.npy", "Read-only")


@covers(77)
@pytest.mark.parametrize("words", [("-o", "new"), ("-o", "out", "-f"), ("--in-place",)])
def test_folder_that_cannot_be_written_to(words, as_root, open_folder):
    furnish(open_folder)
    with unchanged(open_folder):
        outcome = reduce("--op", "sum", "good.npy", "good.npy", *words, cwd=open_folder, setup=become_nobody)
        refused(outcome, 4, "Permission denied", "good.npy" if words == ("--in-place",) else words[1])


@covers(78)
@pytest.mark.parametrize("count", [8_000, 100_000], ids=["the result", "the intermediate result"])
@pytest.mark.parametrize("to", ["npy", "parquet", "arrow", "csv"])
def test_file_size_limit(to, count, folder):
    """64000 bytes of elements still fit, but not with what each format adds."""
    np.save(folder / "large.npy", np.random.default_rng(1).random(count) + 1e-300)

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64_000, 64_000))

    with unchanged(folder):
        words = ("--op", "sum", "large.npy", "large.npy", "--to", to, "-o", "out", "-f")
        outcome = reduce(*words, cwd=folder, setup=small_files)
        refused(outcome, 4, "File too large")
        assert outcome.err.startswith(("mpired: out: ", f"mpired: {folder}: "))


@covers(78)
@pytest.mark.parametrize("count", [131_000, 300_000], ids=["the result", "the intermediate result"])
@pytest.mark.parametrize("to", ["npy", "parquet", "arrow", "json"])
def test_full_disk(to, count, mounted, folder):
    where = mounted("size=1m")
    np.save(folder / "large.npy", np.random.default_rng(1).random(count))
    (where / "out").write_bytes(b"the old result")
    with unchanged(where):
        words = ("--op", "sum", str(folder / "large.npy"), "--to", to, "-o", "out", "-f")
        outcome = reduce(*words, cwd=where)
        refused(outcome, 4, "No space left")
        assert outcome.err.startswith(("mpired: out: ", f"mpired: {where}: "))


@covers(79)
def test_too_few_descriptors(folder):
    def almost_none() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))

    with unchanged(folder):
        words = ("--op", "sum", "good.npy", "good.npy", "-o", "out", "-f")
        refused(reduce(*words, cwd=folder, setup=almost_none), 4, "Too many open files")


@covers(79)
@pytest.mark.parametrize("to", ["npy", "parquet"])
def test_too_little_memory(to, folder):
    np.save(folder / "large.npy", np.zeros(100_000))
    taken = []

    def take_all_memory() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for nbytes in (1 << 24, 1 << 20, 1 << 17):
            with contextlib.suppress(MemoryError):
                while True:
                    taken.append(np.empty(nbytes, np.uint8))

    with unchanged(folder):
        words = ("--op", "sum", "large.npy", "large.npy", "--to", to, "-o", "out", "-f")
        refused(reduce(*words, cwd=folder, setup=take_all_memory), 8, "memory")


@covers(79)
def test_no_more_processes(as_root, open_folder):
    furnish(open_folder).chmod(0o777)
    with open(open_folder / "large.bin", "wb") as file:
        file.truncate(64 << 20)

    def become_nobody_alone() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        become_nobody()

    with unchanged(open_folder):
        words = ("--op", "sum", "--type", "double", "large.bin", "large.bin", "-j", "2", "-o", "out", "-f")
        outcome = reduce(*words, cwd=open_folder, setup=become_nobody_alone)
        refused(outcome, 8, "worker", "temporarily unavailable")


@covers(79)
def test_no_more_threads(folder):
    with open(folder / "large.bin", "wb") as file:
        file.truncate(64 << 20)

    def no_threads() -> None:
        def start(_thread: threading.Thread) -> NoReturn:
            raise RuntimeError("can't start new thread")

        threading.Thread.start = start

    words = ("--op", "sum", "--type", "double", "large.bin", "large.bin", "-j", "2", "-o", "new.bin")
    succeeded(reduce(*words, cwd=folder, setup=no_threads))
    assert (folder / "new.bin").stat().st_size == 64 << 20


@pytest.fixture(scope="module")
def needed() -> int:
    """The megabytes of address space that NumPy takes when it is imported."""
    program = "import numpy; print(*(line.split()[1] for line in open('/proc/self/status') if 'VmPeak' in line))"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    return (int(done.stdout) >> 10) + 1


@covers(79)
@pytest.mark.parametrize("words", ["reduce --op sum good.npy good.npy -o new.npy", "info good.npy", "ops"])
@pytest.mark.parametrize("share", [0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.98])
def test_too_little_address_space_for_numpy(share, words, needed, folder):
    """Neither NumPy's text nor that of its libraries, of which some end the process themselves."""
    with unchanged(folder):
        outcome = shell(f'ulimit -v {int(needed * share * 1024)}; "$@"', *words.split(), cwd=folder)
        refused(outcome, 8, "memory")


@covers(79)
@pytest.mark.parametrize("more", range(8, 152, 12))
@pytest.mark.parametrize("suffix", ["bin", "parquet"])
def test_address_space_limit(suffix, more, needed, folder):
    """Whatever is the first that does not fit, a library, an array or a worker: an end, and one line."""
    with open(folder / "rank.bin", "wb") as file:
        file.truncate(64 << 20)
    pq.write_table(pa.table({"value": np.zeros(100_000)}), folder / "rank.parquet")
    typed = ("--type", "double") if suffix == "bin" else ()
    words = ("reduce", "-q", "--op", "sum", *typed, f"rank.{suffix}", f"rank.{suffix}", "-j", "2", "-o", "new.npy")
    outcome = shell(f'ulimit -v {needed + more << 10}; "$@"', *words, cwd=folder)
    if outcome.status:
        refused(outcome, outcome.status)
        assert outcome.status in {4, 8}
    assert (folder / "new.npy").exists() == (outcome.status == 0)


@covers(80)
@pytest.mark.parametrize("to", ["raw", "npy", "text", "csv", "json", "table"])
def test_full_standard_output(to, folder):
    with unchanged(folder), open("/dev/full", "wb") as full:
        words = ("--op", "sum", "good.npy", "good.npy", "--to", to)
        refused(reduce(*words, cwd=folder, stdout=full.fileno()), 4, "standard output", "No space left")


@covers(80)
@pytest.mark.parametrize("words", ["ops", "types", "info good.npy", "--help", "reduce --help", "--version"])
def test_full_standard_output_of_what_only_prints(words, folder):
    with open("/dev/full", "wb") as full:
        outcome = run(*words.split(), cwd=folder, stdout=full.fileno())
        refused(outcome, 4, "standard output", "No space left")


@covers(80)
@pytest.mark.parametrize("words", ["ops --json", "types", "reduce --help", "recover --list" + 200 * " good.npy"])
def test_standard_output_that_takes_a_part(words, mounted, folder):
    """Python writes each text once without a buffer, and takes what is left of it for written."""
    place = mounted("size=4k")
    whole = run(*words.split(), cwd=folder).out
    with open(place / "out", "wb") as file:
        settings = {"stdout": file, "stderr": subprocess.PIPE, "env": os.environ | {"PYTHONUNBUFFERED": "1"}}
        done = subprocess.run([COMMAND, *words.split()], cwd=folder, check=False, **settings)
    part = (place / "out").read_bytes()
    assert whole.startswith(part)
    if part == whole:
        assert (done.returncode, done.stderr) == (0, b"")
    else:
        assert (done.returncode, done.stderr) == (4, b"mpired: standard output: No space left on device\n")
    piped = installed(*words.split(), cwd=folder, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert piped == (0, whole, "")


@covers(79)
@pytest.mark.parametrize(("words", "status"), [
    ("libx.so.1: cannot open shared object file: Too many open files", 4),
    ("/lib/x.so: cannot read file data: Input/output error", 4),
    ("/lib/x.so: file too short\nand more", 4),
    ("/lib/x.so: undefined symbol: PyThing", 4),
    ("/lib/x.so: cannot allocate memory in static TLS block", 4),
    ("/lib/x.so: failed to map segment from shared object: Operation not permitted", 4),
    ("/lib/x.so: failed to map segment from shared object", 8),
    ("/lib/x.so: failed to map segment from shared object: Cannot allocate memory", 8),
    ("/lib/x.so: cannot map zero-fill pages: Cannot allocate memory", 8),
    ("/lib/x.so: cannot allocate memory for program header: Cannot allocate memory", 8),
    ("libx.so.1: cannot create shared object descriptor: Cannot allocate memory", 8),
    ("libx.so.1: cannot open shared object file: Cannot allocate memory", 8),
])  # fmt: skip
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_library_that_cannot_be_loaded(words, status, wrapped, folder):
    """Only what the loader says of memory is about memory."""

    def no_library() -> None:
        def load(*_: object) -> NoReturn:
            error = ImportError(words, path="/lib/x.so")
            if wrapped:  # as NumPy does
                raise ImportError("see the instructions\non the page") from error
            raise error

        mpired.storage.calls.check_address_space = load

    outcome = run("info", "good.npy", cwd=folder, setup=no_library)
    refused(outcome, status, "memory: there is not enough" if status == 8 else " ".join(words.split()))


@covers(80)
def test_closed_standard_output(folder):
    with unchanged(folder):
        refused(shell('"$@" >&-', "reduce", "-q", "--op", "sum", "good.npy", cwd=folder), 4, "standard output")
    outcome = shell('"$@" >&-', "reduce", "-q", "--op", "sum", "good.npy", "-o", "new.npy", cwd=folder)
    assert outcome == (0, b"", "")
    np.testing.assert_array_equal(np.load(folder / "new.npy"), THREE)


@covers(80)
def test_closed_standard_input(folder):
    assert shell('"$@" <&-', "reduce", "-q", "--op", "sum", "good.npy", "--to", "raw", cwd=folder) == (0, DATA, "")
    for words in ("info -", "reduce --op sum --type double - -o new", "accumulate --op sum good.npy -"):
        with unchanged(folder):
            refused(shell('"$@" <&-', *words.split(), cwd=folder), 4, "standard input: is closed")


@covers(80)
@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full", "0<&- 2>&-"])
def test_standard_error_that_takes_nothing(where, folder):
    """The summary cannot be written, but the result is in place, and that is what the status tells of."""
    outcome = shell(f'"$@" {where}', "reduce", "--op", "sum", "good.npy", "-o", "new.npy", cwd=folder)
    assert outcome == (0, b"", "")
    np.testing.assert_array_equal(np.load(folder / "new.npy"), THREE)
    with unchanged(folder):
        outcome = shell(f'"$@" {where}', "reduce", "--op", "sum", "bad.npy", "-o", "out", "-f", cwd=folder)
    assert outcome == (4, b"", "")


@covers(81)
@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o000, 0o666)])
def test_mode_of_a_new_file(umask, mode, folder):
    for to in ("raw", "npy", "parquet", "csv"):
        name = f"new.{to}"
        words = ("--op", "sum", "good.npy", "--to", to, "-o", name)
        succeeded(reduce(*words, cwd=folder, setup=lambda: os.umask(umask)))
        assert stat.S_IMODE((folder / name).stat().st_mode) == mode


@covers(81)
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755, 0o666])
def test_mode_and_attributes_of_an_existing_file(mode, folder):
    out = folder / "out"
    os.setxattr(out, "user.origin", b"run 7")
    out.chmod(mode)
    os.utime(out, ns=(2**62, 2**62))
    succeeded(reduce("--op", "sum", "good.npy", "--to", "raw", "-o", "out", "-f", cwd=folder))
    assert out.read_bytes() == DATA
    assert stat.S_IMODE(out.stat().st_mode) == mode
    assert os.getxattr(out, "user.origin") == b"run 7"


@covers(81)
def test_group_of_the_folder(as_root, open_folder):
    furnish(open_folder)
    os.chown(open_folder, -1, 12345)
    open_folder.chmod(0o2777)
    os.chown(open_folder / "out", -1, 23456)
    for words in (("-o", "new"), ("-o", "out", "-f")):
        succeeded(reduce("--op", "sum", "good.npy", *words, cwd=open_folder))
    assert (open_folder / "new").stat().st_gid == 12345
    assert (open_folder / "out").stat().st_gid == 23456


@covers(82)
def test_working_directory_that_is_gone(folder):
    gone = folder / "gone"
    gone.mkdir()
    words = ("--op", "sum", str(folder / "good.npy"), "-o", str(folder / "new.npy"))
    succeeded(reduce(*words, cwd=gone, setup=gone.rmdir))
    np.testing.assert_array_equal(np.load(folder / "new.npy"), THREE)
    gone.mkdir()
    with unchanged(folder):
        pass
    refused(reduce("--op", "sum", "good.npy", cwd=gone, setup=gone.rmdir), 4, "good.npy")


@covers(82)
@pytest.mark.parametrize(
    "env",
    [
        {"HOME": None, "USER": None, "LOGNAME": None, "PATH": None},
        {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": None},
        {"LANG": None, "LC_ALL": None},
        {"TMPDIR": None},
        {"TMPDIR": "/does/not/exist"},
        {"TMPDIR": ""},
        {"PYTHONHASHSEED": "0"},
        {"PYTHONHASHSEED": "4294967295"},
        {"PYTHONOPTIMIZE": "2"},
        {"PYTHONWARNINGS": "error"},
        {"COLUMNS": "1"},
        {"OMP_NUM_THREADS": "junk", "SLURM_CPUS_PER_TASK": "junk"},
        {"_MPIRED_COMPLETE": None, "NO_COLOR": "1"},
    ],
    ids=str,
)
@pytest.mark.parametrize("to", ["npy", "table"])
def test_environment(env, to, folder):
    (folder / "ö.npy").write_bytes(npy_of(THREE))
    environment = {name: value for name, value in (os.environ | env).items() if value is not None}
    outcome = installed("reduce", "-q", "--op", "sum", "good.npy", "ö.npy", "--to", to, cwd=folder, env=environment)
    expected = npy_of(2 * THREE) if to == "npy" else b"element  value\n      0    2.0\n      1    4.0\n      2    6.0\n"
    assert outcome == (0, expected, "")


def test_installed_command_is_that_of_this_python():
    assert Path(COMMAND).parent == Path(sys.executable).parent
