"""The words of a call, understood: the op, and the ranks of each group with their headers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from mpired import cautions, ops
from mpired.collectives.table import Collective, taken_by
from mpired.context import Context
from mpired.datatypes import Datatype, Group
from mpired.datatypes.pairs import VALUES
from mpired.errors import UsageError
from mpired.formats import Array, Format, InputOptions, RankFile, decoding, format_named
from mpired.formats.array import has_unknown_length, with_stored
from mpired.formats.derived import widened
from mpired.formats.rank import Kept
from mpired.formats.recognise import by_suffix
from mpired.log import step
from mpired.options import OPTIONS, Options
from mpired.ranks import (
    Opened,
    RankWord,
    Skipped,
    compare,
    in_one_order,
    open_groups,
    skipped_warnings,
    unnatural,
    warn_of_units,
)
from mpired.sources.open import check_no_input, check_no_other_input
from mpired.values import NUMBER, NUMBERS

if TYPE_CHECKING:
    from mpired.provenance import Note

_Groups: TypeAlias = tuple[tuple[RankFile, ...], ...]
_WEIGHTS_NBYTES = 64 << 20
_OF_USER = ("commute", "op_timeout")  # the options of user-defined ops


class Request(NamedTuple):
    """The words of a call, understood."""

    collective: Collective  # which call it is
    ops: tuple[ops.Op, ...]  # what combines
    groups: _Groups  # the ranks of each group
    words: Sequence[Sequence[RankWord]]  # the words for them
    inputs: InputOptions  # what the user says of them
    options: Options  # all options
    op_files: tuple[str, ...] = ()  # the files that have user-defined ops
    by_op: bool = False  # whether the results of each op are apart, in a file or arrays of their own
    note: Note | None = None  # what results say of where they come from; None for nothing
    skipped: tuple[Skipped, ...] = ()  # the ranks that were named and are left out, because they cannot be used

    @property
    def root(self) -> RankFile:
        """The rank that the result is modelled on, where only one gets it; else the first."""
        return self.groups[0][self.options["root"]]

    def check_no_input(self, paths: Sequence[str], way_out: str) -> None:
        """Raise `UsageError` if a result would replace the file of a rank, or another one that the call reads."""
        check_no_input(
            paths, ((source, name) for name, file in labelled(self.groups) for source in file.sources), way_out
        )
        if self.options["types"] is not None or self.op_files:
            others = [(self.options["types"], "the named datatypes"), *((file, "the op") for file in self.op_files)]
            check_no_other_input(paths, others)


def read_request(
    collective: Collective,
    ranks: Sequence[RankWord],
    op: ops.Ops,
    options: Options,
    context: Context,  # the settings of the call
    outputs: Sequence[str] = (),  # where the results go; none if they are arrays, or replace the ranks
) -> Request:
    """Look at the op, the options and the ranks of a call, and let the op pass or not."""
    group_b = options["group_b"]
    if group_b is not None and not list(group_b):
        raise UsageError("`group_b`", "has no ranks; leave it out for one group")
    named: Sequence[Any] = ops.each_of(op) if collective.several else [op]
    chosen = _resolve(named, options)
    words: Sequence[Sequence[RankWord]] = [ranks, group_b] if group_b else [ranks]
    inputs = _inputs(chosen, options, context)
    pairing = "`index='rank'` makes pairs of plain values" if "index" in collective.options else ""
    _check_ops(chosen, inputs, options, pairing)
    try:
        with step("opening and checking the ranks"):
            # The formats that the names of results, or `to`, ask for; None for that of the ranks.
            to = None if options["to"] is None else format_named(options["to"], "to")
            forms = [to or by_suffix(each) for each in outputs]
            is_raw = any(form is not None and form.needs_type for form in forms)  # the words may say how its bytes lie
            opened = open_groups(words, inputs, options, raw_result=is_raw)
    except FileNotFoundError as error:
        has_result = bool({*outputs} - {"-"}) or len(ranks) == 1
        if not has_result and error.filename == words[0][-1]:
            error.add_note("name the result with `output`")  # of other programs it is the last word
        raise
    is_open = has_unknown_length(opened[0].files[0].buffers)
    grows = is_open and _may_grow(collective, chosen, forms, options)
    groups = _combinable(opened, chosen, inputs, options, grows=grows)
    row = format_named(groups[0][0].format)
    keeps = "keep" in collective.options and bool(row.keeps) and {(form or row).name for form in forms} <= {row.name}
    for each in chosen:
        buffers = [(buffer.name, taken_by(each, buffer).datatype) for buffer in groups[0][0].buffers]
        ops.check_buffers(each, buffers, ops.Use.REDUCE, pairing=pairing, keeps=keeps)
        ops.check_rules(each, [datatype for _, datatype in buffers], max(map(len, collective.combined(groups))))
    files_of_ops = tuple(filter(None, (ops.file_of(each) for each in named if isinstance(each, str) and ":" in each)))
    by_op = ops.is_list(op) and (not outputs or "{op}" in outputs[0])
    note = None
    if options["provenance"]:
        from mpired.provenance import Note  # noqa: PLC0415 - few calls record where results come from

        note = Note(context)
    skipped = tuple(each for group in opened for each in group.skipped)
    words = [group.words for group in opened]
    request = Request(collective, chosen, groups, words, inputs, options, files_of_ops, by_op, note, skipped)
    if options["keep"]:
        _check_kept(request)
    if skipped:
        cautions.tell(*skipped_warnings(skipped, sum(map(len, words)) + len(skipped)))
    if options["sort"] == "given" and options["rank_regex"] is None:
        _warn_of_order(request)
    return request


def _inputs(chosen: Sequence[ops.Op], options: Options, context: Context) -> InputOptions:
    """Return the options of the inputs, with what the chosen ops ask for."""
    taken = ~Group(0)
    for each in chosen:
        taken &= VALUES if _is_paired(each, options) else each.groups
    inputs = InputOptions.of(options, context)._replace(
        nullable=chosen[0].rules.nulls != "error",
        named=any(op.user for op in chosen),
        taken=taken,
        op=next((op for op in chosen if "accumulate_in" in op.takes), None),
        keep=tuple(options["keep"]),
        # A result in place, or with a part of a rank's file, is made in another order. And a rank that is left out must
        # be known before its elements are combined.
        forward=not (options["in_place"] or options["keep"] or options["header"] != "none" or options["skip_bad"]),
    )
    both = [*inputs.keep, *inputs.columns, *(inputs.pair or ())] if inputs.keep else []
    if twice := next((name for name in both if both.count(name) > 1), None):
        raise UsageError("`keep`", f"names the column {twice!r}, which is named already; it is kept or combined")
    return inputs


def _may_grow(
    collective: Collective, chosen: Sequence[ops.Op], forms: Sequence[Format | None], options: Options
) -> bool:
    """Return whether a result may grow with streams until they end: one, whose elements do not depend on its length."""
    is_one = collective.to_root and len(forms) == len(chosen) == 1 and options["split"] is options["index"] is None
    is_plain = chosen[0].rules.nulls == "error" and chosen[0].rules.accumulate_in is None
    return is_one and is_plain and all(form is None or form.grows for form in forms)


def _combinable(
    opened: Sequence[Opened], chosen: Sequence[ops.Op], inputs: InputOptions, options: Options, *, grows: bool
) -> _Groups:
    """Return the ranks of each group as they are combined: with one count, order and datatype, or with indices."""
    groups = tuple(tuple(group.files) for group in opened)
    if not all(group.alike for group in opened) or has_unknown_length(groups[0][0].buffers):
        warn_of_units(groups)
        groups = in_one_order(_counted(groups, inputs, may_stay_open=grows), options["root"])
    if options["accumulate_in"] is not None:
        groups = _widened(groups, chosen)
    if options["index"] is not None:
        from mpired.collectives import indices  # noqa: PLC0415 - few calls make pairs

        groups = indices.as_pairs(groups, [group.words for group in opened], options)
    return groups


def _warn_of_order(request: Request) -> None:
    """Warn of two ranks that are probably in the wrong order, if the order shows in the results."""
    where, buffers = "results", request.groups[0][0].buffers
    if request.collective.alike and request.options["index"] not in {"rank", "global"}:
        where = "last bits"
        if not any(each.datatype.group in op.rounds for op in request.ops if not op.rules.exact for each in buffers):
            return
    for files in request.collective.combined(request.groups):
        if pair := unnatural([file.source.name for file in files]):
            cautions.tell(cautions.order(*pair, where))
            return


def _widened(groups: _Groups, chosen: Sequence[ops.Op]) -> _Groups:
    """Return ranks of several datatypes with their elements in the widest of these, or in that of `accumulate_in`."""
    columns = zip(*(file.buffers for files in groups for file in files), strict=True)
    wide = [_widest(chosen, [each.datatype for each in ranks]) for ranks in columns]

    def of_file(file: RankFile) -> RankFile:
        buffers = zip(file.buffers, wide, strict=True)
        return file._replace(buffers=[widened(each, datatype, chosen[0].rules.missing) for each, datatype in buffers])

    return tuple(tuple(map(of_file, files)) for files in groups)


def _widest(chosen: Sequence[ops.Op], datatypes: Sequence[Datatype]) -> Datatype:
    """Return the datatype of elements of several datatypes for ops; those that compute in no wider one take it, too."""
    takers = [op for op in chosen if "accumulate_in" in op.takes]
    (first, wide), *others = ((op, ops.widest(op, datatypes) or datatypes[0]) for op in takers)
    for op, other in others:
        if other != wide:
            reason = f"makes {wide.label} of the elements for {first}, and {other.label} for {op}"
            raise UsageError("`accumulate_in`", f"{reason}; combine by them in two calls")
    return wide


def _resolve(named: Sequence[ops.OpLike], options: Options) -> tuple[ops.Op, ...]:
    """Return the ops, each with those of the options of values that it takes; one that none takes is an error."""
    if options["weights_from"] is not None:
        options = {**options, "weights": _weights(options["weights_from"])}
    found = [_named_op(op, options) for op in named]
    if len(found) == 1:
        return (_ruled(found[0], options),)
    own = [{*(_OF_USER if op.user else ops.options_of(op))} for op in found]
    chosen = []
    for op, takes in zip(found, own, strict=True):
        of_others = {name: OPTIONS[name].default for name in set().union(*own) - takes}
        chosen.append(_ruled(op, {**options, **of_others}))
    ops.labels(chosen)  # which are different
    functions = [op for op in chosen if op.is_function]
    if functions and (other := next((op for op in chosen if op.isolated), None)):
        reason = f"is a function of this process, which {other}, a file's or a package's, never runs in"
        raise UsageError(str(functions[0]), f"{reason}; combine by them in two calls")
    return tuple(chosen)


def _named_op(op: ops.OpLike, options: Options) -> ops.Op:
    """Return the op that a caller means, without rules; nothing of a user-defined one is loaded yet."""
    known = None if isinstance(op, str) else ops.predefined(op)
    if known is None and callable(op):
        if options["op_timeout"] is not None:
            reason = "cannot stop a function of this process; give the place of one, as FILE.py:FUNCTION"
            raise UsageError("`op_timeout`", reason)
        return ops.of_function(op, commute=options["commute"])
    if ops.is_list(op):
        text = op if isinstance(op, str) else "`op`"
        raise UsageError(text, "is a list of ops, which `mpired reduce` and `mpired locate` take; name one op")
    if known is None and not isinstance(op, str):
        raise UsageError("`op`", f"{op!r} is neither the name of an op nor a function")
    return known or ops.resolve(str(op), options["op_timeout"])


def _ruled(op: ops.Op, options: Options) -> ops.Op:
    """Return an op with its rules; a user-defined one is loaded in a worker to learn its properties."""
    chosen = ops.with_policies(op, options)
    if chosen.user and chosen.isolated:
        from mpired.engines import userops  # noqa: PLC0415 - only for them

        with step("loading the op"):
            return userops.load(chosen, commute=options["commute"])
    for name in _OF_USER if not chosen.user else ():
        if options[name] is not None:
            raise UsageError(f"`{name}`", f"is for user-defined ops; {chosen} is predefined")
    return chosen


def _is_paired(op: ops.Op, options: Options) -> bool:
    """Return whether an op takes pairs, which are made of the values of files."""
    return options["index"] is not None and op.groups == Group.PAIR


def _check_ops(chosen: Sequence[ops.Op], inputs: InputOptions, options: Options, pairing: str) -> None:
    """Raise an error for ops that make no sense whatever the files hold."""
    if len(chosen) > 1 and options["in_place"]:
        reason = f"has the place of one result, and there are {len(chosen)} ops; name an `output`"
        raise UsageError("`in_place`", reason)
    if options["index"] is not None:
        from mpired.collectives import indices  # noqa: PLC0415 - few calls make pairs

        op = next((op for op in chosen if _is_paired(op, options)), chosen[0])
        indices.check(op, in_place=options["in_place"])
    for op in chosen:
        if inputs.datatype is not None and not _is_paired(op, options):
            datatype = ops.widest(op, [inputs.datatype]) or inputs.datatype
            ops.check(op, datatype, ops.Use.REDUCE, pairing=pairing)
            _ = inputs.datatype.form


def _check_kept(request: Request) -> None:
    """Raise an error unless all ranks have the columns that are kept, with the same values."""
    kept: list[Kept] = []
    for file in (file for files in request.groups for file in files):
        if file.kept is None:
            reason = f"carries columns and arrays, and {file.source.name} is {file.format}"
            raise UsageError("`keep`", f"{reason}; leave it out")
        kept.append(file.kept)
    like = "rank 0 of group A" if len(request.groups) > 1 else "rank 0"
    for each in [kept] if request.inputs.check_coordinates else [[one] for one in kept]:  # alone it is only decoded
        decoding.check_kept(each, like)


def _weights(path: str) -> tuple[float, ...]:
    """Return the weights in a file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        words = file.read(_WEIGHTS_NBYTES).replace(",", " ").split()
    try:
        return cast("tuple[float, ...]", NUMBERS.check([NUMBER.parse(word) for word in words]))
    except ValueError as error:
        raise UsageError(os.fspath(path), f"{error}; a file of weights has numbers alone") from None


