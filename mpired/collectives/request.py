"""The words of a call, understood: the op, the ranks of each group, and what they hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from mpired import cautions, ops
from mpired.buffers import AtHand, Declared, Encoder, FlatLayout, Format, Model, RankFile, format_named
from mpired.buffers.formats import by_suffix
from mpired.buffers.source import check_no_input, check_no_other_input
from mpired.collectives.table import Collective
from mpired.engines import userops
from mpired.errors import OrderWarning, UsageError
from mpired.options import CallOptions
from mpired.ranks import in_one_order, open_groups, unnatural


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
    words: Sequence[Sequence[str | AtHand]]
    said: Declared
    options: CallOptions
    op_file: str | None = None

    @property
    def doubtful_order(self) -> list[OrderWarning]:
        """A warning of two ranks that are probably in the wrong order, if the order shows in the results."""
        rounds = any(buffer.datatype.group in self.op.rounds for buffer in self.groups[0][0].buffers)
        if not rounds and self.collective.alike:
            return []
        names = ([file.source.name for file in group] for group in self.collective.combined(self.groups))
        where = "last bits" if self.collective.alike else "results"
        return [cautions.order(*pair, where) for pair in map(unnatural, names) if pair][:1]

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
    ranks: Sequence[str | AtHand],
    op: ops.OpLike,
    options: CallOptions,
    output: str = "",
) -> Request:
    """Look at the op, the options and the ranks of a call, and let the op pass or not.

    Parameters
    ----------
    ranks
        Paths in rank order, or what a program has at hand; those of `group_b` are in the options.
    output
        Where the results go, "" if that is no file.

    Raises
    ------
    MpiredError, OSError
        If they are not what the call needs.
    """
    _check_options(collective, options)
    group_b = options["group_b"]
    chosen = resolve_op(op, options)
    words = [ranks, cast("Sequence[str | AtHand]", group_b)] if group_b else [ranks]
    said = replace(Declared.of(options), named=chosen.user, keep=tuple(options["keep"]))
    _check_keep(said)
    if said.datatype is not None:
        ops.check(chosen, said.datatype, ops.Use.REDUCE)  # whatever the files hold
        _ = said.datatype.form
    try:
        groups = open_groups(words, said, taken=chosen.groups, raw_result=_is_raw(output, options))
    except FileNotFoundError as error:
        if output in {"", "-"} and len(ranks) > 1 and error.filename == words[0][-1]:  # as programs that take IN... OUT
            error.strerror = f"{error.strerror}; if it is to be the result, give it by `output`"
        raise
    groups = in_one_order(groups, options["root"])
    ops.check_buffers(chosen, [(each.name, each.datatype) for each in groups[0][0].buffers], ops.Use.REDUCE)
    op_file = ops.file_of(op) if isinstance(op, str) else None
    request = Request(collective, chosen, groups, words, said, options, op_file)
    cautions.tell(*request.doubtful_order)
    return request


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


def resolve_op(op: ops.OpLike, options: CallOptions) -> ops.Op:
    """Return the op that is meant; a user-defined one is loaded in a worker to learn its properties."""
    commute, timeout = options["commute"], options["op_timeout"]
    known = ops.meant(op)
    if known is None and callable(op):
        if timeout is not None:
            reason = "cannot stop a function of this process; give the place of one, as FILE.py:FUNCTION"
            raise UsageError("`op_timeout`", reason)
        return ops.with_overflow(ops.of_function(op, commute=commute), options["overflow"])
    if known is None and not isinstance(op, str):
        raise UsageError("`op`", f"{op!r} is neither the name of an op nor a function")
    chosen = ops.with_overflow(known or ops.resolve(str(op), timeout), options["overflow"])
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


def paths_of(ranks: Sequence[str | AtHand], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of the ranks of all groups."""
    for rank in itertools.chain(ranks, options["group_b"] or ()):
        path = rank if isinstance(rank, str) else rank.path
        if path is not None:
            yield path
