"""The text formats, which are only written: elements as exact decimal numbers.

The function `NAME_lines` yields the lines of the format NAME.
"""

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
from mpired.datatypes.dtypes import as_times, dtype_name
from mpired.errors import escaped
from mpired.formats.array import Array
from mpired.formats.layout import Encoder, check_names
from mpired.formats.rank import Model
from mpired.log import track

_T = TypeVar("_T")
_BLOCK = 8192  # elements
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?")
_NFIRST, _NLAST = 10, 5  # elements of a table


def prepare(model: Model) -> Encoder:
    """Return the encoder of results and of kept columns, in the order of the columns of the model."""
    kept, lines = model.kept, globals()[f"{model.format.name}_lines"]
    if lines is csv_lines:
        names = [name for result in model.buffers for name in column_names(result)]
        check_names(names, kept.names if kept else (), model.format.name)

    def encode(results: Sequence[Array], fd: int) -> None:
        if kept is not None:
            places = {name: place for place, name in enumerate(kept.schema.names)}
            columns = *results, *kept.buffers(fortran_order=False)
            results = sorted(columns, key=lambda column: places.get(column.name.partition(",")[0], len(places)))
        write_lines(lines(results), fd)

    return Encoder(encode)


def write_lines(lines: Iterable[str], fd: int) -> None:
    """Write lines to an open file."""
    with os.fdopen(os.dup(fd), "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def column_names(result: Array) -> list[str]:
    """Return the names of the columns of a result: a column for each component."""
    parts = component_names(result.datatype)
    if len(parts) == 1:
        return [result.name or "value"]
    names = result.name.split(",")
    return names if len(names) == len(parts) else [f"{result.name}.{part}" if result.name else part for part in parts]


def component_names(datatype: Datatype) -> tuple[str, ...]:
    """Return the names of the components of an element, such as value and index, or real and imag."""
    return tuple(components(np.empty(0, datatype.form), datatype))


def components(block: np.ndarray, datatype: Datatype) -> dict[str, np.ndarray]:
    """Return the components of the elements as arrays by name; times are strings, such as `2021-02-03T04:05:06`."""
    if datatype.group is Group.TIME:
        times = as_times(block, datatype)
        if times.dtype.kind == "M":
            texts: np.ndarray = np.datetime_as_string(times)
            is_zoned = ", tz=" in datatype.name
            return {"value": np.where(np.isnat(times), texts, np.char.add(texts, "Z")) if is_zoned else texts}
        times_of_day = np.datetime_as_string(np.datetime64(0, "D") + times)
        return {"value": np.array([text.partition("T")[2] for text in times_of_day], object)}
    if datatype.group is Group.COMPLEX:
        return dict(zip(("real", "imag"), block.view(datatype.component).reshape(-1, 2).T, strict=True))
    if block.dtype.names is None:
        return {"value": block}
    parts: dict[str, np.ndarray] = {}
    for name in datatype.fields:
        for index in np.ndindex(block.dtype[name].shape):
            label, numbers = name + "".join(f"[{i}]" for i in index), block[name][:, *index]
            is_complex = numbers.dtype.kind == "c"
            parts |= {f"{label}.real": numbers.real, f"{label}.imag": numbers.imag} if is_complex else {label: numbers}
    return parts


def _text(value: object) -> str:
    """Return an object of Python as text: strings unchanged, lists and structures as JSON."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return _json((value,)) if isinstance(value, list | tuple | dict) else str(value)


def _json(parts: tuple[Any, ...]) -> str:
    """Return an object of Python as JSON, with strings for numbers that are not finite."""
    text = json.dumps(parts[0], default=lambda item: item.tolist() if isinstance(item, np.ndarray) else _text(item))
    return json.dumps(json.loads(text, parse_constant=str.lower))


def _field(separator: str, parts: tuple[object, ...]) -> str:
    """Return an object of Python as a field of CSV, in quotes if it needs them."""
    text = _text(parts[0])
    is_plain = text != "" and not {separator, '"', "\n", "\r"} & set(text)
    return text if is_plain else '"' + text.replace('"', '""') + '"'


def elements(
    result: Array, join: Callable[[tuple[Any, ...]], _T], null: _T, ranges: Iterable[range] | None = None
) -> Generator[_T, None, None]:
    """Yield `null` for nulls, and the components of other elements, joined by `join`, of all elements or of ranges."""
    if ranges is None:
        starts = track(range(0, result.count, _BLOCK))
        ranges = (range(start, min(start + _BLOCK, result.count)) for start in starts)
    with closing(result.open()) as reader:
        for indices in ranges:
            block = np.empty(len(indices), result.datatype.form)
            valid = reader.read(indices.start, block)
            parts = components(block, result.datatype).values()
            # `str` of a number has the fewest digits that identify it.
            texts = [part if part.dtype.hasobject else map(str, part) for part in parts]
            joined = map(join, zip(*texts, strict=True))
            if valid is None:
                yield from joined
            else:
                yield from (text if is_valid else null for text, is_valid in zip(joined, valid, strict=True))


def rows(results: Sequence[Array], separator: str, null: str = "null") -> Iterator[str]:
    """Yield the elements of all results side by side, with `null` for each component of a null."""
    with ExitStack() as stack:
        columns = []
        for result in results:
            nulls = separator.join([null] * len(component_names(result.datatype)))
            join = partial(_field, separator) if result.datatype.form.hasobject else separator.join
            columns.append(stack.enter_context(closing(elements(result, join, nulls))))
        yield from map(separator.join, zip(*columns, strict=True))


text_lines = partial(rows, separator=" ")
"""Yields a line for each element; a pair is a value and an index."""


def csv_lines(results: Sequence[Array]) -> Iterator[str]:
    """Yield a header, and a line for each element with a field for each component; nulls are empty."""
    # The names come from files; their control characters could change a terminal.
    yield ",".join(_field(",", (escaped(name),)) for result in results for name in column_names(result))
    # Readers skip empty lines.
    yield from (line or '""' for line in rows(results, ",", null=""))


def json_lines(results: Sequence[Array]) -> Iterator[str]:
    """Yield an object with a list of results; numbers that JSON cannot represent are strings, such as "nan"."""
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
    """Return an element as a number, as a string if JSON has no such number, or as a list of its components."""
    numbers = [part if _NUMBER.fullmatch(part) else json.dumps(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else f"[{', '.join(numbers)}]"


def table_lines(results: Sequence[Array]) -> Iterator[str]:
    """Yield the lines of a table of the first and the last elements, for a terminal."""
    count = results[0].count
    is_long = count > _NFIRST + _NLAST + 1
    ranges = [range(_NFIRST), range(count - _NLAST, count)] if is_long else [range(count)]
    columns = [["element", *map(str, chain(*ranges))]]
    for result in results:
        names = [escaped(name) for name in column_names(result)]
        texts = elements(result, lambda parts: [escaped(_text(part)) for part in parts], ["null"] * len(names), ranges)
        columns += map(list, zip(names, *texts, strict=True))
    widths = [max(map(len, column)) for column in columns]
    for number, row in enumerate(zip(*columns, strict=True)):
        yield "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        if number == _NFIRST and is_long:
            yield f"{'...'.rjust(widths[0])}  ({count - _NFIRST - _NLAST} more)"
