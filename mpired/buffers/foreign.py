"""Files of other programs that end up among ranks: known by their first bytes or suffixes, so that none passes as raw.

Any bytes can be raw elements, and a number may be a magic by chance. So what is looked for is at least four bytes, and
where the magic is shorter, what every such file has behind it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

HEAD_NBYTES = 4096
"""How many of the first bytes are looked at."""


class Foreign(NamedTuple):
    """A kind of file that mpired neither reads nor writes.

    Parameters
    ----------
    name
        What it is.
    suffixes
        File name endings that mean it.
    sign
        How it is told by its first bytes.
    way_out
        How its numbers become a rank.
    """

    name: str
    suffixes: tuple[str, ...]
    sign: _Sign
    way_out: str


class _Sign(NamedTuple):
    """What the first bytes of a kind of file are: a magic at one of some places, and what every such file has too."""

    magics: tuple[bytes, ...] = ()
    at: Sequence[int] = (0,)
    also: Callable[[bytes, int], bool] = lambda _head, _nbytes: True

    def is_in(self, head: bytes, nbytes: int) -> bool:
        """Tell whether a file of so many bytes has it."""
        return any(head.startswith(self.magics, place) for place in self.at) and self.also(head, nbytes)


def _begins(*magics: bytes, whole: bytes = b"", at: Sequence[int] = (0,)) -> _Sign:
    """Return the sign of files that have a magic at one of some places, and begin with a regular expression."""
    # The expression is compiled only where it is needed.
    return _Sign(magics, at, lambda head, _nbytes: not whole or re.match(whole, head, re.DOTALL) is not None)


_UNSEEN = _Sign()
"""That of kinds which are known by their suffixes alone."""


def _is_safetensors(head: bytes, nbytes: int) -> bool:
    """Tell whether a length is followed by that much JSON, as far as it can be seen."""
    length = int.from_bytes(head[:8], "little")
    header = head[8 : 8 + length]
    ends = len(header) < length or header.rstrip().endswith(b"}")
    return length <= nbytes - 8 and re.match(rb'\{\s*["}]', header) is not None and ends


def _is_arrow_stream(head: bytes, nbytes: int) -> bool:
    """Tell whether behind -1 and a length there is a flatbuffer with a schema: these two could be numbers too."""

    def number(at: int, width: int, *, signed: bool = False) -> int:
        return int.from_bytes(head[at : at + width], "little", signed=signed)

    length, table = number(4, 4), 8 + number(8, 4)
    vtable = table - number(table, 4, signed=True)
    if length > nbytes - 8 or not 0 < vtable < table < len(head):
        return False
    version, kind = (table + number(vtable + entry, 2) for entry in (4, 6))
    return number(version, 2) in _ARROW_VERSIONS and number(kind, 1) == _ARROW_SCHEMA


_CONTINUATION = b"\xff\xff\xff\xff"
_ARROW_VERSIONS, _ARROW_SCHEMA = {3, 4}, 1
_AS_NPY = "save its numbers with numpy.save"
_DECOMPRESS = "decompress it first"
# A frame of less than 2**48 bytes, or what the older ones of arrays, of lists and of tensors begin with.
_PICKLE = (
    rb"\x80[\x04\x05]\x95.{6}\0\0"
    rb"|\x80[\x02\x03](c[\w.]+\n\w+\n|[\]})]q\0|\x8a\nl\xfc\x9cF)"
    rb"|cnumpy[\w.]*\n_reconstruct\n"
)

FOREIGN = (
    Foreign(
        "a zip archive, as .npz",
        (".npz", ".zip"),
        _begins(b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08"),
        "save each array with numpy.save",
    ),
    Foreign("gzip", (".gz", ".tgz"), _begins(b"\x1f\x8b\x08", whole=rb"...[\0-\x1f].{5}[\0-\x0d\xff]"), _DECOMPRESS),
    Foreign("bzip2", (".bz2",), _begins(b"BZh", whole=rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), _DECOMPRESS),
    Foreign("xz", (".xz",), _begins(b"\xfd7zXZ\0"), _DECOMPRESS),
    Foreign("zstd", (".zst",), _begins(b"\x28\xb5\x2f\xfd"), _DECOMPRESS),
    Foreign("lz4", (".lz4",), _begins(b"\x04\x22\x4d\x18"), _DECOMPRESS),
    Foreign("a tar archive", (".tar",), _begins(b"ustar\0", b"ustar ", at=(257,)), "extract its files"),
    # Bytes of the user may come first; MATLAB 7.3 has 512.
    Foreign(
        "HDF5",
        (".h5", ".hdf5", ".he5", ".nc4"),
        _begins(b"\x89HDF\r\n\x1a\n", at=(0, 512, 1024, 2048)),
        _AS_NPY,
    ),
    Foreign("HDF4", (".hdf", ".h4"), _begins(b"\x0e\x03\x13\x01"), _AS_NPY),
    # The number of records, and then the tag of the dimensions, or of none.
    Foreign("netCDF", (".nc", ".cdf"), _begins(b"CDF", whole=rb"CDF([\x01\x02].{4}|\x05.{8})\0\0\0[\0\x0a]"), _AS_NPY),
    # The version is below 2 million, and the first record begins at byte 100.
    Foreign("a ROOT file", (".root",), _begins(b"root\0", whole=rb"root\0[\0-\x1f]..\0\0\0d"), _AS_NPY),
    Foreign("FITS", (".fits", ".fit", ".fts"), _begins(b"SIMPLE  =", whole=rb"SIMPLE  = +[TF]"), _AS_NPY),
    Foreign("GRIB", (".grib", ".grb", ".grib2", ".grb2"), _begins(b"GRIB", whole=rb"GRIB...[\x01\x02]"), _AS_NPY),
    Foreign("a MATLAB file", (".mat",), _begins(b"MATLAB 5.0 MAT-file"), _AS_NPY),
    Foreign(
        "safetensors", (".safetensors",), _Sign((b"{",), (8,), _is_safetensors), "save each tensor with numpy.save"
    ),
    Foreign(
        "a pickle, which is never loaded",
        (".pkl", ".pickle", ".pt", ".pth"),
        _begins(b"\x80", b"cnumpy", whole=_PICKLE),
        _AS_NPY,
    ),
    Foreign(
        "an Arrow stream",
        (".arrows",),
        _Sign((_CONTINUATION,), also=_is_arrow_stream),
        "write it as an Arrow file, as pyarrow.ipc.new_file does",
    ),
    Foreign("feather of version 1", (), _begins(b"FEA1"), "write it again in version 2"),
    Foreign("parquet with an encrypted footer", (), _begins(b"PARE"), "decrypt it first"),
    Foreign("Avro", (".avro",), _begins(b"Obj\x01", whole=rb"Obj\x01.{1,64}avro\."), "write it as parquet"),
    Foreign("ORC", (".orc",), _UNSEEN, "write it as parquet"),
    Foreign("Zarr", (".zarr",), _UNSEEN, _AS_NPY),
    Foreign("a text with tabs", (".tsv", ".tab"), _UNSEEN, _AS_NPY),
)


def _all_magics() -> dict[int, tuple[bytes, ...]]:
    """Return the magics of all kinds by their places, so that a file of none is known by a few comparisons."""
    found: dict[int, tuple[bytes, ...]] = {}
    for sign in (each.sign for each in FOREIGN):
        for place in sign.at:
            found[place] = (*found.get(place, ()), *sign.magics)
    return found


_MAGICS = _all_magics()


def by_content(head: bytes, nbytes: int) -> Foreign | None:
    """Return the kind of a file by its first bytes and its size; None if they are of none."""
    if not any(head.startswith(magics, place) for place, magics in _MAGICS.items()):
        return None
    return next((each for each in FOREIGN if each.sign.is_in(head, nbytes)), None)


def by_suffix(path: str) -> Foreign | None:
    """Return the kind that the ending of `path` means, None if it means none."""
    suffix = os.path.splitext(path)[1].lower()
    return next((each for each in FOREIGN if suffix in each.suffixes), None)
