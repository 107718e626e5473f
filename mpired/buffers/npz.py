"""NumPy's .npz: a zip archive of npy files, as `numpy.savez` and `savez_compressed` write them.

The elements of a member that is stored as it is lie in the archive, and are read there; the others are inflated from
their start to their end. The checksum of a stored member is not looked at for that, as there is none in any flat file.
"""

from __future__ import annotations

import functools
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np

from mpired.buffers import arrays, npy
from mpired.buffers.arrays import Array, Field, KeptArrays, Library, digest, is_kept
from mpired.buffers.declared import Declared
from mpired.buffers.flat import ArrayLayout, FlatBuffer, encoded
from mpired.buffers.format import Encoder
from mpired.buffers.local import Extent, Spliced
from mpired.buffers.model import Model
from mpired.buffers.rank import RankFile, Values, dtype_text
from mpired.buffers.streamed import explaining
from mpired.datatypes import agrees, as_numbers, from_dtype
from mpired.errors import BufferFileError, DatatypeError
from mpired.files import calls
from mpired.sources.source import Source

_ERRORS = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, struct.error)
_SUFFIX = ".npy"
_LOCAL_NBYTES = 30
_LENGTHS = 26  # of the name and of what else is between a local header and the data
_BLOCK_NBYTES = 1 << 20
_HEAD_NBYTES = 66 << 10  # more than any header of an array
_MAX_MEMBERS = 1 << 16
_DATE = (1980, 1, 1, 0, 0, 0)
_CARRIED = "USmM"


class _Member(NamedTuple):
    """A member of an archive, the header of its array, and where the data of the member begin."""

    info: zipfile.ZipInfo
    offset: int
    fields: dict[str, Any]
    start: int

    @property
    def name(self) -> str:
        return self.info.filename.removesuffix(_SUFFIX)

    @property
    def is_stored(self) -> bool:
        """Whether its bytes lie in the archive as they are."""
        return self.info.compress_type == zipfile.ZIP_STORED


