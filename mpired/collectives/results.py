"""The results of a call: the partial result of each rank, its name, and its model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mpired import codecs, ops
from mpired.collectives.request import Request
from mpired.collectives.run import Result
from mpired.collectives.table import BEFORE, OpField, Share, arrays_in, operand
from mpired.datatypes import Group
from mpired.datatypes.pairs import FIELDS, VALID, column_of
from mpired.errors import CountError, UsageError
from mpired.files import calls
from mpired.files.places import is_stream
from mpired.files.scratch import Compression
from mpired.files.urls import is_url
from mpired.formats import (
    Array,
    ArrayLayout,
    Encoder,
    FlatLayout,
    Format,
    Layout,
    Model,
    RankFile,
    arrays_in_place,
    cells,
    format_named,
    output_format,
)
from mpired.formats.array import stored_array
from mpired.formats.rank import Cells, some_names
from mpired.formats.recognise import by_suffix
from mpired.ranks.order import RankArgument, path_of
from mpired.sources.directory import INDEX_SUFFIX, check_one_file, index_of
from mpired.sources.source import STANDARD_INPUT

_PATTERN = re.compile(r"([^{}]|\{\{|\}\}|\{rank(:(0?[1-9][0-9]?d?)?)?\}|\{(stem|group):?\})*", re.DOTALL)
NOT_TOGETHER = (
    "is for one of several results, and a store takes objects one by one, not together; write to files, and copy these"
)
"""The reason why an object of a store is not one of several results."""


def expand(pattern: str, group: str, ranks: Sequence[tuple[int, RankArgument]]) -> list[str]:
    """Return the name of each rank's result, by the ranks of a group, "a" or "b", and the words for them."""
    if not _PATTERN.fullmatch(pattern):
        reason = "is not a pattern of names: its fields are {rank}, {rank:05d}, {stem} and {group}"
        raise UsageError(pattern, f"{reason}, and a brace itself is written twice")
    fields = pattern.replace("{{", "")
    if "{rank" not in fields and "{stem" not in fields:
        raise UsageError(pattern, "names one file for several results; put {rank} or {stem} into it")
    names = []
    for rank, word in ranks:
        name = path_of(word)
        if "{stem" in fields and name is None:
            what = STANDARD_INPUT if isinstance(word, str) else word.name.partition(" of ")[0]
            raise UsageError("{stem}", f"rank {rank} is {what}, which has no name; use {{rank}}")
        stem = os.path.splitext(os.path.basename(codecs.stripped(name or "")))[0]
        names.append(pattern.format(rank=rank, group=group, stem=stem))
    return names


def check_different(results: Sequence[Result], request: Request) -> None:
    """Raise `UsageError` if two names of results are one file."""
    paths = calls.real_paths([each.path for each in results])
    if len(set(paths)) < len(paths):
        result = next(each for each, path in zip(results, paths, strict=True) if paths.count(path) > 1)
        fields = "{op}" if request.collective.to_root else "{rank}, {stem} or {group}"
        where = "the name of the directory" if result.folder else "a pattern"
        reason = f"would be the file of several results; put {fields} into {where}"
        raise UsageError(result.path, f"{reason}, or name other files")


class GroupPlan(NamedTuple):
    """The results of a group: the ranks that are combined, and the shares of its own ranks."""

    number: int  # of the group
    senders: tuple[RankFile, ...]
    shares: tuple[Share, ...]
    times: tuple[cells.RankTime, ...] = ()  # those of the senders, if they are different and may be


