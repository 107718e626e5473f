"""The collectives, one row each: the share of the fold that each rank gets (MPI-4.1, 6.9 to 6.11).

All of them are one fold. It has the partial results `r0`, `r0 o r1`, `(r0 o r1) o r2`, ..., and the share of a rank
is one of these, or some of its elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mpired import datatypes, ops
from mpired.datatypes.predefined import FIELDS, column_names, field_type
from mpired.errors import CountError, RootError
from mpired.formats import Array
from mpired.formats.array import stored_array
from mpired.formats.cells import ResultArray
from mpired.formats.derived import Widening, without_indices
from mpired.options import ALLREDUCE, CALL, EXSCAN, LOCAL, REDUCE, SCAN, SCATTER, SCATTER_BLOCK, Group, Options, rows

BEFORE = -1  # the partial result before any rank: the op's neutral element


class OpField(NamedTuple):
    """A field of the results of an op, which is an array of its own in a file."""

    op: int = 0  # number of the op in the call
    field: str = ""  # value or index of pairs, or the counts of valid elements; "" for whole elements


class Share(NamedTuple):
    """The part of the fold that one rank gets: some elements of a partial result."""

    rank: int
    last: int  # the last rank in the partial result; `BEFORE` for the neutral element
    start: int = 0  # the first element
    stop: int | None = None  # the end of the elements; None for all elements of every buffer
    fields: tuple[OpField, ...] = (OpField(),)  # of every buffer, one array each
    has_ops: bool = False  # whether the arrays are those of several ops, and have the names of the ops

    def count_of(self, count: int) -> int:
        """Return the number of elements in the share of a buffer with `count` elements."""
        return (count if self.stop is None else self.stop) - self.start


class Collective(NamedTuple):
    """A collective: a row of the table."""

    name: str  # of the command
    function: str  # of MPI
    options: Group
    to_root: bool = False  # whether the root alone has a share
    alike: bool = False  # whether all shares are equal, with all ranks combined
    whole: bool = True  # whether a share has all elements of a partial result; else a block of the last one
    exclusive: bool = False  # whether the share of a scan ends before its rank, and not with it
    fixed: Options = {}  # noqa: RUF012 - never changed; values of options that the collective does not have
    several: bool = False  # whether a call may have several ops

    def shares(self, last: int, nranks: int, count: int, options: Options) -> list[Share]:
        """Return the shares of ranks with `count` elements; `last` is the last rank that is combined."""
        # With two groups the shares go to the ranks of the other group, and `counts` are those of that group.
        if self.to_root:
            root = options["root"]
            if not 0 <= root < nranks:
                raise RootError(f"root {root}", f"is not a rank; there are {nranks} ranks, 0 to {nranks - 1}")
            return [Share(root, last)]
        if not self.whole:
            counts = options["counts"] if "counts" in self.options else _equal_counts(count, nranks)
            if len(counts) != nranks:
                raise CountError("`counts`", f"has {len(counts)} values for {nranks} ranks; give one for each rank")
            if sum(counts) != count:
                raise CountError("counts", f"they sum to {sum(counts)}, but every rank has {count} elements")
            stops = itertools.accumulate(counts)
            return [Share(rank, last, stop - counts[rank], stop) for rank, stop in enumerate(stops)]
        # The exclusive result of rank 0 is undefined (6.11.2): no file, unless the call asks for the neutral element.
        first = 1 if self.exclusive and options["exscan_first"] != "identity" else 0
        return [Share(rank, last if self.alike else rank - self.exclusive) for rank in range(first, nranks)]


def _equal_counts(count: int, nranks: int) -> list[int]:
    """Return the counts of equal blocks of `count` elements."""
    block, remainder = divmod(count, nranks)
    if remainder:
        reason = f"{count} elements do not make {nranks} equal blocks; use reduce-scatter, with counts"
        raise CountError("count", reason)
    return [block] * nranks


_ROWS = (  # MPI-4.1, 6.9.1, 6.9.7, 6.9.6, 6.10.2, 6.10.1, 6.11.1, 6.11.2
    Collective("reduce", "MPI_Reduce", REDUCE, to_root=True, alike=True, several=True),
    Collective(
        "reduce-local", "MPI_Reduce_local", LOCAL, to_root=True, alike=True, fixed={"root": 1, "in_place": True}
    ),
    Collective("allreduce", "MPI_Allreduce", ALLREDUCE, alike=True),
    Collective("reduce-scatter", "MPI_Reduce_scatter", SCATTER, whole=False),
    Collective("reduce-scatter-block", "MPI_Reduce_scatter_block", SCATTER_BLOCK, whole=False),
    Collective("scan", "MPI_Scan", SCAN),
    Collective("exscan", "MPI_Exscan", EXSCAN, exclusive=True),
)
COLLECTIVES = {row.name: row for row in _ROWS}
DEFAULTS = {name: row.default for name, row in rows(CALL).items()}  # of the options of all collectives


def operand(op: ops.Op, rank: Array) -> Array:
    """Return the array that an op combines: pairs or their values alone, in a wider datatype if the op needs that."""
    if rank.values is None:
        return rank
    rank, stored = rank if op.groups == datatypes.Group.PAIR else without_indices(rank), stored_array(rank)
    is_narrow = isinstance(rank.reader, Widening) and not rank.reader.is_needed and "accumulate_in" not in op.takes
    return stored if is_narrow and stored.datatype.group in op.groups else rank


def arrays_in(share: Share, op_list: Sequence[ops.Op], buffers: Sequence[Array]) -> Iterator[ResultArray]:
    """Yield the arrays of a share of the results of the ops, in their order in a file, for the buffers of a rank."""
    labels = ops.labels(op_list) if share.has_ops else None
    for number, buffer in enumerate(buffers):
        for op, field in share.fields:
            rank = operand(op_list[op], buffer)
            datatype, name = op_list[op].result(rank.datatype), rank.name
            if field:
                datatype = field_type(datatype, field)
            if datatype != rank.datatype or labels is not None:
                name = rank.of_field(datatype, field).name
            if labels is not None and (label := labels[op]):
                is_pair = field in FIELDS and (rank.values is not None or len(rank.columns) != len(FIELDS))
                name = without_indices(rank).name if is_pair else name
                name = f"{name}_{label}" if name.strip("/") else label
                name = column_names(name)[FIELDS.index(field)] if is_pair else name
            yield ResultArray(number, op, op_list[op], field, rank, name, datatype)
