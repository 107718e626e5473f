"""Signatures of file formats that are not raw data.

Files of other programs among the ranks are refused, instead of being read as raw elements. Raw elements can equal a
magic by chance. So a signature has at least four bytes: a shorter magic is combined with a pattern.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from mpired.codecs import CODECS

_Read: TypeAlias = Callable[[int, int], bytes]  # returns a number of bytes of a file from an offset on


class KnownFormat(NamedTuple):
    """A file format with its signature."""

    name: str  # description for messages
    suffixes: tuple[str, ...] = ()  # suffixes of file names
    magics: tuple[bytes, ...] = ()  # alternatives; () if files are recognised by their suffixes alone
    offsets: Sequence[int] = (0,)  # possible positions of the magic, in bytes
    pattern: bytes = b""  # regular expression for the first bytes, compiled at its first use
    # further check of the first bytes and the size of a file, with a function that reads other bytes
    check: Callable[[bytes, int, _Read], bool] | None = None
    hint: str = "save its numbers with numpy.save"  # way to make a rank from the file


# The checks of mpired's formats are not lambdas, because rows of formats are pickled for workers.
def _is_safetensors(head: bytes, nbytes: int, _: _Read) -> bool:
    """Return whether a length is followed by a JSON object of this length; `head` may end within it."""
    length = int.from_bytes(head[:8], "little")
    header = head[8 : 8 + length]
    ends = len(header) < length or header.rstrip().endswith(b"}")
    return length <= nbytes - 8 and re.match(rb'\{\s*["}]', header) is not None and ends


def _is_npz(head: bytes, _: int, __: _Read) -> bool:
    """Return whether the first member of a zip archive has the suffix of an npy file."""
    return head[30 : 30 + int.from_bytes(head[26:28], "little")].endswith(b".npy")


def _is_zarr(head: bytes, nbytes: int, read: _Read) -> bool:
    """Return whether the first member of a zip archive, or a member in its root, is a metadata document of Zarr."""
    member = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    if member.endswith((b"zarr.json", b".zgroup", b".zarray", b".zattrs", b".zmetadata")):
        return True
    directory = read(_DIRECTORY_NBYTES, max(0, nbytes - _DIRECTORY_NBYTES))
    return re.search(rb"PK\x01\x02.{42}(zarr\.json|\.zgroup|\.zarray)", directory, re.DOTALL) is not None


def _is_arrow_stream(head: bytes, nbytes: int, _: _Read) -> bool:
    """Return whether the magic, -1, and a length are followed by a flatbuffer with a schema."""
    try:
        length, root = struct.unpack_from("<II", head, 4)
        vtable = 8 + root - struct.unpack_from("<i", head, 8 + root)[0]
        vtable_nbytes, table_nbytes, *fields = struct.unpack_from("<4H", head, vtable)
        version = struct.unpack_from("<H", head, 8 + root + fields[0])[0]
        kind = head[8 + root + fields[1]]
    except (struct.error, IndexError):
        return False
    is_table = vtable > 0 and 8 <= vtable_nbytes < _ARROW_TABLE and table_nbytes < _ARROW_TABLE  # noqa: PLR2004
    has_fields = all(0 < offset < table_nbytes for offset in fields)
    return length <= nbytes - 8 and is_table and has_fields and version in _ARROW_VERSIONS and kind == _ARROW_SCHEMA


_CONTINUATION = b"\xff\xff\xff\xff"
_ARROW_VERSIONS, _ARROW_SCHEMA, _ARROW_TABLE = {3, 4}, 1, 100
# With a protocol: a frame of less than 2**48 bytes, or the beginning of a list, a dict, a tensor or an object. Without
# a protocol: the functions that make arrays, bytes and objects.
_PICKLE = (
    rb"\x80[\x04\x05]\x95.{6}\0\0"
    rb"|\x80[\x02\x03](c[\w.]+\n\w+\n|[\]})]q\0|\x8a\nl\xfc\x9cF)"
    rb"|\(?cnumpy[\w.]*\n_reconstruct\n|c_codecs\nencode\n|ccopy_reg\n_reconstructor\n"
)
_DIRECTORY_NBYTES = 4 << 20  # bytes at the end of a zip archive that are searched for its directory

# The public constants are formats that mpired reads.
_HDF5_MAGIC, _ZIP_MAGIC = b"\x89HDF\r\n\x1a\n", b"PK\x03\x04"
# A user block of 512 bytes, or of a larger power of two, may precede the magic; MATLAB 7.3 has 512.
HDF5 = KnownFormat("HDF5", (".h5", ".hdf5", ".he5"), (_HDF5_MAGIC,), (0, 512, 1024, 2048))
NETCDF4 = KnownFormat("netCDF-4", (".nc4",), (_HDF5_MAGIC,), pattern=rb".*_NCProperties")  # an attribute of its library
# The number of records is followed by the tag of the dimensions, or by 0.
NETCDF = KnownFormat("netCDF", (".nc", ".cdf"), (b"CDF",), pattern=rb"CDF([\x01\x02].{4}|\x05.{8})\0\0\0[\0\x0a]")
ARROW_STREAM = KnownFormat("an Arrow stream", (), (_CONTINUATION,), check=_is_arrow_stream)
NPZ = KnownFormat("an .npz archive", (), (_ZIP_MAGIC,), check=_is_npz)
ZARR = KnownFormat("a Zarr store in a zip archive", (), (_ZIP_MAGIC,), check=_is_zarr)
SAFETENSORS = KnownFormat("a safetensors file", (), (b"{",), (8,), check=_is_safetensors)
KNOWN_FORMATS = (
    NPZ,
    ZARR,
    KnownFormat("a zip archive", (".zip",), (_ZIP_MAGIC, b"PK\x05\x06", b"PK\x07\x08"), hint="extract its files"),
    *(
        KnownFormat(row.name, (row.suffix,), (row.magic,), pattern=row.begin, hint="decompress it first")
        for row in CODECS.values()
    ),
    KnownFormat("compress", (".Z",), (b"\x1f\x9d",), pattern=rb"\x1f\x9d[\x89-\x90]", hint="decompress it first"),
    KnownFormat("lzma", (".lzma",), hint="decompress it first"),
    KnownFormat("brotli", (".br",), hint="decompress it first"),
    KnownFormat("a tar archive", (".tar",), (b"ustar\0", b"ustar "), (257,), hint="extract its files"),
    NETCDF4,
    HDF5,
    KnownFormat("HDF4", (".hdf", ".h4"), (b"\x0e\x03\x13\x01",)),
    NETCDF,
    # The version is below 2 million, and the first record begins at byte 100.
    KnownFormat("a ROOT file", (".root",), (b"root\0",), pattern=rb"root\0[\0-\x1f]..\0\0\0d"),
    KnownFormat("FITS", (".fits", ".fit", ".fts"), (b"SIMPLE  =",), pattern=rb"SIMPLE  = +[TF]"),
    KnownFormat("GRIB", (".grib", ".grb", ".grib2", ".grb2"), (b"GRIB",), pattern=rb"GRIB...[\x01\x02]"),
    KnownFormat("a MATLAB file", (".mat",), (b"MATLAB 5.0 MAT-file",)),
    SAFETENSORS,
    KnownFormat(
        "a pickle, which is never loaded", (".pkl", ".pickle", ".pt", ".pth"), (b"\x80", b"c", b"("), pattern=_PICKLE
    ),
    KnownFormat("the index of pickles, which are never loaded", (".bin.index.json",), hint="save it as safetensors"),
    ARROW_STREAM,
    KnownFormat("feather of version 1", (), (b"FEA1",), hint="write it again in version 2"),
    KnownFormat("parquet with an encrypted footer", (), (b"PARE",), hint="decrypt it first"),
    KnownFormat("Avro", (".avro",), (b"Obj\x01",), pattern=rb"Obj\x01.{1,64}avro\.", hint="write it as parquet"),
    KnownFormat("ORC", (".orc",), hint="write it as parquet"),
    KnownFormat("a text with tabs", (".tsv", ".tab")),
)
# All magics by their offsets: a few comparisons show that raw data has none of them.
_MAGICS = {
    offset: tuple(magic for known in KNOWN_FORMATS if offset in known.offsets for magic in known.magics)
    for offset in sorted({offset for known in KNOWN_FORMATS for offset in known.offsets})
}


def by_content(head: bytes, nbytes: int, read: _Read | None = None) -> KnownFormat | None:
    """Return the known format of a file by its first bytes and its size, or None."""
    if not any(head.startswith(magics, offset) for offset, magics in _MAGICS.items()):
        return None
    read = read or (lambda count, start: head[start : start + count])
    for known in KNOWN_FORMATS:
        matches = any(head.startswith(known.magics, offset) for offset in known.offsets)
        matches = matches and (not known.pattern or re.match(known.pattern, head, re.DOTALL) is not None)
        if matches and (known.check is None or known.check(head, nbytes, read)):
            return known
    return None


def by_suffix(path: str) -> KnownFormat | None:
    """Return the known format of the suffix of `path`, or None; numbers at the end (`x.nc.0`) are ignored."""
    root, suffix = os.path.splitext(path)
    while suffix[1:].isdecimal():
        root, suffix = os.path.splitext(root)
    names = f"{root}{suffix}", f"{root}{suffix}".lower()
    return next((known for known in KNOWN_FORMATS if any(name.endswith(known.suffixes) for name in names)), None)