def group_plans(request: Request) -> Iterator[GroupPlan]:
    """Yield what each group that gets something gets: with two groups, what the other one reduces (MPI-4.1, 6.9.1)."""
    # A root is in the first group.
    collective, options = request.collective, request.options
    counts = options["counts"], options["counts_b"]
    for i, receivers in enumerate(request.groups[:1] if collective.to_root else request.groups):
        senders = request.groups[-1 - i]
        if "counts" in collective.options and counts[i] is None:
            reason = "is missing; give the count of elements of each rank of the group, e.g. 3,0,5"
            raise UsageError("`counts_b`" if i else "`counts`", reason)
        count = receivers[0].buffers[0].count
        own_options = {**options, "counts": counts[i]}
        shares = tuple(collective.shares(len(senders) - 1, len(receivers), count, own_options))
        if len(request.ops) > 1 or options["split"] is not None or options["count_valid"] is not None:
            shares = _split(shares, request)
        if not collective.whole and len({buffer.count for buffer in receivers[0].buffers}) > 1:
            reason = f"has {receivers[0].noun}s of different lengths, which are not cut alike"
            raise CountError(receivers[0].source.name, f"{reason}; choose some with `columns`")
        for buffer in senders[0].buffers if any(share.last == BEFORE for share in shares) else ():
            # It raises an error if there is none.
            ops.neutral(request.ops[0], buffer.datatype, "use `exscan_first='none'`, which writes no file for rank 0")
        senders = senders[: max([1, *(share.last + 1 for share in shares)])]
        kept = [each.kept for each in senders]
        times = cells.times(kept, [each.kept for each in receivers]) if kept[0] is not None else ()
        yield GroupPlan(i, senders, shares, times)


def _split(shares: Sequence[Share], request: Request) -> tuple[Share, ...]:
    """Return the shares, each once for each of the files that it goes to, with what these have of the results."""
    results = [[op.result(operand(op, each).datatype) for each in request.groups[-1][0].buffers] for op in request.ops]
    # Of each op the datatype of the first results that are not pairs; None if all are.
    others = [next((each for each in own if each.group is not Group.PAIR), None) for own in results]
    is_split = request.options["split"] is not None
    for op, datatype in zip(request.ops, others, strict=True):
        if is_split and datatype is not None:
            reason = f"writes the two parts of pairs, and {op} gives {datatype.label}"
            raise UsageError("`split`", f"{reason}; name an `output`")
    files: list[list[OpField]] = []
    for name, field in zip(request.outputs or ("{op}",), (*(FIELDS if is_split else ("",)), VALID), strict=False):
        fields = [OpField(op, field) for op in range(len(request.ops))]
        if "{op}" in name:
            files += [[each] for each in fields]
        elif field == VALID:
            files.append(fields[:1])  # the counts are those of all ops
        elif len(fields) > 1 and not field:
            # Of a pair in a file of several ops both fields are arrays of their own: not every format has structures.
            parts = [FIELDS if other is None else ("",) for other in others]
            files.append([OpField(op, field) for op, _ in fields for field in parts[op]])
        else:
            files.append(fields)
    several = [len({op for op, _ in each}) > 1 for each in files]
    pairs = zip(files, several, strict=True)
    return tuple(share._replace(fields=tuple(each), has_ops=has_ops) for each, has_ops in pairs for share in shares)


def _paths(group_plan: GroupPlan, request: Request) -> list[str]:
    """Return where the results of a group go; without an output each replaces the file of its rank."""
    ranks = [(share.rank, request.words[group_plan.number][share.rank]) for share in group_plan.shares]
    if not (outputs := request.outputs):
        for rank, word in ranks:
            if not isinstance(word, str):
                raise UsageError("`in_place`", f"would replace rank {rank}, {word.name}; name a file by its path")
        return [str(word) for _, word in ranks]
    if request.collective.to_root:
        labels = ops.labels(request.ops) if any("{op}" in name for name in outputs) else []
        names = ([name.replace("{op}", label) for label in labels] if "{op}" in name else [name] for name in outputs)
        return [name for each in names for name in each]
    each = len(ranks) // len(outputs)  # of two outputs the first one is for the first half
    halves = ((pattern, ranks[i * each : (i + 1) * each]) for i, pattern in enumerate(outputs))
    return [name for pattern, half in halves for name in expand(pattern, "ab"[group_plan.number], half)]


