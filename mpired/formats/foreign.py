"""Files of other programs that end up among ranks: known by their first bytes or suffixes, so that none passes as raw.

Any bytes can be raw elements, and a number may be a magic by chance. So a sign has at least four bytes; where the
magic is shorter, it includes bytes that every such file has behind it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpired.codecs import CODECS
from mpired.sources.local import HEAD_NBYTES


class _File(NamedTuple):
    """A file for recognition: its first bytes, its size, and a function that reads bytes from an offset on."""

    head: bytes
    nbytes: int
    read: Callable[[int, int], bytes]

    def number(self, at: int, width: int, *, signed: bool = False) -> int:
        """Return an integer among the first bytes."""
        return int.from_bytes(self.head[at : at + width], "little", signed=signed)

    @property
    def member(self) -> bytes:
        """The name of the first member of a zip archive."""
        return self.head[30 : 30 + self.number(26, 2)]

    @property
    def tail(self) -> bytes:
        start = max(0, self.nbytes - _TAIL_NBYTES)
        return self.read(self.nbytes - start, start)


class Foreign(NamedTuple):
    """A kind of file: a magic at one of some places, and what every such file has too."""

    name: str  # the kind, in words
    suffixes: tuple[str, ...] = ()  # file name endings that mean it
    magics: tuple[bytes, ...] = ()  # () if it is known by its suffixes alone
    at: Sequence[int] = (0,)
    begin: bytes = b""  # its first bytes, a regular expression, which is compiled only where it is needed
    also: Callable[[_File], bool] | None = None
    way_out: str = "save its numbers with numpy.save"  # how its numbers become a rank

    def is_in(self, file: _File) -> bool:
        """Return whether a file is of this kind by its content."""
        has_magic = any(file.head.startswith(self.magics, place) for place in self.at)
        return has_magic and (not self.begin or _matches(self.begin, file.head)) and (not self.also or self.also(file))


def _matches(expression: bytes, text: bytes) -> bool:
    return re.match(expression, text, re.DOTALL) is not None


def _is_safetensors(file: _File) -> bool:
    """Return whether a length is followed by that much JSON, as far as it can be seen."""
    length = file.number(0, 8)
    header = file.head[8 : 8 + length]
    ends = len(header) < length or header.rstrip().endswith(b"}")
    return length <= file.nbytes - 8 and _matches(rb'\{\s*["}]', header) and ends


# Those of formats of mpired are functions with names, because rows of formats are sent to workers.
def _is_npz(file: _File) -> bool:
    """Return whether the first member of a zip archive is an npy file by its name."""
    return file.member.endswith(b".npy")


def _is_zarr(file: _File) -> bool:
    """Return whether a zip archive has a document of a Zarr store: the first member, or that of the root among all."""
    if file.member.endswith((b"zarr.json", b".zgroup", b".zarray", b".zattrs", b".zmetadata")):
        return True
    tail = file.read(_END_NBYTES, max(0, file.nbytes - _END_NBYTES))
    end, end64 = tail.rfind(b"PK\5\6"), tail.rfind(b"PK\6\6")
    size, start = (int.from_bytes(tail[end + at : end + at + 4], "little") for at in (12, 16))
    if end64 >= 0 and _LONG in (size, start):
        size, start = (int.from_bytes(tail[end64 + at : end64 + at + 8], "little") for at in (40, 48))
    if end < 0 or start + size > file.nbytes:
        return False
    directory = file.read(min(size, _MOST_NBYTES), start)
    return re.search(rb"PK\x01\x02.{42}(zarr\.json|\.zgroup|\.zarray)", directory, re.DOTALL) is not None


def _is_arrow_stream(file: _File) -> bool:
    """Return whether behind -1 and a length there is a flatbuffer with a schema: these two could be numbers too."""
    version, kind = _fields(file, 8 + file.number(8, 4), 2)
    is_schema = file.number(version, 2) in _ARROW_VERSIONS and file.number(kind, 1) == _ARROW_SCHEMA
    return bool(version and kind) and is_schema and file.number(4, 4) <= file.nbytes - 8


def _is_old_arrow_stream(file: _File) -> bool:
    """Return whether a length is followed by a message with a schema, as Arrow wrote streams before version 0.15."""
    # Without a magic: two tables of a flatbuffer have six offsets into the first bytes, and two sizes below 100 side by
    # side, of which chance has less than one in 2**120, and small integers of any width none.
    length = file.number(0, 4)
    if not 0 < length <= file.nbytes - 4 or (length + 4) % 8:
        return False
    version, kind, header = _fields(file, 4 + file.number(4, 4), 3)
    if not (kind and header) or file.number(kind, 1) != _ARROW_SCHEMA:
        return False
    columns = _fields(file, header + file.number(header, 4), 2)[1]
    start = columns + file.number(columns, 4)
    known = not version or file.number(version, 2) <= max(_ARROW_VERSIONS)
    return known and columns > 0 and start < len(file.head) and 0 < file.number(start, 4) <= length // 4


def _fields(file: _File, table: int, count: int) -> list[int]:
    """Return where the first fields of a table of a flatbuffer are; 0 for those that it has not, or if it is none."""
    vtable = table - file.number(table, 4, signed=True)
    if not (0 < table < len(file.head) and 0 < vtable < len(file.head)):
        return [0] * count
    size, room = file.number(vtable, 2), file.number(vtable + 2, 2)
    places = [file.number(at, 2) for at in range(vtable + 4, vtable + size, 2)]
    sane = size % 2 == 0 and all(4 <= each < _ARROW_TABLE for each in (size, room))  # noqa: PLR2004 - the smallest table
    if not sane or max(places, default=0) >= room:
        return [0] * count
    return ([table + place if place else 0 for place in places] + [0] * count)[:count]


def _is_pickle(file: _File) -> bool:
    """Return whether a file is a pickle by how it begins, or by how it begins and ends."""
    if _matches(_PICKLE, file.head):
        return True
    text = re.match(rb"(\x80[\x02\x03])?X(?P<long>.{4})|\x80\x03(B(?P<more>.{4})|C(?P<short>.))", file.head, re.DOTALL)
    if text is not None:  # a string of the given length, the number of the object, and the end
        length = int.from_bytes(text["long"] or text["more"] or text["short"], "little")
        return file.nbytes == text.end() + length + 3 and file.tail.endswith(b"q\0.")
    if file.nbytes <= _TAIL_NBYTES and _matches(rb"\x80[\x02-\x05][\x88\x89)]\.\Z", file.head):
        return True  # all four bytes of a file are given, but for 12 of 2**32 numbers
    return any(_matches(start, file.head) and re.search(end, file.tail, re.DOTALL) for start, end in _PICKLE_ENDS)


def _is_orc(file: _File) -> bool:
    """Return whether a file ends with the last field of the last message of ORC, and the length of that."""
    return _matches(rb".*\x82\xf4\x03\x03ORC.\Z", file.tail)


_CONTINUATION = b"\xff\xff\xff\xff"
_ARROW_VERSIONS, _ARROW_SCHEMA, _ARROW_TABLE = {3, 4}, 1, 100
# A frame of less than 2**48 bytes, or what the older ones of arrays, of lists and of tensors begin with; without a
# protocol the functions that make arrays, bytes and objects.
_PICKLE = (
    rb"\x80[\x04\x05]\x95.{6}\0\0"
    rb"|\x80[\x02\x03](c[\w.]+\n\w+\n|[\]})]q\0|\x8a\nl\xfc\x9cF)"
    rb"|\(?cnumpy[\w.]*\n_reconstruct\n|c_codecs\nencode\n|ccopy_reg\n_reconstructor\n"
)
# How the other ones begin and end: 40 bits at least, so that one of 10**12 files of random bytes is taken for such.
_PICKLE_ENDS = (
    (rb"\x80[\x02\x03][](){}CXBGKMJNcU\x88-\x8b]", rb"[t\x85-\x87](q.|r.{4})\.\Z"),  # a tuple of protocol 2 or 3
    (rb"\][q][\0\1][](){}CXBGKMJNchUIL\x88-\x8b]", rb"[ea]\.\Z"),  # a list of protocol 1
    (rb"\}q[\0\1][](){}CXBGKMJNchUIL\x88-\x8b]", rb"[us]\.\Z"),  # a dict
    (rb"\([ld]p[01]\n", rb"[as]\.\Z"),  # either, of protocol 0
    (rb"\([IFLVSN(cg]", rb"\ntp\d+\n\.\Z"),  # a tuple
    (rb"[VS]", rb"\np[01]\n\.\Z"),  # a text
)
_TAIL_NBYTES = 16
_LONG = 0xFFFFFFFF  # in the place of a number that is stored elsewhere
_MOST_NBYTES = 16 << 20  # of the directory of a zip archive
_END_NBYTES = 22 + 20 + 56  # of its end, as archives of more than 4 GiB have it

# Kinds with a public name are those of formats of mpired.
_HDF5_MAGIC, _ZIP_MAGIC = b"\x89HDF\r\n\x1a\n", b"PK\x03\x04"
# Bytes of the user may come first, 512 or any larger power of two; MATLAB 7.3 has 512.
HDF5 = Foreign("HDF5", (".h5", ".hdf5", ".he5"), (_HDF5_MAGIC,), (0, 512, 1024, 2048))
NETCDF4 = Foreign("netCDF-4", (".nc4",), (_HDF5_MAGIC,), begin=rb".*_NCProperties")  # of the library of netCDF
# The number of records, and then the tag of the dimensions, or of none.
NETCDF = Foreign("netCDF", (".nc", ".cdf"), (b"CDF",), begin=rb"CDF([\x01\x02].{4}|\x05.{8})\0\0\0[\0\x0a]")
ARROW_STREAM = Foreign("an Arrow stream", (), (_CONTINUATION,), also=_is_arrow_stream)
NPZ = Foreign("an .npz archive", (), (_ZIP_MAGIC,), also=_is_npz)
ZARR = Foreign("a Zarr store in a zip archive", (), (_ZIP_MAGIC,), also=_is_zarr)
SAFETENSORS = Foreign("a safetensors file", (), (b"{",), (8,), also=_is_safetensors)
_OLD_ARROW_STREAM = Foreign(
    "an Arrow stream of a version before 0.15", way_out="write it as an Arrow file, as pyarrow.ipc.new_file does"
)
FOREIGN = (
    NPZ,
    ZARR,
    Foreign("a zip archive", (".zip",), (_ZIP_MAGIC, b"PK\x05\x06", b"PK\x07\x08"), way_out="extract its files"),
    *(
        Foreign(row.name, (row.suffix,), (row.magic,), begin=row.begin, way_out="decompress it first")
        for row in CODECS.values()
    ),
    Foreign("compress", (".Z",), (b"\x1f\x9d",), begin=rb"\x1f\x9d[\x89-\x90]", way_out="decompress it first"),
    Foreign("lzma", (".lzma",), way_out="decompress it first"),
    Foreign("brotli", (".br",), way_out="decompress it first"),
    Foreign("a tar archive", (".tar",), (b"ustar\0", b"ustar "), (257,), way_out="extract its files"),
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
        "a pickle, which is never loaded",
        (".pkl", ".pickle", ".pt", ".pth"),
        (b"\x80", b"c", b"(", b"]q", b"}q", b"X", b"V", b"S"),
        also=_is_pickle,
    ),
    Foreign("the index of pickles, which are never loaded", (".bin.index.json",), way_out="save it as safetensors"),
    ARROW_STREAM,
    Foreign("feather of version 1", (), (b"FEA1",), way_out="write it again in version 2"),
    Foreign("parquet with an encrypted footer", (), (b"PARE",), way_out="decrypt it first"),
    Foreign("Avro", (".avro",), (b"Obj\x01",), begin=rb"Obj\x01.{1,64}avro\.", way_out="write it as parquet"),
    Foreign("ORC", (".orc",), (b"ORC",), also=_is_orc, way_out="write it as parquet"),
    Foreign("a text with tabs", (".tsv", ".tab")),
)
# The magics of all kinds by their places, so that a file of none is known by a few comparisons.
_MAGICS = {
    place: tuple(magic for each in FOREIGN if place in each.at for magic in each.magics)
    for place in sorted({place for each in FOREIGN for place in each.at})
}


def by_content(
    head: bytes, nbytes: int, read: Callable[[int, int], bytes] | None = None, reach: int | None = None
) -> Foreign | None:
    """Return the kind of a file by its content; None if it is of none."""
    file = _File(head, nbytes, read or (lambda count, start: head[start : start + count]))
    if any(head.startswith(magics, place) for place, magics in _MAGICS.items()):
        found = next((each for each in FOREIGN if each.is_in(file)), None)
        if found is not None:
            return found
    if _has_large_user_block(file, nbytes if reach is None else min(nbytes, reach)):
        return HDF5
    return _OLD_ARROW_STREAM if _is_old_arrow_stream(file) else None


def _has_large_user_block(file: _File, reach: int) -> bool:
    """Return whether HDF5 begins behind the first bytes: few short reads, each a chance of 2**-64 for numbers."""
    at = HEAD_NBYTES
    while at + len(_HDF5_MAGIC) <= reach:
        if file.read(len(_HDF5_MAGIC), at) == _HDF5_MAGIC:
            return True
        at *= 2
    return False


def by_suffix(path: str) -> Foreign | None:
    """Return the kind that the ending of `path` means, None if it means none, such as a number (`x.nc.0`)."""
    root, suffix = os.path.splitext(path)
    while suffix[1:].isdecimal():
        root, suffix = os.path.splitext(root)
    names = f"{root}{suffix}", f"{root}{suffix}".lower()
    return next((each for each in FOREIGN if any(name.endswith(each.suffixes) for name in names)), None)
