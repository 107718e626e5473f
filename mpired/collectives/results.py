"""The results of a call: the share of each rank, its path, its format and its layout.

A result is modelled on the file of its rank: it has the same shape, byte order and attributes, and all that the file
has besides its elements if it replaces that file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mpired import codecs, ops
from mpired.collectives.plan import Result
from mpired.collectives.request import Request
from mpired.collectives.table import BEFORE, OpField, Share, arrays_in, operand
from mpired.datatypes import Datatype, Group
from mpired.datatypes.predefined import FIELDS, VALID
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
    output_format,
)
from mpired.formats.array import stored_array
from mpired.formats.rank import Cells, list_names
from mpired.formats.recognise import by_suffix
from mpired.ranks.order import RankArgument, path_of
from mpired.sources.directory import INDEX_SUFFIX, check_one_file, index_of
from mpired.sources.source import STANDARD_INPUT

_PATTERN = re.compile(r"([^{}]|\{\{|\}\}|\{rank(:(0?[1-9][0-9]?d?)?)?\}|\{(stem|group):?\})*", re.DOTALL)
# The reason why an object of a store is not one of several results.
NOT_TOGETHER = (
    "is for one of several results, and a store takes objects one by one, not together; write to files, and copy these"
)


def _expand_pattern(pattern: str, group: str, ranks: Sequence[tuple[int, RankArgument]]) -> list[str]:
    """Return the path of the result of each rank of a group, "a" or "b", from a pattern of paths."""
    if not _PATTERN.fullmatch(pattern):
        reason = "is not a pattern of names: its fields are {rank}, {rank:05d}, {stem} and {group}"
        raise UsageError(pattern, f"{reason}, and a brace itself is written twice")
    fields = pattern.replace("{{", "")
    if "{rank" not in fields and "{stem" not in fields:
        raise UsageError(pattern, "names one file for several results; put {rank} or {stem} into it")
    paths = []
    for rank, argument in ranks:
        name = path_of(argument)
        if "{stem" in fields and name is None:
            label = STANDARD_INPUT if isinstance(argument, str) else argument.name.partition(" of ")[0]
            raise UsageError("{stem}", f"rank {rank} is {label}, which has no name; use {{rank}}")
        stem = os.path.splitext(os.path.basename(codecs.strip_suffix(name or "")))[0]
        paths.append(pattern.format(rank=rank, group=group, stem=stem))
    return paths


def check_different(results: Sequence[Result], request: Request) -> None:
    """Raise `UsageError` if two results have paths of the same file."""
    paths = calls.real_paths([result.path for result in results])
    if len(set(paths)) < len(paths):
        result = next(result for result, path in zip(results, paths, strict=True) if paths.count(path) > 1)
        fields = "{op}" if request.collective.to_root else "{rank}, {stem} or {group}"
        where = "the name of the directory" if result.folder else "a pattern"
        reason = f"would be the file of several results; put {fields} into {where}"
        raise UsageError(result.path, f"{reason}, or name other files")


class GroupPlan(NamedTuple):
    """The ranks that are combined for a group that receives results, and its shares."""

    request: Request
    number: int  # of the group
    receivers: tuple[RankFile, ...]  # the ranks of the group
    senders: tuple[RankFile, ...]  # the ranks that are combined
    shares: tuple[Share, ...]  # of the ranks of the group
    times: tuple[cells.RankTime, ...] = ()  # of the senders; empty if all have the same time


def plan_groups(request: Request) -> Iterator[GroupPlan]:
    """Yield the plan of each group that receives results; of two groups each receives the other's (MPI-4.1, 6.9.1)."""
    collective, options = request.collective, request.options
    counts = options["counts"], options["counts_b"]
    for i, receivers in enumerate(request.groups[:1] if collective.to_root else request.groups):
        senders = request.groups[-1 - i]
        if "counts" in collective.options and counts[i] is None:
            reason = "is missing; give the count of elements of each rank of the group, e.g. 3,0,5"
            raise UsageError("`counts_b`" if i else "`counts`", reason)
        count = receivers[0].buffers[0].count
        shares = tuple(collective.shares(len(senders) - 1, len(receivers), count, {**options, "counts": counts[i]}))
        if len(request.ops) > 1 or options["split"] is not None or options["count_valid"] is not None:
            shares = _share_files(shares, request)
        if not collective.whole and len({buffer.count for buffer in receivers[0].buffers}) > 1:
            reason = f"has {receivers[0].format.noun}s of different lengths, which are not cut alike"
            raise CountError(receivers[0].source.name, f"{reason}; choose some with `columns`")
        for buffer in senders[0].buffers if any(share.last == BEFORE for share in shares) else ():
            # It raises an error if the op has no neutral element.
            ops.neutral(request.ops[0], buffer.datatype, "use `exscan_first='none'`, which writes no file for rank 0")
        senders = senders[: max([1, *(share.last + 1 for share in shares)])]
        kept = [file.kept for file in senders]
        times = cells.times(kept, [file.kept for file in receivers]) if kept[0] is not None else ()
        yield GroupPlan(request, i, receivers, senders, shares, times)


