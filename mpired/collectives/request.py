"""The verbs: from words to a result that is in place. The command line and the Python API both call these."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, Unpack

import numpy as np

from mpired import attempts, ops
from mpired.attempts import NOTHING_HELD, Held
from mpired.buffers import Declared, Encoder, FlatBuffer, FlatLayout, RankFile, open_rank, output_format, raw
from mpired.buffers.formats import Format, by_suffix
from mpired.buffers.source import STANDARD_INPUT, Source, check_no_input
from mpired.buffers.spread import SpreadBuffer, SpreadLayout
from mpired.collectives.plan import Plan, make_plan
from mpired.collectives.run import Result, folded, run
from mpired.collectives.table import COLLECTIVES, Collective, Task
from mpired.engines import cores, userops
from mpired.errors import UsageError
from mpired.options import Inputs, Options, PathLike, check_names, check_no_file, declared, integer, only_inputs
from mpired.progress import Progress, unwatched
from mpired.ranks import check_root, check_use, open_groups, unnatural
from mpired.storage import staging
from mpired.storage.output import nothing, open_output


class Reduction(NamedTuple):
    """A reduction that has passed all checks.

    Parameters
    ----------
    files
        The ranks.
    plan
        What is to be done.
    model
        The root's file, which the result is modelled on.
    result
        Where the result goes, `-` is standard output, and how it lies there.
    timeout
        Seconds that one application of the op may take.
    collective
        Which call it is.
    """

    files: tuple[RankFile, ...]
    plan: Plan
    model: RankFile
    result: Result
    timeout: float | None = None
    collective: Collective = COLLECTIVES["reduce"]

    @property
    def plans(self) -> list[Plan]:
        """What is to be done."""
        return [self.plan]

    @property
    def paths(self) -> list[str]:
        """Where the result goes."""
        return [self.result.path]

    @property
    def sources(self) -> list[Source]:
        """What is read."""
        return [file.source for file in (*self.files, self.model)]

    @property
    def doubtful_order(self) -> tuple[str, str] | None:
        """Two ranks that are probably in the wrong order, if the order shows in the result."""
        datatypes = (buffer.datatype for buffer in self.files[0].buffers)
        if not any(datatype.group in self.plan.op.rounds for datatype in datatypes):
            return None
        return unnatural([file.source.name for file in self.files])

    @property
    def order_shows(self) -> str:
        """Where the order of the ranks shows."""
        return "last bits"

    def run(
        self,
        progress: Progress,
        *,
        overwrite: bool = False,
        on_commit: Callable[[], None] = nothing,
        held: Held = NOTHING_HELD,
    ) -> None:
        """Do it, and commit the result; `held` has the file that it replaces."""
        path = self.result.path
        with (
            open_output(path, overwrite=overwrite, on_commit=on_commit, target=held.get(path)) as output,
            userops.deaths_explained(self.plan.op, self.timeout),
        ):
            run(self.plan, self.result, output, userops.engine(self.plan.op), progress)


def plan_reduce(
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    output: str = "-",
    *,
    terminal: bool = False,
    **options: Unpack[Options],
) -> Reduction:
    """Check a reduction: words, every rank, the op on the datatype, the form of the result. Nothing is written.

    Parameters
    ----------
    ranks
        Paths in rank order.
    op
        The op's name.
    output
        Where the result goes.
    terminal
        Whether that is a terminal, which gets a readable table.

    Raises
    ------
    MpiredError, OSError
        If the reduction is not possible.
    """
    check_names(options, Options)
    request = read_request(ranks, op, options, output)
    chosen, root, in_place = request.op, options.get("root", 0), options.get("in_place", False)
    if in_place and output != "-":
        raise UsageError("--in-place", "writes over the root's file; leave --output out")
    check_root(root, len(request.groups[0]))
    # With two groups the root is in the first, and gets what the second reduces (MPI-4.1, 6.9.1).
    files, template = request.groups[-1], request.groups[0][root]
    path = request.words[0][root] if in_place else output
    if not in_place:
        request.check_no_input([path], "name another output, or replace a rank's file with --root R --in-place")
    to = template.format if in_place else options.get("to")
    form = output_format(path, to, template, terminal=terminal and not in_place)
    layout = keep_around(template, form.prepare(template), options) if in_place else request.lay_out(form, template)
    staging.settle([path])
    (share,) = COLLECTIVES["reduce"].shares(Task(len(files) - 1, len(files), template.buffers[0].count, root=root))
    plan = make_plan(chosen, files, options.get("jobs", 0) or cores.usable_cores(), options.get("max_memory"))
    return Reduction(files, plan, template, Result(share, path, form.name, layout), options.get("op_timeout"))


class Request(NamedTuple):
    """The words of a call, understood: the op, the ranks of each group with the words for them, and what is said."""

    op: ops.Op
    words: list[list[str]]
    groups: tuple[tuple[RankFile, ...], ...]
    said: Declared

    def check_no_input(self, paths: Sequence[str], way_out: str) -> None:
        """Raise `UsageError` if a result would replace the file of a rank."""
        names = [f"rank {{}} of group {name}" for name in "AB"] if len(self.groups) > 1 else ["rank {}"]
        inputs = zip(names, self.groups, strict=True)
        check_no_input(
            paths, [(file.source, name.format(i)) for name, files in inputs for i, file in enumerate(files)], way_out
        )

    def lay_out(self, form: Format, model: RankFile) -> FlatLayout | Encoder:
        """Lay out a result like `model` in a format, raw as its bytes are said to lie."""
        if form.name == "raw" and self.said.describes_bytes:
            buffer = model.only_buffer("raw")
            return raw.layout(buffer, self.said.stored(buffer.datatype), is_external=self.said.is_external)
        return form.prepare(model)


def read_request(
    ranks: Sequence[PathLike], op: str | Callable[..., Any], options: Options, output: str = ""
) -> Request:
    """Look at the op and at the ranks, and let the op pass or not.

    Parameters
    ----------
    output
        Where the result goes, "" if it is no file.

    Raises
    ------
    MpiredError, OSError
        If they are not what a reduction needs.
    """
    group_b = options.get("group_b")
    if group_b is not None and not len(group_b):
        raise UsageError("--group-b", "has no ranks; leave it out for one group")
    group_b = group_b or ()
    if any(isinstance(group, (str, bytes, os.PathLike)) for group in (ranks, group_b)):
        raise UsageError("ranks", "is one path; give a list of paths, one a rank")
    for name in ("--jobs", "--root"):
        integer(name, options.get(name[2:], 0))
    if (jobs := options.get("jobs", 0)) < 0:
        raise UsageError("--jobs", f"{jobs} is negative; 0 is all usable cores")
    if (memory := options.get("max_memory")) is not None:
        integer("--max-memory", memory)
    if group_b and options.get("in_place"):
        raise UsageError("--in-place", "is not for two groups (MPI-4.1, 6.9.1); leave --group-b out, or name an output")
    chosen = resolve_op(op, options)
    words = [[os.fspath(rank) for rank in group] for group in ([ranks, group_b] if group_b else [ranks])]
    said = replace(declared(**only_inputs(options)), named=chosen.user)
    if said.datatype is not None:
        ops.check(chosen, said.datatype, ops.Use.REDUCE)  # whatever the files hold
        _ = said.datatype.form
    groups = open_groups(words, said, raw_result=_is_raw(output, options))
    for buffer in groups[0][0].buffers:
        ops.check(chosen, buffer.datatype, ops.Use.REDUCE)
    return Request(chosen, words, groups, said)


def resolve_op(op: str | Callable[..., Any], options: Options) -> ops.Op:
    """Return the op that is meant; a user-defined one is loaded in a worker to learn its properties."""
    commute, timeout = options.get("commute"), options.get("op_timeout")
    if timeout is not None and not 0 < timeout < math.inf:
        raise UsageError("--op-timeout", f"{timeout} is not a time; give seconds above 0")
    if callable(op) and ops.meant(op) is None:
        if timeout is not None:
            reason = "cannot stop a function of this process; give the place of one, as FILE.py:FUNCTION"
            raise UsageError("--op-timeout", reason)
        return ops.with_overflow(ops.of_function(op, commute=commute), options.get("overflow"))
    if not (isinstance(op, str) or callable(op)):
        raise UsageError("--op", f"{op!r} is neither the name of an op nor a function")
    chosen = ops.with_overflow(ops.meant(op) or ops.resolve(str(op), timeout), options.get("overflow"))
    if chosen.user:
        return userops.load(chosen, timeout, commute=commute)
    for name, said in (("--commute", commute), ("--op-timeout", timeout)):
        if said is not None:
            raise UsageError(name, f"is said of user-defined ops; {chosen} is predefined")
    return chosen


def _is_raw(output: str, options: Options) -> bool:
    """Tell whether the words ask for a raw result, so that they may also say how its bytes lie."""
    suffix = by_suffix(output)
    return options.get("to") == "raw" or (options.get("to") is None and suffix is not None and suffix.name == "raw")


def keep_around(template: RankFile, layout: FlatLayout | Encoder, options: Options) -> FlatLayout | Encoder:
    """Keep what the root's file has besides its buffers (MPI_IN_PLACE, MPI-4.1, 6.9.1)."""
    if template.source.keep is not None or template.source.name == STANDARD_INPUT:
        raise UsageError("--in-place", f"the root's rank, {template.source.name}, is a stream and cannot be replaced")
    if options.get("to") not in (None, template.format):
        raise UsageError("--in-place", f"keeps the format of the root, {template.format}; leave --to out")
    if isinstance(layout, FlatLayout):
        buffer = template.buffers[0]
        assert isinstance(buffer, FlatBuffer)  # noqa: S101 - a flat layout comes from a flat file
        return FlatLayout(buffer.stored, around=buffer)
    if isinstance(layout, SpreadLayout):
        buffer = template.buffers[0]
        assert isinstance(buffer, SpreadBuffer)  # noqa: S101 - as above
        return replace(layout, stored=buffer.stored, around=buffer)
    buffers: Any = template.buffers  # of columns, as all others are flat
    if template.ncolumns > sum(len(buffer.columns) for buffer in buffers):
        raise UsageError("--in-place", "would lose the columns that are not chosen; write to another file")
    return layout


