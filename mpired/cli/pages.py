"""The lines and the JSON of `mpired info` and `mpired show`: the contents of a file, its elements and its figures."""

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

from mpired.cli.messages import with_flags
from mpired.datatypes import TIMES, Group, beside
from mpired.datatypes.dtypes import dtype_name
from mpired.errors import escaped, number
from mpired.files import calls
from mpired.formats import Array, RankFile, format_named
from mpired.formats.rank import SkippedArray
from mpired.formats.textual import write_lines
from mpired.ops import OPS, Use
from mpired.queries.elements import in_json
from mpired.queries.figures import ComponentFigures, Shown
from mpired.queries.show import NULL, ElementTable, headings
from mpired.values import listed

_SKIP_NULLS = "`mpired reduce --nulls ignore` leaves nulls out"
_NFIRST, _NLAST = 10, 5  # elements, rows or columns that are shown by default
_MAX_INDICES = 5
_MAX_WIDTH = 9999  # columns of a line
_MIN_BAR = 8  # columns
_DIGITS = range(3, 18)
_NALIGNED = 1000  # lines that are aligned together
_GAP = "..."
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")  # in JSON


def _label_and_use(buffer: Array) -> tuple[str, str | None]:
    """Return descriptions of the elements and of the ops that are defined on them, None for the usual ops."""
    form, datatype, use = buffer.form, buffer.datatype, None
    label, group = datatype.label, datatype.group
    if group in TIMES:
        label = label if buffer.columns else beside(f"{datatype}", dtype_name(datatype))
        use = f"{_op_names(group)} take it"
    elif group is Group.DERIVED:
        use = "user-defined ops take it"
        if form is not None:  # a structure of a file, by its fields
            fields = ", ".join(f"{name} ({form[name]})" for name in form.names or ())
            label = f"structures of {fields}"
    if buffer.nulls:
        return label, _SKIP_NULLS if group is not Group.DERIVED else "no op takes nulls, fill or filter them first"
    return label, use


def _use_of_skipped(array: SkippedArray, file: RankFile) -> str:
    """Return the ways to use an array that ops skip."""
    if [other.name for other in file.others].count(array.name) > 1:
        return "other columns have this name, too"
    keep = f", `mpired reduce --keep {shlex.quote(listed([array.name]))}` carries it"
    hint = keep if file.names and array.keeps else ""
    if array.group is None:
        return f"{array.hint}, no op takes it as it is{hint}" if array.hint else f"no op takes it{hint}"
    if array.nulls:
        return f"{_SKIP_NULLS}{hint}"
    return f"{_op_names(array.group)} take it if `columns` names it"


def _op_names(group: Group) -> str:
    """Return the names of the ops of reductions that are defined on a group of datatypes."""
    return ", ".join(op.name.lower() for op in OPS if group in op.groups and Use.REDUCE in op.uses)


def describe_file(file: RankFile) -> dict[str, Any]:
    """Return the contents of a file, for JSON."""
    skipped = [(array, _use_of_skipped(array, file)) for array in file.others]
    skipped += [(array, "carried into results as it is") for array in (file.kept.others if file.kept else ())]
    return {
        "file": file.source.name,
        "format": file.format.name,
        "nbytes": sum(source.nbytes for source in file.sources),
        "buffers": [_describe(buffer, *_label_and_use(buffer)) for buffer in file.buffers],
        "other_columns": [_describe(array, array.label or array.type, use) for array, use in skipped],
        "obstacle": file.obstacle or None,
    }


def _describe(array: Array | SkippedArray, label: str, use: str | None) -> dict[str, Any]:
    """Return the description of an array, in the order of the JSON."""
    if isinstance(array, Array):
        datatype = {"datatype": str(array.datatype), "dtype": dtype_name(array.datatype)}
        order = None if array.shape is None else "Fortran" if array.fortran_order else "C"
        byte_order = {"<": "little", ">": "big", "=": None}[array.byte_order]
        stored = {"order": order, "datarep": array.datarep, "byte_order": byte_order}
    else:
        datatype, stored = {"type": array.type}, {}
    shape = None if array.shape is None else list(array.shape)
    meta = {"nulls": array.nulls, "unit": array.unit or None, "storage": array.storage or None}
    extent = {"count": array.count, "shape": shape}
    return {"name": array.name, **datatype, **extent, **stored, **meta, "label": label, "use": use}