class _Archive:
    """An open archive. The caller closes it."""

    def __init__(self, source: Source, _memory: int = 0) -> None:
        self._source = source
        self._file = source.open()
        try:
            self.zip = zipfile.ZipFile(Spliced(self._file, [Extent(0, source.nbytes)]))
        except BaseException:
            self._file.close()
            raise

    def members(self) -> list[_Member]:
        infos = [info for info in self.zip.infolist() if not info.is_dir()]
        name = self._source.name
        if len(infos) > _MAX_MEMBERS:
            raise BufferFileError(name, f"has {len(infos)} members, more than {_MAX_MEMBERS}")
        if len({info.filename for info in infos}) < len(infos):
            raise BufferFileError(name, "has two members of one name; not a valid npz file")
        return [self._member(info) for info in infos]

    def _member(self, info: zipfile.ZipInfo) -> _Member:
        subject = f"{self._source.name}: member {info.filename!r}"
        if not info.filename.endswith(_SUFFIX) or info.flag_bits & 1:
            what = "is encrypted" if info.flag_bits & 1 else "is no .npy array"
            raise BufferFileError(subject, f"{what}; an .npz file holds arrays alone, as numpy.savez writes them")
        with self.zip.open(info) as file:
            head = file.read(_HEAD_NBYTES)
        offset, fields = npy.header_in(subject, lambda nbytes, at: head[at : at + nbytes])
        start = info.header_offset + _LOCAL_NBYTES
        local = self._file.read(_LOCAL_NBYTES, info.header_offset)
        return _Member(info, offset, fields, start + sum(struct.unpack_from("<HH", local, _LENGTHS)))

    def array(self, member: _Member, declared: Declared) -> Array:
        """Describe the array of a member."""
        subject = f"{self._source.name}: member {member.info.filename!r}"
        found = member.info.file_size - member.offset
        reason, dtype = "", npy.any_dtype(member.fields["descr"])
        try:
            number: np.dtype | None = npy.dtype_in(subject, member.fields["descr"])
            from_dtype(number)
        except DatatypeError as error:
            number, reason = None, error.reason
        if dtype is None:
            raise BufferFileError(subject, reason or "has elements that NumPy does not know")
        shape, fortran_order = npy.dims_in(subject, member.fields, number or dtype, found)
        carried = dtype.kind in _CARRIED and not dtype.hasobject
        return Array(
            member.name,
            number,
            shape,
            member.start + member.offset if member.is_stored else None,
            fortran_order=fortran_order,
            label="" if number is not None else npy.label_of(dtype),
            reason=f"array {member.name!r}: {reason}" if reason else "",
            carried=carried,
            digest=self._digest(member, dtype_text(dtype)) if carried or is_kept(member.name, declared) else b"",
            storage="" if member.is_stored else "deflated",
        )

    def _digest(self, member: _Member, kind: str) -> bytes:
        """Return the digest of an array that is carried; b"" of objects, which are never loaded."""
        if kind == "|O":
            return b""
        return digest(kind, member.fields["shape"], self.zip.read(member.info)[member.offset :])

    def arrays(self, leaf: str | Field, start: int) -> Generator[Values, None, None]:
        """Yield the elements of an array from one on."""
        name, field = (leaf.array, leaf.field) if isinstance(leaf, Field) else (leaf, None)
        info = self.zip.getinfo(name + _SUFFIX)
        member = self._member(info)
        dtype = as_numbers(npy.dtype_in(name, member.fields["descr"]))
        step = max(1, _BLOCK_NBYTES // dtype.itemsize)
        left = math.prod(member.fields["shape"]) - start
        with self.zip.open(info) as file:
            skipped = member.offset + start * dtype.itemsize
            while skipped:
                nbytes = len(file.read(min(skipped, _BLOCK_NBYTES)))
                if not nbytes:
                    raise EOFError("a member is shorter than its header says")
                skipped -= nbytes
            while left:
                octets = file.read(min(step, left) * dtype.itemsize)
                if not octets or len(octets) % dtype.itemsize:
                    raise EOFError(f"member {info.filename!r} ends before its last element")
                values = np.frombuffer(octets, dtype)
                left -= len(values)
                yield values if field is None else values[field], None
            if file.read(1):  # which compares the checksum, too
                raise EOFError(f"member {info.filename!r} goes on behind its last element")

    def close(self) -> None:
        self.zip.close()
        self._file.close()


def _read(source: Source, names: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return whole arrays, which are texts, times or numbers."""
    with closing(_Archive(source)) as archive:
        found = {}
        for member in (each for each in archive.members() if each.name in names):
            dtype = npy.any_dtype(member.fields["descr"])
            assert dtype is not None and not dtype.hasobject  # noqa: S101, PT018 - else it is not carried
            octets = archive.zip.read(member.info)[member.offset :]
            flat = np.frombuffer(octets, dtype)
            shape = member.fields["shape"]
            found[member.name] = flat.reshape(shape[::-1]).T if member.fields["fortran_order"] else flat.reshape(shape)
        return found


_LIBRARY = Library(_Archive, _ERRORS, _read)


def inspect(source: Source, declared: Declared) -> RankFile:
    """Describe an npz file from its directory and the headers of its members."""
    with explaining(source.name, *_ERRORS), closing(_Archive(source)) as archive:
        found = [archive.array(member, declared) for member in archive.members()]
    return arrays.inspect(source, declared, found, _LIBRARY)


class _New(NamedTuple):
    """A member of a new archive: its name, what is before its elements, their form, and the bytes of all."""

    name: str
    head: bytes
    stored: np.dtype
    nbytes: int


def prepare(model: Model) -> ArrayLayout | Encoder:
    """Lay out results like `model`: stored, or deflated if the first array of its file is."""
    old: dict[str, _Member] = {}
    if model.source is not None:
        with explaining(model.source.name, *_ERRORS), closing(_Archive(model.source)) as archive:
            old = {member.name: member for member in archive.members()}
    new = []
    for number, buffer in enumerate(model.buffers):
        name = buffer.name or f"arr_{number}"
        descr = old[name].fields["descr"] if name in old else None
        is_same = descr is not None and agrees(buffer.datatype, npy.dtype_in(buffer.name, descr))
        stored, head = npy.laid_out(buffer, descr if is_same else None)
        new.append(_New(name + _SUFFIX, head, stored, len(head) + buffer.count * stored.itemsize))
    kept = [old[name].info.filename for name in model.kept.names] if isinstance(model.kept, KeptArrays) else []
    if any(not member.is_stored for member in old.values()):
        return functools.partial(_deflate, new, kept, model.source)
    return ArrayLayout(
        functools.partial(_lay, new, kept, model.source),
        tuple(each.stored for each in new),
        functools.partial(_finish, new, kept, model.source),
    )


class _Laid(NamedTuple):
    """Where a member of a new archive is: its local header, and its data."""

    name: str
    nbytes: int
    header: int
    data: int


def _places(new: Sequence[_New], kept: Sequence[tuple[str, bytes]]) -> list[_Laid]:
    """Return where the members of a new archive are, those that are carried first."""
    found, at = [], 0
    sizes = [(name, len(octets)) for name, octets in kept] + [(each.name, each.nbytes) for each in new]
    for name, nbytes in sizes:
        data = at + _LOCAL_NBYTES + len(name.encode()) + _ZIP64.size
        found.append(_Laid(name, nbytes, at, data))
        at = data + nbytes
    return found


def _kept(kept: Sequence[str], source: Source | None) -> list[tuple[str, bytes]]:
    """Return the members that are carried: their names, and their bytes."""
    if source is None or not kept:
        return []
    with explaining(source.name, *_ERRORS), closing(_Archive(source)) as archive:
        return [(name, archive.zip.read(name)) for name in kept]


# Each is written with the lengths of 64 bits, as NumPy does.
_LOCAL = struct.Struct("<4sHHHHHLLLHH")
_CENTRAL = struct.Struct("<4sHHHHHHLLLHHHHHLL")
_ZIP64 = struct.Struct("<HHQQ")
_ZIP64_CENTRAL = struct.Struct("<HHQQQ")
_END64 = struct.Struct("<4sQHHLLQQQQ")
_LOCATOR = struct.Struct("<4sLQL")
_END = struct.Struct("<4sHHHHLLH")
_VERSION, _UTF8, _DAY = 45, 1 << 11, 33  # of 64 bits; names; the first of January 1980
_SHORT, _LONG = 0xFFFF, 0xFFFFFFFF


def _lay(new: Sequence[_New], kept: Sequence[str], source: Source | None, fd: int) -> list[int]:
    """Write the members that are carried, and the headers of the others; return where the elements of these begin."""
    carried = _kept(kept, source)
    places = _places(new, carried)
    calls.allocate(fd, places[-1].data + places[-1].nbytes)
    heads = [*(octets for _, octets in carried), *(each.head for each in new)]
    for place, head in zip(places, heads, strict=True):
        calls.pwrite_all(fd, _local(place, 0), place.header)
        calls.pwrite_all(fd, head, place.data)
    own = zip(places[len(carried) :], new, strict=True)
    return [place.data + len(each.head) for place, each in own]


def _finish(new: Sequence[_New], kept: Sequence[str], source: Source | None, fd: int) -> None:
    """Write the checksums, and the directory behind all members."""
    places = _places(new, _kept(kept, source))
    directory = b""
    for place in places:
        crc = 0
        for block in calls.blocks(fd, place.data, place.data + place.nbytes):
            crc = zlib.crc32(block, crc)
        calls.pwrite_all(fd, _local(place, crc), place.header)
        directory += _central(place, crc)
    at, number = places[-1].data + places[-1].nbytes, len(places)
    end = at + len(directory)
    directory += _END64.pack(b"PK\6\6", _END64.size - 12, _VERSION, _VERSION, 0, 0, number, number, end - at, at)
    directory += _LOCATOR.pack(b"PK\6\7", 0, end, 1)
    directory += _END.pack(b"PK\5\6", 0, 0, min(number, _SHORT), min(number, _SHORT), _LONG, _LONG, 0)
    calls.pwrite_all(fd, directory, at)


def _local(place: _Laid, crc: int) -> bytes:
    name = place.name.encode()
    head = _LOCAL.pack(b"PK\3\4", _VERSION, _UTF8, 0, 0, _DAY, crc, _LONG, _LONG, len(name), _ZIP64.size)
    return head + name + _ZIP64.pack(1, 16, place.nbytes, place.nbytes)


def _central(place: _Laid, crc: int) -> bytes:
    name, size = place.name.encode(), place.nbytes
    made_by = 3 << 8 | _VERSION  # on a system with modes of files
    head = _CENTRAL.pack(
        b"PK\1\2", made_by, _VERSION, _UTF8, 0, 0, _DAY, crc, _LONG, _LONG, len(name), _ZIP64_CENTRAL.size, 0, 0, 0,
        0o600 << 16, _LONG,
    )  # fmt: skip
    return head + name + _ZIP64_CENTRAL.pack(1, 24, size, size, place.header)


def _deflate(
    new: Sequence[_New], kept: Sequence[str], source: Source | None, results: Sequence[FlatBuffer], fd: int
) -> None:
    """Write an archive whose members are deflated."""
    with os.fdopen(os.dup(fd), "w+b") as file, zipfile.ZipFile(file, "w") as archive:
        for name, octets in _kept(kept, source):
            archive.writestr(_info(name), octets)
        for each, result in zip(new, results, strict=True):
            with archive.open(_info(each.name), "w", force_zip64=True) as member:
                member.write(each.head)
                for block in encoded(result, each.stored):
                    member.write(block.view(np.uint8).data)


def _info(name: str) -> zipfile.ZipInfo:
    """Return a member that is the same whenever it is written."""
    info = zipfile.ZipInfo(name, _DATE)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o600 << 16
    return info


def rewrite(source: Source, changed: Sequence[FlatBuffer], fd: int) -> None:
    """Write an archive again with new elements in some arrays."""
    new = {each.name: each for each in changed}
    with (
        explaining(source.name, *_ERRORS),
        closing(_Archive(source)) as old,
        os.fdopen(os.dup(fd), "w+b") as file,
        zipfile.ZipFile(file, "w") as archive,
    ):
        for member in old.members():
            info = _info(member.info.filename)
            info.compress_type = member.info.compress_type
            with archive.open(info, "w", force_zip64=True) as to, old.zip.open(member.info) as before:
                if member.name in new:
                    to.write(before.read(member.offset))
                    stored = as_numbers(npy.dtype_in(member.name, member.fields["descr"]))
                    for block in encoded(new[member.name], stored):
                        to.write(block.view(np.uint8).data)
                else:
                    while octets := before.read(_BLOCK_NBYTES):
                        to.write(octets)
