"""Pickling of datatypes: another process gets its own row, because rows are compared by identity."""

from __future__ import annotations

import copyreg
from collections.abc import Callable

from mpired.datatypes.datatype import TIMES, Datatype, Group, value_type
from mpired.datatypes.dtypes import derived, get
from mpired.datatypes.times import time_type


def _reduced(datatype: Datatype) -> tuple[Callable[..., Datatype], tuple[object, ...]]:
    if datatype.is_named:
        return get, (datatype.name,)
    if datatype.group in TIMES:
        return time_type, (datatype.name,)
    if datatype.group is Group.VALUE:
        return value_type, (datatype.name,)
    return (_parsed, (datatype.name,)) if datatype.plain is None or datatype.parts else (derived, (datatype.plain,))


def _parsed(text: str) -> Datatype:
    from mpired.datatypes.text.parse import parse  # noqa: PLC0415 - only for datatypes that are written as a text

    return parse(text)[0]


copyreg.pickle(Datatype, _reduced)