def lines_of(file: dict[str, Any]) -> list[str]:
    """Return the lines of a description by `describe_file`."""
    lines = [f"{escaped(file['file'])}: {file['format']}, {file['nbytes']} bytes"]
    if file["obstacle"] is not None:
        lines.append(f"  {file['obstacle']}")
    has_columns = file["obstacle"] is None and format_named(file["format"]).has_columns
    for array in [*file["buffers"], *file["other_columns"]]:
        name = f"{escaped(array['name']) or repr(array['name'])}: " if has_columns else ""
        count = "" if array["count"] is None else f"{array['count']} x "
        details = [f"{count}{escaped(array['label'])}"]
        if array["shape"] is not None:
            order = f", {array['order']} order" if array.get("order") else ""
            details.append(f"shape {tuple(array['shape'])}{order}")
        if array.get("datarep") == "external32":
            details.append("external32")
        elif array.get("byte_order") is not None:
            details.append(f"{array['byte_order']}-endian")
        details += [f"in {escaped(array['unit'])}"] if array["unit"] else []
        details += [array["storage"]] if array["storage"] else []
        details += [number(array["nulls"], "null")] if array["nulls"] else []
        use = f"; {escaped(with_flags(array['use']))}" if array["use"] else ""
        lines.append(f"  {name}{', '.join(details)}{use}")
    if has_columns and len(lines) == 1:
        lines.append("  no columns")
    return lines


def write(fd: int, end: int, lines: Iterable[str]) -> None:
    """Write lines from offset `end` on, over the lines of a failed attempt."""
    calls.set_size(fd, end)
    os.lseek(fd, end, os.SEEK_SET)
    write_lines(lines, fd)


def page_lines(shown: Shown, tables: Sequence[ElementTable], *, with_bars: bool) -> Iterator[str]:
    """Yield the lines of a file: its contents, its elements, its figures, and histograms if `with_bars`."""
    width, columns = min(shutil.get_terminal_size().columns, _MAX_WIDTH), headings(tables[0].file.buffers)
    yield from lines_of(describe_file(tables[0].file))
    yield ""
    for table in tables:
        first, *others = headings(table.buffers)
        is_matrix = len(table.selection.kept) == 2 and not others  # noqa: PLR2004 - rows and columns
        if is_matrix and len(tables) > 1:
            yield f"{first}:"
        yield from _align(_matrix(table, width) if is_matrix and table.selection.count else _list(table))
        yield ""
    yield from _align(_summary(shown, columns))
    for figures in shown.buffers:
        if (indices := figures.indices) is not None:
            counts = [f"{index} ({number(count, 'element')})" for index, count in indices.most[:_MAX_INDICES]]
            more = ", ..." if indices.distinct > len(counts) else ""
            line = f"{indices.distinct} different{': ' if counts else ''}{', '.join(counts)}{more}"
            line = line if indices.exact else f"at least {indices.distinct} different"
            yield f"indices of {escaped(figures.name) or 'pairs'}: {line}"
    if with_bars:
        names = iter(columns)
        for figures in shown.buffers:
            for part in figures.parts:
                yield ""
                yield from _bars(next(names), part, part.without(figures.nulls), width)


