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

import numpy as np

from mpired.datatypes import as_numbers
from mpired.errors import BufferFileError, DatatypeError
from mpired.files import calls
from mpired.formats import arrays, conventions, hdf5
from mpired.formats.array import Array
from mpired.formats.arrays import ArrayHeader, Library, Pieces, PiecesFile
from mpired.formats.conventions import Attribute, Attributes, Variable, octets_of, text_of
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import ArrayLayout, Encoder, encoded
from mpired.formats.rank import Cells, Model, RankFile
from mpired.formats.streamed import DamageError, SourceFile
from mpired.sources.local import peek
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


@dataclass(frozen=True)
class _Var:
    """A variable of a header; its attributes are as in the file, a text as an array of characters."""

    name: str
    dims: tuple[str, ...]
    attributes: Mapping[str, np.ndarray]
    code: int
    begin: int = 0

    @functools.cached_property
    def viewed(self) -> tuple[Attributes, np.dtype]:
        """The values of its attributes, and the form that an element is read in."""
        return conventions.viewed(_values(self.attributes), _FORMS[self.code])


@dataclass(frozen=True)
class _ClassicHeader:
    """The header of a classic file."""

    version: int
    nrecords: int
    dimensions: Mapping[str, int]  # their lengths; 0 means the number of records
    attributes: Mapping[str, np.ndarray]
    variables: Mapping[str, _Var]

    def shape(self, var: _Var) -> tuple[int, ...]:
        """Return the dimensions of a variable."""
        return tuple(self.dimensions[each] or self.nrecords for each in var.dims)

    def is_record(self, var: _Var) -> bool:
        """Return whether a variable has the record dimension."""
        return bool(var.dims) and not self.dimensions[var.dims[0]]

    def piece(self, var: _Var) -> int:
        """Return the bytes of a variable that are adjacent: all, or those of a record."""
        return math.prod(self.dimensions[each] or 1 for each in var.dims) * _FORMS[var.code].itemsize

    @functools.cached_property
    def stride(self) -> int:
        """The bytes of a record."""
        sizes = [self.piece(each) for each in self.variables.values() if self.is_record(each)]
        return sizes[0] if len(sizes) == 1 else sum(map(_padded, sizes))

    def pieces(self, name: str) -> Pieces:
        """Return where the elements of a variable are."""
        var = self.variables[name]
        nbytes, form = self.piece(var), var.viewed[1]
        stride, records = (self.stride, self.nrecords) if self.is_record(var) else (nbytes, 1)
        return Pieces(var.begin, form, nbytes // form.itemsize, records, stride)


def _values(attributes: Mapping[str, np.ndarray]) -> dict[str, Attribute]:
    """Return attributes with a text in the place of an array of characters, up to the first NUL."""
    values = {key: each.tobytes() if each.dtype == _FORMS[_CHAR] else each for key, each in attributes.items()}
    return {key: text_of(each.split(b"\0")[0]) if isinstance(each, bytes) else each for key, each in values.items()}


def _padded(nbytes: int) -> int:
    return -(-nbytes // 4) * 4


class _Cursor:
    """Reads the parts of a header one after another; of a damaged one it raises `DamageError` or `LookupError`."""

    def __init__(self, source: Source, file: OpenSource) -> None:
        self._source = source
        self._file = io.BufferedReader(SourceFile(file, source.nbytes), _PIECE)
        self._at = 0
        magic = self.take(4)
        self.version = magic[3]
        self.width = 8 if self.version == _64_BIT_DATA else 4
        if magic[:3] != b"CDF" or self.version not in (1, _64_BIT_OFFSET, _64_BIT_DATA):
            raise DamageError("it does not begin as netCDF")

    def take(self, nbytes: int) -> bytes:
        self._at += nbytes
        if self._at > min(self._source.nbytes, _MAX_HEADER):
            raise DamageError("the header is cut off, or claims more than there is")
        if len(found := self._file.read(nbytes)) < nbytes:
            raise self._source.changed()
        return found

    def number(self, width: int = 0) -> int:
        return int.from_bytes(self.take(width or self.width), "big")

    def octets(self, itemsize: int = 1) -> bytes:
        """Return elements that follow their number."""
        nbytes = self.number() * itemsize
        return self.take(_padded(nbytes))[:nbytes]

    def entries(self, tag: int) -> range:
        """Return the numbers of the entries of a list."""
        found, count = self.number(4), self.number()
        if found not in (0, tag) or (not found and count):
            raise DamageError(f"there is no list {tag}")
        return range(count)

    def attributes(self) -> dict[str, np.ndarray]:
        found = {}
        for _ in self.entries(_ATTRIBUTES):
            name, form = text_of(self.octets()), _FORMS[self.number(4)]
            found[name] = np.frombuffer(self.octets(form.itemsize), form)
        return found

    def variable(self, dimensions: Mapping[str, int]) -> _Var:
        name, names = text_of(self.octets()), list(dimensions)
        dims = tuple(names[number] for number in [self.number() for _ in range(self.number())])
        if not all(dimensions[each] for each in dims[1:]):
            raise DamageError(f"the records of variable {name!r} are not its first dimension")
        attributes, code = self.attributes(), self.number(4)
        self.number()  # the size, which the dimensions tell, too
        return _Var(name, dims, attributes, code, self.number(4 if self.version == 1 else 8))

    def header(self) -> _ClassicHeader:
        nrecords = self.number()
        dims = [(text_of(self.octets()), self.number()) for _ in self.entries(_DIMENSIONS)]
        dimensions, attributes = dict(dims), self.attributes()
        variables = [self.variable(dimensions) for _ in self.entries(_VARIABLES)]
        by_name = {each.name: each for each in variables}
        is_twice = len(dimensions) < len(dims) or len(by_name) < len(variables)
        if is_twice or list(dimensions.values()).count(0) > 1:
            raise DamageError("it has two record dimensions, or two dimensions or variables of one name")
        header = _ClassicHeader(self.version, nrecords, dimensions, attributes, by_name)
        if nrecords == (1 << 8 * self.width) - 1:  # the file was written as a stream
            begins = [each.begin for each in variables if header.is_record(each)]
            nrecords = max(0, self._source.nbytes - min(begins)) // max(1, header.stride) if begins else 0
            header = replace(header, nrecords=nrecords)
        for name in by_name:
            if (end := header.pieces(name).end) > self._source.nbytes:
                where = f"variable {name!r} ends at byte {end}, and the file has {self._source.nbytes}"
                raise DamageError(f"{where}, it is cut off")
        return header


def _read_header(source: Source) -> _ClassicHeader:
    """Return the header of a file, all of whose variables are within the file."""
    try:
        with closing(source.open()) as file, calls.errors_name(source.name):
            return _Cursor(source, file).header()
    except (DamageError, LookupError) as error:
        reason = error if isinstance(error, DamageError) else f"there is no type or dimension {error}"
        raise BufferFileError(source.name, f"{reason}; not a valid netCDF file") from None


def _is_hdf5(source: Source) -> bool:
    return source.nbytes > 0 and peek(source, 3) != b"CDF"


def inspect(source: Source, inputs: InputOptions) -> RankFile:
    """Describe a netCDF file by its variables."""
    if _is_hdf5(source):
        return hdf5.inspect(source, inputs, "netcdf")
    header = _read_header(source)
    variables = [Variable(name, each.dims, each.viewed[0]) for name, each in header.variables.items()]
    group = Variable("", (), _values(header.attributes))
    carried = () if inputs.any_type else conventions.carried([*variables, group])
    found = [_array(header, each, inputs, is_carried=each.name in carried) for each in header.variables.values()]
    return arrays.inspect(source, inputs, found, Library(PiecesFile))


def _array(header: _ClassicHeader, var: _Var, inputs: InputOptions, *, is_carried: bool) -> ArrayHeader:
    (attributes, form), shape, pieces = var.viewed, header.shape(var), header.pieces(var.name)
    what = f"variable {var.name!r}"
    if var.code == _CHAR:
        found = ArrayHeader(var.name, None, shape, label="strings", reason=f"{what} holds strings", pieces=pieces)
        return found._replace(carried=not inputs.any_type)
    found = conventions.header(var.name, shape, attributes, form, inputs, what)
    if found.packing is None:
        found = found._replace(offset=pieces.begin if pieces.is_one else None, stored=form)
    return found._replace(
        carried=is_carried,
        chunk=(1, *shape[1:]) if header.is_record(var) else (1,) * len(shape),
        dims=var.dims,
        storage=f"records of {header.stride} bytes" if header.is_record(var) else "",
        fixed_order=True,
        pieces=pieces,
    )


def prepare(model: Model) -> ArrayLayout | Encoder:
    """Lay out results like `model`, in the form of netCDF that its file has."""
    if model.source is not None and _is_hdf5(model.source):
        return hdf5.prepare(model._replace(has_history=True))
    old = _ClassicHeader(_64_BIT_OFFSET, 0, {}, {}, {}) if model.source is None else _read_header(model.source)
    dimensions = dict(old.dimensions)
    new = {each.name or "value": _new(each, old, dimensions, model.cells) for each in model.buffers}
    kept = set(model.kept.names if model.kept else ())
    variables = {name: each for name, each in old.variables.items() if name in new or name in kept} | new
    char = _FORMS[_CHAR]
    attributes = {key: each for key, each in old.attributes.items() if key != _HISTORY or each.dtype == char}
    before = [attributes[_HISTORY].tobytes()] if _HISTORY in attributes else []
    attributes[_HISTORY] = np.frombuffer(b"\n".join([octets_of(model.context.history()), *before]), char)
    header = _placed(replace(old, dimensions=dimensions, attributes=attributes, variables=variables))
    write = functools.partial(_write, model, header, {name: old.pieces(name) for name in kept})
    places = [header.pieces(name) for name in new]
    missing = tuple(conventions.missing(*each.viewed) for each in new.values())
    if all(each.is_one for each in places) and not any(buffer.nullable for buffer in model.buffers):
        return ArrayLayout(functools.partial(write, None), tuple(each.form for each in places), missing=missing)
    return Encoder(write, missing)


def _write(
    model: Model, header: _ClassicHeader, carried: Mapping[str, Pieces], results: Sequence[Array] | None, fd: int
) -> list[int]:
    """Write a file of results, without their elements if these are None, and return where they begin."""
    names = [buffer.name or "value" for buffer in model.buffers]
    head, places = _packed(header), {name: header.pieces(name) for name in header.variables}
    ends = [each.begin + _padded(each.end - each.begin) for each in places.values() if each.end]
    calls.allocate(fd, max([len(head), *ends]))
    calls.pwrite_all(fd, head, 0)
    for name, old in carried.items():
        place, values = places[name], model.cells.values.get(name)
        if values is not None:
            cuts = list(itertools.accumulate(count for _, count in place.ranges()))[:-1]
            arrays.put(fd, place, iter(np.split(values.astype(place.form).reshape(-1), cuts)))
        elif model.source is not None:
            arrays.copy_pieces(model.source, old, fd, place)
    if results is not None:
        _put_results(fd, header, dict(zip(names, results, strict=True)))
    return [header.variables[name].begin for name in names]


def _new(buffer: Array, old: _ClassicHeader, dimensions: dict[str, int], cells: Cells) -> _Var:
    """Return the variable of a result; its dimensions are added if they are new."""
    name, is_bool = buffer.name or "value", buffer.datatype.is_bool
    code = _BY_FORM.get(np.dtype("i1") if is_bool else as_numbers(buffer.datatype.form).newbyteorder(">"))
    if is_bool and buffer.nullable:
        raise DatatypeError(buffer.datatype.label, "has no value for missing elements in netCDF; use `to='parquet'`")
    if code is None:
        raise DatatypeError(buffer.datatype.label, "has no form in netCDF; use `to='hdf5'`, `to='npz'` or `to='npy'`")
    like = old.variables.get(buffer.origin or name)
    if like is None or old.shape(like) != buffer.dimensions:
        if 0 in buffer.dimensions[1:]:
            reason = "have no form in netCDF unless the first dimension is that of none"
            raise DatatypeError("arrays without elements", reason)
        dims = tuple(
            next(each for each in conventions.dimension_names(*axis) if dimensions.setdefault(each, axis[1]) == axis[1])
            for axis in buffer.axes
        )
        like = _Var(name, dims, {}, code)
    elif buffer.origin != buffer.own_name:  # it has other values
        attributes = {key: each for key, each in like.attributes.items() if key in conventions.PLACES}
        like = replace(like, attributes=attributes)
    form = like.viewed[1]
    is_same = like.code == code or form == _FORMS[code]
    code, form = (like.code, form) if is_same else (code, _FORMS[code])
    own, left_out = conventions.of_result(*like.viewed, form, is_same=is_same, nullable=buffer.nullable)
    made = {key: value.astype(_FORMS[code]) for key, value in own.items()}
    texts = cells.attributes.get(name, {})
    made |= {key: np.frombuffer(octets_of(text), _FORMS[_CHAR]) for key, text in texts.items() if text}
    made |= {conventions.DTYPE: np.frombuffer(b"bool", _FORMS[_CHAR])} if is_bool else {}  # as xarray has it
    kept = {key: each for key, each in like.attributes.items() if key in own or key not in left_out}
    return replace(like, name=name, code=code, attributes=cells.staying(name, kept | made))


def _placed(header: _ClassicHeader) -> _ClassicHeader:
    """Return a header whose variables have their places, in the least version that can hold them."""
    variables = header.variables
    version = _64_BIT_DATA if any(each.code > _LAST_CLASSIC for each in variables.values()) else header.version
    header = replace(header, version=version)
    at, placed = len(_packed(header)), dict(variables)
    for each in sorted(variables.values(), key=header.is_record):
        placed[each.name] = replace(each, begin=at)
        at += _padded(header.piece(each))
    if version == 1 and at >= 1 << 31:
        return _placed(replace(header, version=_64_BIT_OFFSET))
    return replace(header, variables=placed)


def _packed(header: _ClassicHeader) -> bytes:
    """Return the bytes of a header."""
    nbytes = 8 if header.version == _64_BIT_DATA else 4

    def number(value: int, width: int = nbytes) -> bytes:
        return value.to_bytes(width, "big")

    def text(octets: bytes, itemsize: int = 1) -> bytes:
        return number(len(octets) // itemsize) + octets.ljust(_padded(len(octets)), b"\0")

    def entries(tag: int, parts: Sequence[bytes]) -> bytes:
        return number(tag if parts else 0, 4) + number(len(parts)) + b"".join(parts)

    def attributes(found: Mapping[str, np.ndarray]) -> bytes:
        parts = [
            text(octets_of(name)) + number(_BY_FORM[value.dtype], 4) + text(value.tobytes(), value.itemsize)
            for name, value in found.items()
        ]
        return entries(_ATTRIBUTES, parts)

    head = b"CDF" + bytes([header.version]) + number(header.nrecords)
    dims = entries(_DIMENSIONS, [text(octets_of(name)) + number(each) for name, each in header.dimensions.items()])
    names, variables = list(header.dimensions), []
    for var in header.variables.values():
        own = b"".join(map(number, (len(var.dims), *map(names.index, var.dims))))
        size = min(_padded(header.piece(var)), (1 << 8 * nbytes) - 1)
        place = number(size) + number(var.begin, 4 if header.version == 1 else 8)
        variables.append(text(octets_of(var.name)) + own + attributes(var.attributes) + number(var.code, 4) + place)
    return head + dims + attributes(header.attributes) + entries(_VARIABLES, variables)


def _put_results(fd: int, header: _ClassicHeader, results: Mapping[str, Array]) -> None:
    """Write the elements of results into their variables; those that are missing as its value for that."""
    for name, result in results.items():
        place, fill = header.pieces(name), conventions.fill(*header.variables[name].viewed)
        arrays.put(fd, place, encoded(result, place.form, [count for _, count in place.ranges()], fill))


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write a file again with new elements in some variables: a copy, in which these are changed."""
    if _is_hdf5(source):
        hdf5.rewrite(source, changed, fd)
        return
    arrays.copy_whole(source, fd)
    _put_results(fd, _read_header(source), {each.name: each for each in changed})
