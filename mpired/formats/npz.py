"""NumPy's .npz: a zip archive of npy files, like those of `numpy.savez` and `savez_compressed`.

The elements of stored members are read and written in place, without comparing the checksum; the others are inflated
in sequence.
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

from mpired.context import usable_cores
from mpired.datatypes import has_same_components, numeric_form
from mpired.errors import BufferFileError, DatatypeError
from mpired.files import calls
from mpired.formats import npy
from mpired.formats.array import Array
from mpired.formats.arrays import ArrayFile, ArrayHeader, Library, inspect_by
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import ArrayLayout, Encoder, encoded
from mpired.formats.rank import Model, RankFile
from mpired.formats.streamed import SourceFile, errors_of
from mpired.sources.source import Source, thread_pool

_ERRORS = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, struct.error)
_SUFFIX = ".npy"
_LOCAL_NBYTES = 30
_LENGTHS = 26  # offset of the lengths of the name and the extra field in a local header
_BLOCK_NBYTES = 1 << 20
_HEAD_NBYTES = 66 << 10  # more than the maximum of an npy header
_MAX_MEMBERS = 1 << 16


class _Member(NamedTuple):
    """A member of an archive."""

    info: zipfile.ZipInfo
    header: npy.NpyHeader
    start: int | None  # offset of the elements in the archive, or None if they are compressed


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
            problem = "is encrypted" if info.flag_bits & 1 else "is no .npy array"
            raise BufferFileError(subject, f"{problem}; an .npz file holds arrays alone, as numpy.savez writes them")
        with self.file.open(info) as file:
            head = file.read(_HEAD_NBYTES)
        header = npy.read_header(subject, lambda nbytes, offset: head[offset : offset + nbytes])
        npy.check_size(subject, header, info.file_size - len(header.head))
        if info.compress_type != zipfile.ZIP_STORED:
            return _Member(info, header, None)
        local = self._bytes.read(_LOCAL_NBYTES, info.header_offset)
        start = info.header_offset + _LOCAL_NBYTES + sum(struct.unpack_from("<HH", local, _LENGTHS))
        return _Member(info, header, start + len(header.head))

    def blocks(self, place: str, start: int = 0) -> Iterator[np.ndarray]:
        """Yield the elements of an array from the element `start` on in blocks."""
        info = self.file.getinfo(place + _SUFFIX)
        header = self._member(info).header
        dtype = header.dtype
        npy.check_not_objects(f"array {place!r}", dtype)
        step, remaining = max(1, _BLOCK_NBYTES // max(1, dtype.itemsize)), math.prod(header.shape) - start
        with self.file.open(info) as file:
            file.seek(len(header.head) + start * dtype.itemsize)
            for count in [step] * (remaining // step) + [remaining % step]:
                octets = file.read(count * dtype.itemsize)
                if len(octets) < count * dtype.itemsize:
                    raise EOFError(f"member {info.filename!r} ends before its last element")
                yield np.ndarray(count, dtype, octets)
            if file.read(1):  # compares the checksum, too
                raise EOFError(f"member {info.filename!r} goes on behind its last element")

    def described(self, inputs: InputOptions) -> list[ArrayHeader]:
        """Describe all arrays from the headers of the members."""
        arrays = []
        for name, (_, header, start) in self.members().items():
            dtype = header.dtype
            array = ArrayHeader(
                name, dtype, header.shape, start, fortran_order=header.fortran_order,
                storage="deflated" if start is None else "", keeps=not dtype.hasobject,  # objects are never loaded
                is_auxiliary=dtype.kind in "USmM" and not dtype.hasobject and not inputs.any_type,
            )  # fmt: skip
            try:
                npy.check_datatype(name, dtype)
            except DatatypeError as error:
                stored, reason = None if dtype.hasobject else dtype, f"array {name!r}: {error.reason}"
                array = array._replace(dtype=None, stored=stored, label=npy.label_of(dtype), reason=reason)
            arrays.append(array)
        return arrays


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe an npz file from its directory and the headers of its members."""
    return inspect_by(Library(_Archive, _ERRORS), source, inputs)


class _NewMember(NamedTuple):
    """A member of a new archive, with new elements or copied from the old archive."""

    info: zipfile.ZipInfo
    head: bytes = b""  # header of the array
    stored: np.dtype | None = None  # form of the new elements, or None if the member is copied

    @property
    def start(self) -> int:
        """The offset of its data in the archive."""
        return self.info.header_offset + len(self.info.FileHeader(zip64=True))


