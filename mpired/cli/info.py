"""`mpired info`."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Unpack

import click

from mpired.api import queries
from mpired.attempts import repeated
from mpired.buffers import format_named
from mpired.cli import params
from mpired.cli.messages import in_flags, show
from mpired.errors import MpiredError, RanksError, escaped
from mpired.options import AsJson, Inputs, Locking
from mpired.report import describe_file
from mpired.storage import staging
from mpired.storage.recovery import check_are_data
from mpired.windows import once

_SHOWN_KEYS = 4


@click.command(cls=params.Command)
@params.options(Inputs, Locking, AsJson)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=params.FILE)
def info(*, files: tuple[str, ...], as_json: bool, lock_timeout: float | None, **inputs: Unpack[Inputs]) -> None:
    """Say what each FILE holds: format, datatype, count, shape, byte order, columns, and the keys of `--once`.

    What is no buffer is shown too: columns of texts, columns with nulls, files that other programs read. Only a file
    that is damaged or cannot be opened is an error.

    \b
    Examples:
      mpired info sample_data/maxloc_0.npy sample_data/maxloc_0.parquet
      mpired info --type double_int sample_data/maxloc_0.bin
    """
    check_are_data(files)
    staging.recover(files)
    described, errors = [], []
    for path in files:
        try:
            described.append(_described(path, inputs, lock_timeout))
        except (MpiredError, OSError) as error:
            errors.append(error)
    if as_json:
        show(json.dumps(described, indent=1))
    else:
        for each in described:
            show("\n".join(_lines(each)))
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise RanksError(len(files), errors, "files")


def _described(path: str, inputs: Inputs, timeout: float | None) -> dict[str, Any]:
    # The files' directories have been looked at, each once.
    described = repeated(partial(queries.look, path, inputs), describe_file, tuple, timeout=timeout)
    keys = [key.hex() for key in once.of_file(path)]
    if described["obstacle"] is not None:
        described["obstacle"] = in_flags(described["obstacle"])
    return described | {"once_keys": {"count": len(keys), "oldest": keys[:_SHOWN_KEYS]}}


def _lines(file: dict[str, Any]) -> list[str]:
    lines = [f"{escaped(file['file'])}: {file['format']}, {file['nbytes']} bytes"]
    if file["obstacle"] is not None:
        lines.append(f"  {file['obstacle']}")
    has_columns = file["obstacle"] is None and format_named(file["format"]).has_columns
    for buffer in file["buffers"]:
        name = _prefix(buffer["name"]) if has_columns else ""
        details = [f"{buffer['count']} x {buffer['datatype']}"]
        if buffer["shape"] is not None:
            details.append(f"shape {tuple(buffer['shape'])}, {buffer['order']} order")
        if buffer["datarep"] == "external32":
            details.append("external32")
        elif buffer["byte_order"] is not None:
            details.append(f"{buffer['byte_order']}-endian")
        if buffer["nulls"]:
            details.append(f"{buffer['nulls']} null{'' if buffer['nulls'] == 1 else 's'}")
        lines.append(f"  {name}{', '.join(details)}")
    for other in file["other_columns"]:
        name = _prefix(other["name"]) if has_columns else ""
        count = "" if other["count"] is None else f"{other['count']} x "
        shape = "" if other["shape"] is None else f", shape {tuple(other['shape'])}"
        lines.append(f"  {name}{count}{escaped(other['type'])}{shape}, no buffer")
    if has_columns and len(lines) == 1:
        lines.append("  no columns")
    if (keys := file["once_keys"])["count"]:
        more = ", ..." if keys["count"] > len(keys["oldest"]) else ""
        lines.append(f"  once-keys: {keys['count']}, the oldest first: {', '.join(keys['oldest'])}{more}")
    return lines


def _prefix(name: str) -> str:
    return f"{escaped(name) or repr(name)}: "
