"""netCDF: variables, of which each is a buffer. netCDF-4 is HDF5; the classic forms, and CDF-5, are read here.

The elements of a classic variable lie in one piece, in big-endian order, unless it has the record dimension beside
others: then each record has a piece of each such variable. The header is read with strict limits.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

import numpy as np

from mpired.buffers import arrays, conventions, hdf5
from mpired.buffers.arrays import Array, KeptArrays, Library, Pieces, PiecesFile, digest
from mpired.buffers.conventions import Attribute, Attributes, Variable
from mpired.buffers.declared import Declared
from mpired.buffers.flat import ArrayLayout, FlatBuffer, MarkingLayout, encoded
from mpired.buffers.model import BufferModel, Model
from mpired.buffers.rank import RankFile
from mpired.datatypes import as_numbers
from mpired.errors import BufferFileError, DatatypeError
from mpired.files import calls
from mpired.sources.source import OpenSource, Source

_MAX_NAMES = 1 << 16
_MAX_NDIM = 1 << 10
_MAX_HEADER = 256 << 20
_PIECE = 64 << 10
_STREAMING = {4: 0xFFFFFFFF, 8: 0xFFFFFFFFFFFFFFFF}
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12
_CHAR = 2
_CODES = {
    1: "i1", _CHAR: "S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8", 7: "u1", 8: ">u2", 9: ">u4", 10: ">i8", 11: ">u8",
}  # fmt: skip
_FORMS = {code: np.dtype(form) for code, form in _CODES.items()}
_BY_FORM = {dtype: code for code, dtype in _FORMS.items()}
_LAST_CLASSIC = 6
_64_BIT_OFFSET, _64_BIT_DATA = 2, 5
_HISTORY = "history"


class _Attribute(NamedTuple):
    """An attribute as the file has it."""

    name: str
    code: int
    length: int
    octets: bytes

    @property
    def value(self) -> Attribute:
        if self.code == _CHAR:
            return self.octets.split(b"\0")[0].decode("utf-8", "surrogateescape")
        return np.frombuffer(self.octets, _FORMS[self.code])


class _Dimension(NamedTuple):
    """A dimension; a length of 0 means that it is the number of records."""

    name: str
    length: int


@dataclass(frozen=True)
class _Var:
    """A variable of a header."""

    name: str
    dims: tuple[int, ...]
    attributes: tuple[_Attribute, ...]
    code: int
    begin: int = 0

    @property
    def form(self) -> np.dtype:
        """The form that an element is read in."""
        return self._viewed[1]

    @property
    def values(self) -> Attributes:
        return self._viewed[0]

    @functools.cached_property
    def _viewed(self) -> tuple[Attributes, np.dtype]:
        return conventions.viewed({each.name: each.value for each in self.attributes}, _FORMS[self.code])


@dataclass(frozen=True)
class _Header:
    """The header of a classic file: its version, the number of records, and what there is."""

    version: int
    nrecords: int
    dimensions: tuple[_Dimension, ...] = ()
    attributes: tuple[_Attribute, ...] = ()
    variables: tuple[_Var, ...] = ()

    @functools.cached_property
    def by_name(self) -> dict[str, _Var]:
        """The variables by their names."""
        return {each.name: each for each in self.variables}

    def is_record(self, var: _Var) -> bool:
        """Tell whether a variable has the record dimension."""
        return bool(var.dims) and self.dimensions[var.dims[0]].length == 0

    def shape(self, var: _Var) -> tuple[int, ...]:
        """Return the dimensions of a variable."""
        return tuple(self.dimensions[each].length or self.nrecords for each in var.dims)

    def per_record(self, var: _Var) -> int:
        """Return how many elements of a variable lie together."""
        return math.prod(self.shape(var)[1:] if self.is_record(var) else self.shape(var))

    @property
    def stride(self) -> int:
        sizes = [self.per_record(each) * each.form.itemsize for each in self.variables if self.is_record(each)]
        return sizes[0] if len(sizes) == 1 else sum(map(_padded, sizes))

    def leaf(self, var: _Var) -> Pieces:
        """Return where the elements of a variable are."""
        count, is_record = self.per_record(var), self.is_record(var)
        stride, records = (self.stride, self.nrecords) if is_record else (count * var.form.itemsize, 1)
        return Pieces(var.begin, var.form, count, records, stride)


def _padded(nbytes: int) -> int:
    return -(-nbytes // 4) * 4


class _Cursor:
    """Reads the parts of a header one after another."""

    def __init__(self, source: Source, file: OpenSource) -> None:
        self._source = source
        self._file = file
        self._held = b""
        self._start = 0
        self.at = 0
        self.width = 4

    def bad(self, reason: str) -> NoReturn:
        """Raise the error of a damaged header."""
        raise BufferFileError(self._source.name, f"{reason}; not a valid netCDF file")

    def take(self, nbytes: int) -> bytes:
        if self.at + nbytes > min(self._source.nbytes, _MAX_HEADER):
            self.bad("the header is cut off, or claims more than there is")
        if self.at + nbytes > self._start + len(self._held):
            self._start, self._held = self.at, self._file.read(max(nbytes, _PIECE), self.at)
            if len(self._held) < nbytes:
                raise self._source.changed()
        found = self._held[self.at - self._start : self.at - self._start + nbytes]
        self.at += nbytes
        return found

    def number(self, width: int = 0) -> int:
        return int.from_bytes(self.take(width or self.width), "big")

    def length(self, limit: int, what: str) -> int:
        """Return a number that has a limit."""
        found = self.number()
        if found > limit:
            self.bad(f"the header claims {found} {what}")
        return found

    def name(self) -> str:
        length = self.length(_PIECE, "letters of a name")
        return self.take(_padded(length))[:length].decode("utf-8", "surrogateescape")

    def entries(self, tag: int, what: str) -> int:
        """Return the number of entries of a list."""
        found, count = self.number(4), self.length(_MAX_NAMES, what)
        if found not in (0, tag) or (not found and count):
            self.bad(f"there is no list of {what}")
        return count

    def code(self) -> int:
        """Return the code of a type."""
        found = self.number(4)
        if found not in _FORMS:
            self.bad(f"there is no type {found}")
        return found

    def attributes(self) -> tuple[_Attribute, ...]:
        found = []
        for _ in range(self.entries(_ATTRIBUTES, "attributes")):
            name, code = self.name(), self.code()
            count = self.length(self._source.nbytes, "values of an attribute")
            nbytes = count * _FORMS[code].itemsize
            found.append(_Attribute(name, code, count, self.take(_padded(nbytes))[:nbytes]))
        return tuple(found)


def _read_header(source: Source) -> _Header:
    """Return the header of a file, all of whose variables are within the file."""
    with closing(source.open()) as file, calls.blaming(source.name):
        cursor = _Cursor(source, file)
        magic = cursor.take(4)
        version = magic[3]
        if magic[:3] != b"CDF" or version not in (1, _64_BIT_OFFSET, _64_BIT_DATA):
            cursor.bad("it does not begin as netCDF")
        cursor.width = 8 if version == _64_BIT_DATA else 4
        nrecords = cursor.number()
        names = range(cursor.entries(_DIMENSIONS, "dimensions"))
        dimensions = tuple(_Dimension(cursor.name(), cursor.number()) for _ in names)
        attributes = cursor.attributes()
        count = cursor.entries(_VARIABLES, "variables")
        variables = tuple(_variable(cursor, version, dimensions) for _ in range(count))
        if sum(not each.length for each in dimensions) > 1:
            cursor.bad("it has two record dimensions")
        if len({each.name for each in variables}) < count:
            cursor.bad("it has two variables of one name")
        header = _Header(version, 0, dimensions, attributes, variables)
        if nrecords == _STREAMING[cursor.width]:
            begins = [each.begin for each in variables if header.is_record(each)]
            nrecords = max(0, source.nbytes - min(begins, default=0)) // max(1, header.stride) if begins else 0
        header = replace(header, nrecords=nrecords)
        for each in variables:
            if math.prod(header.shape(each)) and (end := header.leaf(each).end) > source.nbytes:
                where = f"variable {each.name!r} ends at byte {end}, and the file has {source.nbytes}"
                cursor.bad(f"{where}, it is cut off")
        return header


def _variable(cursor: _Cursor, version: int, dimensions: Sequence[_Dimension]) -> _Var:
    name = cursor.name()
    dims = tuple(cursor.number() for _ in range(cursor.length(_MAX_NDIM, "dimensions of a variable")))
    if any(each >= len(dimensions) for each in dims) or any(not dimensions[each].length for each in dims[1:]):
        cursor.bad(f"variable {name!r} has dimensions that are not there, or records that are not its first")
    attributes, code = cursor.attributes(), cursor.code()
    cursor.number()  # the size, which the dimensions tell, too
    return _Var(name, dims, attributes, code, cursor.number(4 if version == 1 else 8))


def _read(source: Source, names: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return whole variables."""
    header = _read_header(source)
    with closing(PiecesFile(source)) as file:
        found = {}
        for var in (each for each in header.variables if each.name in names):
            pieces = [block for block, _ in file.arrays(header.leaf(var), 0)]
            flat = np.concatenate(pieces) if pieces else np.empty(0, var.form)
            found[var.name] = flat.astype(flat.dtype.newbyteorder("=")).reshape(header.shape(var))
        return found


