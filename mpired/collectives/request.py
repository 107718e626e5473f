"""The checked arguments of a collective: its ops, and the ranks of each group with their headers.

Ranks in other forms than their files are made here: in a wider datatype (`accumulate_in`), as pairs with generated
indices (`index`), and raw streams with the count of the other ranks.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from mpired import datatypes, log, ops
from mpired.collectives.table import Collective, operand
from mpired.context import Context
from mpired.datatypes import DATATYPES, Datatype, Group
from mpired.datatypes.predefined import INDICES, VALUES, column_names
from mpired.engines import probe
from mpired.errors import DatatypeError, InputWarning, OpError, UsageError
from mpired.formats import Format, InputOptions, RankFile, decoding, format_named
from mpired.formats.array import UNKNOWN_COUNT, with_stored
from mpired.formats.derived import GeneratedIndices, Widening, widen_array, with_indices
from mpired.formats.rank import KeptContent, list_names, reasons
from mpired.formats.recognise import by_suffix
from mpired.log import step
from mpired.options import OPTIONS, Options
from mpired.ranks.opening import Skipped, compare, in_one_order, open_groups, skipped_warning, warn_of_units
from mpired.ranks.order import RankArgument, distinguishing, numbers_of, unnatural
from mpired.values import NUMBER, NUMBERS

if TYPE_CHECKING:
    from mpired.provenance import Provenance

_Groups: TypeAlias = tuple[tuple[RankFile, ...], ...]
_WEIGHTS_NBYTES = 64 << 20  # limit of the size of a file of weights
_INDEX_TYPES = ("INT", "INT64_T")  # the defaults, in the order of preference
_USER_OP_OPTIONS = ("commute", "op_timeout")


class Request(NamedTuple):
    """The checked arguments of a call."""

    collective: Collective
    ops: tuple[ops.Op, ...]
    groups: _Groups  # the ranks of each group
    combined: _Groups  # the groups whose ranks are combined: all, or the last if a root in the first gets the result
    arguments: Sequence[Sequence[RankArgument]]  # of the ranks of each group
    inputs: InputOptions
    options: Options  # all options of the call
    outputs: Sequence[str] = ()  # paths or patterns of the results; empty for arrays and for results in place
    provenance: Provenance | None = None  # the record of the origin of the results; None without a record
    skipped: tuple[Skipped, ...] = ()  # unusable ranks


def read_request(
    collective: Collective,
    ranks: Sequence[RankArgument],
    op: ops.Ops,
    options: Options,
    context: Context,
    outputs: Sequence[str] = (),  # paths or patterns of the results; empty for arrays and for results in place
) -> Request:
    """Read the op, the options and the headers of the ranks, and check the op against them."""
    group_b = options["group_b"]
    if group_b is not None and not list(group_b):
        raise UsageError("`group_b`", "has no ranks; leave it out for one group")
    named = ops.split_ops(op) if collective.several and ops.is_list(op) else [cast("ops.OpLike", op)]
    op_list = _resolve(named, options)
    inputs = _input_options(op_list, options, context)._replace(in_place="in_place" in collective.fixed)
    if options["in_place"] and not inputs.in_place and options["accumulate_in"] is None:
        inputs = inputs._replace(op=None)  # the op's wider datatype may not fit into the root's file
    # The options that messages may suggest: a result in place keeps its datatype.
    hints = {*collective.options} - ({"accumulate_in", "index"} if options["in_place"] else set())
    if len(op_list) > 1 or options["index"] is not None or inputs.datatype is not None:
        _check_ops(op_list, inputs, options, hints)
    # The formats that the names of results, or `to`, ask for; None for that of the ranks.
    to = None if options["to"] is None else format_named(options["to"], "to")
    formats = [to or by_suffix(path) for path in outputs]
    arguments: Sequence[Sequence[RankArgument]] = [ranks, group_b] if group_b else [ranks]
    try:
        with step("opening and checking the ranks"):
            is_raw = any(form is not None and form.needs_type for form in formats)
            opened = open_groups(arguments, inputs, options, raw_result=is_raw)
    except FileNotFoundError as error:
        has_result = bool({*outputs} - {"-"}) or len(ranks) == 1
        if not has_result and error.filename == ranks[-1]:
            error.add_note("name the result with `output`")  # the last argument of other programs
        raise
    groups = tuple(tuple(group.files) for group in opened)
    if groups[0][0].buffers[0].count == UNKNOWN_COUNT or not all(group.alike for group in opened):
        # A result may grow with streams until they end: a single one, whose elements do not depend on its length.
        is_single = collective.to_root and len(formats) == len(op_list) == 1
        is_plain = op_list[0].rules.nulls == "error" and options["accumulate_in"] is options["index"] is None
        may_grow = is_single and is_plain and not any(form and (form.has_arrays or form.place) for form in formats)
        warn_of_units(groups)
        groups = in_one_order(_set_counts(groups, inputs, may_grow=may_grow), options["root"])
    if options["accumulate_in"] is not None:
        groups = _widen(groups, op_list, options["accumulate_in"])
    arguments = [group.arguments for group in opened]
    if options["index"] is not None:
        groups = _add_indices(groups, arguments, options)
    provenance = None
    if options["provenance"]:
        from mpired.provenance import Provenance  # noqa: PLC0415 - few calls record the origin of results

        provenance = Provenance(context)
    request = Request(
        collective, op_list, groups, groups[-1:] if collective.to_root else groups, arguments, inputs, options,
        outputs, provenance, tuple(skipped for group in opened for skipped in group.skipped),
    )  # fmt: skip
    _check(request, hints, formats)
    return request


def _check(request: Request, hints: Collection[str], formats: Sequence[Format | None]) -> None:
    """Check the ops on the datatypes of the ranks, for results of these formats; warn of skipped and unsorted ranks."""
    options, groups, skipped = request.options, request.groups, request.skipped
    row = groups[0][0].format
    if not row.keeps or any(form not in (None, row) for form in formats):
        hints = {*hints} - {"keep"}
    for op in request.ops:
        buffers = [(buffer.name, operand(op, buffer).datatype) for buffer in groups[0][0].buffers]
        ops.check_buffers(op, buffers, ops.Use.REDUCE, hints)
        if op.rules != ops.Rules():
            ops.check_rules(op, [datatype for _, datatype in buffers], max(map(len, request.combined)))
    if options["keep"]:
        _check_kept(request)
    if skipped:
        log.warn(skipped_warning(skipped, sum(map(len, request.arguments)) + len(skipped)))
    if options["sort"] == "given" and options["rank_regex"] is None:
        # Two ranks are probably in the wrong order; the warning is only for results that depend on the order.
        groups_rounded = [op.rounds for op in request.ops if not op.rules.exact]
        rounds = any(array.datatype.group in group for group in groups_rounded for array in groups[0][0].buffers)
        is_alike = request.collective.alike and options["index"] not in {"rank", "global"}
        pairs = (unnatural([file.source.name for file in files]) for files in request.combined)
        if (rounds or not is_alike) and (pair := next(filter(None, pairs), None)):
            log.warn(log.order_warning(*pair, "last bits" if is_alike else "results"))


def _check_kept(request: Request) -> None:
    """Raise an error unless all ranks have equal kept arrays; warn of arrays that `keep` cannot carry."""
    groups = request.groups
    kept: list[KeptContent] = []
    for file in (file for files in groups for file in files):
        if file.kept is None:
            reason = f"carries columns and arrays, and {file.source.name} is {file.format.name}"
            if file.names:
                reason = f"matches only {file.format.noun}s of {file.source.name} that are combined; it has"
                reason = f"{reason} {list_names(file.names)}, and `columns` combines fewer"
            raise UsageError("`keep`", f"{reason}; leave it out")
        kept.append(file.kept)
    if (not_kept := groups[0][0].not_kept) and not request.options["in_place"]:
        pronoun = "it" if len(not_kept) == 1 else "them"
        reason = f"{'; '.join(reasons(not_kept))}; `keep` does not carry {pronoun}, and results are without {pronoun}"
        log.warn(InputWarning(f"{groups[0][0].source.name}: {reason}"))
    # Ranks whose kept arrays may differ are decoded each by itself.
    for ranks in [kept] if request.inputs.check_coordinates else [[rank] for rank in kept]:
        decoding.check_kept(ranks, "rank 0 of group A" if len(groups) > 1 else "rank 0")


def _input_options(op_list: Sequence[ops.Op], options: Options, context: Context) -> InputOptions:
    """Return the options of the inputs, with the datatypes and the rules of the ops."""
    datatype_groups, first = ~Group(0), op_list[0]
    for op in op_list:
        has_indices = options["index"] is not None and op.groups == Group.PAIR
        datatype_groups &= VALUES if has_indices else op.groups
    inputs = InputOptions.of(options, context)._replace(
        nullable=first.rules.nulls != "error",
        named=any(op.user for op in op_list),
        op_groups=datatype_groups,
        op=first if "accumulate_in" in first.takes else next(iter(_wideners(op_list, options["accumulate_in"])), None),
        keep=tuple(options["keep"]),
        # Results in place, and results with parts of a rank's file, need more than one pass through that file. Ranks
        # to skip must be known before their elements are combined.
        forward=not (options["in_place"] or options["keep"] or options["header"] != "none" or options["skip_bad"]),
    )
    names = [*inputs.keep, *inputs.columns, *(inputs.pair or ())] if inputs.keep else []
    if double := next((name for name in names if names.count(name) > 1), None):
        raise UsageError("`keep`", f"names {double!r}, which is named already; it is kept or combined")
    return inputs


def _wideners(op_list: Sequence[ops.Op], accumulate_in: str | None) -> list[ops.Op]:
    """Return the ops that choose the datatype in which ranks of several datatypes are combined."""
    wideners = [op for op in op_list if "accumulate_in" in op.takes]
    if wideners or any(op.user for op in op_list):
        return wideners
    # No op computes in a wider datatype. Wider elements change no value, so max can choose for all of them.
    datatype_groups = ~Group(0)
    for op in op_list:
        datatype_groups &= VALUES if op.groups == Group.PAIR else op.groups
    wide_max = ops.get("max")._replace(groups=datatype_groups)
    return [ops.with_rules(wide_max, {"accumulate_in": accumulate_in})]


def _widen(groups: _Groups, op_list: Sequence[ops.Op], accumulate_in: str) -> _Groups:
    """Return ranks of several datatypes with their elements in the widest of these, or in `accumulate_in`."""
    wide, are_several = list[Datatype](), False
    wideners = _wideners(op_list, accumulate_in)
    for ranks in zip(*(file.buffers for files in groups for file in files), strict=True):
        types = [rank.datatype for rank in ranks]
        are_several = are_several or len({*types}) > 1
        choices = [(op, ops.widest(op, types) or types[0]) for op in wideners]
        first, widest = choices[0]
        for op, datatype in choices:
            if datatype != widest:
                reason = f"makes {widest.label} of the elements for {first}, and {datatype.label} for {op}"
                raise UsageError("`accumulate_in`", f"{reason}; combine by them in two calls")
        wide.append(widest)
    widening = Widening(op_list[0].rules.missing, is_needed=are_several)

    def widen(file: RankFile) -> RankFile:
        return file._replace(buffers=[widen_array(*pair, widening) for pair in zip(file.buffers, wide, strict=True)])

    return tuple(tuple(map(widen, files)) for files in groups)


def _resolve(arguments: Sequence[ops.OpLike], options: Options) -> tuple[ops.Op, ...]:
    """Return the ops with the rules that their options set; an option without an op that takes it is an error."""
    if options["weights_from"] is not None:
        options = {**options, "weights": _weights(options["weights_from"])}
    bare = [ops.resolve(op, options["op_timeout"]) or _function_op(op, options) for op in arguments]
    are_several = len(bare) > 1
    # Of several ops each gets the options that it takes; the first op reports an option that no op takes.
    takes = [{*(_USER_OP_OPTIONS if op.user else op.takes)} if are_several else set() for op in bare]
    op_list: list[ops.Op] = []
    for op, keywords in zip(bare, takes, strict=True):
        settings = {**options, **{name: OPTIONS[name].default for name in set().union(*takes) - keywords}}
        if not (op.user or "accumulate_in" in op.takes):  # the op combines the elements in their widest datatype
            settings["accumulate_in"] = None
        ruled = ops.with_rules(op, settings)
        if ruled.isolated:
            with step("loading the op"):  # in a worker, to learn its properties
                ruled = probe.load(ruled, commute=options["commute"])
        for name in _USER_OP_OPTIONS if not ruled.user else ():
            if settings[name] is not None:
                raise UsageError(f"`{name}`", f"is for user-defined ops; {ruled} is predefined")
        op_list.append(ruled)
    if are_several:
        ops.labels(op_list)  # raises an error for two equal labels
        function = next((op for op in op_list if op.is_function), None)
        if function and (isolated := next((op for op in op_list if op.isolated), None)):
            reason = f"is a function of this process, which {isolated}, a file's or a package's, never runs in"
            raise UsageError(str(function), f"{reason}; combine by them in two calls")
    return tuple(op_list)


def _function_op(function: object, options: Options) -> ops.Op:
    """Return the op of a function of this process."""
    if not callable(function):
        raise UsageError("`op`", f"{function!r} is neither the name of an op nor a function")
    if options["op_timeout"] is not None:
        reason = "cannot stop a function of this process; give the place of one, as FILE.py:FUNCTION"
        raise UsageError("`op_timeout`", reason)
    return ops.op_of_function(function, commute=options["commute"])


def _check_ops(op_list: Sequence[ops.Op], inputs: InputOptions, options: Options, hints: Collection[str]) -> None:
    """Check the ops against the options, before any file is opened."""
    has_indices = options["index"] is not None
    if len(op_list) > 1 and options["in_place"]:
        reason = f"has the place of one result, and there are {len(op_list)} ops; name an `output`"
        raise UsageError("`in_place`", reason)
    if has_indices and all(op.groups != Group.PAIR for op in op_list):
        raise UsageError("`index`", f"is for maxloc and minloc, not for {op_list[0]}; leave it out")
    if has_indices and options["in_place"]:
        reason = "would put pairs into files of plain values; name an `output`, or leave `index` out"
        raise UsageError("`in_place`", reason)
    for op in op_list:
        if inputs.datatype is not None and not (has_indices and op.groups == Group.PAIR):
            datatype = ops.widest(op, [inputs.datatype]) or inputs.datatype
            ops.check_buffers(op, [("", datatype)], ops.Use.REDUCE, hints)
            _ = inputs.datatype.form  # raises an error if NumPy has no such type


def _weights(path: str) -> tuple[float, ...]:
    """Return the weights in a text file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        numbers = file.read(_WEIGHTS_NBYTES).replace(",", " ").split()
    try:
        return cast("tuple[float, ...]", NUMBERS.check([NUMBER.parse(number) for number in numbers]))
    except ValueError as error:
        raise UsageError(os.fspath(path), f"{error}; a file of weights has numbers alone") from None


