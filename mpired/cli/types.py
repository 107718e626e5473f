"""`mpired types`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import click

from mpired import datatypes
from mpired.cli import params
from mpired.cli.messages import answer
from mpired.datatypes import DATATYPES, Datatype, parse
from mpired.errors import escaped
from mpired.formats.rank import dtype_text
from mpired.report import describe_datatype


@params.command("as_json@print", "types", text="[TYPE]")
@click.option(
    "--value-index",
    envvar=["MPIRED_VALUE_INDEX"],
    nargs=2,
    type=params.DATATYPE,
    metavar="VALUE INDEX",
    help="Print the pair type of two types instead, or MPI_DATATYPE_NULL if there is none.",
)
def types(*, text: str | None, types: str | None, value_index: tuple[str, str] | None) -> None:
    """List the datatypes with group, size, extent and NumPy form; or show one TYPE, with its type map.

    \b
    Examples:
      mpired types
      mpired types float64
      mpired types --json
      mpired types --value-index double uint64_t
      mpired types 'vector(3,1,2,double)'

    TYPE is a name of MPI or of NumPy, as double or float64, a code as <f8, or a type made of types. The types that
    NumPy calls the same are shown too.

    The size counts the bytes of the components, the extent the padding too: raw files hold extents. With --types
    and no TYPE the datatypes of that file are listed.
    """
    if text is not None and value_index is not None:
        raise click.UsageError("--value-index takes the place of TYPE")
    defined = None if types is None else datatypes.definitions(types)
    if text is not None:
        datatype, byte_order = parse(text, defined)
        described = describe_datatype(datatype, byte_order)
        answer(described, _lines_of(datatype, described))
    elif value_index is not None:
        # A pair that does not exist is not an error (MPI-4.1, 6.9.4).
        pair = datatypes.value_index(*(parse(each, defined)[0] for each in value_index))
        answer(None if pair is None else _row(pair), ["MPI_DATATYPE_NULL" if pair is None else str(pair)])
    elif defined is not None and params.is_written("types"):
        made = {name: defined[name][0] for name in defined}
        rows = [
            {"name": name, "type": defined.text(name), "size": each.size, "extent": each.extent}
            for name, each in made.items()
        ]
        lines = (f"{row['name']:28}{row['size']:10}{row['extent']:10}  {escaped(str(row['type']))}" for row in rows)
        answer(rows, itertools.chain([f"{'datatype':28}{'size':>10}{'extent':>10}  type"], lines))
    else:
        answer(list(map(_row, DATATYPES)), _table())


def _table() -> Iterator[str]:
    """Yield the lines of all datatypes."""
    yield f"{'datatype':28}{'group':17}{'size':>5}{'extent':>7}  NumPy"
    for datatype in DATATYPES:
        row = _row(datatype)
        form = f"{row['numpy'] or 'not available':5}{datatype.numpy_name}".rstrip()
        yield f"{row['name']:28}{row['group']:17}{row['size']:5}{row['extent']:7}  {form}"
        yield from (f"  also {name}" for name in row["synonyms"])


def _lines_of(datatype: Datatype, described: dict[str, Any]) -> Iterator[str]:
    """Yield the figures of one datatype, its type map and a picture."""
    shown = [f"({name},{disp})" for name, disp in described["type_map"]]
    if left_out := described["entries"] - len(shown):
        shown.insert(-1, f"... {left_out} more ...")
    form, picture = f"none: {described['no_numpy']}", "none: there are no bytes, or too many pieces"
    if described["numpy"] is not None:
        codes = described["numpy"].split(", ")
        more = [f"... {len(codes)} in all)"] if len(codes) > _SHOWN_CODES else []
        form = ", ".join([*codes[:_SHOWN_CODES], *more]) + (", packed" if described["numpy_is_packed"] else "")
    if (drawn := described["picture"]) is not None:
        each = f", {drawn['nbytes']} bytes a character" if drawn["nbytes"] > 1 else ""
        picture = f"{drawn['text']}  bytes {drawn['start']} to {drawn['stop']}{each}"
    lines = {label: described[label.replace(" ", "_")] for label in _FIGURES} | {
        "type map": " ".join(shown) or "empty",
        "NumPy": form,
        "external32": f"{described['external32']} bytes",
        "picture": picture,
    }
    if described["same_form"]:
        lines["same form"] = ", ".join(described["same_form"])
    yield datatype.label
    yield from (f"  {label:12}{value}" for label, value in lines.items())


_SHOWN_CODES = 8
_FIGURES = ("combiner", "size", "lb", "ub", "extent", "true lb", "true extent", "alignment")


def _row(datatype: Datatype) -> dict[str, Any]:
    return {
        "name": str(datatype),
        "synonyms": [f"MPI_{name}" for name in datatype.synonyms],
        "group": datatype.group.title,
        "size": datatype.size,
        "extent": datatype.extent,
        "handle": datatype.handle,
        "numpy": None if datatype.dtype is None else dtype_text(datatype.dtype),
    }