load = hdf5.load


def _is_hdf5(source: Source) -> bool:
    with closing(source.open()) as file, calls.blaming(source.name):
        return file.read(3, 0) != b"CDF" and source.nbytes > 0


def inspect(source: Source, declared: Declared) -> RankFile:
    """Describe a netCDF file by its variables."""
    if _is_hdf5(source):
        return hdf5.inspect(source, declared, "netcdf")
    header = _read_header(source)
    variables = [
        Variable(each.name, tuple(header.dimensions[dim].name for dim in each.dims), each.form, each.values)
        for each in header.variables
    ]
    group = Variable("", (), None, {each.name: each.value for each in header.attributes})
    carried = conventions.carried([*variables, group])
    found = [_array(source, header, each, each.name in carried, declared) for each in header.variables]
    return arrays.inspect(source, declared, found, Library(PiecesFile, (), _read))


def _array(source: Source, header: _Header, var: _Var, is_carried: bool, declared: Declared) -> Array:  # noqa: FBT001
    shape, attributes, leaf = header.shape(var), var.values, header.leaf(var)
    is_record, name = header.is_record(var), f"variable {var.name!r}"
    storage = f"records of {header.stride} bytes" if is_record else ""
    if var.code == _CHAR:
        kind, mine = "strings", _digest(source, leaf, shape, attributes)
        return Array(var.name, None, shape, label=kind, reason=f"{name} holds {kind}", carried=True, digest=mine)
    meaning = conventions.meaning(name, var.name, attributes, var.form, unpack=declared.unpack, window=declared.window)
    packed = meaning.leaf
    return Array(
        var.name,
        shape=shape,
        offset=leaf.begin if leaf.is_one and packed is None else None,
        stored=var.form if packed is None else None,
        label="" if meaning.dtype is not None else var.form.str,
        carried=is_carried,
        digest=_digest(source, leaf, shape, attributes) if is_carried else b"",
        chunk=(1, *shape[1:]) if is_record else (1,) * len(shape),
        dims=tuple(header.dimensions[dim].name for dim in var.dims),
        unit=conventions.unit(attributes),
        storage=storage,
        fixed_order=True,
        unlimited=(f"record dimension {header.dimensions[var.dims[0]].name!r}", *[""] * (len(shape) - 1))
        if is_record
        else (),
        unset=conventions.unset(attributes, var.form, packed),
        **meaning._asdict(),
    )._replace(leaf=None if leaf.is_one and packed is None else leaf._replace(packed=packed))


