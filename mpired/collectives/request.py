"""The words of a call, understood: the op, and the ranks of each group with their headers, perhaps as pairs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from mpired import datatypes, log, ops
from mpired.collectives.table import Collective, operand
from mpired.context import Context
from mpired.datatypes import DATATYPES, Datatype, Group
from mpired.datatypes.pairs import INDICES, VALUES, column_names
from mpired.errors import DatatypeError, InputWarning, OpError, UsageError
from mpired.formats import InputOptions, RankFile, decoding, format_named
from mpired.formats.array import UNKNOWN_COUNT, with_stored
from mpired.formats.derived import GeneratedIndices, Widening, widened, with_indices
from mpired.formats.rank import Kept, reasons, some_names
from mpired.formats.recognise import by_suffix
from mpired.log import step
from mpired.options import OPTIONS, Options
from mpired.ranks.opening import Skipped, compare, in_one_order, open_groups, skipped_warning, warn_of_units
from mpired.ranks.order import RankArgument, distinguishing, numbers_of, unnatural
from mpired.values import NUMBER, NUMBERS

if TYPE_CHECKING:
    from mpired.provenance import Provenance

_Groups: TypeAlias = tuple[tuple[RankFile, ...], ...]
_WEIGHTS_NBYTES = 64 << 20
_INDEX_TYPES = ("INT", "INT64_T")  # the usual ones
_OF_USER = ("commute", "op_timeout")  # the options of user-defined ops


class Request(NamedTuple):
    """The words of a call, understood."""

    collective: Collective  # which call it is
    ops: tuple[ops.Op, ...]  # what combines
    groups: _Groups  # the ranks of each group
    # the groups whose ranks are combined: all, or the last where a root of the first gets the result
    combined: _Groups
    words: Sequence[Sequence[RankArgument]]  # the words for them
    inputs: InputOptions  # what the user says of them
    options: Options  # all options
    op_files: tuple[str, ...] = ()  # the files that have user-defined ops
    outputs: Sequence[str] = ()  # where the results go; none if they are arrays, or replace the ranks
    provenance: Provenance | None = None  # what results say of where they come from; None for nothing
    skipped: tuple[Skipped, ...] = ()  # the ranks that were named and are left out, because they cannot be used


def read_request(
    collective: Collective,
    ranks: Sequence[RankArgument],
    op: ops.Ops,
    options: Options,
    context: Context,  # the settings of the call
    outputs: Sequence[str] = (),  # where the results go; none if they are arrays, or replace the ranks
) -> Request:
    """Look at the op, the options and the ranks of a call, and let the op pass or not."""
    group_b = options["group_b"]
    if group_b is not None and not list(group_b):
        raise UsageError("`group_b`", "has no ranks; leave it out for one group")
    named: Sequence[Any] = ops.each_of(op) if collective.several and ops.is_list(op) else [op]
    chosen = _resolve(named, options)
    inputs = _inputs(chosen, options, context)._replace(in_place="in_place" in collective.fixed)
    if options["in_place"] and not inputs.in_place and options["accumulate_in"] is None:
        inputs = inputs._replace(op=None)  # whose wider datatype the file of the root may have no place for
    if len(chosen) > 1 or options["index"] is not None or inputs.datatype is not None:
        _check_ops(chosen, inputs, options, _offers(collective, options))
    # The formats that the names of results, or `to`, ask for; None for that of the ranks.
    to = None if options["to"] is None else format_named(options["to"], "to")
    forms = [to or by_suffix(each) for each in outputs]
    words: Sequence[Sequence[RankArgument]] = [ranks, group_b] if group_b else [ranks]
    try:
        with step("opening and checking the ranks"):
            is_raw = any(form is not None and form.needs_type for form in forms)  # the words may say how its bytes lie
            opened = open_groups(words, inputs, options, raw_result=is_raw)
    except FileNotFoundError as error:
        has_result = bool({*outputs} - {"-"}) or len(ranks) == 1
        if not has_result and error.filename == words[0][-1]:
            error.add_note("name the result with `output`")  # of other programs it is the last word
        raise
    groups = tuple(tuple(group.files) for group in opened)
    is_open = groups[0][0].buffers[0].count == UNKNOWN_COUNT
    if is_open or not all(group.alike for group in opened):
        # A result may grow with streams until they end: one, whose elements do not depend on its length.
        is_one = collective.to_root and len(forms) == len(chosen) == 1 and options["split"] is options["index"] is None
        is_plain = chosen[0].rules.nulls == "error" and options["accumulate_in"] is None
        grows = is_one and is_plain and not any(form is not None and (form.has_arrays or form.place) for form in forms)
        warn_of_units(groups)
        groups = in_one_order(_counted(groups, inputs, may_stay_open=is_open and grows), options["root"])
    if options["accumulate_in"] is not None:
        groups = _widened(groups, chosen, options["accumulate_in"])
    words = [group.words for group in opened]
    if options["index"] is not None:
        groups = _as_pairs(groups, words, options)
    provenance = None
    if options["provenance"]:
        from mpired.provenance import Provenance  # noqa: PLC0415 - few calls record where results come from

        provenance = Provenance(context)
    skipped = tuple(each for group in opened for each in group.skipped)
    request = Request(
        collective, chosen, groups, groups[-1:] if collective.to_root else groups, words, inputs, options,
        op_files=tuple(path for op in chosen if op.isolated and (path := cast("Any", op.kernel).path)),
        outputs=outputs, provenance=provenance, skipped=skipped,
    )  # fmt: skip
    _check(request, {(form or format_named(groups[0][0].format)).name for form in forms})
    return request


def _check(request: Request, formats: Collection[str]) -> None:
    """Raise an error unless the ops take what the ranks hold, for results of these formats; warn of ranks left out."""
    options, groups, skipped = request.options, request.groups, request.skipped
    row = format_named(groups[0][0].format)
    offers = _offers(request.collective, options) - (set() if row.keeps and {*formats} <= {row.name} else {"keep"})
    for op in request.ops:
        buffers = [(buffer.name, operand(op, buffer).datatype) for buffer in groups[0][0].buffers]
        ops.check_buffers(op, buffers, ops.Use.REDUCE, offers)
        if op.rules != ops.Rules():
            ops.check_rules(op, [datatype for _, datatype in buffers], max(map(len, request.combined)))
    if options["keep"]:
        _check_kept(request)
    if skipped:
        log.warn(skipped_warning(skipped, sum(map(len, request.words)) + len(skipped)))
    if options["sort"] == "given" and options["rank_regex"] is None:
        # Two ranks are probably in the wrong order, and that shows in the results.
        all_rounding = [op.rounds for op in request.ops if not op.rules.exact]
        in_last_bits = any(
            each.datatype.group in rounding for rounding in all_rounding for each in groups[0][0].buffers
        )
        is_alike = request.collective.alike and options["index"] not in {"rank", "global"}
        pairs = (unnatural([file.source.name for file in files]) for files in request.combined)
        if (in_last_bits or not is_alike) and (pair := next(filter(None, pairs), None)):
            log.warn(log.order(*pair, "last bits" if is_alike else "results"))


def _offers(collective: Collective, options: Options) -> set[str]:
    """Return the options that a message may offer: a result in place has no place for elements of another datatype."""
    return {*collective.options} - ({"accumulate_in", "index"} if options["in_place"] else set())


def _check_kept(request: Request) -> None:
    """Raise an error unless all ranks have the same arrays that are kept; warn of those that cannot be."""
    groups = request.groups
    kept: list[Kept] = []
    for file in (file for files in groups for file in files):
        if file.kept is None:
            reason = f"carries columns and arrays, and {file.source.name} is {file.format}"
            if file.names:
                reason = f"matches only {file.noun}s of {file.source.name} that are combined; it has"
                reason = f"{reason} {some_names(file.names)}, and `columns` combines fewer"
            raise UsageError("`keep`", f"{reason}; leave it out")
        kept.append(file.kept)
    if (unkept := groups[0][0].unkept) and not request.options["in_place"]:
        it = "it" if len(unkept) == 1 else "them"
        reason = f"{'; '.join(reasons(unkept))}; `keep` does not carry {it}, and results are without {it}"
        log.warn(InputWarning(f"{groups[0][0].source.name}: {reason}"))
    # All ranks have the same; if they may differ each is decoded alone.
    for each in [kept] if request.inputs.check_coordinates else [[one] for one in kept]:
        decoding.check_kept(each, "rank 0 of group A" if len(groups) > 1 else "rank 0")


def _inputs(chosen: Sequence[ops.Op], options: Options, context: Context) -> InputOptions:
    """Return the options of the inputs, with what the chosen ops ask for."""
    taken, first = ~Group(0), chosen[0]
    for each in chosen:
        is_paired = options["index"] is not None and each.groups == Group.PAIR  # with pairs made of the values of files
        taken &= VALUES if is_paired else each.groups
    inputs = InputOptions.of(options, context)._replace(
        nullable=first.rules.nulls != "error",
        named=any(op.user for op in chosen),
        taken=taken,
        op=first if "accumulate_in" in first.takes else next(iter(_takers(chosen, options["accumulate_in"])), None),
        keep=tuple(options["keep"]),
        # A result in place, or with a part of a rank's file, is made in another order. And a rank that is left out must
        # be known before its elements are combined.
        forward=not (options["in_place"] or options["keep"] or options["header"] != "none" or options["skip_bad"]),
    )
    both = [*inputs.keep, *inputs.columns, *(inputs.pair or ())] if inputs.keep else []
    if twice := next((name for name in both if both.count(name) > 1), None):
        raise UsageError("`keep`", f"names {twice!r}, which is named already; it is kept or combined")
    return inputs


def _takers(chosen: Sequence[ops.Op], within: str | None) -> list[ops.Op]:
    """Return the ops that choose one datatype for ranks of several: the others take the elements as these do."""
    takers = [op for op in chosen if "accumulate_in" in op.takes]
    if takers or any(op.user for op in chosen):
        return takers
    # None computes in a wider datatype. Wider elements change no value, so that another op can choose.
    groups = ~Group(0)
    for op in chosen:
        groups &= VALUES if op.groups == Group.PAIR else op.groups
    return [ops.with_policies(ops.get("max")._replace(groups=groups), {"accumulate_in": within})]


def _widened(groups: _Groups, chosen: Sequence[ops.Op], within: str) -> _Groups:
    """Return ranks of several datatypes with their elements in the widest of these, or in that of `accumulate_in`."""
    wide, are_several = list[Datatype](), False
    takers = _takers(chosen, within)
    for ranks in zip(*(file.buffers for files in groups for file in files), strict=True):
        types = [each.datatype for each in ranks]
        are_several = are_several or len({*types}) > 1
        (first, widest), *others = ((op, ops.widest(op, types) or types[0]) for op in takers)
        for op, other in others:
            if other != widest:
                reason = f"makes {widest.label} of the elements for {first}, and {other.label} for {op}"
                raise UsageError("`accumulate_in`", f"{reason}; combine by them in two calls")
        wide.append(widest)

    widening = Widening(chosen[0].rules.missing, is_needed=are_several)

    def of_file(file: RankFile) -> RankFile:
        return file._replace(buffers=[widened(*each, widening) for each in zip(file.buffers, wide, strict=True)])

    return tuple(tuple(map(of_file, files)) for files in groups)


def _resolve(named: Sequence[ops.OpLike], options: Options) -> tuple[ops.Op, ...]:
    """Return the ops, each with those of the options of values that it takes; one that none takes is an error."""
    if options["weights_from"] is not None:
        options = {**options, "weights": _weights(options["weights_from"])}
    found = [ops.resolve(op, options["op_timeout"]) or _of_function(op, options) for op in named]
    are_several = len(found) > 1
    takes = [{*(_OF_USER if op.user else op.takes)} if are_several else set() for op in found]
    chosen: list[ops.Op] = []
    for unruled, own in zip(found, takes, strict=True):
        mine = {**options, **{name: OPTIONS[name].default for name in set().union(*takes) - own}}
        if not (unruled.user or "accumulate_in" in unruled.takes):  # it takes the elements in their widest datatype
            mine["accumulate_in"] = None
        op = ops.with_policies(unruled, mine)
        if op.isolated:
            from mpired.engines import userops  # noqa: PLC0415 - only for them

            with step("loading the op"):  # in a worker, to learn its properties
                op = userops.load(op, commute=options["commute"])
        for name in _OF_USER if not op.user else ():
            if mine[name] is not None:
                raise UsageError(f"`{name}`", f"is for user-defined ops; {op} is predefined")
        chosen.append(op)
    if are_several:
        ops.labels(chosen)  # which are different
        function = next((op for op in chosen if op.is_function), None)
        if function and (other := next((op for op in chosen if op.isolated), None)):
            reason = f"is a function of this process, which {other}, a file's or a package's, never runs in"
            raise UsageError(str(function), f"{reason}; combine by them in two calls")
    return tuple(chosen)


def _of_function(op: object, options: Options) -> ops.Op:
    """Return the op of a function of this process."""
    if not callable(op):
        raise UsageError("`op`", f"{op!r} is neither the name of an op nor a function")
    if options["op_timeout"] is not None:
        reason = "cannot stop a function of this process; give the place of one, as FILE.py:FUNCTION"
        raise UsageError("`op_timeout`", reason)
    return ops.of_function(op, commute=options["commute"])


def _check_ops(chosen: Sequence[ops.Op], inputs: InputOptions, options: Options, offers: Collection[str]) -> None:
    """Raise an error for ops that make no sense whatever the files hold."""
    has_indices = options["index"] is not None
    if len(chosen) > 1 and options["in_place"]:
        reason = f"has the place of one result, and there are {len(chosen)} ops; name an `output`"
        raise UsageError("`in_place`", reason)
    if has_indices and all(op.groups != Group.PAIR for op in chosen):
        raise UsageError("`index`", f"is for maxloc and minloc, not for {chosen[0]}; leave it out")
    if has_indices and options["in_place"]:
        reason = "would put pairs into files of plain values; name an `output`, or leave `index` out"
        raise UsageError("`in_place`", reason)
    for op in chosen:
        if inputs.datatype is not None and not (has_indices and op.groups == Group.PAIR):
            datatype = ops.widest(op, [inputs.datatype]) or inputs.datatype
            ops.check_buffers(op, [("", datatype)], ops.Use.REDUCE, offers)
            _ = inputs.datatype.form


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
    unknown = [file.buffers[0].count == UNKNOWN_COUNT for files in groups for file in files]
    if not any(unknown) or (all(unknown) and may_stay_open):
        return groups
    ranks = list(labelled(groups))
    if all(unknown):
        given = iter([format_named(file.format).inspect(file.source.kept(), inputs) for _, file in ranks])
        return _counted(tuple(tuple(next(given) for _ in files) for files in groups), inputs, may_stay_open=False)
    known = ranks[unknown.index(False)]
    for what, file in ranks:
        compare(what, file, known, inputs)

    def like_known(what: str, file: RankFile) -> RankFile:
        like, count = (what, f"{known[0]} ({known[1].source.name!r})"), known[1].buffers[0].count
        return file._replace(buffers=tuple(with_stored(each, count=count, like=like) for each in file.buffers))

    pairs = zip(ranks, unknown, strict=True)
    given = iter([like_known(what, file) if is_unknown else file for (what, file), is_unknown in pairs])
    return tuple(tuple(next(given) for _ in files) for files in groups)


def _as_pairs(groups: _Groups, words: Sequence[Sequence[RankArgument]], options: Options) -> _Groups:
    """Return plain ranks as pairs for MINLOC and MAXLOC: the index of an element, and the type that holds it."""
    counting = options["index"] == "global"
    firsts = []  # the index of the first element of each rank of each group
    for files, own in zip(groups, words, strict=True):
        step = files[0].buffers[0].count if counting else 1
        steps = [rank * step for rank in range(len(files))]
        firsts.append(_numbers(files, own, options["rank_regex"]) if options["index"] == "number" else steps)
    index = _index_type(options["index_type"], groups, firsts, counting=counting)
    # The columns of indices may not have the names of others.
    names = [name for buffer in groups[0][0].buffers for name in column_names(buffer.name)]
    if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
        reason = f"makes indices named {twice!r}, and that name is taken; choose others with `columns`, or rename it"
        raise UsageError("`index`", reason)

    def with_index(file: RankFile, first: int) -> RankFile:
        buffers = []
        for each in file.buffers:
            pair, label = datatypes.value_index(each.datatype, index), each.datatype.label
            what = f"{each.name!r} of {label}" if each.name else label
            if each.datatype.group is Group.PAIR:
                raise OpError("`index`", f"makes pairs of plain values, and {what} is a pair; leave it out")
            if pair is None:
                raise OpError("`index`", f"makes pairs of numbers that max takes, which {what} is not")
            buffers.append(with_indices(each, pair, GeneratedIndices(first, counting)))
        return file._replace(buffers=buffers)

    return tuple(tuple(map(with_index, files, numbers)) for files, numbers in zip(groups, firsts, strict=True))


def _numbers(files: Sequence[RankFile], words: Sequence[RankArgument], regex: str | None) -> list[int]:
    """Return the number in the name of each rank's file."""
    paths = [word if isinstance(word, str) else word.path for word in words]
    ranks: dict[int, str] = {}
    for file, number in zip(files, numbers_of(paths, regex), strict=True):
        name = file.source.name
        if number is not None and number not in ranks and file.source.inode is not None:
            ranks[number] = name
            continue
        reason = f"has the same number ({number}) in its name as {ranks[number]}" if number in ranks else ""
        regex, ways = distinguishing(paths), "use `index='rank'`"
        ways += f", or say where it is, such as with {regex}" if regex else ""
        reason = reason and f"{reason}{'' if regex else ', and no one number tells all ranks apart'}"
        raise UsageError(name, f"{reason or 'has no number in its name'}; {ways}")
    return list(ranks)