class Planned(attempts.Planned, Protocol):
    """A call whose results are files, that has passed all checks."""

    def run(
        self, progress: Progress, *, overwrite: bool = False, on_commit: Callable[[], None] = nothing, held: Held
    ) -> None: ...


def carry_out(plan: Callable[[], Planned], words: attempts.Words, *, overwrite: bool, timeout: float | None) -> None:
    """Plan a call and do it, for a program; see `attempts.carry_out`."""

    def work(planned: Planned, held: Held) -> None:
        planned.run(unwatched, overwrite=overwrite, held=held)

    attempts.carry_out(plan, work, words, overwrite=overwrite, timeout=timeout)


def reduce(
    ranks: Sequence[PathLike],
    op: str | Callable[..., Any],
    *,
    output: PathLike | None = None,
    **options: Unpack[Options],
) -> Any:
    """Combine the same element of every rank with an op (MPI_Reduce; MPI-4.1, 6.9.1).

    The left fold in rank order, `((a0 o a1) o a2) ...`, the same bits for any number of workers.

    Parameters
    ----------
    ranks
        One file a rank, in rank order.
    op
        The op's name, in any case, with or without `MPI_`; the place of a user-defined op, as
        `my_ops.py:func`; or a function of this process.
    output
        The file to write; None returns the result. An existing file is replaced only with
        `overwrite=True`. It appears whole and durable, or not at all.
    **options
        As the options of `mpired reduce`: type, types, format (`--from`), columns, pair, offset, count,
        byte_order, datarep, to, overwrite (`--force`), root, in_place, group_b, jobs, max_memory, commute,
        op_timeout, overflow, lock_timeout.

    Returns
    -------
    array, dict of arrays, or None
        The result in native byte order, with the shape of the root's rank; a dict by column name
        where a rank has several buffers; None if it was written to a file.

    Raises
    ------
    mpired.errors.MpiredError
        If the request breaks a rule of MPI or a file is not usable; the class says which.
    OSError
        If the system refuses.

    Warns
    -----
    mpired.errors.OverflowWarning
        If a sum or product overflows; with `overflow="error"` it is an error, with `overflow="wrap"` nothing.

    Examples
    --------
    >>> import mpired
    >>> mpired.reduce(["sample_data/counts_0.npy", "sample_data/counts_1.npy"], op="max")[:3]
    array([3, 7, 2], dtype=int32)
    """
    if output is not None or options.get("in_place"):
        path = "-" if output is None else os.fspath(output)
        overwrite = options.get("overwrite", False) or options.get("in_place", False)
        plan = partial(plan_reduce, ranks, op, path, **options)
        carry_out(plan, partial(words_of, ranks, options), overwrite=overwrite, timeout=options.get("lock_timeout"))
        return None
    check_names(options, Options)
    check_no_file(options)
    # An array is as free of what a file can hold as a table for a person is.
    plan = partial(plan_reduce, ranks, op, **options | {"to": "table"})
    words = partial(words_of, ranks, options)
    return attempts.repeated(plan, _array, words, timeout=options.get("lock_timeout"))


