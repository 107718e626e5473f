"""Files of other programs that end up among ranks: known by their first bytes or suffixes, so that none passes as raw.

Any bytes can be raw elements, and a number may be a magic by chance. So a sign has at least four bytes; where the
magic is shorter, it includes bytes that every such file has behind it.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from mpired.codecs import CODECS

_Read: TypeAlias = Callable[[int, int], bytes]  # of a file, a number of bytes from an offset on


class Foreign(NamedTuple):
    """A kind of file: a magic at one of some places, and what every such file has too."""

    name: str  # the kind, in words
    suffixes: tuple[str, ...] = ()  # file name endings that mean it
    magics: tuple[bytes, ...] = ()  # () if it is known by its suffixes alone
    at: Sequence[int] = (0,)
    begin: bytes = b""  # its first bytes, a regular expression, which is compiled only where it is needed
    also: Callable[[bytes, int, _Read], bool] | None = None  # of the first bytes, the size, and what reads others
    hint: str = "save its numbers with numpy.save"  # how its numbers become a rank


# Those of formats of mpired are functions with names, because rows of formats are sent to workers.
def _is_safetensors(head: bytes, nbytes: int, _: _Read) -> bool:
    """Return whether a length is followed by that much JSON, as far as it can be seen."""
    length = int.from_bytes(head[:8], "little")
    header = head[8 : 8 + length]
    ends = len(header) < length or header.rstrip().endswith(b"}")
    return length <= nbytes - 8 and re.match(rb'\{\s*["}]', header) is not None and ends


def _is_npz(head: bytes, _: int, __: _Read) -> bool:
    """Return whether the first member of a zip archive is an npy file by its name."""
    return head[30 : 30 + int.from_bytes(head[26:28], "little")].endswith(b".npy")


def _is_zarr(head: bytes, nbytes: int, read: _Read) -> bool:
    """Return whether a zip archive has a document of a Zarr store: the first member, or that of the root among all."""
    member = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    if member.endswith((b"zarr.json", b".zgroup", b".zarray", b".zattrs", b".zmetadata")):
        return True
    directory = read(_DIRECTORY_NBYTES, max(0, nbytes - _DIRECTORY_NBYTES))
    return re.search(rb"PK\x01\x02.{42}(zarr\.json|\.zgroup|\.zarray)", directory, re.DOTALL) is not None


def _is_arrow_stream(head: bytes, nbytes: int, _: _Read) -> bool:
    """Return whether behind -1 and a length there is a flatbuffer with a schema: these two could be numbers too."""
    try:
        length, root = struct.unpack_from("<II", head, 4)
        vtable = 8 + root - struct.unpack_from("<i", head, 8 + root)[0]
        size, room, version, kind = struct.unpack_from("<4H", head, vtable)
        is_table = vtable > 0 and 8 <= size < _ARROW_TABLE and 0 < version < room < _ARROW_TABLE and 0 < kind < room  # noqa: PLR2004
        found = struct.unpack_from("<H", head, 8 + root + version)[0], head[8 + root + kind]
    except (struct.error, IndexError):
        return False
    return length <= nbytes - 8 and is_table and found[0] in _ARROW_VERSIONS and found[1] == _ARROW_SCHEMA


_CONTINUATION = b"\xff\xff\xff\xff"
_ARROW_VERSIONS, _ARROW_SCHEMA, _ARROW_TABLE = {3, 4}, 1, 100
# A frame of less than 2**48 bytes, or the beginning of a list, a dict, a tensor or an object; without a protocol the
# functions that make arrays, bytes and objects.
_PICKLE = (
    rb"\x80[\x04\x05]\x95.{6}\0\0"
    rb"|\x80[\x02\x03](c[\w.]+\n\w+\n|[\]})]q\0|\x8a\nl\xfc\x9cF)"
    rb"|\(?cnumpy[\w.]*\n_reconstruct\n|c_codecs\nencode\n|ccopy_reg\n_reconstructor\n"
)
_DIRECTORY_NBYTES = 4 << 20  # of a zip archive, at its end

# Kinds with a public name are those of formats of mpired.
_HDF5_MAGIC, _ZIP_MAGIC = b"\x89HDF\r\n\x1a\n", b"PK\x03\x04"
# Bytes of the user may come first, 512 or a larger power of two; MATLAB 7.3 has 512.
HDF5 = Foreign("HDF5", (".h5", ".hdf5", ".he5"), (_HDF5_MAGIC,), (0, 512, 1024, 2048))
NETCDF4 = Foreign("netCDF-4", (".nc4",), (_HDF5_MAGIC,), begin=rb".*_NCProperties")  # of the library of netCDF
# The number of records, and then the tag of the dimensions, or of none.
NETCDF = Foreign("netCDF", (".nc", ".cdf"), (b"CDF",), begin=rb"CDF([\x01\x02].{4}|\x05.{8})\0\0\0[\0\x0a]")
ARROW_STREAM = Foreign("an Arrow stream", (), (_CONTINUATION,), also=_is_arrow_stream)
NPZ = Foreign("an .npz archive", (), (_ZIP_MAGIC,), also=_is_npz)
ZARR = Foreign("a Zarr store in a zip archive", (), (_ZIP_MAGIC,), also=_is_zarr)
SAFETENSORS = Foreign("a safetensors file", (), (b"{",), (8,), also=_is_safetensors)
FOREIGN = (
    NPZ,
    ZARR,
    Foreign("a zip archive", (".zip",), (_ZIP_MAGIC, b"PK\x05\x06", b"PK\x07\x08"), hint="extract its files"),
    *(
        Foreign(row.name, (row.suffix,), (row.magic,), begin=row.begin, hint="decompress it first")
        for row in CODECS.values()
    ),
    Foreign("compress", (".Z",), (b"\x1f\x9d",), begin=rb"\x1f\x9d[\x89-\x90]", hint="decompress it first"),
    Foreign("lzma", (".lzma",), hint="decompress it first"),
    Foreign("brotli", (".br",), hint="decompress it first"),
    Foreign("a tar archive", (".tar",), (b"ustar\0", b"ustar "), (257,), hint="extract its files"),
    NETCDF4,
    HDF5,
    Foreign("HDF4", (".hdf", ".h4"), (b"\x0e\x03\x13\x01",)),
    NETCDF,
    # The version is below 2 million, and the first record begins at byte 100.
    Foreign("a ROOT file", (".root",), (b"root\0",), begin=rb"root\0[\0-\x1f]..\0\0\0d"),
    Foreign("FITS", (".fits", ".fit", ".fts"), (b"SIMPLE  =",), begin=rb"SIMPLE  = +[TF]"),
    Foreign("GRIB", (".grib", ".grb", ".grib2", ".grb2"), (b"GRIB",), begin=rb"GRIB...[\x01\x02]"),
    Foreign("a MATLAB file", (".mat",), (b"MATLAB 5.0 MAT-file",)),
    SAFETENSORS,
    Foreign(
        "a pickle, which is never loaded", (".pkl", ".pickle", ".pt", ".pth"), (b"\x80", b"c", b"("), begin=_PICKLE
    ),
    Foreign("the index of pickles, which are never loaded", (".bin.index.json",), hint="save it as safetensors"),
    ARROW_STREAM,
    Foreign("feather of version 1", (), (b"FEA1",), hint="write it again in version 2"),
    Foreign("parquet with an encrypted footer", (), (b"PARE",), hint="decrypt it first"),
    Foreign("Avro", (".avro",), (b"Obj\x01",), begin=rb"Obj\x01.{1,64}avro\.", hint="write it as parquet"),
    Foreign("ORC", (".orc",), hint="write it as parquet"),
    Foreign("a text with tabs", (".tsv", ".tab")),
)
# The magics of all kinds by their places, so that a file of none is known by a few comparisons.
_MAGICS = {
    place: tuple(magic for each in FOREIGN if place in each.at for magic in each.magics)
    for place in sorted({place for each in FOREIGN for place in each.at})
}


def by_content(head: bytes, nbytes: int, read: _Read | None = None) -> Foreign | None:
    """Return the kind of a file by its content; None if it is of none."""
    if not any(head.startswith(magics, place) for place, magics in _MAGICS.items()):
        return None
    read = read or (lambda count, start: head[start : start + count])
    for each in FOREIGN:
        begins = any(head.startswith(each.magics, place) for place in each.at)
        begins = begins and (not each.begin or re.match(each.begin, head, re.DOTALL) is not None)
        if begins and (each.also is None or each.also(head, nbytes, read)):
            return each
    return None


def by_suffix(path: str) -> Foreign | None:
    """Return the kind that the ending of `path` means, None if it means none, such as a number (`x.nc.0`)."""
    root, suffix = os.path.splitext(path)
    while suffix[1:].isdecimal():
        root, suffix = os.path.splitext(root)
    names = f"{root}{suffix}", f"{root}{suffix}".lower()
    return next((each for each in FOREIGN if any(name.endswith(each.suffixes) for name in names)), None)