def _align(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines with aligned columns; a later row may be wider, because few rows are in memory."""
    widths: list[int] = []
    rows = iter(rows)
    while batch := list(itertools.islice(rows, _NALIGNED)):
        longest = [max(map(len, column)) for column in zip(*batch, strict=True)]
        widths = list(map(max, longest, widths or longest))
        for row in batch:
            yield "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _list(table: ElementTable) -> Iterator[list[str]]:
    """Yield a row for each element that is shown: its index and its values."""
    columns = headings(table.buffers)
    yield ["element", *columns]
    for position, elements in enumerate(_shown_ranges(table, table.selection.count)):
        if position:
            yield [_GAP, *[""] * len(columns)]
        for index, texts in table.rows([elements]):
            yield [",".join(map(str, index)), *texts]


def _shown_ranges(table: ElementTable, count: int) -> list[range]:
    """Return the ranges of `count` elements, rows or columns that are shown: the first and the last, or all."""
    is_short = table.is_chosen or count <= _NFIRST + _NLAST + 1
    return [range(count)] if is_short else [range(_NFIRST), range(count - _NLAST, count)]


def _matrix(table: ElementTable, width: int) -> Iterator[list[str]]:
    """Yield a matrix with the first and the last rows and columns; with `slice` all of them."""
    if table.is_chosen:
        yield from _matrix_rows(table)
        return
    nrows, ncolumns = (len(table.selection.axes[axis]) for axis in table.selection.kept)
    rows = list(_matrix_rows(table))
    columns = list(zip(*rows, strict=True))
    gap = (_GAP,) * len(rows)
    while True:
        half = (len(columns) + 1) // 2
        shown = columns if len(columns) > ncolumns else [*columns[: half + 1], gap, *columns[half + 1 :]]
        if sum(max(map(len, column)) + 2 for column in shown) - 2 <= width or len(columns) <= 3:  # noqa: PLR2004
            break
        del columns[half]
    for position, row in enumerate(zip(*shown, strict=True)):
        if position == _NFIRST + 1 and len(rows) - 1 < nrows:
            yield [_GAP] * len(row)
        yield list(row)


def _matrix_rows(table: ElementTable) -> Iterator[list[str]]:
    """Yield the indices of the columns that are shown, and the rows that are shown."""
    down, across = table.selection.kept
    columns = table.selection.axes[across]
    shown_columns = _shown_ranges(table, len(columns))
    yield ["", *(str(columns[column]) for column in itertools.chain(*shown_columns))]
    shown_rows = itertools.chain(*_shown_ranges(table, len(table.selection.axes[down])))
    starts = (row * len(columns) for row in shown_rows)
    pieces = (range(start + piece.start, start + piece.stop) for start in starts for piece in shown_columns)
    elements = table.rows([range(table.selection.count)] if table.is_chosen else pieces)
    while row := list(itertools.islice(elements, sum(map(len, shown_columns)))):
        yield [str(row[0][0][down]), *(text for _, (text,) in row)]


def _summary(shown: Shown, columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the table of figures, with the same columns as the table of elements."""
    both = [(figures, part) for figures in shown.buffers for part in figures.parts]
    is_float = [part.nan > 0 or isinstance(part.min, float | np.floating) for _, part in both]
    yield ["", *columns]
    if any(figures.unit for figures, _ in both):
        yield ["unit", *(escaped(figures.unit) for figures, _ in both)]
    yield ["count", *(str(figures.count) for figures, _ in both)]
    if any(figures.name for figures, _ in both):
        yield ["nulls", *(str(figures.nulls) for figures, _ in both)]
    for label, name in (("NaN", "nan"), ("infinite", "infinite")) if any(is_float) else ():
        counts = (getattr(part, name) for _, part in both)
        yield [label, *(str(count) if real else "" for count, real in zip(counts, is_float, strict=True))]
    for name in ("min", "max", "mean"):
        values = (getattr(part, name) for _, part in both)
        yield [name, *("" if value is None else str(value) for value in values)]
        if name != "mean":
            yield ["at", *(",".join(map(str, getattr(part, f"{name}_at") or ())) for _, part in both)]


def _bars(heading: str, part: ComponentFigures, without: str, width: int) -> Iterator[str]:
    """Yield the lines of a histogram: the bounds of each bin, its count, and a bar."""
    yield from textwrap.wrap(", ".join(filter(None, (f"histogram of {heading}", without))), width)
    if part.histogram is None:
        yield "no numbers to draw"
        return
    edges, counts = part.histogram
    is_float = isinstance(edges[0], float)
    labels = list(map(repr if is_float else str, edges))
    for digits in _DIGITS if is_float else ():  # the fewest with different labels
        rounded = [f"{edge:.{digits}g}" for edge in edges]
        if len(set(rounded)) == len(rounded):
            labels = rounded
            break
    lines = list(_align(zip(["from", *labels], ["to", *labels[1:]], ["elements", *map(str, counts)], strict=False)))
    longest, highest = max(_MIN_BAR, width - len(lines[0]) - 1), max(counts) or 1
    yield lines[0]
    for line, count in zip(lines[1:], counts, strict=True):
        yield f"{line} {'#' * round(longest * count / highest)}".rstrip()


def json_lines(shown: Shown, tables: Sequence[ElementTable]) -> Iterator[str]:
    """Yield a file as JSON; with several tables each element names the columns of its values."""
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
        for index, texts in table.rows(_shown_ranges(table, table.selection.count)):
            if previous:
                yield f"{previous},"
            previous = f'{{"at": {list(index)}, "values": [{", ".join(map(_token, texts))}]{columns}}}'
    yield f"{previous}]}}"


def _token(text: str) -> str:
    """Return the JSON of a formatted element: a number or null, or else a string."""
    is_number = _NUMBER.fullmatch(text) and math.isfinite(float(text))
    return text if is_number or text == NULL else json.dumps(text)