def results_of(group_plan: GroupPlan, request: Request, *, terminal: bool) -> tuple[Result, ...]:
    """Return the results of a group, each with its path and its layout."""
    in_place, inputs = request.options["in_place"], request.inputs
    results: list[Result] = []
    files: list[tuple[str, Sequence[int] | None, Layout]] = []
    for path, share in zip(_paths(group_plan, request), group_plan.shares, strict=True):
        file = request.groups[group_plan.number][share.rank]
        if in_place:
            results.append(_in_place(path, file, group_plan, share, request))
            continue
        if not results or not request.collective.alike or results[-1].share.fields != share.fields:
            model = model_of(file, group_plan, share, request)
            named = f"{path}/" if file.shards and os.path.isdir(path) else path
            form = output_format(named, request.options["to"], model.format, terminal=terminal)
            if any(buffer.nullable for buffer in model.buffers):
                _check_nulls(form, model, file, share, request)
            if form.needs_type and (inputs.byte_order or inputs.datarep):  # by which a raw one has its byte order
                model = model.declared(inputs)
            model = model._replace(provenance=request.provenance, context=inputs.context)
            is_divided = bool(file.shards) or path.endswith(INDEX_SUFFIX)
            index = _index_of(named, file, form) if is_divided else ""
            files = [*form.module.divided(model, index, form.prepare)] if index else [("", None, form.prepare(model))]
            if request.options["header"] != "none":
                files = [(name, own, _with_header(layout, form, request)) for name, own, layout in files]
        for name, own, layout in files:  # those that are alike are modelled on one, to be the same
            folder = os.path.normpath(os.path.dirname(path) if path.endswith(INDEX_SUFFIX) else path) if name else ""
            place = os.path.join(folder, name) if name else path
            packing = Compression.of(place, request.options["level"])
            results.append(Result(share, place, form.name, layout, own, folder, packing))
    return tuple(results)


def _index_of(path: str, file: RankFile, form: Format) -> str:
    """Return the name of the index of a result in several files like those of its model; "" for one in one file."""
    is_index, is_like = path.endswith(INDEX_SUFFIX), bool(file.shards) and form.name == file.format
    if is_index and not is_like:
        reason = f"is the index of a checkpoint in several files, and {file.source.name} is not one; name one file"
        raise UsageError(path, reason)
    if not is_like or not (
        is_index or path.endswith("/") or not (by_suffix(path) or codecs.by_suffix(path) or is_stream(path))
    ):
        return ""
    if is_url(path):
        raise UsageError(path, NOT_TOGETHER)
    return os.path.basename(path) if is_index else index_of(file.source)


def _with_header(layout: Layout, form: Format, request: Request) -> Layout:
    """Return the layout of a raw result with the bytes before the elements of the root's raw file."""
    file = request.groups[0][request.options["root"]]
    buffer = stored_array(file.buffers[0])
    are_raw = form.needs_type and format_named(file.format).needs_type
    if not are_raw or not buffer.offset or buffer.reader or not isinstance(layout, FlatLayout):
        reason = "is for raw results of a raw file with a header that `offset` skips, and its elements in one piece"
        what = f"{file.source.name} is {file.format}, and the result {form.name}"
        raise UsageError("`header='copy'`", f"{reason} behind that; {what}; leave it out")
    return layout._replace(header_from=buffer)


def _check_nulls(form: Format, model: Model, file: RankFile, share: Share, request: Request) -> None:
    """Raise `UsageError` if a result modelled on a file may be null, and its format has nothing that stands for it."""
    arrays = arrays_in(share, request.ops, file.buffers)
    for buffer, result in zip(model.buffers, arrays, strict=True):
        if buffer.nullable and not form.has_nulls and not ops.stands_for_null(result.op, result.rank.datatype):
            chosen = f" with `columns={buffer.own_name!r}`" if len({each.count for each in model.buffers}) > 1 else ""
            raise ops.null_refused(result.op, buffer.datatype, form.name, f"use `to='parquet'`{chosen}")


