"""The words of a call, understood: the op, and the ranks of each group with their headers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mpired import cautions, ops
from mpired.collectives.counts import counted, labelled
from mpired.collectives.table import Collective
from mpired.context import Context
from mpired.datatypes.pairs import VALUES
from mpired.errors import MpiredError, OrderWarning, UsageError, with_others
from mpired.formats import Format, InputOptions, Layout, Model, RankFile, decoding, format_named
from mpired.formats.memory import paths
from mpired.formats.rank import Kept
from mpired.formats.recognise import by_suffix
from mpired.log import step
from mpired.options import OPTIONS, Options, part
from mpired.options import VALUES as VALUE_OPTIONS
from mpired.ranks import RankWord, Skipped, in_one_order, open_groups, ordered, rank_list, skipped_warnings, unnatural
from mpired.sources.open import check_no_input, check_no_other_input
from mpired.values import NUMBER, NUMBERS

if TYPE_CHECKING:
    from mpired.provenance import Note

_WEIGHTS_NBYTES = 64 << 20


class Request(NamedTuple):
    """The words of a call, understood."""

    collective: Collective  # which call it is
    op: ops.Op  # what combines
    groups: tuple[tuple[RankFile, ...], ...]  # the ranks of each group
    words: Sequence[Sequence[RankWord]]  # the words for them
    inputs: InputOptions  # what the user says of them
    options: Options  # all options
    op_file: str | None = None  # the file that has the op, if there is one
    note: Note | None = None  # what results say of where they come from; None for nothing
    skipped: tuple[Skipped, ...] = ()  # the ranks that were named and are left out, because they cannot be used

    @property
    def doubtful_order(self) -> list[OrderWarning]:
        """A warning of two ranks that are probably in the wrong order, if the order shows in the results."""
        groups = [buffer.datatype.group for buffer in self.groups[0][0].buffers]
        rounds = not self.op.rules.exact and any(group in self.op.rounds for group in groups)
        numbered = self.options["index"] in {"rank", "global"}
        chosen = self.options["sort"] != "given" or self.options["rank_regex"] is not None
        if chosen or (not rounds and not numbered and self.collective.alike):
            return []
        names = ([file.source.name for file in group] for group in self.collective.combined(self.groups))
        where = "last bits" if self.collective.alike and not numbered else "results"
        return [cautions.order(*pair, where) for pair in map(unnatural, names) if pair][:1]

    def check_no_input(self, paths: Sequence[str], way_out: str) -> None:
        """Raise `UsageError` if a result would replace the file of a rank, or another one that the call reads."""
        files = [(source, name) for name, file in labelled(self.groups) for source in file.sources]
        check_no_input(paths, files, way_out)
        check_no_other_input(paths, [(self.options["types"], "the named datatypes"), (self.op_file, "the op")])

    def lay_out(self, form: Format, model: Model, index: str = "") -> list[tuple[str, Sequence[int] | None, Layout]]:
        """Lay out a result like `model` in a format: with an index several files, with their names and buffers."""
        declared = form.needs_type and self.inputs.describes_bytes  # by which a raw one has its byte order
        model = model.declared(self.inputs) if declared else model
        model = model._replace(note=self.note, context=self.inputs.context)
        return list(form.module.divided(model, index, form.prepare)) if index else [("", None, form.prepare(model))]


def ranks_of(ranks: Sequence[RankWord], options: Options) -> tuple[list[RankWord], Options]:
    """Return the ranks that a call names, in order, and the options with those of the second group."""
    if options["group_b"]:
        options = {**options, "group_b": ordered(cast("Sequence[Any]", options["group_b"]), options)}
    return rank_list(ranks, options), options


def read_request(
    collective: Collective,
    ranks: Sequence[RankWord],
    op: ops.OpLike,
    options: Options,
    context: Context,  # the settings of the call
    outputs: Sequence[str] = (),  # where the results go; none if they are arrays, or replace the ranks
) -> Request:
    """Look at the op, the options and the ranks of a call, and let the op pass or not."""
    _check_options(collective, options)
    group_b = options["group_b"]
    chosen, refused = _resolve(op, options)
    words: Sequence[Sequence[RankWord]] = [ranks, cast("Sequence[RankWord]", group_b)] if group_b else [ranks]
    indexed = options["index"] is not None
    taken = VALUES if indexed else chosen.groups
    inputs = InputOptions.of(options, context)._replace(
        nullable=chosen.rules.nulls != "error",
        named=chosen.user,
        taken=taken,
        keep=tuple(options["keep"]),
        check_carried=options["check_coordinates"] is not False,
        # A result in place, or with a part of a rank's file, is made in another order. And a rank that is left out must
        # be known before its elements are combined.
        forward=not (options["in_place"] or options["keep"] or options["header"] != "none" or options["skip_bad"]),
    )
    _check_keep(inputs)
    if indexed:
        from mpired.collectives import indices  # noqa: PLC0415 - few calls make pairs

        indices.check(chosen, in_place=options["in_place"])
    pairing = "`index='rank'` makes pairs of plain values" if "index" in collective.options else ""
    if inputs.datatype is not None and not indexed:
        ops.check(chosen, inputs.datatype, ops.Use.REDUCE, pairing=pairing)  # whatever the files hold
        _ = inputs.datatype.form
    try:
        with step("opening and checking the ranks"):
            opened = open_groups(words, inputs, options, raw_result=any(_is_raw(each, options) for each in outputs))
    except (MpiredError, OSError) as error:
        has_result = bool({*outputs} - {"-"}) or len(ranks) == 1
        if isinstance(error, FileNotFoundError) and not has_result and error.filename == words[0][-1]:
            error.add_note("name the result with `output`")  # of other programs it is the last word
        raise with_others(error, [*refused, *_wrong_weights(collective, chosen, words, options)]) from None
    if refused:
        raise with_others(refused[0], refused[1:])
    skipped = tuple(each for group in opened for each in group.skipped)
    words = [group.words for group in opened]
    files = tuple(group.files for group in opened)
    # A result may grow with streams until they end: one, whose elements do not depend on their number.
    is_one = collective.to_root and len(outputs) == 1 and options["split"] is None and not indexed
    grows = is_one and chosen.rules.nulls == "error" and all(_grows(each, options) for each in outputs)
    groups = counted(files, inputs, may_stay_open=grows)
    groups = in_one_order(groups, options["root"])
    if indexed:
        groups = indices.as_pairs(groups, words, options)
    buffers = [(each.name, each.datatype) for each in groups[0][0].buffers]
    row = format_named(groups[0][0].format)
    keeps = "keep" in collective.options and bool(row.keeps)
    keeps = keeps and all((_form_of(each, options) or row).name == row.name for each in outputs)
    ops.check_buffers(chosen, buffers, ops.Use.REDUCE, pairing=pairing, keeps=keeps)
    ops.check_rules(chosen, [each for _, each in buffers], max(map(len, collective.combined(groups))))
    op_file = ops.file_of(op) if isinstance(op, str) else None
    request = Request(collective, chosen, groups, words, inputs, options, op_file, _note(options, context), skipped)
    if options["keep"]:
        _check_kept(request)
    cautions.tell(*skipped_warnings(skipped, sum(map(len, words)) + len(skipped)), *request.doubtful_order)
    return request


def _resolve(op: ops.OpLike, options: Options) -> tuple[ops.Op, list[UsageError]]:
    """Return the op with the options of values that it takes, and an error for each of the others."""
    refused: list[UsageError] = []
    while True:
        try:
            return resolve_op(op, options), refused
        except UsageError as error:
            name = error.subject.strip("`").partition("=")[0]
            if name not in ops.PURPOSES or options[name] == OPTIONS[name].default:
                raise
            options = {**options, name: OPTIONS[name].default, "weights_from": None}
            refused.append(error)


def _wrong_weights(
    collective: Collective, op: ops.Op, words: Sequence[Sequence[RankWord]], options: Options
) -> list[UsageError]:
    """Return the error if there is not a weight for each of the ranks, which could not be opened."""
    if options["stride"] is not None or options["ranks_in_file"] is not None:
        return []
    try:
        ops.check_weights(op, max(map(len, collective.combined(words))))
    except UsageError as error:
        return [error]
    return []


def _note(options: Options, context: Context) -> Note | None:
    """Return what results say of where they come from."""
    if not options["provenance"]:
        return None
    from mpired.provenance import Note  # noqa: PLC0415 - few calls record that

    return Note(context)


def _check_options(collective: Collective, options: Options) -> None:
    """Raise an error for what makes no sense whatever the files hold."""
    group_b = options["group_b"]
    if group_b is not None and not list(group_b):
        raise UsageError("`group_b`", "has no ranks; leave it out for one group")
    if group_b and not collective.intercomm:
        reason = f"MPI defines no {collective.name} between two groups (MPI-4.1, {collective.section})"
        raise UsageError("`group_b`", reason)


def _check_kept(request: Request) -> None:
    """Raise an error unless all ranks have the columns that are kept, with the same values."""
    kept: list[Kept] = []
    for file in (file for files in request.groups for file in files):
        if file.kept is None:
            reason = f"carries columns and arrays, and {file.source.name} is {file.format}"
            raise UsageError("`keep`", f"{reason}; leave it out")
        kept.append(file.kept)
    like = "rank 0 of group A" if len(request.groups) > 1 else "rank 0"
    for each in [kept] if request.inputs.check_carried else [[one] for one in kept]:  # alone it is only decoded
        decoding.check_kept(each, like)


def _check_keep(inputs: InputOptions) -> None:
    """Raise `UsageError` if a column is named twice, or both combined and kept."""
    named = [*inputs.keep, *inputs.columns, *(inputs.pair or ())]
    if inputs.keep and (twice := next((name for name in named if named.count(name) > 1), None)):
        raise UsageError("`keep`", f"names the column {twice!r}, which is named already; it is kept or combined")


def resolve_op(op: ops.OpLike, options: Options) -> ops.Op:
    """Return the op; a user-defined one is loaded in a worker to learn its properties."""
    commute, timeout = options["commute"], options["op_timeout"]
    known = ops.predefined(op)
    if known is None and callable(op):
        if timeout is not None:
            reason = "cannot stop a function of this process; give the place of one, as FILE.py:FUNCTION"
            raise UsageError("`op_timeout`", reason)
        return ops.with_policies(ops.of_function(op, commute=commute), _values(options))
    if known is None and not isinstance(op, str):
        raise UsageError("`op`", f"{op!r} is neither the name of an op nor a function")
    chosen = ops.with_policies(known or ops.resolve(str(op), timeout), _values(options))
    if chosen.user:
        from mpired.engines import userops  # noqa: PLC0415 - only for them

        with step("loading the op"):
            return userops.load(chosen, commute=commute)
    for name, value in (("`commute`", commute), ("`op_timeout`", timeout)):
        if value is not None:
            raise UsageError(name, f"is for user-defined ops; {chosen} is predefined")
    return chosen


def _values(options: Options) -> Options:
    """Return how values are treated, with the weights that a file has."""
    values = part(VALUE_OPTIONS, options)
    path = options["weights_from"]
    if path is None:
        return values
    with open(path, encoding="utf-8", errors="replace") as file:
        words = file.read(_WEIGHTS_NBYTES).replace(",", " ").split()
    try:
        return values | {"weights": NUMBERS.check([NUMBER.parse(word) for word in words])}
    except ValueError as error:
        raise UsageError(os.fspath(path), f"{error}; a file of weights has numbers alone") from None


def _form_of(output: str, options: Options) -> Format | None:
    """Return the format that the words ask for; None for that of the inputs."""
    to = options["to"]
    return by_suffix(output) if to is None else format_named(to, "to")


def _is_raw(output: str, options: Options) -> bool:
    """Return whether a result is raw, so that the words may also say how its bytes lie."""
    form = _form_of(output, options)
    return form is not None and form.needs_type


def _grows(output: str, options: Options) -> bool:
    """Return whether a result may be begun before the number of its elements is known."""
    form = _form_of(output, options)
    return form is None or form.grows


def paths_of(ranks: Sequence[RankWord], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of the ranks of all groups."""
    yield from paths(itertools.chain(ranks, options["group_b"] or ()))
