"""The words of a call, understood: the op, the ranks of each group, and what they hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mpired import ops
from mpired.buffers import Declared, Encoder, FlatLayout, Format, Model, RankFile, format_named
from mpired.buffers.formats import by_suffix
from mpired.buffers.source import check_no_input, check_no_other_input
from mpired.collectives.table import Collective
from mpired.engines import userops
from mpired.errors import UsageError
from mpired.options import CallOptions, PathLike
from mpired.ranks import in_one_order, open_groups


class Request(NamedTuple):
    """The words of a call, understood.

    Parameters
    ----------
    collective
        Which call it is.
    op
        What combines.
    groups
        The ranks of each group.
    words
        The words for them.
    said
        What the user declares of them.
    options
        All options.
    op_file
        The file that has the op, if there is one.
    """

    collective: Collective
    op: ops.Op
    groups: tuple[tuple[RankFile, ...], ...]
    words: Sequence[Sequence[str]]
    said: Declared
    options: CallOptions
    op_file: str | None = None

    def check_no_input(self, paths: Sequence[str], way_out: str) -> None:
        """Raise `UsageError` if a result would replace the file of a rank, or another one that the call reads."""
        names = [f"rank {{}} of group {name}" for name in "AB"] if len(self.groups) > 1 else ["rank {}"]
        inputs = zip(names, self.groups, strict=True)
        check_no_input(
            paths, [(file.source, name.format(i)) for name, files in inputs for i, file in enumerate(files)], way_out
        )
        check_no_other_input(paths, [(self.options["types"], "the named datatypes"), (self.op_file, "the op")])

    def lay_out(self, form: Format, model: Model) -> FlatLayout | Encoder:
        """Lay out a result like `model` in a format, raw as its bytes are said to lie."""
        declared = form.needs_type and self.said.describes_bytes
        return form.prepare(self.said.of_result(model) if declared else model)


def read_request(
    collective: Collective,
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    options: CallOptions,
    output: str = "",
) -> Request:
    """Look at the op, the options and the ranks of a call, and let the op pass or not.

    Parameters
    ----------
    output
        Where the results go, "" if that is no file.

    Raises
    ------
    MpiredError, OSError
        If they are not what the call needs.
    """
    _check_options(collective, options)
    if isinstance(ranks, str | bytes | os.PathLike):
        raise UsageError("ranks", "is one path; give a list of paths, one a rank")
    group_b = options["group_b"]
    chosen = resolve_op(op, options)
    words = [[os.fspath(rank) for rank in group] for group in ([ranks, group_b] if group_b else [ranks])]
    said = replace(Declared.of(options), named=chosen.user, keep=tuple(options["keep"]))
    _check_keep(said)
    if said.datatype is not None:
        ops.check(chosen, said.datatype, ops.Use.REDUCE)  # whatever the files hold
        _ = said.datatype.form
    groups = in_one_order(open_groups(words, said, raw_result=_is_raw(output, options)), options["root"])
    for buffer in groups[0][0].buffers:
        ops.check(chosen, buffer.datatype, ops.Use.REDUCE)
    op_file = ops.file_of(op) if isinstance(op, str) else None
    return Request(collective, chosen, groups, words, said, options, op_file)


def _check_options(collective: Collective, options: CallOptions) -> None:
    """Raise an error for what makes no sense whatever the files hold."""
    group_b = options["group_b"]
    if group_b is not None and not len(group_b):
        raise UsageError("`group_b`", "has no ranks; leave it out for one group")
    if group_b and not collective.intercomm:
        reason = f"MPI defines no {collective.name} between two groups (MPI-4.1, {collective.section})"
        raise UsageError("`group_b`", reason)
    if group_b and options["in_place"]:
        raise UsageError("`in_place`", "is not for two groups (MPI-4.1, 6.9.1); leave `group_b` out, or name an output")
    if options["counts_b"] is not None and not group_b:
        raise UsageError("`counts_b`", "is for the ranks of `group_b`, and there are none")


def _check_keep(said: Declared) -> None:
    """Raise `UsageError` if a column is to be combined and kept, or named twice."""
    named = [*said.keep, *said.columns, *(said.pair or ())]
    if said.keep and (twice := next((name for name in named if named.count(name) > 1), None)):
        raise UsageError("`keep`", f"names the column {twice!r}, which is named already; it is kept or combined")


def resolve_op(op: str | Callable[..., Any], options: CallOptions) -> ops.Op:
    """Return the op that is meant; a user-defined one is loaded in a worker to learn its properties."""
    commute, timeout = options["commute"], options["op_timeout"]
    if callable(op) and ops.meant(op) is None:
        if timeout is not None:
            reason = "cannot stop a function of this process; give the place of one, as FILE.py:FUNCTION"
            raise UsageError("`op_timeout`", reason)
        return ops.with_overflow(ops.of_function(op, commute=commute), options["overflow"])
    if not (isinstance(op, str) or callable(op)):
        raise UsageError("`op`", f"{op!r} is neither the name of an op nor a function")
    chosen = ops.with_overflow(ops.meant(op) or ops.resolve(str(op), timeout), options["overflow"])
    if chosen.user:
        return userops.load(chosen, commute=commute)
    for name, said in (("`commute`", commute), ("`op_timeout`", timeout)):
        if said is not None:
            raise UsageError(name, f"is for user-defined ops; {chosen} is predefined")
    return chosen


def _is_raw(output: str, options: CallOptions) -> bool:
    """Tell whether the words ask for a raw result, so that they may also say how its bytes lie."""
    to = options["to"]
    row = by_suffix(output) if to is None else format_named(to, "to")
    return row is not None and row.needs_type


def words_of(ranks: Sequence[PathLike], options: Mapping[str, Any]) -> Iterator[PathLike]:
    """Yield the paths of the ranks of all groups."""
    yield from ranks
    yield from options.get("group_b") or ()
