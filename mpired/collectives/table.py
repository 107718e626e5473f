"""The collectives, one row each: which part of the fold goes to which rank, and its arrays (MPI-4.1, 6.9 to 6.11).

All of them are one fold. It goes through the partial results `r0`, `r0 o r1`, `(r0 o r1) o r2`, ..., and
a row says which of these, and which elements of it, a rank gets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from mpired import datatypes, ops
from mpired.datatypes.pairs import FIELDS, column_names, column_of, field_type
from mpired.errors import CountError, RootError
from mpired.formats import Array
from mpired.formats.array import stored_array
from mpired.formats.cells import ResultArray
from mpired.formats.derived import Widening, without_indices
from mpired.options import ALLREDUCE, CALL, EXSCAN, LOCAL, REDUCE, SCAN, SCATTER, SCATTER_BLOCK, Group, Options, rows

BEFORE = -1
"""The partial result before any rank: the op's neutral element."""


class OpField(NamedTuple):
    """The results of an op in a file: all of them, or a field."""

    op: int = 0  # the number of the op in the call
    field: str = ""  # the field of its pairs, value or index, or the counts of valid elements; "" for whole elements


class Share(NamedTuple):
    """The part of the fold that one rank gets."""

    rank: int
    last: int  # the last rank in the partial result; `BEFORE` for the neutral element
    start: int = 0
    stop: int | None = None  # None for all elements of every buffer
    fields: tuple[OpField, ...] = (OpField(),)  # of every buffer, one array each
    has_ops: bool = False  # whether it has the results of several ops, whose names then tell them apart

    def count_of(self, whole: int) -> int:
        """Return the number of its elements, of a buffer with `whole` elements."""
        return (whole if self.stop is None else self.stop) - self.start


class Collective(NamedTuple):
    """A collective: a row of the table."""

    name: str  # the command
    function: str  # the function of MPI
    options: Group
    # from the last of the ranks that are combined, the number of those that get something, which with two groups are
    # others, the elements of a rank's buffer, and the options, of which `counts` are those of the group
    shares: Callable[[int, int, int, Options], list[Share]]
    whole: bool = True  # whether a rank gets as many elements as it gives
    alike: bool = False  # whether all that get something get the same
    to_root: bool = False  # whether the root alone gets something, under one name
    # what options that it has not are for it
    fixed: Options = {}  # noqa: RUF012 - a row is never changed
    several: bool = False  # whether it takes several ops


def _root(last: int, nranks: int, _count: int, options: Options) -> list[Share]:
    root = options["root"]
    if not 0 <= root < nranks:
        raise RootError(f"root {root}", f"is not a rank; there are {nranks} ranks, 0 to {nranks - 1}")
    return [Share(root, last)]


def _exclusive(_last: int, nranks: int, _count: int, options: Options) -> list[Share]:
    # The result of rank 0 is undefined (6.11.2): it gets no file, unless the call asks for the neutral element.
    first = 0 if options["exscan_first"] == "identity" else 1
    return [Share(rank, rank - 1) for rank in range(first, nranks)]


def _blocks(last: int, nranks: int, count: int, options: Options) -> list[Share]:
    counts = options["counts"]
    if len(counts) != nranks:
        raise CountError("`counts`", f"has {len(counts)} values for {nranks} ranks; give one for each rank")
    if sum(counts) != count:
        raise CountError("counts", f"they sum to {sum(counts)}, but every rank has {count} elements")
    stops = itertools.accumulate(counts)
    return [Share(rank, last, stop - counts[rank], stop) for rank, stop in enumerate(stops)]


def _equal_blocks(last: int, nranks: int, count: int, options: Options) -> list[Share]:
    each, rest = divmod(count, nranks)
    if rest:
        reason = f"{count} elements do not make {nranks} equal blocks; use reduce-scatter, with counts"
        raise CountError("count", reason)
    return _blocks(last, nranks, count, {**options, "counts": [each] * nranks})


_ROWS = (  # MPI-4.1, 6.9.1, 6.9.7, 6.9.6, 6.10.2, 6.10.1, 6.11.1, 6.11.2
    Collective("reduce", "MPI_Reduce", REDUCE, _root, alike=True, to_root=True, several=True),
    Collective(
        "reduce-local", "MPI_Reduce_local", LOCAL, _root, alike=True, to_root=True, fixed={"root": 1, "in_place": True}
    ),
    Collective(
        "allreduce",
        "MPI_Allreduce",
        ALLREDUCE,
        lambda last, nranks, *_: [Share(rank, last) for rank in range(nranks)],
        alike=True,
    ),
    Collective("reduce-scatter", "MPI_Reduce_scatter", SCATTER, _blocks, whole=False),
    Collective("reduce-scatter-block", "MPI_Reduce_scatter_block", SCATTER_BLOCK, _equal_blocks, whole=False),
    Collective("scan", "MPI_Scan", SCAN, lambda _, nranks, *__: [Share(rank, rank) for rank in range(nranks)]),
    Collective("exscan", "MPI_Exscan", EXSCAN, _exclusive),
)
COLLECTIVES = {row.name: row for row in _ROWS}
DEFAULTS = {name: row.default for name, row in rows(CALL).items()}
"""The options of all collectives, which a call has besides its own."""


def operand(op: ops.Op, rank: Array) -> Array:
    """Return what an op takes of a rank: values with their indices, or alone; in a wider datatype if it has to."""
    if rank.values is None:
        return rank
    rank, stored = rank if op.groups == datatypes.Group.PAIR else without_indices(rank), stored_array(rank)
    is_narrow = isinstance(rank.reader, Widening) and not rank.reader.is_needed and "accumulate_in" not in op.takes
    return stored if is_narrow and stored.datatype.group in op.groups else rank


def arrays_in(share: Share, chosen: Sequence[ops.Op], buffers: Sequence[Array]) -> Iterator[ResultArray]:
    """Yield the arrays of a share of the results of the chosen ops, in their order; `buffers` are those of a rank."""
    labels = ops.labels(chosen) if share.has_ops else None
    for number, buffer in enumerate(buffers):
        for op, field in share.fields:
            rank = operand(chosen[op], buffer)
            datatype, name = chosen[op].result(rank.datatype), rank.name
            if field:
                datatype = field_type(datatype, field)
            if field or labels is not None:
                is_pair = field in FIELDS and (rank.values is not None or len(rank.columns) != len(FIELDS))
                name = column_of(rank.name, rank.columns, field)
                if label := labels[op] if labels else "":
                    name = without_indices(rank).name if is_pair else name
                    name = f"{name}_{label}" if name.strip("/") else label
                    name = column_names(name)[FIELDS.index(field)] if is_pair else name
            yield ResultArray(number, op, chosen[op], field, rank, name, datatype)