def _digest(source: Source, leaf: Pieces, shape: Sequence[int], attributes: Attributes) -> bytes:
    """Return the digest of a variable that is carried."""
    found = digest(leaf.form.str, tuple(shape), *conventions.identity(attributes))
    with closing(PiecesFile(source)) as file:
        for block, _ in file.arrays(leaf, 0):
            found = digest(found, block.tobytes())
    return found


class _New(NamedTuple):
    """A result: the variable that it becomes, and the value of missing elements; None if none can be."""

    var: _Var
    fill: np.ndarray | None


class _Plan(NamedTuple):
    """A file of results: its header, with places, the results, and what is carried from where."""

    header: _Header
    new: tuple[_New, ...]
    source: Source | None
    kept: tuple[tuple[Pieces, Pieces], ...]


def prepare(model: Model) -> ArrayLayout | MarkingLayout:
    """Lay out results like `model`, in the form of netCDF that its file has."""
    if model.source is not None and _is_hdf5(model.source):
        return hdf5.prepare(model, has_history=True)
    plan = _plan(model)
    leaves = [plan.header.leaf(plan.header.by_name[each.var.name]) for each in plan.new]
    missing = tuple(conventions.missing(each.var.values, each.var.form) for each in plan.new)
    if all(leaf.is_one for leaf in leaves) and not any(buffer.nullable for buffer in model.buffers):
        return ArrayLayout(functools.partial(_lay, plan), tuple(leaf.form for leaf in leaves), missing=missing)
    return MarkingLayout(functools.partial(_encode, plan), missing)


