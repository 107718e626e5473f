"""`mpired ops`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import click

from mpired.cli import params
from mpired.cli.messages import answer, report, say
from mpired.datatypes import DATATYPES, Group
from mpired.datatypes.times import FAMILIES
from mpired.engines import userops
from mpired.errors import UsageError, escaped
from mpired.ops import OPS, PURPOSES, STATISTICS, Op, Use, native
from mpired.options import FLAGS
from mpired.queries.elements import in_json


@params.command("matrix", "as_json@print", file="[FILE.py]")
def ops(*, file: str | None, matrix: bool) -> None:
    """List the ops, the numbers they take, and the installed user-defined ops.

    \b
    Examples:
      mpired ops
      mpired ops --matrix
      mpired ops --json

    With FILE.py, list the ops that a Python file defines with @mpired.op. That loads the file. With --matrix, mark each
    group of datatypes that an op takes (MPI-4.1, 6.9.2), and list the rules of values.
    """
    name = (file or "").upper().removeprefix("MPI_")
    if file and any(op.name == name for op in (*OPS, *STATISTICS)) and not os.path.exists(file):
        raise UsageError(file, "is an op, and there is no such file; `mpired ops` alone lists all ops")
    user_ops = list(userops.in_file(file) if file else userops.installed())
    rows = [] if file else [*map(_row, (*OPS, *STATISTICS))]
    unknown = dict.fromkeys(_row(OPS[0])) | {"uses": ["reduce"], "groups": [], "options": [], "compiled": []}
    lines: list[str] = []
    if matrix and not file:
        lines = [*_matrix()]
    elif not file:
        lines = [*_table(27, "result", _numbers), "maxloc and minloc take numbers too, with --index."]
        lines.append("`mpired ops --matrix` marks the datatypes of each op.")
    if user_ops and not file:
        lines.append("\nuser-defined ops that are installed:")
    answer(rows + [in_json(unknown | op) for op in user_ops], [*lines, *map(_user_line, user_ops)])
    if file and not user_ops and not report()["as_json"]:
        say(f"{file}: no function in it is decorated with @mpired.op")


def _user_line(op: dict[str, Any]) -> str:
    description = op["error"]
    if not description:
        commute = {True: "commutes", False: "does not commute", None: "commute not declared"}[op["commute"]]
        identity = "" if op["identity"] is None else f", identity {op['identity']}"
        takes = ", ".join(op["datatypes"]) or "any datatype"
        description = f"{commute}{identity}, {takes}{op['doc'] and '; '}{op['doc']}"
    return escaped(f"{op['name']} ({op['place']}): {description}")


def _table(width: int, doc: str, takes: Callable[[Op], str]) -> Iterator[str]:
    """Yield a line for each op: its name, the datatypes that it takes in a column of some width, and its result."""
    for title, ops in (("op", OPS), ("statistic", STATISTICS)):
        yield f"{title:11}{'takes':{width}}{doc}"
        yield from (f"{op.name.lower():11}{takes(op):{width}}{op.doc}" for op in ops)
        yield ""


def _numbers(op: Op) -> str:
    """Return the kinds of numbers that an op takes."""
    if all(group in op.groups for group in _LETTERS):
        return "everything"
    return ", ".join(name for name, groups in _NUMBERS.items() if groups & op.groups)


_NUMBERS = {
    "integers": Group.C_INTEGER,
    "floats": Group.FLOATING_POINT,
    "bools": Group.LOGICAL,
    "complex": Group.COMPLEX,
    "bytes": Group.BYTE,
    "pairs": Group.PAIR,
    "times": Group.TIME,
}


def _matrix() -> Iterator[str]:
    groups = [group for group in Group if group in _LETTERS]
    yield from _table(
        13, "description", lambda op: "".join(_LETTERS[each] if each in op.groups else "." for each in groups)
    )
    texts = [f"{rule}: {', '.join(takers)}" for rule, takers in _rules()] + [""]
    for group in groups:
        names = ", ".join(FAMILIES.get(group) or (row.name.lower() for row in DATATYPES if row.group is group))
        where = " (of columns and npy files, not of MPI)" if group in FAMILIES else ""
        texts.append(f"{_LETTERS[group]}  {group.title}{where}: {names}")
    yield from (click.wrap_text(text, 80, subsequent_indent="   ") for text in texts)


def _rules() -> Iterator[tuple[str, list[str]]]:
    """Yield the rules of values, in words, each with the names of the ops that have it."""
    ops = (*OPS, *STATISTICS)
    for rule in dict.fromkeys(op.nan for op in ops if op.nan):
        yield f"NaN {rule}", [op.name.lower() for op in ops if op.nan == rule]
    yield "--nan ignore leaves NaN out, --missing and --nulls leave elements out", ["all ops of reductions"]
    yield "--nan mpi treats NaN as MPI's libraries do", [op.name.lower() for op in ops if op.mpi_kernel]
    for name, purpose in PURPOSES.items():
        yield f"{FLAGS[name]} {purpose}", [op.name.lower() for op in ops if name in op.takes]
    if obstacle := native.obstacle():
        yield "no compiled kernels", [obstacle]
    else:
        yield "compiled kernels for some datatypes", [op.name.lower() for op in ops if _row(op)["compiled"]]


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
    Group.TIME: "t",
    Group.DURATION: "d",
}


def _row(op: Op) -> dict[str, object]:
    datatypes = [row for row in DATATYPES if row.group in op.groups and row.dtype is not None]
    return {
        "name": str(op),
        "place": None,
        "doc": op.doc,
        "commute": op.commute,
        "identity": None,
        "nan": op.nan,
        "uses": [str(use.name).lower() for use in Use if use in op.uses],
        "groups": [group.title for group in op.groups],
        "options": [FLAGS[name] for name in PURPOSES if name in op.takes],
        "datatypes": [str(row) for row in datatypes],
        # for which the kernel is compiled, as they are used here
        "compiled": [str(row) for row in datatypes if native.twin(op.name.lower(), row) is not None],
        "error": None,
    }