def _share_files(shares: Sequence[Share], request: Request) -> tuple[Share, ...]:
    """Return each share once for each of its files, with the ops and fields of that file."""
    arrays = request.groups[-1][0].buffers
    # Of each op the datatype of the first result that is not a pair; None if all are pairs.
    plain: list[Datatype | None] = []
    for op in request.ops:
        datatypes = (op.result(operand(op, array).datatype) for array in arrays)
        plain.append(next((datatype for datatype in datatypes if datatype.group is not Group.PAIR), None))
    is_split = request.options["split"] is not None
    for op, datatype in zip(request.ops, plain, strict=True):
        if is_split and datatype is not None:
            reason = f"writes the two parts of pairs, and {op} gives {datatype.label}"
            raise UsageError("`split`", f"{reason}; name an `output`")
    files: list[list[OpField]] = []
    for name, field in zip(request.outputs or ("{op}",), (*(FIELDS if is_split else ("",)), VALID), strict=False):
        fields = [OpField(op, field) for op in range(len(request.ops))]
        if "{op}" in name:
            files += [[op_field] for op_field in fields]
        elif field == VALID:
            files.append(fields[:1])  # the counts are those of all ops
        elif len(fields) > 1 and not field:
            # In a file of several ops the fields of pairs are arrays of their own: not every format has structures.
            parts = [FIELDS if datatype is None else ("",) for datatype in plain]
            files.append([OpField(op, part) for op, names in enumerate(parts) for part in names])
        else:
            files.append(fields)
    return tuple(
        share._replace(fields=tuple(fields), has_ops=len({op for op, _ in fields}) > 1)
        for fields in files
        for share in shares
    )


def _paths(group: GroupPlan) -> list[str]:
    """Return the paths of the results of a group; without an output each replaces the file of its rank."""
    request = group.request
    ranks = [(share.rank, request.arguments[group.number][share.rank]) for share in group.shares]
    if not (outputs := request.outputs):
        for rank, argument in ranks:
            if not isinstance(argument, str):
                raise UsageError("`in_place`", f"would replace rank {rank}, {argument.name}; name a file by its path")
        return [str(argument) for _, argument in ranks]
    if request.collective.to_root:
        labels = ops.labels(request.ops) if any("{op}" in name for name in outputs) else []
        paths = ([name.replace("{op}", label) for label in labels] if "{op}" in name else [name] for name in outputs)
        return [path for paths_of_output in paths for path in paths_of_output]
    nranks = len(ranks) // len(outputs)  # the shares of the second output follow those of the first
    parts = ((pattern, ranks[i * nranks : (i + 1) * nranks]) for i, pattern in enumerate(outputs))
    return [path for pattern, part in parts for path in _expand_pattern(pattern, "ab"[group.number], part)]


