"""`mpired ops`."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from mpired.cli import params
from mpired.cli.messages import say, show
from mpired.datatypes import DATATYPES, Datatype, Group
from mpired.engines import pool, userops
from mpired.errors import escaped
from mpired.ops import OPS, Op, Use
from mpired.options import AsJson


@click.command(cls=params.Command)
@params.options(AsJson)
@click.argument("file", required=False, metavar="[FILE.py]", type=params.FILE)
def ops(*, file: str | None, as_json: bool) -> None:
    """List the ops and the groups of datatypes they take (MPI-4.1, 6.9.2), and the installed user-defined ops.

    With FILE.py, list the ops that a Python file defines with @mpired.op. That loads the file.

    \b
    Examples:
      mpired ops
      mpired ops --json
    """
    pool.adopt_orphans()
    user_ops = list(userops.in_file(file) if file else userops.installed())
    if as_json:
        rows = [*([] if file else map(_row, OPS)), *map(_user_row, user_ops)]
        show(json.dumps(rows, indent=1))
        return
    if not file:
        _table()
    elif not user_ops:
        say(f"{file}: no function in it is decorated with @mpired.op")
    if user_ops and not file:
        show("\nuser-defined ops that are installed:")
    for user_op in user_ops:
        show(escaped(_user_line(user_op)))


def _user_line(op: dict[str, Any]) -> str:
    if op["error"]:
        return f"{op['name']} ({op['place']}): {op['error']}"
    commute = {True: "commutes", False: "does not commute", None: "commute not said"}[op["commute"]]
    identity = "" if op["identity"] is None else f", identity {op['identity']}"
    takes = ", ".join(op["datatypes"]) or "any datatype"
    doc = f"; {op['doc']}" if op["doc"] else ""
    return f"{op['name']} ({op['place']}): {commute}{identity}, {takes}{doc}"


def _user_row(op: dict[str, Any]) -> dict[str, Any]:
    known = {"identity": _in_json(op["identity"]), "uses": ["reduce"], "groups": []}
    return {name: (op | known)[name] for name in _row(OPS[0])}


def _in_json(number: Any) -> Any:
    """Return a number, or several, as JSON can hold them: what it has no form for as text, as "inf"."""
    if isinstance(number, list):
        return [_in_json(each) for each in number]
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    return str(number) if isinstance(number, complex) else number


def _table() -> None:
    groups = [group for group in Group if group in _LETTERS]
    show(f"{'op':9}{'takes':11}what it does")
    for op in OPS:
        marks = "".join(_LETTERS[group] if group in op.groups else "." for group in groups)
        show(f"{op.name.lower():9}{marks:11}{op.doc}")
    show("")
    for group in groups:
        names = ", ".join(row.name.lower() for row in DATATYPES if row.group is group)
        show(click.wrap_text(f"{_LETTERS[group]}  {group.title}: {names}", 80, subsequent_indent="   "))


_LETTERS = {
    Group.C_INTEGER: "i",
    Group.FORTRAN_INTEGER: "f",
    Group.FLOATING_POINT: "r",
    Group.LOGICAL: "l",
    Group.COMPLEX: "z",
    Group.BYTE: "b",
    Group.MULTI_LANGUAGE: "m",
    Group.PAIR: "p",
    Group.CHARACTER: "c",
}


def _row(op: Op) -> dict[str, object]:
    return {
        "name": str(op),
        "place": None,
        "doc": op.doc,
        "commute": op.commute,
        "identity": None,
        "uses": [str(use.name).lower() for use in Use if use in op.uses],
        "groups": [group.title for group in op.groups],
        "datatypes": [_type_name(row) for row in DATATYPES if row.group in op.groups and row.dtype is not None],
        "error": None,
    }


def _type_name(datatype: Datatype) -> str:
    return str(datatype)