def _in_place(path: str, file: RankFile, group_plan: GroupPlan, share: Share, request: Request) -> Result:
    """Let a result replace the file of its rank."""
    form, (op,), options = format_named(file.format), request.ops, request.options
    is_local = request.inputs.in_place  # the call does not have the option
    subject, hint = (
        (path, "`mpired reduce` writes a new file") if is_local else ("`in_place`", f"{op} needs an `output`")
    )
    check_one_file(path)
    if file.source.packed or file.source.inode is None or file.source.name == STANDARD_INPUT:
        whose = "" if is_local else f"the root's rank, {file.source.name}, "
        raise UsageError(subject, f"{whose}is a stream or compressed and cannot be replaced")
    if options["to"] not in (None, file.format):
        raise UsageError("`in_place`", f"keeps the format of the root, {file.format}; leave `to` out")
    for buffer in file.buffers:
        if (datatype := op.result(buffer.datatype)) != (own := stored_array(buffer).datatype):
            raise UsageError(subject, f"would put {datatype.label} in the place of {own.label}; {hint}")
    if is_local and file.left_out:  # the file keeps its other columns
        combined = tuple(name for each in file.buffers for name in each.columns)
        kept = form.inspect(file.source, request.inputs._replace(columns=combined, keep=("*",))).kept
        file = file._replace(kept=kept)
    model = model_of(file, group_plan, share, request)
    _check_nulls(form, model, file, share, request)
    is_plain = model.cells == Cells() and not any(each.nullable for each in model.buffers)
    if request.collective.to_root and form.has_arrays and is_plain:
        there = arrays_in_place(file)
        if any(each.count for each in there):
            places, forms = [each.offset for each in there], tuple(each.stored for each in there)
            return Result(share, path, form.name, ArrayLayout(lambda _: places, forms, replaces=tuple(there)))
    layout = form.prepare(model._replace(context=request.inputs.context))
    around = _around(file, layout, subject, hint if is_local else "")
    # Another number of elements needs another header, where that has the number.
    keeps = request.collective.whole or form.needs_type
    return Result(share, path, form.name, around if keeps else layout)


def _around(file: RankFile, layout: Layout, subject: str, way_out: str) -> Layout:
    """Return a layout with what the root's file has besides its buffers (MPI_IN_PLACE, MPI-4.1, 6.9.1)."""
    buffer = file.buffers[0]
    if isinstance(layout, FlatLayout):
        # An array that is read in the other order is replaced by one in the order of the root.
        return FlatLayout(buffer.stored, keeps_bytes_of=buffer) if buffer.reader is None else layout
    if buffer.datatype.is_spread and format_named(file.format).needs_type:
        from mpired.formats.spread import spread_encoder  # noqa: PLC0415 - few elements are spread

        return Encoder(spread_encoder(buffer.datatype, buffer.stored, buffer))
    if file.left_out:
        keeps = "" if file.unkept else "carry them with `keep`, or "
        reason = f"would lose {some_names(file.left_out)}"
        raise UsageError(subject, f"{reason}; {way_out or f'{keeps}write to another file'}")
    return layout


def model_of(file: RankFile, group_plan: GroupPlan, share: Share, request: Request) -> Model:
    """Return the model of the result of a rank with this file."""
    # It is like the rank's file: in one dimension where the rank gets a part of the result, and without the file's own
    # header or schema where these do not describe the datatype of the results.
    results, buffers = list(arrays_in(share, request.ops, file.buffers)), list[Array]()
    for result in results:
        number, like = result.buffer, result.rank.result
        if not request.collective.whole:
            like = like._replace(count=share.count_of(like.count), shape=None, fortran_order=False)
        if share.has_ops:
            alone = column_of(like.name, like.columns, result.field)
            like = like.of_datatype(result.datatype)._replace(name=result.name, parts=(result.name,), alone=alone)
        elif result.field or result.datatype != like.datatype:
            like = like.of_field(result.datatype, result.field)
        if result.op.rules.nulls != "error" and result.field != VALID:
            senders = [sender.buffers[number] for sender in group_plan.senders[: share.last + 1]]
            lacking = [stored_array(sender).nulls != 0 for sender in senders]
            datatype = operand(result.op, group_plan.senders[0].buffers[number]).datatype
            like = like._replace(nullable=ops.may_be_null(result.op, datatype, lacking))
        buffers.append(like)
    whole = share.fields[0].field in {"", FIELDS[0]}
    datatypes = [buffer.datatype for buffer in buffers]
    described = whole and datatypes == [stored_array(buffer).datatype for buffer in file.buffers]
    # Of arrays the file tells the dimensions and more, which stay.
    keeps = described or format_named(file.format).has_arrays
    model = Model(file.format, tuple(buffers), file.source if keeps else None, file.kept)
    if file.headers:  # of a format with attributes
        firsts = [next(iter(buffer.columns), "") for buffer in buffers]  # of pairs the array of the values
        results = [each._replace(name=name) for each, name in zip(results, firsts, strict=True)]
        changes = cells.cells(file, group_plan.times[: share.last + 1], results, share.last + 1)
        model = model._replace(cells=changes)
    return model
