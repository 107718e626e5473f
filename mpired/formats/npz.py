"""NumPy's .npz: a zip archive of npy files, like those of `numpy.savez` and `savez_compressed`.

The elements of a stored member are read and written in place; the others are inflated from their start to their end.
The checksum of a stored member is not compared, as flat files have none.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from mpired.datatypes import agrees, as_numbers
from mpired.errors import BufferFileError, DatatypeError
from mpired.files import calls
from mpired.formats import npy
from mpired.formats.array import Array
from mpired.formats.arrays import ArrayFile, ArrayHeader, Library, inspect_by
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import ArrayLayout, Encoder, encoded
from mpired.formats.rank import Model, RankFile
from mpired.formats.streamed import SourceFile, errors_of
from mpired.machine import usable_cores
from mpired.sources.source import Source

_ERRORS = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, struct.error)
_SUFFIX = ".npy"
_LOCAL_NBYTES = 30
_LENGTHS = 26  # of the name and the extra field between a local header and the data
_BLOCK_NBYTES = 1 << 20
_HEAD_NBYTES = 66 << 10  # more than any header of an array
_MAX_MEMBERS = 1 << 16


class _Member(NamedTuple):
    """A member of an archive, the header of its array, and where its elements begin; None if they are compressed."""

    info: zipfile.ZipInfo
    header: npy.NpyHeader
    start: int | None


class _Archive(ArrayFile):
    """An open archive. The caller closes it."""

    def begin(self) -> None:
        """Read the directory."""
        self.file = zipfile.ZipFile(SourceFile(self._bytes, self._source.nbytes))

    def members(self) -> dict[str, _Member]:
        """Return the members by the names of their arrays."""
        infos = [info for info in self.file.infolist() if not info.is_dir()]
        name = self._source.name
        if len(infos) > _MAX_MEMBERS:
            raise BufferFileError(name, f"has {len(infos)} members, more than {_MAX_MEMBERS}")
        if len({info.filename for info in infos}) < len(infos):
            raise BufferFileError(name, "has two members of one name; not a valid npz file")
        return {info.filename.removesuffix(_SUFFIX): self._member(info) for info in infos}

    def _member(self, info: zipfile.ZipInfo) -> _Member:
        subject = f"{self._source.name}: member {info.filename!r}"
        if not info.filename.endswith(_SUFFIX) or info.flag_bits & 1:
            what = "is encrypted" if info.flag_bits & 1 else "is no .npy array"
            raise BufferFileError(subject, f"{what}; an .npz file holds arrays alone, as numpy.savez writes them")
        with self.file.open(info) as file:
            head = file.read(_HEAD_NBYTES)
        header = npy.header_in(subject, lambda nbytes, at: head[at : at + nbytes])
        npy.check_size(subject, header, info.file_size - len(header.head))
        if info.compress_type != zipfile.ZIP_STORED:
            return _Member(info, header, None)
        local = self._bytes.read(_LOCAL_NBYTES, info.header_offset)
        start = info.header_offset + _LOCAL_NBYTES + sum(struct.unpack_from("<HH", local, _LENGTHS))
        return _Member(info, header, start + len(header.head))

    def blocks(self, place: str, start: int = 0) -> Iterator[np.ndarray]:
        """Yield the elements of an array from one on."""
        info = self.file.getinfo(place + _SUFFIX)
        header = self._member(info).header
        dtype = header.dtype
        npy.check_not_objects(f"array {place!r}", dtype)
        step, left = max(1, _BLOCK_NBYTES // max(1, dtype.itemsize)), math.prod(header.shape) - start
        with self.file.open(info) as file:
            file.seek(len(header.head) + start * dtype.itemsize)
            for count in [step] * (left // step) + [left % step]:
                octets = file.read(count * dtype.itemsize)
                if len(octets) < count * dtype.itemsize:
                    raise EOFError(f"member {info.filename!r} ends before its last element")
                yield np.ndarray(count, dtype, octets)
            if file.read(1):  # which compares the checksum, too
                raise EOFError(f"member {info.filename!r} goes on behind its last element")

    def described(self, inputs: InputOptions) -> list[ArrayHeader]:
        """Describe all arrays from the headers of the members."""
        arrays = []
        for name, (_, header, start) in self.members().items():
            dtype = header.dtype
            found = ArrayHeader(
                name, dtype, header.shape, start, fortran_order=header.fortran_order,
                storage="deflated" if start is None else "", keeps=not dtype.hasobject,  # objects are never loaded
                carried=dtype.kind in "USmM" and not dtype.hasobject and not inputs.any_type,
            )  # fmt: skip
            try:
                npy.check_datatype(name, dtype)
            except DatatypeError as error:
                stored, reason = None if dtype.hasobject else dtype, f"array {name!r}: {error.reason}"
                found = found._replace(dtype=None, stored=stored, label=npy.label_of(dtype), reason=reason)
            arrays.append(found)
        return arrays


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe an npz file from its directory and the headers of its members."""
    return inspect_by(Library(_Archive, _ERRORS), source, inputs)


