"""Pages of text and of JSON: the contents of a file, and its elements and figures."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shlex
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mpired.cli.messages import in_flags
from mpired.datatypes import TIMES, Group, beside
from mpired.datatypes.times import dtype_name
from mpired.errors import escaped, number
from mpired.files import calls
from mpired.formats import Array, RankFile, format_named
from mpired.formats.rank import SkippedArray
from mpired.formats.textual import write_lines
from mpired.ops import OPS, Use
from mpired.queries.elements import in_json
from mpired.queries.figures import Part, Shown
from mpired.queries.show import NULL, ElementTable, headings
from mpired.values import listed

_LEFT_OUT = "`mpired reduce --nulls ignore` leaves nulls out"
_FIRST, _LAST = 10, 5
_SHOWN_INDICES = 5
_WIDEST = 9999  # columns of a line
_LEAST_BAR = 8
_DIGITS = range(3, 18)
_TOGETHER = 1000  # lines in which columns have one width
_GAP = "..."
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")  # as JSON has them


def _label_and_use(buffer: Array) -> tuple[str, str | None]:
    """Return what elements are, in words, and what takes them; None if all that takes numbers or pairs does."""
    form, datatype, takers = buffer.form, buffer.datatype, None
    label, group = datatype.label, datatype.group
    if group in TIMES:
        label = label if buffer.columns else beside(f"{datatype}", dtype_name(datatype))
        takers = f"{_takers(group)} take it"
    elif group is Group.DERIVED:
        takers = "user-defined ops take it"
        if form is not None:  # a structure of a file, by its fields
            fields = ", ".join(f"{name} ({form[name]})" for name in form.names or ())
            label = f"structures of {fields}"
    if buffer.nulls:
        return label, _LEFT_OUT if group is not Group.DERIVED else "no op takes nulls, fill or filter them first"
    return label, takers


def _use_of_other(other: SkippedArray, file: RankFile) -> str:
    """Return the ways to use an array that is not a buffer."""
    if [each.name for each in file.others].count(other.name) > 1:
        return "other columns have this name, too"
    name = shlex.quote(listed([other.name]))
    kept = f", `mpired reduce --keep {name}` carries it" if file.names and other.keeps else ""
    if other.group is None:
        return f"{other.hint}, no op takes it as it is{kept}" if other.hint else f"no op takes it{kept}"
    if other.nulls:
        return f"{_LEFT_OUT}{kept}"
    return f"{_takers(other.group)} take it if `columns` names it"


def _takers(group: Group) -> str:
    """Return the names of the ops of reductions that take a group of datatypes."""
    return ", ".join(op.name.lower() for op in OPS if group in op.groups and Use.REDUCE in op.uses)


def describe_file(file: RankFile) -> dict[str, Any]:
    """Return what a file holds, for printing and for JSON."""
    others = [(other, _use_of_other(other, file)) for other in file.others]
    others += [(other, "carried into results as it is") for other in (file.kept.others if file.kept else ())]
    return {
        "file": file.source.name,
        "format": file.format,
        "nbytes": sum(source.nbytes for source in file.sources),
        "buffers": [_described(buffer, *_label_and_use(buffer)) for buffer in file.buffers],
        "other_columns": [_described(other, other.label or other.type, use) for other, use in others],
        "obstacle": file.obstacle or None,
    }


def _described(each: Array | SkippedArray, label: str, use: str | None) -> dict[str, Any]:
    """Return the description of an array, in the order of the JSON."""
    if isinstance(each, Array):
        datatype = {"datatype": str(each.datatype), "dtype": dtype_name(each.datatype)}
        order = None if each.shape is None else "Fortran" if each.fortran_order else "C"
        byte_order = {"<": "little", ">": "big", "=": None}[each.byte_order]
        stored = {"order": order, "datarep": each.datarep, "byte_order": byte_order}
    else:
        datatype, stored = {"type": each.type}, {}
    meta = {"nulls": each.nulls, "unit": each.unit or None, "storage": each.storage or None}
    count, shape = each.count, None if each.shape is None else list(each.shape)
    return {"name": each.name, **datatype, "count": count, "shape": shape, **stored, **meta, "label": label, "use": use}


def lines_of(file: dict[str, Any]) -> list[str]:
    """Return what `describe_file` says of a file in lines."""
    lines = [f"{escaped(file['file'])}: {file['format']}, {file['nbytes']} bytes"]
    if file["obstacle"] is not None:
        lines.append(f"  {file['obstacle']}")
    has_columns = file["obstacle"] is None and format_named(file["format"]).has_columns
    for each in [*file["buffers"], *file["other_columns"]]:
        name = f"{escaped(each['name']) or repr(each['name'])}: " if has_columns else ""
        count = "" if each["count"] is None else f"{each['count']} x "
        details = [f"{count}{escaped(each['label'])}"]
        if each["shape"] is not None:
            order = f", {each['order']} order" if each.get("order") else ""
            details.append(f"shape {tuple(each['shape'])}{order}")
        if each.get("datarep") == "external32":
            details.append("external32")
        elif each.get("byte_order") is not None:
            details.append(f"{each['byte_order']}-endian")
        details += [f"in {escaped(each['unit'])}"] if each["unit"] else []
        details += [each["storage"]] if each["storage"] else []
        details += [number(each["nulls"], "null")] if each["nulls"] else []
        use = f"; {escaped(in_flags(each['use']))}" if each["use"] else ""
        lines.append(f"  {name}{', '.join(details)}{use}")
    if has_columns and len(lines) == 1:
        lines.append("  no columns")
    return lines


def write(fd: int, end: int, lines: Iterable[str]) -> None:
    """Write lines behind `end`, in the place of what an attempt that failed has left."""
    calls.set_size(fd, end)
    os.lseek(fd, end, os.SEEK_SET)
    write_lines(lines, fd)


def page_lines(shown: Shown, tables: Sequence[ElementTable], *, with_bars: bool) -> Iterator[str]:
    """Yield the lines of a file."""
    width, columns = min(shutil.get_terminal_size().columns, _WIDEST), headings(tables[0].file.buffers)
    yield from lines_of(describe_file(tables[0].file))
    yield ""
    for table in tables:
        first, *others = headings(table.buffers)
        is_matrix = len(table.selection.kept) == 2 and not others  # noqa: PLR2004 - rows and columns
        if is_matrix and len(tables) > 1:
            yield f"{first}:"
        yield from _aligned(_matrix(table, width) if is_matrix and table.selection.count else _list(table))
        yield ""
    yield from _aligned(_summary(shown, columns))
    for figures in shown.buffers:
        if (indices := figures.indices) is not None:
            most = [f"{index} ({number(count, 'element')})" for index, count in indices.most[:_SHOWN_INDICES]]
            more = ", ..." if indices.distinct > len(most) else ""
            different = f"{indices.distinct} different{': ' if most else ''}{', '.join(most)}{more}"
            different = different if indices.exact else f"at least {indices.distinct} different"
            yield f"indices of {escaped(figures.name) or 'pairs'}: {different}"
    if with_bars:
        names = iter(columns)
        for figures in shown.buffers:
            for each in figures.parts:
                yield ""
                yield from _bars(next(names), each, each.without(figures.nulls), width)


def _aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines whose columns are aligned, as far as that can be known without all of them."""
    widths: list[int] = []
    left = iter(rows)
    while some := list(itertools.islice(left, _TOGETHER)):
        longest = [max(map(len, column)) for column in zip(*some, strict=True)]
        widths = list(map(max, longest, widths or longest))
        for row in some:
            yield "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _list(table: ElementTable) -> Iterator[list[str]]:
    """Yield elements one below the other: the index, and the numbers."""
    columns = headings(table.buffers)
    yield ["element", *columns]
    for place, wanted in enumerate(_ends(table, table.selection.count)):
        if place:
            yield [_GAP, *[""] * len(columns)]
        for index, texts in table.rows([wanted]):
            yield [",".join(map(str, index)), *texts]