def prepare(model: Model) -> ArrayLayout | Encoder:
    """Return the layout of results like `model`, or their encoder if a member of the model's file is deflated."""
    old: dict[str, _Member] = {}
    if model.source is not None:
        with errors_of(model.source.name, _ERRORS), closing(_Archive(model.source)) as archive:
            old = archive.members()
    is_deflated = any(member.start is None for member in old.values())
    method = zipfile.ZIP_DEFLATED if is_deflated else zipfile.ZIP_STORED
    kept = [old[name].info for name in (model.kept.names if model.kept else ())]
    new = [_NewMember(new_member(info.filename, method, info.file_size)) for info in kept]
    for number, result in enumerate(model.buffers):
        dtype = old[result.own_name].header.dtype if result.own_name in old else None
        is_same = dtype is not None and has_same_components(result.datatype, dtype)
        stored, head = npy.form_and_header(result, dtype if is_same else None)
        name = (result.name or f"arr_{number}") + _SUFFIX
        new.append(_NewMember(new_member(name, method, len(head) + result.count * stored.itemsize), head, stored))
    if is_deflated and model.source is not None:
        return Encoder(functools.partial(_write, new, model.source))
    for member, successor in itertools.pairwise(new):
        successor.info.header_offset = member.start + member.info.file_size
    forms = tuple(member.stored for member in new if member.stored is not None)
    return ArrayLayout(functools.partial(_write_headers, new, model.source), forms, functools.partial(_finish, new))


def new_member(name: str, method: int = zipfile.ZIP_STORED, nbytes: int = 0, mode: int = 0o600) -> zipfile.ZipInfo:
    """Return the header of a member of a zip archive, which does not depend on the time."""
    info = zipfile.ZipInfo(name)
    info.compress_type, info.external_attr = method, mode << 16
    info.header_offset, info.file_size, info.compress_size, info.CRC = 0, nbytes, nbytes, 0
    return info


def _write_headers(new: Sequence[_NewMember], source: Source | None, fd: int) -> list[int]:
    """Write the headers and the copied members, and return the offsets of the new elements."""
    calls.allocate(fd, new[-1].start + new[-1].info.file_size)
    for member in new:
        calls.pwrite_all(fd, member.info.FileHeader(zip64=True) + member.head, member.info.header_offset)
    copied = [member for member in new if member.stored is None]
    if source is not None and copied:
        with errors_of(source.name, _ERRORS), closing(_Archive(source)) as archive:
            for member in copied:
                calls.pwrite_all(fd, archive.file.read(member.info.filename), member.start)
    return [member.start + len(member.head) for member in new if member.stored is not None]


def _finish(new: Sequence[_NewMember], fd: int) -> None:
    """Write the checksums, those of several members at the same time, and the directory after all members."""

    def write_checksum(member: _NewMember) -> None:
        member.info.CRC = 0
        for block in calls.blocks(fd, member.start, member.start + member.info.file_size):
            member.info.CRC = zlib.crc32(block, member.info.CRC)
        calls.pwrite_all(fd, member.info.FileHeader(zip64=True), member.info.header_offset)

    with thread_pool(usable_cores()) as pool:
        list(pool.map(write_checksum, new))
    with os.fdopen(os.dup(fd), "r+b") as file, zipfile.ZipFile(file, "w") as archive:
        archive.filelist = [member.info for member in new]
        archive.start_dir = new[-1].start + new[-1].info.file_size


def _write(new: Sequence[_NewMember], source: Source, results: Sequence[Array], fd: int) -> None:
    """Write the members of an archive in sequence."""
    remaining = iter(results)
    with closing(_Archive(source)) as old, os.fdopen(os.dup(fd), "w+b") as file, zipfile.ZipFile(file, "w") as archive:
        for member in new:
            with archive.open(member.info, "w", force_zip64=True) as output:
                output.write(member.head)
                if member.stored is not None:
                    for block in encoded(next(remaining), member.stored):
                        output.write(block.view(np.uint8).data)
                else:
                    with errors_of(source.name, _ERRORS), old.file.open(member.info.filename) as copied:
                        while octets := copied.read(_BLOCK_NBYTES):
                            output.write(octets)


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write a copy of an archive with new elements in the changed arrays."""
    results = {array.name: array for array in changed}
    with errors_of(source.name, _ERRORS), closing(_Archive(source)) as archive:
        old = archive.members()
    new = []
    for name, (info, header, _) in old.items():
        new_elements = (header.head, numeric_form(header.dtype)) if name in results else ()
        new.append(_NewMember(new_member(info.filename, info.compress_type), *new_elements))
    _write(new, source, [results[name] for name in old if name in results], fd)