def label_ranks(groups: Sequence[Sequence[RankFile]]) -> Iterator[tuple[str, RankFile]]:
    """Yield each rank with its label for messages, such as "rank 2" or "rank 2 of group B"."""
    patterns = ["rank {} of group A", "rank {} of group B"] if len(groups) > 1 else ["rank {}"]
    for pattern, files in zip(patterns, groups, strict=True):
        for rank, file in enumerate(files):
            yield pattern.format(rank), file


def _set_counts(groups: _Groups, inputs: InputOptions, *, may_grow: bool) -> _Groups:
    """Give streams of unknown length the count of the other ranks.

    If all ranks are such streams, the fold reads to their end if the result may grow; else they are read here first.
    """
    unknown = [file.buffers[0].count == UNKNOWN_COUNT for files in groups for file in files]
    if not any(unknown) or (all(unknown) and may_grow):
        return groups
    if all(unknown):
        groups = tuple(tuple(file.format.inspect(file.source.seekable(), inputs) for file in files) for files in groups)
    ranks = list(label_ranks(groups))
    reference = next((label, file) for label, file in ranks if file.buffers[0].count != UNKNOWN_COUNT)
    other, count = f"{reference[0]} ({reference[1].source.name!r})", reference[1].buffers[0].count

    def counted(label: str, file: RankFile) -> RankFile:
        compare(label, file, reference, inputs)
        if file.buffers[0].count != UNKNOWN_COUNT:
            return file
        buffers = [with_stored(array, count=count, counted_like=(label, other)) for array in file.buffers]
        return file._replace(buffers=buffers)

    files = itertools.starmap(counted, ranks)
    return tuple(tuple(itertools.islice(files, len(group))) for group in groups)