def _ends(table: ElementTable, count: int) -> list[range]:
    """Return which of `count` elements, rows or columns are shown: the first and the last, unless all are."""
    is_short = table.is_chosen or count <= _FIRST + _LAST + 1
    return [range(count)] if is_short else [range(_FIRST), range(count - _LAST, count)]


def _matrix(table: ElementTable, width: int) -> Iterator[list[str]]:
    """Yield elements of two dimensions as a matrix: the first and the last rows and columns, unless they are chosen."""
    if table.is_chosen:
        yield from _rows(table)
        return
    nrows, ncolumns = (len(table.selection.axes[axis]) for axis in table.selection.kept)
    rows = list(_rows(table))
    columns = list(zip(*rows, strict=True))
    gap = (_GAP,) * len(rows)
    while True:
        half = (len(columns) + 1) // 2
        shown = columns if len(columns) > ncolumns else [*columns[: half + 1], gap, *columns[half + 1 :]]
        if sum(max(map(len, column)) + 2 for column in shown) - 2 <= width or len(columns) <= 3:  # noqa: PLR2004
            break
        del columns[half]
    for place, row in enumerate(zip(*shown, strict=True)):
        if place == _FIRST + 1 and len(rows) - 1 < nrows:
            yield [_GAP] * len(row)
        yield list(row)


