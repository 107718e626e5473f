"""A checked call of a collective: from the arguments to committed results.

`plan_call` checks a call without writing anything. A dry run prints the `Call` that it returns; `Call.run` folds the
ranks into drafts of the results and commits them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mpired import __version__, codecs, ops
from mpired.collectives.plan import Plan, Result, make_plan
from mpired.collectives.request import Request, label_ranks, read_request
from mpired.collectives.results import NOT_TOGETHER, GroupPlan, check_different, plan_groups, results_of
from mpired.collectives.run import fill
from mpired.collectives.table import COLLECTIVES, Collective, operand
from mpired.context import Context
from mpired.errors import MpiredError, UsageError, with_others
from mpired.files import calls
from mpired.files.lock import LockedTargets
from mpired.files.places import check_are_data, existing_output_errors, is_stream
from mpired.files.scratch import Scratch
from mpired.files.transaction import Output, Transaction, open_output
from mpired.files.update import ChangedFile
from mpired.files.urls import is_url, sending_nbytes
from mpired.formats import Array, ArrayLayout, RankObject
from mpired.options import Options
from mpired.sources.open import check_no_input
from mpired.sources.source import Source

if TYPE_CHECKING:
    from mpired.provenance import Provenance


class Call(NamedTuple):
    """A collective that has passed all checks."""

    request: Request
    plans: tuple[Plan, ...]  # the fold for each group that receives results
    sidecars: tuple[str, ...]  # provenance files, for results whose formats cannot hold it
    paths: tuple[str, ...]  # of the results, then the sidecars
    folders: tuple[str, ...]  # directories to make for results in several files
    ranges: tuple[tuple[int, int], ...]  # bytes of an existing file that results overwrite; empty for new files
    overwrite: bool  # whether results may replace files
    elements: list[Array]  # for each buffer of the root the array that the op combines; of several ops the narrowest

    @property
    def replaced_paths(self) -> tuple[str, ...]:
        """The paths that new files take; none if an existing file is overwritten."""
        return () if self.ranges else self.paths

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
        names = set[str]()
        for plan in self.plans:
            for result in plan.results:
                names.update(getattr(result.layout, "left_out", ()))
                if root.format.has_arrays:
                    names.update(root.left_out)
                    if result.format != root.format and root.kept is not None:  # only arrays that `keep` names are kept
                        names |= {*root.kept.names} - {*root.kept.chosen}
        return sorted(names, key=root.names.index)

    def run(self, context: Context, locked: LockedTargets) -> Call:
        """Carry out the call and commit all results together; `locked` has the files that they replace."""
        outputs: Output | ChangedFile | Transaction
        provenance, options, paths = self.request.provenance, self.request.options, self.paths
        if provenance is not None:
            self._record(provenance)
        compressions = [result.compression for plan in self.plans for result in plan.results]
        if self.ranges:
            outputs = ChangedFile(paths[0], locked.get(paths[0]), self.ranges)
        elif self.request.collective.to_root and len(paths) == 1:
            outputs = open_output(
                paths[0], overwrite=self.overwrite, context=context, locked=locked, compression=compressions[0]
            )
        else:
            named = any(plan.engine.is_launched for plan in self.plans)  # other machines open drafts by their names
            outputs = Transaction(
                paths, overwrite=self.overwrite, context=context, locked=locked, named=named,
                compressions=[*compressions, *(None for _ in self.sidecars)], folders=self.folders,
            )  # fmt: skip
        with outputs:
            drafts = iter([outputs] if isinstance(outputs, Scratch) else cast("Sequence[Output]", outputs.drafts))
            plans = tuple(
                fill(plan, [next(drafts) for _ in plan.results], context, link=options["link"]) for plan in self.plans
            )
            if provenance is not None:
                for sidecar in drafts:
                    with sidecar.created() as fd:
                        calls.pwrite_all(fd, provenance.text.encode(errors="surrogateescape"), 0)
            outputs.commit(context.on_commit)
        return self._replace(plans=plans)

    def _record(self, provenance: Provenance) -> None:
        """Describe the call in the provenance of its results."""
        plan = self.plans[0]
        rules = plan.ops[0].rules
        inputs = [(name, source) for name, file in label_ranks(self.request.combined) for source in file.sources]
        counts = [None if plan.has_unknown_length else array.count for array in self.elements]
        record = {
            "version": __version__,
            "function": self.request.collective.function,
            "op": ",".join(map(str, plan.ops)),
            "buffers": [
                {"name": array.name, "datatype": str(array.datatype), "count": count}
                for array, count in zip(self.elements, counts, strict=True)
            ],
            "policies": {"nan": rules.nan, "nulls": rules.nulls, "chosen": list(ops.summary(plan.ops))},
            "outputs": [result.path for plan in self.plans for result in plan.results],
            "skipped": [skipped._asdict() for skipped in self.request.skipped],
        }
        provenance.write(record, inputs, max(plan.jobs for plan in self.plans))


def plan_call(  # noqa: PLR0913 - the parts of a call
    name: str,  # of the command of the collective
    ranks: Sequence[str | RankObject],  # in rank order
    op: ops.Ops,  # an op, its name or a function; or a list of these
    output: str | None,  # path of the result, or pattern of the paths; None if results replace the ranks' files
    options: Options,  # all options of collectives, checked
    context: Context,
    *,
    terminal: bool = False,  # whether the output is a terminal, which gets a readable table
) -> Call:
    """Check the arguments, the ranks, the op on the datatype, and the path and layout of each result."""
    collective = COLLECTIVES[name]
    outputs = _output_paths(collective, op, output, options, context)
    try:
        request = read_request(collective, ranks, op, options, context, outputs)
    except (MpiredError, OSError) as error:
        new = outputs if collective.to_root and not options["overwrite"] else ()
        raise with_others(error, existing_output_errors(new)) from None
    groups = [(group, results_of(group, terminal=terminal)) for group in plan_groups(request)]
    results = [result for _, results_of_group in groups for result in results_of_group]
    if len(results) > 1:
        check_different(results, request)
    paths = [result.path for result in results]
    sidecars: list[str] = []
    if request.provenance is not None:
        lacking = [result.path for result in results if not result.format.has_provenance]
        sidecars = [path + request.provenance.suffix for path in lacking]
    files = (*paths, *sidecars)
    _check_results(results, files, request)
    overwrite = options["in_place"] or options["overwrite"]
    nlocked = sum(map(os.path.isfile, paths)) if overwrite else 0
    plans = [plan_fold(group, results_of_group, nlocked=nlocked) for group, results_of_group in groups]
    folders = {result.folder for result in results if result.folder and not os.path.isdir(result.folder)}
    layouts = [result.layout for result in results if isinstance(result.layout, ArrayLayout)]
    ranges = tuple(extent for layout in layouts for extent in layout.ranges)
    # The narrowest operand: neither pairs nor a wider datatype that only some of the ops need.
    operands = ([operand(op, array) for op in request.ops] for array in request.groups[0][options["root"]].buffers)
    elements = [min(arrays, key=lambda array: array.datatype.itemsize) for arrays in operands]
    return Call(request, tuple(plans), tuple(sidecars), files, tuple(sorted(folders)), ranges, overwrite, elements)


def _check_results(results: Sequence[Result], paths: Sequence[str], request: Request) -> None:
    """Check the paths of results and sidecars against each other and the inputs, and the options of compression."""
    options = request.options
    if request.provenance is not None:
        has_second_object = len(paths) > 1 and any(map(is_url, paths))
        if has_second_object or any(map(is_stream, paths)) or len({*paths}) < len(paths):
            reason = "is recorded in the file of a result, or in one beside it"
            reason += ": not in a stream, in a second object of a store, or twice in one file"
            raise UsageError("`provenance`", f"{reason}; name other files, or a format that holds it, such as parquet")
    if options["in_place"]:
        return
    if existing := [path for path in paths if os.path.exists(path) or ("://" in path and is_url(path))]:
        inputs = ((source, name) for name, file in label_ranks(request.groups) for source in file.sources)
        check_no_input(existing, inputs, _RENAME_HINTS[request.collective.to_root])
        op_files = ((cast("Any", op.kernel).path, "the op") for op in request.ops if op.isolated)
        check_no_input(existing, [(options["types"], "the named datatypes"), *op_files])
    for result in results if options["link"] or options["level"] is not None else ():
        if options["level"] is not None and not result.compression:
            reason = f"is for compressed results ({', '.join(codecs.SUFFIXES)}), and {result.path} is none"
            raise UsageError("`level`", f"{reason}; leave it out")
        if options["link"] and result.compression:
            raise UsageError("`link`", f"makes one file of all results, and {result.path} is compressed by itself")


# Ways out if a result would overwrite an input, by `Collective.to_root`.
_RENAME_HINTS = {
    True: "name another output, or replace a rank's file with `root=R` and `in_place=True`",
    False: "name other files, or replace each rank's by its own result with `in_place=True`",
}


def _output_paths(
    collective: Collective, op: ops.Ops, output: str | None, options: Options, context: Context
) -> tuple[str, ...]:
    """Return the paths or patterns of the results; none if they replace the files of the ranks."""
    in_place, split, count_valid = options["in_place"], options["split"], options["count_valid"]
    if in_place and output is not None:
        target = "the root's file" if collective.to_root else "the ranks' files"
        raise UsageError("`in_place`", f"writes over {target}; leave `output` out")
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
    paths = tuple(os.fspath(path) for path in split or (output, count_valid) if path is not None)
    check_are_data(paths)
    are_several = not collective.to_root or len(paths) > 1 or ("{op}" in str(output) and ops.is_list(op))
    if url := next((path for path in paths if are_several and is_url(path)), None):
        raise UsageError(url, NOT_TOGETHER)
    return paths


def plan_fold(group: GroupPlan, results: tuple[Result, ...] = (), *, nlocked: int = 0) -> Plan:
    """Plan the fold of a group into its results."""
    encoding = 0  # bytes of memory for encoding and uploading a result
    for result in results:
        compression = result.compression.nbytes if result.compression else 0
        encoding = max(encoding, result.format.encoding_nbytes + compression)
    if any("://" in result.path and is_url(result.path) for result in results):
        nbytes = sum(array.count * array.datatype.itemsize for array in group.senders[0].buffers)
        encoding = max(encoding, sending_nbytes(nbytes))
    noutputs, request = max(len(group.shares), len(results)), group.request
    plan = make_plan(
        request.ops, group.senders, request.inputs.context, noutputs=noutputs, nlocked=nlocked, encoding=encoding
    )
    return plan._replace(results=results)
