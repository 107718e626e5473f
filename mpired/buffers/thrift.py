"""Thrift's compact protocol, as far as the headers of parquet need it: the fields that a table names, the rest skipped.

Nothing is allocated because a length says so, and what is skipped leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from mpired.buffers.local import DamageError

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_INTEGERS = {_I16, _I32, _I64}
_FIXED = {_BYTE: 1, _DOUBLE: 8}
_DEPTH = 32
_LONG_LIST = 15  # from so many elements on, their number follows
_MORE = 0x80  # the bit of a varint that says that it goes on
_BITS = 64


class Field(NamedTuple):
    """A field that is wanted."""

    name: str  # what its value is called
    of: type[int | bytes] | Fields = int  # what it has to be: a number, bytes, or the fields of a structure
    raw: bool = False  # whether its bytes are wanted as they are, whatever it is
    many: bool = False  # whether it is a list of these


Fields: TypeAlias = Mapping[int, Field]
Encoded: TypeAlias = tuple[int, bytes]  # the type of a value, and its bytes


class Input:
    """Reads values one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def structure(self, wanted: Fields, depth: int = 0) -> dict[str, Any]:
        """Return the wanted fields of a structure by name; those that are left out are not in it."""
        if depth > _DEPTH:
            raise DamageError("structures are nested too deep")
        found: dict[str, Any] = {}
        number = 0
        while head := self._byte():
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._number()
            field = wanted.get(number)
            start = self.at
            if field is None or field.raw:
                self._skip(kind, depth)
                if field is not None:
                    found[field.name] = kind, self._data[start : self.at]
            elif kind in _INTEGERS and field.of is int:
                found[field.name] = self._number()
            elif field.many and kind == _LIST:
                element, count = self._list()
                found[field.name] = [self._value(element, field, depth + 1) for _ in range(count)]
            elif field.many:
                raise DamageError(f"the field {field.name!r} is not a list")
            else:
                found[field.name] = self._value(kind, field, depth)
        return found

    def structures(self, of: Fields) -> list[tuple[dict[str, Any], Encoded]]:
        """Return the structures of a list, each with its bytes."""
        kind, count = self._list()
        if kind != _STRUCT:
            raise DamageError(f"a list is of type {kind}")
        found = []
        for _ in range(count):
            start = self.at
            values = self.structure(of)
            found.append((values, (_STRUCT, self._data[start : self.at])))
        return found

    def _value(self, kind: int, field: Field, depth: int) -> Any:
        """Return a number, bytes or a structure, if it is what the field has to be: others rely on that."""
        if kind in _INTEGERS and field.of is int:
            return self._number()
        if kind == _BINARY and field.of is bytes:
            return self._bytes()
        if kind == _STRUCT and isinstance(field.of, Mapping):
            return self.structure(field.of, depth + 1)
        raise DamageError(f"the field {field.name!r} is of type {kind}")

    def _skip(self, kind: int, depth: int) -> None:
        if kind in _INTEGERS:
            self.varint()
        elif kind == _STRUCT:
            self.structure({}, depth + 1)
        elif kind == _BINARY:
            self._bytes()
        elif kind in _FIXED:
            self._pass(_FIXED[kind])
        elif kind in {_LIST, _SET}:
            if depth > _DEPTH:
                raise DamageError("lists are nested too deep")
            element, count = self._list()
            if element in {_TRUE, _FALSE}:
                self._pass(count)
            else:
                for _ in range(count):
                    self._skip(element, depth + 1)
        elif kind not in {_TRUE, _FALSE}:
            raise DamageError(f"a field is of type {kind}")  # parquet has no maps

    def _list(self) -> tuple[int, int]:
        """Return type and number of the elements of a list, each of which needs a byte at least."""
        head = self._byte()
        count = head >> 4 if head >> 4 < _LONG_LIST else self.varint()
        if count > len(self._data) - self.at:
            raise IndexError
        return head & 15, count

    def _byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        return byte

    def varint(self) -> int:
        """Return a number without a sign, seven bits a byte."""
        byte = self._data[self.at]
        self.at += 1
        value, shift = byte, 0
        while byte >= _MORE:
            shift += 7
            byte = self._data[self.at]
            self.at += 1
            value += (byte - 1) << shift  # without the bit that said that it goes on
            if shift >= _BITS:
                raise DamageError("a number has more than 64 bits")
        return value

    def _number(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def _bytes(self) -> bytes:
        return self.take(self.varint())

    def take(self, nbytes: int) -> bytes:
        """Return the next bytes as they are."""
        start = self.at
        self._pass(nbytes)
        return self._data[start : self.at]

    def _pass(self, nbytes: int) -> None:
        if nbytes > len(self._data) - self.at:
            raise IndexError
        self.at += nbytes


def int64(value: int, kind: int = _I64) -> Encoded:
    """Encode a number of 64 bits."""
    return kind, _varint(value << 1 ^ value >> 63)


int32 = partial(int64, kind=_I32)


def text(value: bytes) -> Encoded:
    """Encode bytes."""
    return _BINARY, _varint(len(value)) + value


def listed(elements: Sequence[Encoded]) -> Encoded:
    """Encode a list of elements of one type; an empty one is of structures."""
    count, kind = len(elements), elements[0][0] if elements else _STRUCT
    head = bytes([count << 4 | kind]) if count < _LONG_LIST else bytes([0xF0 | kind]) + _varint(count)
    return _LIST, head + b"".join(data for _, data in elements)


def structure(fields: Iterable[tuple[int, Encoded]]) -> Encoded:
    """Encode fields, given with their numbers in ascending order, which are less than 16 apart."""
    data, last = b"", 0
    for field, (kind, value) in fields:
        data += bytes([field - last << 4 | kind]) + value
        last = field
    return _STRUCT, data + b"\0"


def _varint(value: int) -> bytes:
    data = bytearray()
    while value >= _MORE:
        data.append(value & 0x7F | _MORE)
        value >>= 7
    data.append(value)
    return bytes(data)
