"""netCDF: variables, each of which is a buffer. netCDF-4 is HDF5; mpired reads the classic forms and CDF-5 itself.

The elements of a classic variable are contiguous and big-endian. Only a variable with the record dimension may have
pieces: a record of the file consists of a piece of each such variable.
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

from mpired.datatypes import numeric_form
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

_MAX_HEADER = 256 << 20  # bytes
_BUFFER_NBYTES = 64 << 10  # of a read from a header
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12  # the tags of lists
_CHAR = 2
_CODES = {
    1: "i1", _CHAR: "S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8", 7: "u1", 8: ">u2", 9: ">u4", 10: ">i8", 11: ">u8",
}  # fmt: skip
_FORMS = {code: np.dtype(form) for code, form in _CODES.items()}
_BY_FORM = {dtype: code for code, dtype in _FORMS.items()}
_LAST_CLASSIC = 6  # the types after it need `_64_BIT_DATA`
_64_BIT_OFFSET, _64_BIT_DATA = 2, 5  # versions
_HISTORY = "history"


@dataclass(frozen=True)
class _ClassicVariable:
    """A variable of a header; in its attributes a string is an array of characters."""

    name: str
    dims: tuple[str, ...]
    attributes: Mapping[str, np.ndarray]
    code: int
    begin: int = 0  # bytes before the first element

    @functools.cached_property
    def signed(self) -> tuple[Attributes, np.dtype]:
        """The attributes and the form of an element, with the sign that `_Unsigned` declares."""
        return conventions.with_sign(_with_strings(self.attributes), _FORMS[self.code])


@dataclass(frozen=True)
class _ClassicHeader:
    """The header of a classic file."""

    version: int
    nrecords: int
    dimensions: Mapping[str, int]  # lengths; 0 for the record dimension
    attributes: Mapping[str, np.ndarray]
    variables: Mapping[str, _ClassicVariable]

    def shape(self, variable: _ClassicVariable) -> tuple[int, ...]:
        """Return the shape of a variable."""
        return tuple(self.dimensions[dim] or self.nrecords for dim in variable.dims)

    def is_record(self, variable: _ClassicVariable) -> bool:
        """Return whether a variable has the record dimension."""
        return bool(variable.dims) and not self.dimensions[variable.dims[0]]

    def piece_nbytes(self, variable: _ClassicVariable) -> int:
        """Return the bytes of a variable that are contiguous: all, or those of a record."""
        return math.prod(self.dimensions[dim] or 1 for dim in variable.dims) * _FORMS[variable.code].itemsize

    @functools.cached_property
    def stride(self) -> int:
        """Bytes from one record to the next."""
        sizes = [self.piece_nbytes(variable) for variable in self.variables.values() if self.is_record(variable)]
        return sizes[0] if len(sizes) == 1 else sum(map(_padded, sizes))

    def pieces(self, name: str) -> Pieces:
        """Return the positions of the elements of a variable."""
        variable = self.variables[name]
        nbytes, form = self.piece_nbytes(variable), variable.signed[1]
        npieces, stride = (self.nrecords, self.stride) if self.is_record(variable) else (1, nbytes)
        return Pieces(variable.begin, form, nbytes // form.itemsize, npieces, stride)


def _with_strings(attributes: Mapping[str, np.ndarray]) -> dict[str, Attribute]:
    """Return attributes with strings, up to the first NUL, in place of arrays of characters."""
    return {
        name: text_of(value.tobytes().split(b"\0")[0]) if value.dtype == _FORMS[_CHAR] else value
        for name, value in attributes.items()
    }


def _padded(nbytes: int) -> int:
    return -(-nbytes // 4) * 4


class _HeaderParser:
    """Reads a header from start to end; raises `DamageError` or `LookupError` if it is damaged."""

    def __init__(self, source: Source, file: OpenSource) -> None:
        self._source = source
        self._file = io.BufferedReader(SourceFile(file, source.nbytes), _BUFFER_NBYTES)
        self._offset = 0
        magic = self._read(4)
        self._version = magic[3]
        self._width = 8 if self._version == _64_BIT_DATA else 4  # bytes of a number
        if magic[:3] != b"CDF" or self._version not in (1, _64_BIT_OFFSET, _64_BIT_DATA):
            raise DamageError("it does not begin as netCDF")

    def _read(self, nbytes: int) -> bytes:
        self._offset += nbytes
        if self._offset > min(self._source.nbytes, _MAX_HEADER):
            raise DamageError("the header is cut off, or claims more than there is")
        if len(octets := self._file.read(nbytes)) < nbytes:
            raise self._source.changed()
        return octets

    def _read_number(self, width: int = 0) -> int:
        return int.from_bytes(self._read(width or self._width), "big")

    def _read_octets(self, itemsize: int = 1) -> bytes:
        """Return the bytes of elements that follow their number."""
        nbytes = self._read_number() * itemsize
        return self._read(_padded(nbytes))[:nbytes]

    def _entries(self, tag: int) -> range:
        """Read the begin of a list, and return a range with its length."""
        list_tag, count = self._read_number(4), self._read_number()
        if list_tag not in (0, tag) or (not list_tag and count):
            raise DamageError(f"there is no list {tag}")
        return range(count)

    def _read_attributes(self) -> dict[str, np.ndarray]:
        attributes = {}
        for _ in self._entries(_ATTRIBUTES):
            name, form = text_of(self._read_octets()), _FORMS[self._read_number(4)]
            attributes[name] = np.frombuffer(self._read_octets(form.itemsize), form)
        return attributes

    def _read_variable(self, dimensions: Mapping[str, int]) -> _ClassicVariable:
        name, names = text_of(self._read_octets()), list(dimensions)
        dims = tuple(names[number] for number in [self._read_number() for _ in range(self._read_number())])
        if not all(dimensions[dim] for dim in dims[1:]):
            raise DamageError(f"the records of variable {name!r} are not its first dimension")
        attributes, code = self._read_attributes(), self._read_number(4)
        self._read_number()  # the size, which follows from the dimensions
        return _ClassicVariable(name, dims, attributes, code, self._read_number(4 if self._version == 1 else 8))

    def read_header(self) -> _ClassicHeader:
        """Return the header, after a check that all variables are within the file."""
        nrecords = self._read_number()
        dims = [(text_of(self._read_octets()), self._read_number()) for _ in self._entries(_DIMENSIONS)]
        dimensions, attributes = dict(dims), self._read_attributes()
        variables = [self._read_variable(dimensions) for _ in self._entries(_VARIABLES)]
        by_name = {variable.name: variable for variable in variables}
        has_doubles = len(dimensions) < len(dims) or len(by_name) < len(variables)
        if has_doubles or list(dimensions.values()).count(0) > 1:
            raise DamageError("it has two record dimensions, or two dimensions or variables of one name")
        header = _ClassicHeader(self._version, nrecords, dimensions, attributes, by_name)
        if nrecords == (1 << 8 * self._width) - 1:  # the file was written as a stream
            begins = [variable.begin for variable in variables if header.is_record(variable)]
            nrecords = max(0, self._source.nbytes - min(begins)) // max(1, header.stride) if begins else 0
            header = replace(header, nrecords=nrecords)
        for name in by_name:
            if (end := header.pieces(name).end) > self._source.nbytes:
                reason = f"variable {name!r} ends at byte {end}, and the file has {self._source.nbytes}"
                raise DamageError(f"{reason}, it is cut off")
        return header


def _read_header(source: Source) -> _ClassicHeader:
    """Return the header of a file, or raise `BufferFileError` if it is damaged."""
    try:
        with closing(source.open()) as file, calls.errors_name(source.name):
            return _HeaderParser(source, file).read_header()
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
    variables = [Variable(name, variable.dims, variable.signed[0]) for name, variable in header.variables.items()]
    group = Variable("", (), _with_strings(header.attributes))
    auxiliary = () if inputs.any_type else conventions.auxiliary_names([*variables, group])
    headers = [_array_header(header, name, inputs, is_auxiliary=name in auxiliary) for name in header.variables]
    return arrays.inspect(source, inputs, headers, Library(PiecesFile))


def _array_header(header: _ClassicHeader, name: str, inputs: InputOptions, *, is_auxiliary: bool) -> ArrayHeader:
    """Describe a variable as an array."""
    variable, pieces, label = header.variables[name], header.pieces(name), f"variable {name!r}"
    (attributes, form), shape = variable.signed, header.shape(variable)
    if variable.code == _CHAR:
        array = ArrayHeader(name, None, shape, label="strings", reason=f"{label} holds strings", pieces=pieces)
        return array._replace(is_auxiliary=not inputs.any_type)
    array = conventions.array_header(name, shape, attributes, form, inputs, label)
    if array.packing is None:
        array = array._replace(offset=pieces.begin if pieces.is_contiguous else None, stored=form)
    return array._replace(
        is_auxiliary=is_auxiliary,
        chunk=(1, *shape[1:]) if header.is_record(variable) else (1,) * len(shape),
        dims=variable.dims,
        storage=f"records of {header.stride} bytes" if header.is_record(variable) else "",
        fixed_order=True,
        pieces=pieces,
    )


def prepare(model: Model) -> ArrayLayout | Encoder:
    """Lay out results like `model`, in the form of netCDF of its file."""
    if model.source is not None and _is_hdf5(model.source):
        return hdf5.prepare(model._replace(has_history=True))
    old = _ClassicHeader(_64_BIT_OFFSET, 0, {}, {}, {}) if model.source is None else _read_header(model.source)
    dimensions = dict(old.dimensions)
    new = {buffer.name or "value": _new_variable(buffer, old, dimensions, model.cells) for buffer in model.buffers}
    kept = set(model.kept.names if model.kept else ())
    variables = {name: variable for name, variable in old.variables.items() if name in new or name in kept} | new
    char = _FORMS[_CHAR]
    attributes = {key: value for key, value in old.attributes.items() if key != _HISTORY or value.dtype == char}
    old_lines = [attributes[_HISTORY].tobytes()] if _HISTORY in attributes else []
    attributes[_HISTORY] = np.frombuffer(b"\n".join([octets_of(model.context.history()), *old_lines]), char)
    header = _place_variables(replace(old, dimensions=dimensions, attributes=attributes, variables=variables))
    write = functools.partial(_write, model, header, {name: old.pieces(name) for name in kept})
    pieces = [header.pieces(name) for name in new]
    missing = tuple(conventions.missing(*variable.signed) for variable in new.values())
    if all(piece.is_contiguous for piece in pieces) and not any(buffer.nullable for buffer in model.buffers):
        return ArrayLayout(functools.partial(write, None), tuple(piece.form for piece in pieces), missing=missing)
    return Encoder(write, missing)


def _write(
    model: Model, header: _ClassicHeader, kept: Mapping[str, Pieces], results: Sequence[Array] | None, fd: int
) -> list[int]:
    """Write a file of results, without their elements if `results` is None, and return the offsets of the results."""
    names = [buffer.name or "value" for buffer in model.buffers]
    head, pieces_of = _encode_header(header), {name: header.pieces(name) for name in header.variables}
    ends = [pieces.begin + _padded(pieces.end - pieces.begin) for pieces in pieces_of.values() if pieces.end]
    calls.allocate(fd, max([len(head), *ends]))
    calls.pwrite_all(fd, head, 0)
    for name, old in kept.items():
        pieces, values = pieces_of[name], model.cells.values.get(name)
        if values is not None:
            stops = list(itertools.accumulate(count for _, count in pieces.ranges()))[:-1]
            arrays.write_pieces(fd, pieces, iter(np.split(values.astype(pieces.form).reshape(-1), stops)))
        elif model.source is not None:
            arrays.copy_pieces(model.source, old, fd, pieces)
    if results is not None:
        _write_results(fd, header, dict(zip(names, results, strict=True)))
    return [header.variables[name].begin for name in names]


def _new_variable(buffer: Array, old: _ClassicHeader, dimensions: dict[str, int], cells: Cells) -> _ClassicVariable:
    """Return the variable of a result, and add its new dimensions to `dimensions`."""
    name, is_bool = buffer.name or "value", buffer.datatype.is_bool
    code = _BY_FORM.get(np.dtype("i1") if is_bool else numeric_form(buffer.datatype.form).newbyteorder(">"))
    if is_bool and buffer.nullable:
        raise DatatypeError(buffer.datatype.label, "has no value for missing elements in netCDF; use `to='parquet'`")
    if code is None:
        raise DatatypeError(buffer.datatype.label, "has no form in netCDF; use `to='hdf5'`, `to='npz'` or `to='npy'`")
    if name not in old.variables and not conventions.is_netcdf_name(name):
        rule = "names begin with a letter, a digit or _, and have no / and no space at the end"
        raise DatatypeError(repr(name), f"is not a name in netCDF: {rule}; use `to='hdf5'` or `to='npz'`")
    template = old.variables.get(buffer.origin or name, _ClassicVariable(name, (), {}, code))
    has_same_shape, has_same_meaning = old.shape(template) == buffer.dimensions, buffer.origin == buffer.own_name
    attributes = {
        key: value
        for key, value in template.attributes.items()
        if conventions.keeps_attribute(key, same_shape=has_same_shape, same_meaning=has_same_meaning)
    }
    template = replace(template, attributes=attributes)
    if not has_same_shape:
        if 0 in buffer.dimensions[1:]:
            reason = "have no form in netCDF unless the first dimension is that of none"
            raise DatatypeError("arrays without elements", reason)
        dims = tuple(
            next(name for name in conventions.dimension_names(*axis) if dimensions.setdefault(name, axis[1]) == axis[1])
            for axis in buffer.axes
        )
        template = replace(template, dims=dims)
    form = template.signed[1]
    is_same = template.code == code or form == _FORMS[code]
    code, form = (template.code, form) if is_same else (code, _FORMS[code])
    converted, left_out = conventions.result_attributes(
        *template.signed, form, is_same=is_same, nullable=buffer.nullable
    )
    new = {key: value.astype(_FORMS[code]) for key, value in converted.items()}
    strings = cells.attributes.get(name, {})
    new |= {key: np.frombuffer(octets_of(text), _FORMS[_CHAR]) for key, text in strings.items() if text}
    new |= {conventions.DTYPE: np.frombuffer(b"bool", _FORMS[_CHAR])} if is_bool else {}  # in the form of xarray
    kept = {key: value for key, value in template.attributes.items() if key in converted or key not in left_out}
    return replace(template, name=name, code=code, attributes=cells.remaining_attributes(name, kept | new))


def _place_variables(header: _ClassicHeader) -> _ClassicHeader:
    """Return a header with offsets for its variables, in the lowest version that can store them."""
    variables = header.variables
    has_long = any(variable.code > _LAST_CLASSIC for variable in variables.values())
    header = replace(header, version=_64_BIT_DATA if has_long else header.version)
    offset, placed = len(_encode_header(header)), dict(variables)
    for variable in sorted(variables.values(), key=header.is_record):
        placed[variable.name] = replace(variable, begin=offset)
        offset += _padded(header.piece_nbytes(variable))
    if header.version == 1 and offset >= 1 << 31:
        return _place_variables(replace(header, version=_64_BIT_OFFSET))
    return replace(header, variables=placed)


def _encode_header(header: _ClassicHeader) -> bytes:
    """Return the bytes of a header."""
    width = 8 if header.version == _64_BIT_DATA else 4

    def number(value: int, nbytes: int = width) -> bytes:
        return value.to_bytes(nbytes, "big")

    def text(octets: bytes, itemsize: int = 1) -> bytes:
        return number(len(octets) // itemsize) + octets.ljust(_padded(len(octets)), b"\0")

    def entries(tag: int, parts: Sequence[bytes]) -> bytes:
        return number(tag if parts else 0, 4) + number(len(parts)) + b"".join(parts)

    def attribute_list(attributes: Mapping[str, np.ndarray]) -> bytes:
        parts = [
            text(octets_of(name)) + number(_BY_FORM[value.dtype], 4) + text(value.tobytes(), value.itemsize)
            for name, value in attributes.items()
        ]
        return entries(_ATTRIBUTES, parts)

    head = b"CDF" + bytes([header.version]) + number(header.nrecords)
    dims = entries(_DIMENSIONS, [text(octets_of(name)) + number(length) for name, length in header.dimensions.items()])
    names, variables = list(header.dimensions), []
    for variable in header.variables.values():
        dim_list = b"".join(map(number, (len(variable.dims), *map(names.index, variable.dims))))
        size = number(min(_padded(header.piece_nbytes(variable)), (1 << 8 * width) - 1))
        begin = number(variable.begin, 4 if header.version == 1 else 8)
        name, attributes = text(octets_of(variable.name)), attribute_list(variable.attributes)
        variables.append(name + dim_list + attributes + number(variable.code, 4) + size + begin)
    return head + dims + attribute_list(header.attributes) + entries(_VARIABLES, variables)


def _write_results(fd: int, header: _ClassicHeader, results: Mapping[str, Array]) -> None:
    """Write the elements of results, with the fill value of its variable for each missing element."""
    for name, result in results.items():
        pieces, fill = header.pieces(name), conventions.fill_of_result(*header.variables[name].signed)
        arrays.write_pieces(fd, pieces, encoded(result, pieces.form, [count for _, count in pieces.ranges()], fill))


def rewrite(source: Source, changed: Sequence[Array], fd: int) -> None:
    """Write a copy of a file with new elements in some variables."""
    if _is_hdf5(source):
        hdf5.rewrite(source, changed, fd)
        return
    arrays.copy_whole(source, fd)
    _write_results(fd, _read_header(source), {array.name: array for array in changed})