def results_of(group: GroupPlan, *, terminal: bool) -> tuple[Result, ...]:
    """Return the results of a group, each with its path and its layout."""
    request, results = group.request, list[Result]()
    files: list[tuple[str, Sequence[int] | None, Layout]] = []  # names in a directory, numbers of arrays, layouts
    for path, share in zip(_paths(group), group.shares, strict=True):
        file, inputs = group.receivers[share.rank], request.inputs
        if request.options["in_place"]:
            results.append(_result_in_place(path, group, share))
            continue
        # Equal results have the layout of the first of them.
        if not results or not request.collective.alike or results[-1].share.fields != share.fields:
            model = model_of(group, share)
            output = f"{path}/" if file.shards and os.path.isdir(path) else path
            form = output_format(output, request.options["to"], model.format, terminal=terminal)
            if any(array.nullable for array in model.buffers):
                _check_nulls(form, model, group, share)
            if form.needs_type and (inputs.byte_order or inputs.datarep):  # of the raw result, too
                model = model.declared(inputs)
            model = model._replace(provenance=request.provenance, context=inputs.context)
            is_divided = bool(file.shards) or path.endswith(INDEX_SUFFIX)
            index = _index_name(output, file, form) if is_divided else ""
            files = (
                [*form.module.shard_layouts(model, index, form.prepare)] if index else [("", None, form.prepare(model))]
            )
            if request.options["header"] != "none":
                files = [(name, numbers, _copy_header(layout, form, request)) for name, numbers, layout in files]
        for name, numbers, layout in files:
            folder = os.path.normpath(os.path.dirname(path) if path.endswith(INDEX_SUFFIX) else path) if name else ""
            file_path = os.path.join(folder, name) if name else path
            compression = Compression.of(file_path, request.options["level"])
            results.append(Result(share, file_path, form, layout, numbers, folder, compression))
    return tuple(results)


def _index_name(path: str, file: RankFile, form: Format) -> str:
    """Return the name of the index of a result in several files, such as those of its rank; "" for a single file."""
    is_index, is_like = path.endswith(INDEX_SUFFIX), bool(file.shards) and form == file.format
    if is_index and not is_like:
        reason = f"is the index of a checkpoint in several files, and {file.source.name} is not one; name one file"
        raise UsageError(path, reason)
    is_one_file = bool(by_suffix(path) or codecs.by_suffix(path) or is_stream(path))
    if not is_like or (is_one_file and not (is_index or path.endswith("/"))):
        return ""
    if is_url(path):
        raise UsageError(path, NOT_TOGETHER)
    return os.path.basename(path) if is_index else index_of(file.source)


def _copy_header(layout: Layout, form: Format, request: Request) -> Layout:
    """Return the layout of a raw result with the bytes before the elements of the root's raw file."""
    file = request.groups[0][request.options["root"]]
    array = stored_array(file.buffers[0])
    are_raw = form.needs_type and file.format.needs_type
    if not are_raw or not array.offset or array.reader or not isinstance(layout, FlatLayout):
        reason = "is for raw results of a raw file with a header that `offset` skips, and its elements in one piece"
        formats = f"{file.source.name} is {file.format.name}, and the result {form.name}"
        raise UsageError("`header='copy'`", f"{reason} behind that; {formats}; leave it out")
    return layout._replace(header_from=array)


def _check_nulls(form: Format, model: Model, group: GroupPlan, share: Share) -> None:
    """Raise `UsageError` if a result may have nulls that its format cannot store."""
    results = arrays_in(share, group.request.ops, group.receivers[share.rank].buffers)
    for array, result in zip(model.buffers, results, strict=True):
        if array.nullable and not form.has_nulls and not ops.has_fill_value(result.op, result.rank.datatype):
            lengths = {buffer.count for buffer in model.buffers}
            columns = f" with `columns={array.own_name!r}`" if len(lengths) > 1 else ""
            raise ops.null_result_error(result.op, array.datatype, form.name, f"use `to='parquet'`{columns}")


