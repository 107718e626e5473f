"""The arrays of a result: their ops, the elements that these take, and their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mpired import ops
from mpired.collectives.table import Share
from mpired.datatypes import Datatype, Group
from mpired.datatypes.pairs import FIELDS, column_names, column_of, field_type
from mpired.formats import Array
from mpired.formats.derived import without_indices


class ResultArray(NamedTuple):
    """An array of a result."""

    buffer: int  # the number of the buffer
    number: int  # that of its op
    op: ops.Op
    field: str  # the field of the results of the op; "" for whole elements
    rank: Array  # what the op takes of the first rank
    name: str
    datatype: Datatype  # of its elements


def taken_by(op: ops.Op, rank: Array) -> Array:
    """Return what an op takes of a rank: of values with indices the pairs, or else the values alone."""
    return rank if op.groups == Group.PAIR else without_indices(rank)


def arrays_in(share: Share, chosen: Sequence[ops.Op], buffers: Sequence[Array]) -> Iterator[ResultArray]:
    """Yield the arrays of a share of the results of the chosen ops, in their order; `buffers` are those of a rank."""
    labels = ops.labels(chosen) if share.has_ops else None
    for number, buffer in enumerate(buffers):
        for op, field in share.fields:
            rank = taken_by(chosen[op], buffer)
            datatype, name = chosen[op].result(rank.datatype), rank.name
            if field:
                datatype = field_type(datatype, field)
            if field or labels is not None:
                name = _name(rank, field, "" if labels is None else labels[op])
            yield ResultArray(number, op, chosen[op], field, rank, name, datatype)


def _name(rank: Array, field: str, label: str) -> str:
    """Return the name of an array of a result, with the label of its op if there are several."""
    is_pair = field in FIELDS and (rank.values is not None or len(rank.columns) != len(FIELDS))
    name = without_indices(rank).name if label and is_pair else column_of(rank.name, rank.columns, field)
    if not label:
        return name
    name = f"{name}_{label}" if name.strip("/") else label
    return column_names(name)[FIELDS.index(field)] if is_pair else name
