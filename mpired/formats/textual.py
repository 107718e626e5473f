"""The text formats, of which each is a function `NAME_lines`: elements as exact decimal text, streamed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from mpired.datatypes import Datatype, Group
from mpired.datatypes.times import as_times, dtype_name
from mpired.errors import escaped
from mpired.formats.array import Array
from mpired.formats.layout import Encoder, check_names
from mpired.formats.rank import Model
from mpired.log import track

_T = TypeVar("_T")
_BLOCK = 8192  # elements
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?")
_FIRST, _LAST = 10, 5  # elements of a table


def prepare(model: Model) -> Encoder:
    """Say how results like `model` are written, also columns that are kept, in the order of their file."""
    kept, lines = model.kept, globals()[f"{model.format}_lines"]
    if lines is csv_lines:
        names = [name for each in model.buffers for name in column_names(each)]
        check_names(names, kept.names if kept else (), model.format)

    def encode(results: Sequence[Array], fd: int) -> None:
        if kept is not None:
            places = {name: place for place, name in enumerate(kept.schema.names)}
            every = *results, *kept.buffers(fortran_order=False)
            results = sorted(every, key=lambda each: places.get(each.name.partition(",")[0], len(places)))
        write_lines(lines(results), fd)

    return Encoder(encode)


def write_lines(lines: Iterable[str], fd: int) -> None:
    """Write lines to an open file."""
    with os.fdopen(os.dup(fd), "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def column_names(result: Array) -> list[str]:
    """Return the header of a buffer's columns: its name, or one for each component."""
    parts = component_names(result.datatype)
    if len(parts) == 1:
        return [result.name or "value"]
    given = result.name.split(",")
    return given if len(given) == len(parts) else [f"{result.name}.{part}" if result.name else part for part in parts]


def component_names(datatype: Datatype) -> tuple[str, ...]:
    """Return what the components of an element are called: value and index, or real and imag."""
    return tuple(components(np.empty(0, datatype.form), datatype))


def components(block: np.ndarray, datatype: Datatype) -> dict[str, np.ndarray]:
    """Return the components of the elements as arrays by name: points in time as strings, `2021-02-03T04:05:06`."""
    if datatype.group is Group.TIME:
        times = as_times(block, datatype)
        if times.dtype.kind == "M":
            texts: np.ndarray = np.datetime_as_string(times)
            is_zoned = ", tz=" in datatype.name
            return {"value": np.where(np.isnat(times), texts, np.char.add(texts, "Z")) if is_zoned else texts}
        moments = np.datetime_as_string(np.datetime64(0, "D") + times)  # of the day
        return {"value": np.array([text.partition("T")[2] for text in moments], object)}
    if datatype.group is Group.COMPLEX:
        return dict(zip(("real", "imag"), block.view(datatype.component).reshape(-1, 2).T, strict=True))
    if block.dtype.names is None:
        return {"value": block}
    parts: dict[str, np.ndarray] = {}
    for name in datatype.fields:
        for index in np.ndindex(block.dtype[name].shape):
            place, numbers = name + "".join(f"[{i}]" for i in index), block[name][:, *index]
            is_complex = numbers.dtype.kind == "c"
            parts |= {f"{place}.real": numbers.real, f"{place}.imag": numbers.imag} if is_complex else {place: numbers}
    return parts


