"""The gate that every request passes: which op is for which calls and datatypes (MPI-4.1, 6.9.2, 12.3.4)."""

from __future__ import annotations

from collections.abc import Iterable

from mpired.datatypes import Datatype, Group
from mpired.errors import OpError
from mpired.ops.op import Op, Use
from mpired.ops.policy import widening
from mpired.ops.table import COMPARE_AND_SWAP, ORDERED, STATISTICS, names_of, ops_for
from mpired.values import listed


def check_buffers(
    op: Op, buffers: Iterable[tuple[str, Datatype]], use: Use, *, pairing: str = "", keeps: bool = False
) -> None:
    """Let a legal request pass on buffers, which have names if they are columns; the one gate of files."""
    taken: list[str] = []
    others: list[str] = []
    refused: list[OpError] = []
    for name, datatype in buffers:
        try:
            check(op, datatype, use, f"{name!r}, " if name else "", pairing=pairing)
            taken.append(name)
        except OpError as error:
            refused.append(error)
            others.append(name)
    if refused:
        way_out = f"; choose with `columns='{listed(taken)}'`" if taken else ""
        way_out += f", and carry the others with `keep='{listed(others)}'`" if way_out and keeps else ""
        raise OpError(refused[0].subject, f"{refused[0].reason}{way_out}")


def check(op: Op, datatype: Datatype, use: Use, where: str = "", *, pairing: str = "") -> None:
    """Let a legal request pass; the one gate, before anything is opened for writing."""
    # `where` is put before the datatype in a message; `pairing` is the option that makes pairs of plain
    # values, if any.
    if use not in op.uses:
        raise wrong_use(op, use)
    if op.datatypes and str(datatype) not in op.datatypes:
        raise OpError(str(op), f"is not defined for {where}{datatype.label}; it takes {', '.join(op.datatypes)}")
    if datatype.group not in op.groups:
        rows = [*ops_for(use), *(STATISTICS if use is Use.REDUCE else ())]
        others = [row for row in rows if datatype.group in row.groups]
        hint = f"{datatype.label} takes {names_of(others)}" if others else f"{datatype.label} takes no predefined op"
        if datatype.is_bool and use is Use.REDUCE and (way_out := widening(op, [[datatype]])):
            hint = f"take true as 1 with {way_out}; {hint}"
        if op.name == COMPARE_AND_SWAP.name:
            hint = f"`mpired fetch-and-op` takes {datatype.label}"
        if datatype.group is Group.DERIVED:
            takes, way_out = "takes user-defined ops only (MPI-4.1, 6.9.2)", "`op='FILE.py:FUNCTION'`, or "
            if use is not Use.REDUCE:
                takes, way_out = "no one-sided call takes it (MPI-4.1, 12.3.4)", ""
            hint = f"{datatype} is derived, and {takes}; use {way_out}numbers out of it by `mpired pack`"
        if op.groups == Group.PAIR:
            ways = [pairing] if pairing and datatype.group in ORDERED else []
            if where or not ways:
                ways.append(_to_pairs(datatype, use, is_column=bool(where)))
            hint = "; ".join([*ways, hint])
        what = f"{where}{datatype.label}, {datatype.group.title}"
        raise OpError(str(op), f"is not defined for {what}; it takes {op.groups.title}; {hint}")


def _to_pairs(datatype: Datatype, use: Use, *, is_column: bool) -> str:
    """Return how an op on pairs gets some."""
    if is_column:
        way_out = "structures of a value and an index are pairs"
        return f"{way_out}, and `pair='VALUE,INDEX'` makes them of two columns" if use is Use.REDUCE else way_out
    code = datatype.form.str[1:] if datatype.group in ORDERED else "f8"
    return f"an array with the dtype [('value', '{code}'), ('index', 'i8')] holds pairs"


_CALLS = {Use.REDUCE: "reductions", Use.ACCUMULATE: "accumulate", Use.FETCH: "fetch"}


def wrong_use(op: Op, use: Use) -> OpError:
    """Return the error for an op that is not for this family of calls."""
    families = [name for each, name in _CALLS.items() if each in op.uses]
    calls = " and ".join(families)
    return OpError(str(op), f"is for {calls} only (MPI-4.1, 12.3.4); use one of {names_of(ops_for(use))}")