def words_of(ranks: Sequence[PathLike], options: Mapping[str, Any]) -> Iterator[PathLike]:
    """Yield the paths of the ranks of all groups."""
    yield from ranks
    yield from options.get("group_b") or ()


def _array(reduction: Reduction) -> Any:
    """Do a reduction whose result is an array."""
    with (
        userops.deaths_explained(reduction.plan.op, reduction.timeout),
        folded(reduction.plan, [reduction.result.share], None, userops.engine(reduction.plan.op), unwatched) as (
            results,
        ),
    ):
        return as_arrays(results, reduction.model)


def as_arrays(results: Sequence[FlatBuffer], model: RankFile) -> Any:
    """Return an array with the shape of the model's buffer, or a dict of them where there are several."""
    arrays = {
        result.name: shaped(result, buffer.shape, fortran_order=buffer.fortran_order)
        for result, buffer in zip(results, model.buffers, strict=True)
    }
    return arrays if len(arrays) > 1 else next(iter(arrays.values()))


def shaped(result: FlatBuffer, shape: tuple[int, ...] | None, *, fortran_order: bool) -> np.ndarray:
    """Read a result into an array of its own."""
    block = np.empty(result.count, result.datatype.form)
    with closing(result.open()) as reader:
        reader.read(0, block)
    if result.datatype.is_bool:
        block = block != 0
    return block.reshape(result.count if shape is None else shape, order="F" if fortran_order else "C")


def info(path: PathLike, **inputs: Unpack[Inputs]) -> RankFile:
    """Describe what a file holds, from its header.

    Returns
    -------
    RankFile
        The format, and of every buffer the name, datatype, count and shape.

    Raises
    ------
    MpiredError, OSError
        As `reduce` for one rank.
    """
    staging.settle([os.fspath(path)])
    return look(path, **inputs)


def look(path: PathLike, **inputs: Unpack[Inputs]) -> RankFile:
    """Describe a file as `info` does, in whose directory nothing is left to finish.

    Raises
    ------
    MpiredError, OSError
        As `info`.
    """
    check_names(inputs, Inputs)
    said = declared(**inputs)
    file = open_rank(os.fspath(path), said)
    check_use(said, [file])
    return file