def _plan(model: Model) -> _Plan:
    old = _Header(_64_BIT_OFFSET, 0) if model.source is None else _read_header(model.source)
    dimensions = list(old.dimensions)
    results = {(buffer.name or "value"): _new(buffer, old, dimensions) for buffer in model.buffers}
    kept = set(model.kept.names) if isinstance(model.kept, KeptArrays) else set()
    variables = [
        results[each.name].var if each.name in results else each
        for each in old.variables
        if each.name in results or each.name in kept
    ]
    there = {each.name for each in variables}
    variables += [each.var for name, each in results.items() if name not in there]
    line = model.context.history()
    header = replace(old, dimensions=tuple(dimensions), attributes=_with_history(old.attributes, line))
    header = _placed(header, variables)
    carried = [each for each in old.variables if each.name in kept - {*results}]
    moved = [(old.leaf(each), header.leaf(header.by_name[each.name])) for each in carried]
    return _Plan(header, tuple(results.values()), model.source, tuple(moved))


def _new(buffer: BufferModel, old: _Header, dimensions: list[_Dimension]) -> _New:
    """Return the variable of a result, whose dimensions are added if they are new."""
    name = buffer.name or "value"
    code = None if buffer.datatype.is_bool else _BY_FORM.get(as_numbers(buffer.datatype.form).newbyteorder(">"))
    if code is None or buffer.fortran_order:
        what = "arrays in Fortran order" if code else buffer.datatype.label
        raise DatatypeError(what, "has no form in netCDF; use `to='hdf5'`, `to='npz'` or `to='npy'`")
    shape = (buffer.count,) if buffer.shape is None else buffer.shape
    origin = buffer.origin or name
    like = next((each for each in old.variables if each.name == origin and old.shape(each) == shape), None)
    if like is None:
        dims = tuple(_dimension(length, dimensions, first=not i) for i, length in enumerate(shape))
        like = _Var(name, dims, (), code)
    elif origin != name:  # it has other values
        like = replace(like, name=name, attributes=tuple(a for a in like.attributes if a.name in conventions.PLACES))
    attributes = like.attributes
    unpacked = conventions.packing(name, like.values, like.form) is not None
    code = like.code if like.form == _FORMS[code] and not unpacked else code
    if unpacked or buffer.nullable or like.code != code:
        attributes = _of_form(like, code, unpacked=unpacked, nullable=buffer.nullable)
    new = replace(like, code=code, attributes=attributes)
    return _New(new, conventions.fill(new.values, new.form) if buffer.nullable else None)


def _dimension(length: int, dimensions: list[_Dimension], *, first: bool) -> int:
    """Return the number of a dimension of that length which is no record dimension, unless it has no elements."""
    if not length and not first:
        reason = "have no form in netCDF unless the first dimension is that of none"
        raise DatatypeError("arrays without elements", reason)
    wanted = _Dimension(f"dim_{length}", length)
    if wanted not in dimensions:
        dimensions.append(wanted)
    return dimensions.index(wanted)


def _of_form(like: _Var, code: int, *, unpacked: bool, nullable: bool) -> tuple[_Attribute, ...]:
    """Return the attributes of a result that has another form, or missing elements."""
    is_same = code == like.code and not unpacked
    form = like.form if is_same else _FORMS[code]
    own = conventions.of_result(like.values, form, unpacked=unpacked, nullable=nullable)
    left_out = conventions.left_out(unpacked=unpacked, is_same=is_same)
    made = {
        name: _Attribute(name, code, value.size, value.reshape(-1).astype(_FORMS[code]).tobytes())
        for name, value in own.items()
    }
    found = [made.pop(each.name, each) for each in like.attributes if each.name in own or each.name not in left_out]
    return (*found, *made.values())


def _with_history(attributes: Sequence[_Attribute], line: str) -> tuple[_Attribute, ...]:
    """Return the attributes of a file with a line more in its history."""
    old = next((each for each in attributes if each.name == _HISTORY and each.code == _CHAR), None)
    octets = line.encode("utf-8", "surrogateescape") + (b"\n" + old.octets if old is not None else b"")
    new = _Attribute(_HISTORY, _CHAR, len(octets), octets)
    if old is None:
        return (*(each for each in attributes if each.name != _HISTORY), new)
    return tuple(new if each is old else each for each in attributes)