def _result_in_place(path: str, group: GroupPlan, share: Share) -> Result:
    """Return the result that replaces the file of its rank (MPI_IN_PLACE, MPI-4.1, 6.9.1)."""
    request, file = group.request, group.receivers[share.rank]
    form, (op,), options = file.format, request.ops, request.options
    is_local = request.inputs.in_place  # reduce-local, which does not have the option
    subject, hint = (
        (path, "`mpired reduce` writes a new file") if is_local else ("`in_place`", f"{op} needs an `output`")
    )
    check_one_file(path)
    if file.source.packed or file.source.inode is None or file.source.name == STANDARD_INPUT:
        rank = "" if is_local else f"the root's rank, {file.source.name}, "
        raise UsageError(subject, f"{rank}is a stream or compressed and cannot be replaced")
    if options["to"] not in (None, form.name):
        raise UsageError("`in_place`", f"keeps the format of the root, {form.name}; leave `to` out")
    for array in file.buffers:
        if (datatype := op.result(array.datatype)) != (stored := stored_array(array).datatype):
            raise UsageError(subject, f"would put {datatype.label} in the place of {stored.label}; {hint}")
    if is_local and file.left_out:  # the file keeps its other columns
        combined = tuple(name for array in file.buffers for name in array.columns)
        kept = form.inspect(file.source, request.inputs._replace(columns=combined, keep=("*",))).kept
        file = file._replace(kept=kept)
        group = group._replace(receivers=(*group.receivers[:-1], file))  # the second of two ranks
    model = model_of(group, share)
    _check_nulls(form, model, group, share)
    is_plain = model.cells == Cells() and not any(array.nullable for array in model.buffers)
    if request.collective.to_root and form.has_arrays and is_plain:
        replaced = arrays_in_place(file)
        if any(array.count for array in replaced):
            offsets, dtypes = [array.offset for array in replaced], tuple(array.stored for array in replaced)
            return Result(share, path, form, ArrayLayout(lambda _: offsets, dtypes, replaces=tuple(replaced)))
    layout = form.prepare(model._replace(context=request.inputs.context, in_place=True))
    keeping = _keep_surroundings(file, layout, subject, hint if is_local else "")
    # The header stays unless it has the number of elements, and the result has another number.
    return Result(share, path, form, keeping if request.collective.whole or form.needs_type else layout)


def _keep_surroundings(file: RankFile, layout: Layout, subject: str, hint: str) -> Layout:
    """Return a layout that keeps the bytes of the rank's file besides its elements."""
    array = file.buffers[0]
    if isinstance(layout, FlatLayout):
        # A transposed array is replaced by one in the order of the root.
        return FlatLayout(array.stored, keeps_bytes_of=array) if array.reader is None else layout
    if array.datatype.is_spread and file.format.needs_type:
        from mpired.formats.spread import spread_encoder  # noqa: PLC0415 - few elements are spread

        return Encoder(spread_encoder(array.datatype, array.stored, array))
    if file.left_out:
        keeps = "" if file.not_kept else "carry them with `keep`, or "
        reason = f"would lose {list_names(file.left_out)}"
        raise UsageError(subject, f"{reason}; {hint or f'{keeps}write to another file'}")
    return layout


def model_of(group: GroupPlan, share: Share) -> Model:
    """Return the model of the result with a share.

    It has the count of the share, without the rank's shape if that is a part of the elements, and the header or schema
    of the rank's file if that describes the datatypes of the result.
    """
    request, file = group.request, group.receivers[share.rank]
    results, arrays = list(arrays_in(share, request.ops, file.buffers)), list[Array]()
    for result in results:
        array = result.rank.result
        if not request.collective.whole:
            array = array._replace(count=share.count_of(array.count), shape=None, fortran_order=False)
        if share.has_ops:
            alone = array.of_field(result.datatype, result.field).name
            array = array.of_datatype(result.datatype)._replace(
                name=result.name, parts=(result.name,), only_op_name=alone
            )
        elif result.field or result.datatype != array.datatype:
            array = array.of_field(result.datatype, result.field)
        if result.op.rules.nulls != "error" and result.field != VALID:
            senders = [sender.buffers[result.buffer] for sender in group.senders[: share.last + 1]]
            has_nulls = [stored_array(sender).nulls != 0 for sender in senders]
            datatype = operand(result.op, group.senders[0].buffers[result.buffer]).datatype
            array = array._replace(nullable=ops.may_be_null(result.op, datatype, has_nulls))
        arrays.append(array)
    datatypes = [array.datatype for array in arrays]
    are_values = share.fields[0].field in {"", FIELDS[0]}
    has_datatypes = are_values and datatypes == [stored_array(array).datatype for array in file.buffers]
    # A format of arrays gives the dimensions and attributes of its arrays, whatever their datatypes.
    is_described = has_datatypes or file.format.has_arrays
    model = Model(file.format, tuple(arrays), file.source if is_described else None, file.kept)
    if file.headers:  # of a format with attributes
        names = [next(iter(array.columns), "") for array in arrays]  # of pairs the array of the values
        results = [result._replace(name=name) for result, name in zip(results, names, strict=True)]
        model = model._replace(cells=cells.cells(file, group.times[: share.last + 1], results, share.last + 1))
    return model