def _add_indices(groups: _Groups, arguments: Sequence[Sequence[RankArgument]], options: Options) -> _Groups:
    """Return plain ranks as pairs of a value and a generated index, for MINLOC and MAXLOC."""
    is_global = options["index"] == "global"
    firsts = []  # the index of the first element of each rank of each group
    for files, arguments_of_group in zip(groups, arguments, strict=True):
        if options["index"] == "number":
            firsts.append(_numbers(files, arguments_of_group, options["rank_regex"]))
        else:
            firsts.append([rank * (files[0].buffers[0].count if is_global else 1) for rank in range(len(files))])
    index_type = _index_type(options["index_type"], groups, firsts, counting=is_global)
    # The columns of indices must not have the names of other columns.
    names = [name for buffer in groups[0][0].buffers for name in column_names(buffer.name)]
    if (double := next((name for name in names if names.count(name) > 1), None)) is not None:
        reason = f"makes indices named {double!r}, and that name is taken; choose others with `columns`, or rename it"
        raise UsageError("`index`", reason)

    def with_index(file: RankFile, first: int) -> RankFile:
        buffers = []
        for array in file.buffers:
            pair, label = datatypes.value_index(array.datatype, index_type), array.datatype.label
            description = f"{array.name!r} of {label}" if array.name else label
            if array.datatype.group is Group.PAIR:
                raise OpError("`index`", f"makes pairs of plain values, and {description} is a pair; leave it out")
            if pair is None:
                raise OpError("`index`", f"makes pairs of numbers that max takes, which {description} is not")
            buffers.append(with_indices(array, pair, GeneratedIndices(first, is_global)))
        return file._replace(buffers=buffers)

    return tuple(tuple(map(with_index, files, numbers)) for files, numbers in zip(groups, firsts, strict=True))


