"""`mpired types`."""

from __future__ import annotations

import json
from typing import Any

import click

from mpired.buffers.npy import dtype_text
from mpired.cli import params
from mpired.cli.messages import show
from mpired.datatypes import DATATYPES, Datatype


@click.command()
@params.JSON
def types(*, as_json: bool) -> None:
    """List the datatypes with group, size, extent and NumPy form.

    The size counts the bytes of the components, the extent the padding too: raw files hold extents.

    \b
    Examples:
      mpired types
      mpired types --json
    """
    rows = [_row(datatype) for datatype in DATATYPES]
    if as_json:
        show(json.dumps(rows, indent=1))
        return
    show(f"{'datatype':28}{'group':18}{'size':>5}{'extent':>7}  NumPy")
    for row in rows:
        form = row["numpy"] or "not available"
        also = f"  also {', '.join(row['synonyms'])}" if row["synonyms"] else ""
        show(f"{row['name']:28}{row['group']:18}{row['size']:5}{row['extent']:7}  {form}{also}")


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