class _NewNpz(NamedTuple):
    """A member of a new archive: what precedes its elements, and their form; `None` of a member that is copied."""

    info: zipfile.ZipInfo
    head: bytes = b""
    stored: np.dtype | None = None

    @property
    def start(self) -> int:
        """The offset of its data in the archive."""
        return self.info.header_offset + len(self.info.FileHeader(zip64=True))


def prepare(model: Model) -> ArrayLayout | Encoder:
    """Lay out results like `model`: stored, or deflated if an array of its file is."""
    old: dict[str, _Member] = {}
    if model.source is not None:
        with errors_of(model.source.name, _ERRORS), closing(_Archive(model.source)) as archive:
            old = archive.members()
    method = zipfile.ZIP_DEFLATED if any(each.start is None for each in old.values()) else zipfile.ZIP_STORED
    kept = [old[name].info for name in (model.kept.names if model.kept else ())]
    new = [_NewNpz(new_member(each.filename, method, each.file_size)) for each in kept]
    for number, buffer in enumerate(model.buffers):
        dtype = old[buffer.own_name].header.dtype if buffer.own_name in old else None
        is_same = dtype is not None and agrees(buffer.datatype, dtype)
        stored, head = npy.laid_out(buffer, dtype if is_same else None)
        name = (buffer.name or f"arr_{number}") + _SUFFIX
        new.append(_NewNpz(new_member(name, method, len(head) + buffer.count * stored.itemsize), head, stored))
    if method == zipfile.ZIP_DEFLATED and model.source is not None:
        return Encoder(functools.partial(_write, new, model.source))
    for member, after in itertools.pairwise(new):
        after.info.header_offset = member.start + member.info.file_size
    forms = tuple(each.stored for each in new if each.stored is not None)
    return ArrayLayout(functools.partial(_lay, new, model.source), forms, functools.partial(_finish, new))


def new_member(name: str, method: int = zipfile.ZIP_STORED, nbytes: int = 0, mode: int = 0o600) -> zipfile.ZipInfo:
    """Return a member of a zip archive that is the same whenever it is written."""
    info = zipfile.ZipInfo(name)  # with the first time that archives can tell
    info.compress_type, info.external_attr = method, mode << 16
    info.header_offset, info.file_size, info.compress_size, info.CRC = 0, nbytes, nbytes, 0
    return info


def _lay(new: Sequence[_NewNpz], source: Source | None, fd: int) -> list[int]:
    """Write all but elements and checksums; return where the elements begin."""
    calls.allocate(fd, new[-1].start + new[-1].info.file_size)
    for each in new:
        calls.pwrite_all(fd, each.info.FileHeader(zip64=True) + each.head, each.info.header_offset)
    copied = [each for each in new if each.stored is None]
    if source is not None and copied:
        with errors_of(source.name, _ERRORS), closing(_Archive(source)) as archive:
            for each in copied:
                calls.pwrite_all(fd, archive.file.read(each.info.filename), each.start)
    return [each.start + len(each.head) for each in new if each.stored is not None]


def _finish(new: Sequence[_NewNpz], fd: int) -> None:
    """Write the checksums, those of several members at the same time, and the directory behind all members."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - for new archives only

    def finish(each: _NewNpz) -> None:
        each.info.CRC = 0
        for block in calls.blocks(fd, each.start, each.start + each.info.file_size):
            each.info.CRC = zlib.crc32(block, each.info.CRC)
        calls.pwrite_all(fd, each.info.FileHeader(zip64=True), each.info.header_offset)

    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(finish, new))
    with os.fdopen(os.dup(fd), "r+b") as file, zipfile.ZipFile(file, "w") as archive:
        archive.filelist = [each.info for each in new]
        archive.start_dir = new[-1].start + new[-1].info.file_size


def _write(new: Sequence[_NewNpz], source: Source, results: Sequence[Array], fd: int) -> None:
    """Write an archive, one member after another."""
    left = iter(results)
    with closing(_Archive(source)) as old, os.fdopen(os.dup(fd), "w+b") as file, zipfile.ZipFile(file, "w") as archive:
        for each in new:
            with archive.open(each.info, "w", force_zip64=True) as to:
                to.write(each.head)
                if each.stored is not None:
                    for block in encoded(next(left), each.stored):
                        to.write(block.view(np.uint8).data)
                else:
                    with errors_of(source.name, _ERRORS), old.file.open(each.info.filename) as before:
                        while octets := before.read(_BLOCK_NBYTES):
                            to.write(octets)


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write an archive again with new elements in some arrays."""
    results = {each.name: each for each in changed}
    with errors_of(source.name, _ERRORS), closing(_Archive(source)) as old:
        members = old.members()
    new = []
    for name, (info, header, _) in members.items():
        is_new = name in results
        made = new_member(info.filename, info.compress_type)
        new.append(_NewNpz(made, header.head, as_numbers(header.dtype)) if is_new else _NewNpz(made))
    _write(new, source, [results[name] for name in members if name in results], fd)