def _numbers(files: Sequence[RankFile], arguments: Sequence[RankArgument], regex: str | None) -> list[int]:
    """Return the number in the name of each rank's file."""
    paths = [argument if isinstance(argument, str) else argument.path for argument in arguments]
    names: dict[int, str] = {}
    for file, number in zip(files, numbers_of(paths, regex), strict=True):
        name = file.source.name
        if number is not None and number not in names and file.source.inode is not None:
            names[number] = name
            continue
        reason = f"has the same number ({number}) in its name as {names[number]}" if number in names else ""
        regex, hint = distinguishing(paths), "use `index='rank'`"
        hint += f", or say where it is, such as with {regex}" if regex else ""
        reason = reason and f"{reason}{'' if regex else ', and no one number tells all ranks apart'}"
        raise UsageError(name, f"{reason or 'has no number in its name'}; {hint}")
    return list(names)


def _index_type(
    text: Any, groups: Sequence[Sequence[RankFile]], firsts: Sequence[Sequence[int]], *, counting: bool
) -> Datatype:
    """Return the datatype of indices: `index_type`, or the first default that holds the largest index."""
    last: list[tuple[int, int, str]] = []  # the largest index of each rank, the rank, and its name
    for files, numbers in zip(groups, firsts, strict=True):
        for rank, (file, first) in enumerate(zip(files, numbers, strict=True)):
            count = max((buffer.count for buffer in file.buffers), default=0)
            last.append((first + (max(0, count - 1) if counting else 0), rank, file.source.name))
    largest, rank, name = max(last)
    if text is None:
        types = [row for default in _INDEX_TYPES for row in DATATYPES if row.name == default]
    else:
        datatype, order = datatypes.parse(text)
        if datatype.group not in INDICES or order is not None:
            reason = (
                "has a byte order; leave that out" if order else "is not an integer type; use int, int64_t or another"
            )
            raise DatatypeError("`index_type`", f"{text} {reason}")
        types = [datatype]
    for index_type in types:
        if largest <= np.iinfo(index_type.form).max:
            return index_type
    reason = f"{types[-1].label} cannot hold the index {largest} of rank {rank} ({name})"
    hint = "use a wider one, such as int64_t or uint64_t, or `index='rank'`"
    raise UsageError("`index_type`", f"{reason}; {hint}")
