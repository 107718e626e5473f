"""A call that has passed all checks, and how it gets there: from its words to results that are in place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from mpired import __version__, codecs, ops
from mpired.collectives.plan import Plan, make_plan
from mpired.collectives.request import Request, labelled, read_request
from mpired.collectives.results import NOT_TOGETHER, GroupPlan, check_different, group_plans, results_of
from mpired.collectives.run import Result, fill
from mpired.collectives.table import COLLECTIVES, Collective, operand
from mpired.context import Context
from mpired.errors import MpiredError, UsageError, with_others
from mpired.files import calls
from mpired.files.lock import LockedTargets
from mpired.files.places import check_are_data, in_the_way, is_stream
from mpired.files.scratch import Scratch
from mpired.files.transaction import Output, Transaction, open_output
from mpired.files.update import ChangedFile
from mpired.files.urls import is_url
from mpired.formats import Array, ArrayLayout, RankObject, format_named
from mpired.options import Options
from mpired.sources.open import check_no_input
from mpired.sources.source import Source

if TYPE_CHECKING:
    from mpired.provenance import Provenance


class Call(NamedTuple):
    """A collective that has passed all checks."""

    request: Request
    plans: tuple[Plan, ...]  # a fold for each group that gets results
    results: tuple[tuple[Result, ...], ...]  # of each of them
    beside: tuple[str, ...]  # the files that say where results come from which have no place for that
    paths: tuple[str, ...]  # the files of the results, and after them those beside them
    folders: tuple[str, ...]  # the directories that are made for results in several files
    ranges: tuple[tuple[int, int], ...]  # the ranges of the file that results change; empty if they are new files
    renamed: tuple[str, ...]  # the files that new ones take the place of
    overwrite: bool  # whether results may replace files
    # the buffers of the root, as they are combined: pairs with indices only if all ops take these
    elements: list[Array]

    @property
    def sources(self) -> list[Source]:
        """The sources of all ranks."""
        return [source for group in self.request.groups for file in group for source in file.sources]

    @property
    def left_out(self) -> list[str]:
        """The arrays of the root's file that a result lacks; of a table only those that `keep` names."""
        options = self.request.options
        root = self.request.groups[0][options["root"]]
        if options["in_place"]:
            return []
        found = set[str]()
        for each in (result for results in self.results for result in results):
            found.update(getattr(each.layout, "left_out", ()))
            if format_named(root.format).has_arrays:
                found.update(root.left_out)
                if each.format != root.format and root.kept is not None:  # only what `keep` names is carried
                    found |= {*root.kept.names} - {*root.kept.chosen}
        return sorted(found, key=root.names.index)

    def run(self, context: Context, locked: LockedTargets) -> None:
        """Do it, and commit all results together; `locked` has the files that they replace."""
        outputs: Output | ChangedFile | Transaction
        provenance, options, paths = self.request.provenance, self.request.options, self.paths
        if provenance is not None:
            self._record(provenance)
        packings = [result.packing for results in self.results for result in results]
        if self.ranges:
            outputs = ChangedFile(paths[0], locked.get(paths[0]), self.ranges)
        elif self.request.collective.to_root and len(paths) == 1:
            outputs = open_output(
                paths[0], overwrite=self.overwrite, context=context, locked=locked, packing=packings[0]
            )
        else:
            named = any(plan.engine.is_launched for plan in self.plans)  # on other machines, by these names
            outputs = Transaction(
                paths, overwrite=self.overwrite, context=context, locked=locked, named=named,
                packings=[*packings, *(None for _ in self.beside)], folders=self.folders,
            )  # fmt: skip
        with outputs:
            drafts = [outputs] if isinstance(outputs, Scratch) else cast("Sequence[Output]", outputs.drafts)
            rest = iter(drafts)
            for plan, results in zip(self.plans, self.results, strict=True):
                fill(plan, results, [next(rest) for _ in results], context, link=options["link"])
            if provenance is not None:
                for draft in rest:
                    with draft.created() as fd:
                        calls.pwrite_all(fd, provenance.text.encode(errors="surrogateescape"), 0)
            outputs.commit(context.on_commit)

    def _record(self, provenance: Provenance) -> None:
        """Describe the call in the record of where its results come from."""
        plan = self.plans[0]
        rules = plan.ops[0].rules
        inputs = [(name, source) for name, file in labelled(self.request.combined) for source in file.sources]
        record = {
            "version": __version__,
            "function": self.request.collective.function,
            "op": ",".join(map(str, plan.ops)),
            "buffers": [
                # The count of an open rank shows only after the fold.
                {
                    "name": each.name,
                    "datatype": str(each.datatype),
                    "count": None if plan.has_unknown_length else each.count,
                }
                for each in self.elements
            ],
            "policies": {"nan": rules.nan, "nulls": rules.nulls, "chosen": list(ops.summary(plan.ops))},
            "outputs": [result.path for results in self.results for result in results],
            "skipped": [each._asdict() for each in self.request.skipped],
        }
        provenance.write(record, inputs, max(plan.jobs for plan in self.plans))


