"""`mpired ops`."""

from __future__ import annotations

import json
from typing import Any

import click

from mpired.cli import params
from mpired.datatypes import DATATYPES, Datatype, Group
from mpired.engines import userops
from mpired.errors import escaped
from mpired.ops import OPS, Op, Use


@click.command()
@params.JSON
@click.argument("file", required=False, metavar="[FILE.py]")
def ops(*, file: str | None, as_json: bool) -> None:
    """List the ops and the groups of datatypes they take (MPI-4.1, 6.9.2), and the installed user-defined ops.

    With FILE.py, list the ops that a Python file defines with @mpired.op. That loads the file.

    \b
    Examples:
      mpired ops
      mpired ops --json
    """
    plugins = list(userops.in_file(file) if file else userops.installed())
    predefined = [] if file else list(OPS)
    if as_json:
        click.echo(json.dumps([*map(_row, predefined), *plugins], indent=1, default=str))
        return
    if predefined:
        _table()
    for plugin in plugins:
        click.echo(escaped(_plugin_line(plugin)))


def _plugin_line(plugin: dict[str, Any]) -> str:
    if plugin["error"]:
        return f"{plugin['name']:8} {plugin['place']}: {plugin['error']}"
    commute = {True: "commutes", False: "does not commute", None: "commute not said"}[plugin["commute"]]
    takes = ", ".join(plugin["datatypes"]) or "any datatype"
    doc = f"  {plugin['doc']}" if plugin["doc"] else ""
    return f"{plugin['name']:8} {plugin['place']}: {commute}, {takes}{doc}"


def _table() -> None:
    groups = [group for group in Group if group in _LETTERS]
    click.echo("op       takes" + " " * 30 + "what it does")
    for op in OPS:
        marks = " ".join(_LETTERS[group] if group in op.groups else "." * len(_LETTERS[group]) for group in groups)
        click.echo(f"{op.name.lower():8} {marks}  {op.doc}")
    click.echo("")
    for group in groups:
        names = ", ".join(row.name.lower() for row in DATATYPES if row.group is group)
        click.echo(click.wrap_text(f"{_LETTERS[group]:4} {group.title}: {names}", 100, subsequent_indent="     "))


_LETTERS = {
    Group.C_INTEGER: "int",
    Group.FORTRAN_INTEGER: "fint",
    Group.FLOATING_POINT: "flt",
    Group.LOGICAL: "log",
    Group.COMPLEX: "cplx",
    Group.BYTE: "byte",
    Group.MULTI_LANGUAGE: "mul",
    Group.PAIR: "pair",
    Group.CHARACTER: "char",
}


def _row(op: Op) -> dict[str, object]:
    return {
        "name": str(op),
        "doc": op.doc,
        "commute": op.commute,
        "uses": [str(use.name).lower() for use in Use if use in op.uses],
        "groups": [group.title for group in op.groups],
        "datatypes": [_type_name(row) for row in DATATYPES if row.group in op.groups and row.dtype is not None],
    }


def _type_name(datatype: Datatype) -> str:
    return str(datatype)
