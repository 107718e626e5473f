"""`mpired ops`."""

from __future__ import annotations

import json

import click

from mpired.cli import params
from mpired.cli.messages import show
from mpired.datatypes import DATATYPES, Datatype, Group
from mpired.ops import OPS, Op, Use


@click.command()
@params.JSON
def ops(*, as_json: bool) -> None:
    """List the ops and the groups of datatypes they take (MPI-4.1, 6.9.2).

    \b
    Examples:
      mpired ops
      mpired ops --json
    """
    if as_json:
        show(json.dumps([_row(op) for op in OPS], indent=1))
        return
    groups = list(Group)
    show("op       takes" + " " * 30 + "what it does")
    for op in OPS:
        marks = " ".join(_LETTERS[group] if group in op.groups else "." * len(_LETTERS[group]) for group in groups)
        show(f"{op.name.lower():8} {marks}  {op.doc}")
    show("")
    for group in groups:
        names = ", ".join(row.name.lower() for row in DATATYPES if row.group is group)
        show(click.wrap_text(f"{_LETTERS[group]:3} {group.title}: {names}", 100, subsequent_indent="    "))


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