def labelled(groups: Sequence[Sequence[RankFile]]) -> Iterator[tuple[str, RankFile]]:
    """Yield all ranks, each with its number in words and, of two groups, the name of its group."""
    names = ["rank {} of group A", "rank {} of group B"] if len(groups) > 1 else ["rank {}"]
    for name, files in zip(names, groups, strict=True):
        for rank, file in enumerate(files):
            yield name.format(rank), file


def _counted(groups: _Groups, inputs: InputOptions, *, may_stay_open: bool) -> _Groups:
    """Give ranks whose end is not known the count of the others."""
    # If there is none, they stay as they are if they may: the call then goes on to their end. Else they are read to
    # their end first.
    unknown = [has_unknown_length(file.buffers) for files in groups for file in files]
    if not any(unknown) or (all(unknown) and may_stay_open):
        return groups
    ranks = list(labelled(groups))
    if all(unknown):
        given = iter([format_named(file.format).inspect(file.source.kept(), inputs) for _, file in ranks])
        return _counted(tuple(tuple(next(given) for _ in files) for files in groups), inputs, may_stay_open=False)
    known = ranks[unknown.index(False)]
    for what, file in ranks:
        compare(what, file, known, inputs.op)
    pairs = zip(ranks, unknown, strict=True)
    given = iter([_like(what, file, known) if is_unknown else file for (what, file), is_unknown in pairs])
    return tuple(tuple(next(given) for _ in files) for files in groups)


def _like(what: str, file: RankFile, known: tuple[str, RankFile]) -> RankFile:
    """Return a rank with the count of the one that is known."""
    like = what, f"{known[0]} ({known[1].source.name!r})"

    def given(buffer: Array) -> Array:
        return buffer._replace(count=known[1].buffers[0].count, like=like)

    return file._replace(buffers=tuple(with_stored(buffer, given) for buffer in file.buffers))
