"""netCDF: variables, of which each is a buffer. netCDF-4 is HDF5; the classic forms, and CDF-5, are read here.

The elements of a classic variable are in one piece, in big-endian order, unless it has the record dimension beside
others: then each record has a piece of each such variable.
"""

from __future__ import annotations

import functools
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

import numpy as np

from mpired.datatypes import as_numbers
from mpired.errors import BufferFileError, DatatypeError
from mpired.files import calls
from mpired.formats import arrays, conventions, hdf5
from mpired.formats.array import Array
from mpired.formats.arrays import ArrayHeader, KeptArrays, Library, Pieces, PiecesFile
from mpired.formats.conventions import Attribute, Attributes, Variable
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import ArrayLayout, MarkingLayout, encoded
from mpired.formats.local import SourceFile
from mpired.formats.rank import Model, RankFile
from mpired.sources.source import OpenSource, Source

_MAX_HEADER = 256 << 20
_PIECE = 64 << 10
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

load = hdf5.load


class _Attribute(NamedTuple):
    """An attribute as the file has it."""

    name: str
    code: int
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
class _ClassicHeader:
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

    @property
    def width(self) -> int:
        """The bytes of a number."""
        return 8 if self.version == _64_BIT_DATA else 4

    def is_record(self, var: _Var) -> bool:
        """Return whether a variable has the record dimension."""
        return bool(var.dims) and self.dimensions[var.dims[0]].length == 0

    def shape(self, var: _Var) -> tuple[int, ...]:
        """Return the dimensions of a variable."""
        return tuple(self.dimensions[each].length or self.nrecords for each in var.dims)

    def piece(self, var: _Var) -> int:
        """Return how many bytes of a variable are adjacent."""
        return math.prod(self.shape(var)[self.is_record(var) :]) * var.form.itemsize

    @functools.cached_property
    def stride(self) -> int:
        """The bytes of a record."""
        sizes = [self.piece(each) for each in self.variables if self.is_record(each)]
        return sizes[0] if len(sizes) == 1 else sum(map(_padded, sizes))

    def leaf(self, name: str) -> Pieces:
        """Return where the elements of a variable are."""
        var = self.by_name[name]
        stride, records = (self.stride, self.nrecords) if self.is_record(var) else (self.piece(var), 1)
        return Pieces(var.begin, var.form, self.piece(var) // var.form.itemsize, records, stride)


def _padded(nbytes: int) -> int:
    return -(-nbytes // 4) * 4


class _Cursor:
    """Reads the parts of a header one after another."""

    def __init__(self, source: Source, file: OpenSource) -> None:
        self._source = source
        self._file = io.BufferedReader(SourceFile(file, source.nbytes), _PIECE)
        self._at = 0
        self.width = 4

    def bad(self, reason: str) -> NoReturn:
        """Raise the error of a damaged header."""
        raise BufferFileError(self._source.name, f"{reason}; not a valid netCDF file")

    def take(self, nbytes: int) -> bytes:
        self._at += nbytes
        if self._at > min(self._source.nbytes, _MAX_HEADER):
            self.bad("the header is cut off, or claims more than there is")
        if len(found := self._file.read(nbytes)) < nbytes:
            raise self._source.changed()
        return found

    def number(self, width: int = 0) -> int:
        return int.from_bytes(self.take(width or self.width), "big")

    def octets(self, itemsize: int = 1) -> bytes:
        """Return elements that follow their number."""
        nbytes = self.number() * itemsize
        return self.take(_padded(nbytes))[:nbytes]

    def name(self) -> str:
        return self.octets().decode("utf-8", "surrogateescape")

    def entries(self, tag: int, what: str) -> range:
        """Return the numbers of the entries of a list."""
        found, count = self.number(4), self.number()
        if found not in (0, tag) or (not found and count):
            self.bad(f"there is no list of {what}")
        return range(count)

    def code(self) -> int:
        """Return the code of a type."""
        found = self.number(4)
        if found not in _FORMS:
            self.bad(f"there is no type {found}")
        return found

    def attributes(self) -> tuple[_Attribute, ...]:
        return tuple(
            _Attribute(self.name(), code := self.code(), self.octets(_FORMS[code].itemsize))
            for _ in self.entries(_ATTRIBUTES, "attributes")
        )

    def variable(self, dimensions: Sequence[_Dimension], offset: int) -> _Var:
        name = self.name()
        dims = tuple(self.number() for _ in range(self.number()))
        if any(each >= len(dimensions) for each in dims) or any(not dimensions[each].length for each in dims[1:]):
            self.bad(f"variable {name!r} has dimensions that are not there, or records that are not its first")
        attributes, code = self.attributes(), self.code()
        self.number()  # the size, which the dimensions tell, too
        return _Var(name, dims, attributes, code, self.number(offset))


def _read_header(source: Source) -> _ClassicHeader:
    """Return the header of a file, all of whose variables are within the file."""
    with closing(source.open()) as file, calls.errors_name(source.name):
        cursor = _Cursor(source, file)
        magic = cursor.take(4)
        header = _ClassicHeader(magic[3], 0)
        if magic[:3] != b"CDF" or header.version not in (1, _64_BIT_OFFSET, _64_BIT_DATA):
            cursor.bad("it does not begin as netCDF")
        cursor.width = header.width
        nrecords = cursor.number()
        dimensions = tuple(
            _Dimension(cursor.name(), cursor.number()) for _ in cursor.entries(_DIMENSIONS, "dimensions")
        )
        attributes = cursor.attributes()
        offset = 4 if header.version == 1 else 8
        variables = tuple(cursor.variable(dimensions, offset) for _ in cursor.entries(_VARIABLES, "variables"))
        if sum(not each.length for each in dimensions) > 1:
            cursor.bad("it has two record dimensions")
        header = _ClassicHeader(header.version, 0, dimensions, attributes, variables)
        if len(header.by_name) < len(variables):
            cursor.bad("it has two variables of one name")
        if nrecords == (1 << 8 * header.width) - 1:  # the file was written as a stream
            begins = [each.begin for each in variables if header.is_record(each)]
            nrecords = max(0, source.nbytes - min(begins)) // max(1, header.stride) if begins else 0
        header = replace(header, nrecords=nrecords)
        for each in variables:
            if (end := header.leaf(each.name).end) > source.nbytes:
                where = f"variable {each.name!r} ends at byte {end}, and the file has {source.nbytes}"
                cursor.bad(f"{where}, it is cut off")
        return header


def _is_hdf5(source: Source) -> bool:
    with closing(source.open()) as file, calls.errors_name(source.name):
        return file.read(3, 0) != b"CDF" and source.nbytes > 0


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe a netCDF file by its variables."""
    if _is_hdf5(source):
        return hdf5.inspect(source, inputs, "netcdf")
    header = _read_header(source)
    variables = [
        Variable(each.name, tuple(header.dimensions[dim].name for dim in each.dims), each.values)
        for each in header.variables
    ]
    group = Variable("", (), {each.name: each.value for each in header.attributes})
    carried = () if inputs.any_type else conventions.carried([*variables, group])
    found = [_array(source, header, each, each.name in carried, inputs) for each in header.variables]
    return arrays.inspect(source, inputs, found, Library(PiecesFile))


def _array(source: Source, header: _ClassicHeader, var: _Var, is_carried: bool, inputs: InputOptions) -> ArrayHeader:  # noqa: FBT001
    shape, attributes, leaf = header.shape(var), var.values, header.leaf(var.name)
    is_record, name = header.is_record(var), f"variable {var.name!r}"
    record = f"record dimension {header.dimensions[var.dims[0]].name!r}" if is_record else ""
    what = leaf.form.str, shape, *conventions.identity(attributes)
    if var.code == _CHAR:
        found = ArrayHeader(var.name, None, shape, label="strings", reason=f"{name} holds strings", leaf=leaf)
        if inputs.any_type:
            return found
        return found._replace(carried=True, digest=arrays.digest_of(source, leaf, what))
    meaning = conventions.meaning(name, var.name, attributes, var.form, unpack=inputs.unpack, window=inputs.window)
    is_flat = leaf.is_one and meaning.leaf is None
    return ArrayHeader(
        var.name,
        shape=shape,
        offset=leaf.begin if is_flat else None,
        stored=var.form if meaning.leaf is None else None,
        label="" if meaning.dtype is not None else var.form.str,
        carried=is_carried,
        digest=arrays.digest_of(source, leaf, what) if is_carried or arrays.is_kept(var.name, inputs.keep) else b"",
        chunk=(1, *shape[1:]) if is_record else (1,) * len(shape),
        dims=tuple(header.dimensions[dim].name for dim in var.dims),
        unit=conventions.unit(attributes),
        attributes=conventions.described(attributes),
        storage=f"records of {header.stride} bytes" if is_record else "",
        fixed_order=True,
        unlimited=(record, *[""] * (len(shape) - 1)) if is_record else (),
        unset=conventions.unset(attributes, var.form, meaning.leaf),
        **{**meaning._asdict(), "leaf": leaf._replace(packed=meaning.leaf)},
    )


class _NetcdfPlan(NamedTuple):
    """A file of results: its header, with places, the names of results, and the places of carried variables."""

    header: _ClassicHeader
    new: tuple[str, ...]
    source: Source | None
    kept: tuple[tuple[Pieces, Pieces, np.ndarray | None], ...]


def prepare(model: Model) -> ArrayLayout | MarkingLayout:
    """Lay out results like `model`, in the form of netCDF that its file has."""
    if model.source is not None and _is_hdf5(model.source):
        return hdf5.prepare(model, has_history=True)
    old = _ClassicHeader(_64_BIT_OFFSET, 0) if model.source is None else _read_header(model.source)
    dimensions = list(old.dimensions)
    new = {(buffer.name or "value"): _new(buffer, old, dimensions, model.cells.methods) for buffer in model.buffers}
    kept = set(model.kept.names) - new.keys() if isinstance(model.kept, KeptArrays) else set()
    variables = {name: each for name, each in old.by_name.items() if name in new or name in kept} | new
    attributes = _with_history(old.attributes, model.context.history())
    header = replace(old, dimensions=tuple(dimensions), attributes=attributes, variables=tuple(variables.values()))
    header = _placed(header)
    values = model.cells.values
    moved = tuple((old.leaf(name), header.leaf(name), values.get(name)) for name in old.by_name if name in kept)
    plan = _NetcdfPlan(header, tuple(new), model.source, moved)
    leaves = [header.leaf(name) for name in new]
    missing = tuple(conventions.missing(each.values, each.form) for each in new.values())
    if all(leaf.is_one for leaf in leaves) and not any(buffer.nullable for buffer in model.buffers):
        return ArrayLayout(functools.partial(_lay, plan), tuple(leaf.form for leaf in leaves), missing=missing)
    return MarkingLayout(functools.partial(_encode, plan), missing)


def _new(buffer: Array, old: _ClassicHeader, dimensions: list[_Dimension], methods: Mapping[str, str]) -> _Var:
    """Return the variable of a result, whose dimensions are added if they are new."""
    name = buffer.name or "value"
    code = None if buffer.datatype.is_bool else _BY_FORM.get(as_numbers(buffer.datatype.form).newbyteorder(">"))
    if code is None or buffer.fortran_order:
        what = "arrays in Fortran order" if code else buffer.datatype.label
        raise DatatypeError(what, "has no form in netCDF; use `to='hdf5'`, `to='npz'` or `to='npy'`")
    origin = buffer.origin or name
    like = old.by_name.get(origin)
    if like is None or old.shape(like) != buffer.dimensions:
        dims = tuple(_dimension(length, dimensions, first=not i) for i, length in enumerate(buffer.dimensions))
        like = _Var(name, dims, (), code)
    elif buffer.origin != buffer.own_name:  # it has other values
        like = replace(like, attributes=tuple(a for a in like.attributes if a.name in conventions.PLACES))
    code = like.code if like.form == _FORMS[code] else code
    is_same = code == like.code
    form = like.form if is_same else _FORMS[code]
    own, left_out = conventions.of_result(like.values, like.form, form, is_same=is_same, nullable=buffer.nullable)
    made = {key: _Attribute(key, code, value.astype(_FORMS[code]).tobytes()) for key, value in own.items()}
    if text := methods.get(name):
        made[conventions.METHODS] = _Attribute(conventions.METHODS, _CHAR, text.encode("utf-8", "surrogateescape"))
    kept = {each.name: each for each in like.attributes if each.name in own or each.name not in left_out}
    return replace(like, name=name, code=code, attributes=tuple((kept | made).values()))


def _dimension(length: int, dimensions: list[_Dimension], *, first: bool) -> int:
    """Return the number of a dimension of that length, not the record dimension unless it has no elements."""
    if not length and not first:
        reason = "have no form in netCDF unless the first dimension is that of none"
        raise DatatypeError("arrays without elements", reason)
    wanted = _Dimension(f"dim_{length}", length)
    if wanted not in dimensions:
        dimensions.append(wanted)
    return dimensions.index(wanted)


def _with_history(attributes: Sequence[_Attribute], line: str) -> tuple[_Attribute, ...]:
    """Return the attributes of a file with a line more in its history, which replaces one that is not a text."""
    kept = {each.name: each for each in attributes if each.name != _HISTORY or each.code == _CHAR}
    before = b"\n" + kept[_HISTORY].octets if _HISTORY in kept else b""
    octets = line.encode("utf-8", "surrogateescape") + before
    return tuple((kept | {_HISTORY: _Attribute(_HISTORY, _CHAR, octets)}).values())


def _placed(header: _ClassicHeader) -> _ClassicHeader:
    """Return a header whose variables have their places, in the least version that can hold them."""
    version = _64_BIT_DATA if any(each.code > _LAST_CLASSIC for each in header.variables) else header.version
    header = replace(header, version=version)
    at, begins = len(_packed(header)), {}
    for each in sorted(header.variables, key=header.is_record):
        begins[each.name] = at
        at += _padded(header.piece(each))
    if version == 1 and at >= 1 << 31:
        return _placed(replace(header, version=_64_BIT_OFFSET))
    return replace(header, variables=tuple(replace(each, begin=begins[each.name]) for each in header.variables))


def _packed(header: _ClassicHeader) -> bytes:
    """Return the bytes of a header."""

    def number(value: int, width: int = header.width) -> bytes:
        return value.to_bytes(width, "big")

    def text(octets: bytes, itemsize: int = 1) -> bytes:
        return number(len(octets) // itemsize) + octets.ljust(_padded(len(octets)), b"\0")

    def name(found: str) -> bytes:
        return text(found.encode("utf-8", "surrogateescape"))

    def entries(tag: int, parts: Sequence[bytes]) -> bytes:
        return number(tag if parts else 0, 4) + number(len(parts)) + b"".join(parts)

    def attributes(found: Sequence[_Attribute]) -> bytes:
        parts = [name(a.name) + number(a.code, 4) + text(a.octets, _FORMS[a.code].itemsize) for a in found]
        return entries(_ATTRIBUTES, parts)

    def variable(var: _Var) -> bytes:
        dims = b"".join(map(number, (len(var.dims), *var.dims)))
        size = min(_padded(header.piece(var)), (1 << 8 * header.width) - 1)
        places = number(size) + number(var.begin, 4 if header.version == 1 else 8)
        return name(var.name) + dims + attributes(var.attributes) + number(var.code, 4) + places

    head = b"CDF" + bytes([header.version]) + number(header.nrecords)
    dimensions = entries(_DIMENSIONS, [name(each.name) + number(each.length) for each in header.dimensions])
    return head + dimensions + attributes(header.attributes) + entries(_VARIABLES, [*map(variable, header.variables)])


def _lay(plan: _NetcdfPlan, fd: int) -> list[int]:
    """Write all but the elements of results, and return where these begin."""
    leaves = [plan.header.leaf(each.name) for each in plan.header.variables]
    head = _packed(plan.header)
    calls.allocate(fd, max([len(head), *(leaf.begin + _padded(leaf.end - leaf.begin) for leaf in leaves if leaf.end)]))
    calls.pwrite_all(fd, head, 0)
    if plan.source is not None:
        for old, new, values in plan.kept:
            if values is None:
                arrays.copy_pieces(plan.source, old, fd, new)
            else:
                ends = itertools.accumulate(count for _, count in new.ranges())
                arrays.put(fd, new, iter(np.split(values.astype(new.form).reshape(-1), [*ends][:-1])))
    return [plan.header.by_name[name].begin for name in plan.new]


def _put_results(fd: int, header: _ClassicHeader, results: Mapping[str, Array]) -> None:
    """Write the elements of results into their variables; those that are missing as its value for that."""
    for name, result in results.items():
        var, leaf = header.by_name[name], header.leaf(name)
        counts = [count for _, count in leaf.ranges()]
        arrays.put(fd, leaf, encoded(result, leaf.form, counts, conventions.fill(var.values, var.form)))


def _encode(plan: _NetcdfPlan, results: Sequence[Array], fd: int) -> None:
    """Write a file with its results."""
    _lay(plan, fd)
    _put_results(fd, plan.header, dict(zip(plan.new, results, strict=True)))


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write a file again with new elements in some variables: a copy, in which these are changed."""
    if _is_hdf5(source):
        hdf5.rewrite(source, changed, fd)
        return
    arrays.copy_whole(source, fd)
    _put_results(fd, _read_header(source), {each.name: each for each in changed})