def _rows(table: ElementTable) -> Iterator[list[str]]:
    """Yield the rows of a matrix that are shown, below the indices of the columns."""
    down, across = table.selection.kept
    columns = table.selection.axes[across]
    ends = _ends(table, len(columns))
    yield ["", *(str(columns[place]) for some in ends for place in some)]
    starts = (row * len(columns) for some in _ends(table, len(table.selection.axes[down])) for row in some)
    wanted = (range(start + some.start, start + some.stop) for start in starts for some in ends)
    elements = table.rows([range(table.selection.count)] if table.is_chosen else wanted)
    while line := list(itertools.islice(elements, sum(map(len, ends)))):
        yield [str(line[0][0][down]), *(text for _, (text,) in line)]


def _summary(shown: Shown, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield figures, those of a column of the table below its heading."""
    both = [(figures, part) for figures in shown.buffers for part in figures.parts]
    is_float = [part.nan > 0 or isinstance(part.min, float | np.floating) for _, part in both]
    yield ["", *columns]
    if any(figures.unit for figures, _ in both):
        yield ["unit", *(escaped(figures.unit) for figures, _ in both)]
    yield ["count", *(str(figures.count) for figures, _ in both)]
    if any(figures.name for figures, _ in both):
        yield ["nulls", *(str(figures.nulls) for figures, _ in both)]
    for label, name in (("NaN", "nan"), ("infinite", "infinite")) if any(is_float) else ():
        yield [
            label,
            *(str(getattr(part, name)) if real else "" for (_, part), real in zip(both, is_float, strict=True)),
        ]
    for name in ("min", "max", "mean"):
        values = (getattr(part, name) for _, part in both)
        yield [name, *("" if value is None else str(value) for value in values)]
        if name != "mean":
            yield ["at", *(",".join(map(str, getattr(part, f"{name}_at") or ())) for _, part in both)]


def _bars(heading: str, each: Part, without: str, width: int) -> Iterator[str]:
    """Yield the lines of a histogram: the bounds of each bin, its count, and a bar."""
    yield from textwrap.wrap(", ".join(filter(None, (f"histogram of {heading}", without))), width)
    if each.histogram is None:
        yield "no numbers to draw"
        return
    edges, counts = each.histogram
    is_float = isinstance(edges[0], float)
    labels = list(map(repr if is_float else str, edges))
    for digits in _DIGITS if is_float else ():  # as few as tell them apart
        texts = [f"{edge:.{digits}g}" for edge in edges]
        if len(set(texts)) == len(texts):
            labels = texts
            break
    lines = list(_aligned(zip(["from", *labels], ["to", *labels[1:]], ["elements", *map(str, counts)], strict=False)))
    longest, most = max(_LEAST_BAR, width - len(lines[0]) - 1), max(counts) or 1
    yield lines[0]
    yield from (f"{line} {'#' * round(longest * n / most)}".rstrip() for line, n in zip(lines[1:], counts, strict=True))


def json_lines(shown: Shown, tables: Sequence[ElementTable]) -> Iterator[str]:
    """Yield a file as JSON; with several tables an element has the columns that its values belong to."""
    head = {
        "file": shown.file,
        "format": shown.format,
        "buffers": [in_json(vars(figures), short=True) for figures in shown.buffers],
        "columns": headings(tables[0].file.buffers),
    }
    yield json.dumps(head)[:-1] + ', "elements": ['
    previous = ""
    for table in tables:
        columns = f', "columns": {json.dumps(headings(table.buffers))}' if len(tables) > 1 else ""
        for index, texts in table.rows(_ends(table, table.selection.count)):
            if previous:
                yield f"{previous},"
            previous = f'{{"at": {list(index)}, "values": [{", ".join(map(_token, texts))}]{columns}}}'
    yield f"{previous}]}}"


def _token(text: str) -> str:
    """Return a number as JSON has it, or as a text if it has none for it."""
    is_number = _NUMBER.fullmatch(text) and math.isfinite(float(text))
    return text if is_number or text == NULL else json.dumps(text)