def _placed(header: _Header, variables: Sequence[_Var]) -> _Header:
    """Return a header whose variables have their places, in the least version that can hold them."""
    version = header.version
    if any(each.code > _LAST_CLASSIC for each in variables):
        version = _64_BIT_DATA
    while True:
        header = replace(header, version=version, variables=tuple(variables))
        at = len(_packed(header))
        ends: dict[str, int] = {}
        records = [each for each in variables if header.is_record(each)]
        for each in [each for each in variables if not header.is_record(each)] + records:
            ends[each.name] = at
            at += _padded(header.per_record(each) * each.form.itemsize)
        if version == 1 and at >= 1 << 31:
            version = _64_BIT_OFFSET
            continue
        return replace(header, variables=tuple(replace(each, begin=ends[each.name]) for each in variables))


def _packed(header: _Header) -> bytes:
    """Return the bytes of a header."""
    width = 8 if header.version == _64_BIT_DATA else 4

    def number(value: int) -> bytes:
        return value.to_bytes(width, "big")

    def padded(octets: bytes) -> bytes:
        return octets.ljust(_padded(len(octets)), b"\0")

    def name(text: str) -> bytes:
        octets = text.encode("utf-8", "surrogateescape")
        return number(len(octets)) + padded(octets)

    def entries(tag: int, parts: Sequence[bytes]) -> bytes:
        return struct.pack(">i", tag if parts else 0) + number(len(parts)) + b"".join(parts)

    def attributes(found: Sequence[_Attribute]) -> bytes:
        parts = [name(each.name) + struct.pack(">i", each.code) + number(each.length) for each in found]
        return entries(_ATTRIBUTES, [part + padded(each.octets) for part, each in zip(parts, found, strict=True)])

    def variable(var: _Var) -> bytes:
        size = min(_padded(header.per_record(var) * var.form.itemsize), _STREAMING[width])
        begin = var.begin.to_bytes(4 if header.version == 1 else 8, "big")
        dims = number(len(var.dims)) + b"".join(map(number, var.dims))
        return name(var.name) + dims + attributes(var.attributes) + struct.pack(">i", var.code) + number(size) + begin

    dimensions = [name(each.name) + number(each.length) for each in header.dimensions]
    head = b"CDF" + bytes([header.version]) + number(header.nrecords)
    head += entries(_DIMENSIONS, dimensions) + attributes(header.attributes)
    return head + entries(_VARIABLES, [variable(each) for each in header.variables])


def _lay(plan: _Plan, fd: int) -> list[int]:
    """Write all but the elements of results, and return where these begin."""
    header = plan.header
    leaves = [header.leaf(each) for each in header.variables]
    head = _packed(header)
    calls.allocate(fd, max([len(head), *(leaf.begin + _padded(leaf.end - leaf.begin) for leaf in leaves if leaf.end)]))
    calls.pwrite_all(fd, head, 0)
    if plan.source is not None:
        with closing(PiecesFile(plan.source)) as file:
            for old, new in plan.kept:
                _put(fd, new, (block for block, _ in file.arrays(old, 0)))
    return [header.by_name[each.var.name].begin for each in plan.new]


def _put(fd: int, leaf: Pieces, found: Iterator[np.ndarray]) -> None:
    """Write blocks, which are as long as they are read."""
    for (at, _), block in zip(leaf.ranges(), found, strict=True):
        calls.pwrite_all(fd, block.view(np.uint8).data, at)


def _encode(plan: _Plan, results: Sequence[FlatBuffer], fd: int) -> None:
    """Write a file with its results."""
    _lay(plan, fd)
    for new, result in zip(plan.new, results, strict=True):
        _put_elements(fd, plan.header.leaf(plan.header.by_name[new.var.name]), result, new.fill)


def _put_elements(fd: int, leaf: Pieces, result: FlatBuffer, fill: np.ndarray | None) -> None:
    """Write the elements of a result."""
    counts = [count for _, count in leaf.ranges()]
    _put(fd, leaf, encoded(result, leaf.form, counts, fill))


def rewrite(source: Source, changed: Sequence[FlatBuffer], fd: int) -> None:
    """Write a file again with new elements in some variables: a copy, in which these are changed."""
    if _is_hdf5(source):
        hdf5.rewrite(source, changed, fd)
        return
    header = _read_header(source)
    arrays.copy_whole(source, fd)
    for each in changed:
        var = header.by_name[each.name]
        _put_elements(fd, header.leaf(var), each, conventions.fill(var.values, var.form))