def plan_call(  # noqa: PLR0913 - all that a call is
    name: str,  # the collective, as its command is called
    ranks: Sequence[str | RankObject],  # paths in rank order
    op: ops.Ops,  # the op, its name, or a function; or several
    output: str | None,  # where the result goes, or the pattern of the results' names; None in place
    options: Options,  # all options of collectives, checked
    context: Context,  # the settings of the call
    *,
    terminal: bool = False,  # whether that is a terminal, which gets a readable table
) -> Call:
    """Check a call: words, ranks, the op on the datatype, the name and form of every result. Write nothing."""
    collective, in_place = COLLECTIVES[name], options["in_place"]
    outputs = _outputs(collective, op, output, options, context)
    try:
        request = read_request(collective, ranks, op, options, context, outputs)
    except (MpiredError, OSError) as error:
        new = outputs if collective.to_root and not options["overwrite"] else ()
        raise with_others(error, in_the_way(new)) from None
    groups = [*group_plans(request)]
    results = tuple(results_of(group_plan, request, terminal=terminal) for group_plan in groups)
    every = tuple(result for each in results for result in each)
    paths = [result.path for result in every]
    if len(paths) > 1:
        check_different(every, request)
    folders = {result.folder for result in every if result.folder and not os.path.isdir(result.folder)}
    beside: list[str] = []
    if request.provenance is not None:
        beside = [
            each.path + request.provenance.suffix for each in every if not format_named(each.format).has_provenance
        ]
        _check_beside([*paths, *beside])
    files = (*paths, *beside)
    if not in_place:
        if existing := [name for name in files if os.path.exists(name) or ("://" in name and is_url(name))]:
            read = ((source, name) for name, file in labelled(request.groups) for source in file.sources)
            check_no_input(existing, read, _WAY_OUT[collective.to_root])
            others = [(options["types"], "the named datatypes"), *((file, "the op") for file in request.op_files)]
            check_no_input(existing, others)
        for result in every if options["link"] or options["level"] is not None else ():
            if options["level"] is not None and not result.packing:
                what = f"is for compressed results ({', '.join(codecs.SUFFIXES)})"
                raise UsageError("`level`", f"{what}, and {result.path} is none; leave it out")
            if options["link"] and result.packing:
                raise UsageError("`link`", f"makes one file of all results, and {result.path} is compressed by itself")
    overwrite = in_place or options["overwrite"]
    nlocked = sum(map(os.path.isfile, paths)) if overwrite else 0
    plans = tuple(plan_fold(*each, request, nlocked=nlocked) for each in zip(groups, results, strict=True))
    layouts = [result.layout for result in every if isinstance(result.layout, ArrayLayout)]
    ranges = tuple(each for layout in layouts for each in layout.ranges)
    # Values alone where an op takes these, and not in the wider datatype that other ops compute in.
    taken = ([operand(op, each) for op in request.ops] for each in request.groups[0][options["root"]].buffers)
    elements = [min(arrays, key=lambda each: each.datatype.itemsize) for arrays in taken]
    return Call(
        request, plans, results, tuple(beside), files, tuple(sorted(folders)), ranges, () if ranges else files,
        overwrite, elements,
    )  # fmt: skip


def _check_beside(paths: Sequence[str]) -> None:
    """Raise `UsageError` unless the record of where each result comes from gets a file of its own."""
    are_urls = len(paths) > 1 and any(map(is_url, paths))
    if are_urls or any(map(is_stream, paths)) or len({*paths}) < len(paths):
        reason = "is recorded in the file of a result, or in one beside it"
        reason += ": not in a stream, in a second object of a store, or twice in one file"
        raise UsageError("`provenance`", f"{reason}; name other files, or a format that holds it, such as parquet")


_WAY_OUT = {
    True: "name another output, or replace a rank's file with `root=R` and `in_place=True`",
    False: "name other files, or replace each rank's by its own result with `in_place=True`",
}


def _outputs(
    collective: Collective, op: ops.Ops, output: str | None, options: Options, context: Context
) -> tuple[str, ...]:
    """Return where the results go, none if they replace the ranks' files."""
    in_place, split, count_valid = options["in_place"], options["split"], options["count_valid"]
    if in_place and output is not None:
        whose = "the root's file" if collective.to_root else "the ranks' files"
        raise UsageError("`in_place`", f"writes over {whose}; leave `output` out")
    if split is not None and output is not None:
        raise UsageError("`split`", "names the two files of the results; leave it out, or `output`")
    if count_valid is not None and output in {None, "-"}:
        raise UsageError("`count_valid`", "is written beside the result; name a file for that by `output`")
    if not in_place and split is None and output is None:
        reason = "is missing; name results by a pattern such as 'out_{rank}.npy', or use `in_place=True`"
        raise UsageError("`output`", reason)
    if output == "-" and context.engine and context.engine.is_launched:
        reason = f"is standard output, which the launcher of {context.engine.name} may write to; name a file"
        raise UsageError("`output`", reason)
    names = tuple(os.fspath(name) for name in split or (output, count_valid) if name is not None)
    check_are_data(names)
    are_several = not collective.to_root or len(names) > 1 or ("{op}" in str(output) and ops.is_list(op))
    if url := next((name for name in names if are_several and is_url(name)), None):
        raise UsageError(url, NOT_TOGETHER)
    return names


def plan_fold(group_plan: GroupPlan, results: tuple[Result, ...], request: Request, *, nlocked: int = 0) -> Plan:
    """Plan the fold of a group, for its results."""
    encoding = 0
    for result in results:
        packing = result.packing.nbytes if result.packing else 0
        encoding = max(encoding, format_named(result.format).encoding + packing)
    if any("://" in result.path and is_url(result.path) for result in results):
        from mpired.files.stores import sending_nbytes  # noqa: PLC0415 - most results are files

        buffers = group_plan.senders[0].buffers
        encoding = max(encoding, sending_nbytes(sum(each.count * each.datatype.itemsize for each in buffers)))
    noutputs, context = max(len(group_plan.shares), len(results)), request.inputs.context
    return make_plan(request.ops, group_plan.senders, context, noutputs=noutputs, nlocked=nlocked, encoding=encoding)