def _index_type(
    text: Any, groups: Sequence[Sequence[RankFile]], firsts: Sequence[Sequence[int]], *, counting: bool
) -> Datatype:
    """Return the type of indices: the one that is wanted, or else the first usual one that holds all."""
    last: list[tuple[int, int, str]] = []  # the largest index of each rank, its rank, and its name
    for files, numbers in zip(groups, firsts, strict=True):
        for rank, (file, first) in enumerate(zip(files, numbers, strict=True)):
            most = max((buffer.count for buffer in file.buffers), default=0)
            last.append((first + (max(0, most - 1) if counting else 0), rank, file.source.name))
    greatest, rank, name = max(last)
    if text is None:
        types = [row for each in _INDEX_TYPES for row in DATATYPES if row.name == each]
    else:
        datatype, order = datatypes.parse(text)
        if datatype.group not in INDICES or order is not None:
            wrong = "is not an integer type; use int, int64_t or another"
            reason = "has a byte order; leave that out" if order else wrong
            raise DatatypeError("`index_type`", f"{text} {reason}")
        types = [datatype]
    for each in types:
        if greatest <= np.iinfo(each.form).max:
            return each
    reason = f"{types[-1].label} cannot hold the index {greatest} of rank {rank} ({name})"
    hint = "use a wider one, such as int64_t or uint64_t, or `index='rank'`"
    raise UsageError("`index_type`", f"{reason}; {hint}")