def _text(value: object) -> str:
    """Return an object of Python as text: strings as they are, lists and structures as JSON."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return _json((value,)) if isinstance(value, list | tuple | dict) else str(value)


def _json(parts: tuple[Any, ...]) -> str:
    """Return an object of Python as JSON, which has only finite numbers."""
    text = json.dumps(parts[0], default=lambda each: each.tolist() if isinstance(each, np.ndarray) else _text(each))
    return json.dumps(json.loads(text, parse_constant=str.lower))


def _field(separator: str, parts: tuple[object, ...]) -> str:
    """Return an object of Python as a field, in quotes if it is not plain, as CSV has it."""
    text = _text(parts[0])
    is_plain = text != "" and not {separator, '"', "\n", "\r"} & set(text)
    return text if is_plain else '"' + text.replace('"', '""') + '"'


def elements(
    result: Array, join: Callable[[tuple[Any, ...]], _T], null: _T, ranges: Iterable[range] | None = None
) -> Generator[_T, None, None]:
    """Yield all elements, or some ranges of them, their components joined by `join`."""
    if ranges is None:
        starts = track(range(0, result.count, _BLOCK))
        ranges = (range(start, min(start + _BLOCK, result.count)) for start in starts)
    with closing(result.open()) as reader:
        for each in ranges:
            block = np.empty(len(each), result.datatype.form)
            there = reader.read(each.start, block)
            # The shortest digits that give a number back.
            parts = components(block, result.datatype).values()
            shown = [part if part.dtype.hasobject else map(str, part) for part in parts]
            texts = map(join, zip(*shown, strict=True))
            yield from texts if there is None else (text if ok else null for text, ok in zip(texts, there, strict=True))


def rows(results: Sequence[Array], separator: str, null: str = "null") -> Iterator[str]:
    """Yield the elements of all buffers side by side, with a word for each component of a null."""
    with ExitStack() as stack:
        columns = []
        for result in results:
            absent = separator.join([null] * len(component_names(result.datatype)))
            join = partial(_field, separator) if result.datatype.form.hasobject else separator.join
            columns.append(stack.enter_context(closing(elements(result, join, absent))))
        yield from map(separator.join, zip(*columns, strict=True))


text_lines = partial(rows, separator=" ")
"""Yields an element a line, the index after the value for a pair."""


def csv_lines(results: Sequence[Array]) -> Iterator[str]:
    """Yield a header, then a column a buffer, or two for pairs; nulls are empty."""
    # A name is the file's word, and a terminal would obey what control characters in it say.
    yield ",".join(_field(",", (escaped(name),)) for result in results for name in column_names(result))
    # An empty line would be skipped by those who read it.
    yield from (line or '""' for line in rows(results, ",", null=""))


def json_lines(results: Sequence[Array]) -> Iterator[str]:
    """Yield one object with an object a buffer; numbers that JSON cannot hold are strings, such as "nan"."""
    yield '{"buffers": ['
    for i, result in enumerate(results):
        names = {"datatype": str(result.datatype), "dtype": dtype_name(result.datatype)}
        head = {"name": result.name, **names, "count": result.count}
        yield json.dumps(head)[:-1] + ', "data": ['
        texts = elements(result, _json if result.datatype.form.hasobject else _token, "null")
        previous = next(texts, None)
        for text in texts:
            yield f"{previous},"
            previous = text
        yield (previous or "") + "]}" + ("," if i + 1 < len(results) else "")
    yield "]}"


def _token(parts: tuple[str, ...]) -> str:
    """Return an element as a number, as a text if JSON has no such number, or as a list of its components."""
    numbers = [part if _NUMBER.fullmatch(part) else json.dumps(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else f"[{', '.join(numbers)}]"


def table_lines(results: Sequence[Array]) -> Iterator[str]:
    """Yield the first and the last elements for a person at a terminal, one a line."""
    count = results[0].count
    is_long = count > _FIRST + _LAST + 1
    shown = [range(_FIRST), range(count - _LAST, count)] if is_long else [range(count)]
    columns = [["element", *map(str, chain(*shown))]]
    for result in results:
        names = [escaped(name) for name in column_names(result)]
        texts = elements(result, lambda parts: [escaped(_text(part)) for part in parts], ["null"] * len(names), shown)
        columns += map(list, zip(names, *texts, strict=True))
    widths = [max(map(len, column)) for column in columns]
    for line, row in enumerate(zip(*columns, strict=True)):
        yield "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        if line == _FIRST and is_long:
            yield f"{'...'.rjust(widths[0])}  ({count - _FIRST - _LAST} more)"
