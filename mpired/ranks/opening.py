"""The inspection of ranks: each header is compared with that of the first good rank.

One error lists the problems of all ranks; with `skip_bad` the ranks with problems are left out.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mpired import codecs, interrupts, log, ops
from mpired.datatypes import Group
from mpired.errors import (
    BufferFileError,
    ChangedError,
    CountError,
    DatatypeError,
    InputWarning,
    MpiredError,
    RanksError,
    SkippedWarning,
    UsageError,
    escaped,
    exit_status,
    merged,
    number,
    parts,
)
from mpired.formats import Array, Format, InputOptions, RankFile, open_rank
from mpired.formats.array import UNKNOWN_COUNT
from mpired.formats.derived import in_order
from mpired.formats.input_options import OF_ARRAYS
from mpired.formats.memory import RankInFile, check_holds_several
from mpired.formats.rank import missing_arrays_text
from mpired.ops.rules import real_type
from mpired.ranks.order import RankArgument
from mpired.sources.open import open_source, prefetch_ranks

if TYPE_CHECKING:
    from mpired.options import Options

# Checks a file as a rank, given the first good rank with its number.
Check: TypeAlias = Callable[[RankFile, int, tuple[int, RankFile]], object]

_SYSTEM_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # no fault of a rank
_RANK_STATUSES = {2, 3, 4}  # exit statuses of faults of a rank; not those of a lock or a worker
_OR_SKIP = ", or skip the others with `skip_bad`"
_NO_OPTIONS = InputOptions()
HINTS = {
    "number": f"; choose those of all with `columns`{_OR_SKIP}",
    "name": f"; choose those of all with `columns`{_OR_SKIP}",
    "dims": f"; write all in one order{_OR_SKIP}",
    "fields": f"; save all in one order{_OR_SKIP}",
    "count": f"; give ranks of one count{_OR_SKIP}",
    "shape": f"; give ranks of one shape{_OR_SKIP}",
}
"""The ends of messages by the kind of difference between two ranks."""
# Options for some formats: a field of their rows, a noun for their files, and the options.
_FORMAT_OPTIONS = (
    ("needs_type", "raw files", ("offset", "count", "byte_order", "datarep")),
    ("has_columns", "files with columns or arrays", ("columns", "pair")),
    ("has_arrays", "files of arrays", OF_ARRAYS),
)


class Skipped(NamedTuple):
    """A rank that was left out."""

    rank: int  # number among all ranks of the arguments
    file: str
    reason: str


class OpenedRanks:
    """The ranks of a group, or the origins of a window, inspected in order."""

    def __init__(
        self,
        arguments: Sequence[Any],
        inputs: InputOptions,
        options: Options,
        inspect: Callable[[OpenedRanks, Any, InputOptions, int], Any],
        noun: str = "ranks",
    ) -> None:
        """Inspect the rank of each argument; remote files are inspected several at a time."""
        if options["stride"] is not None or options["ranks_in_file"] is not None:
            cut = (_cut(path, inputs, options) if isinstance(path, str) else [path] for path in arguments)
            arguments = [*itertools.chain.from_iterable(cut)]
        self.files: list[Any] = []  # of an origin its arrays
        self.arguments: list[Any] = []  # the arguments of these files
        self.skipped: list[Skipped] = []
        self.first: tuple[int, Any] | None = None  # number and file of the first good rank
        self.alike = True  # whether the ranks are known to differ by their sources alone
        errors = list[MpiredError | OSError]()
        with prefetch_ranks(arguments, inputs.context) as context:
            inputs = inputs._replace(context=context)  # one context for all ranks: it remembers the last header
            for number, argument in enumerate(arguments):
                interrupts.raise_pending()
                try:
                    file = inspect(self, argument, inputs, number)
                except (MpiredError, OSError, ExceptionGroup) as error:
                    causes = getattr(error, "exceptions", [error])
                    if options["skip_bad"]:
                        if not all(map(is_of_rank, causes)):
                            raise causes[0] from None
                        causes = [cause.with_traceback(None) for cause in causes]  # frees the frames of skipped ranks
                    errors += causes
                    self.skipped.append(Skipped(number, *parts(causes[0])))
                else:
                    self.first = self.first or (number, file)
                    self.files.append(file)
                    self.arguments.append(argument)
        if errors or options["min_inputs"] is not None:
            self._check(errors, options, noun)

    def _check(self, errors: Sequence[MpiredError | OSError], options: Options, noun: str) -> None:
        """Raise one error for all problems, unless bad ranks are skipped and enough good ones are left."""
        total = len(self.files) + len(self.skipped)
        is_usage = not self.files and all(isinstance(error, UsageError) for error in errors)
        if errors and (is_usage or not options["skip_bad"]):
            distinct = list({str(error): error for error in errors}.values())
            if len(distinct) == 1:  # an error of an option is raised once
                raise distinct[0]
            mpired_errors = [error for error in distinct if isinstance(error, MpiredError)]
            if len(mpired_errors) == len(distinct) and len({error.subject for error in mpired_errors}) == 1:
                raise merged(mpired_errors)
            raise RanksError(total, errors, noun, nbad=len(self.skipped))
        minimum = options["min_inputs"] or min(1, total)
        if len(self.files) < minimum:
            details = f": {RanksError(total, errors, noun).reason}" if errors else ""
            reason = f"{len(self.files)} can be used, and `min_inputs` is {minimum}{details}"
            raise CountError(noun, reason, errors)


def open_groups(
    groups: Sequence[Sequence[RankArgument]],
    inputs: InputOptions,
    options: Options,
    *,
    raw_result: bool = False,
    check: Check | None = None,
) -> list[OpenedRanks]:
    """Inspect each rank and compare it with the first good rank of its group, and the groups by their first ranks."""
    if not all(groups):
        raise UsageError("ranks", "there are none; name at least one file")
    opened = [OpenedRanks(arguments, inputs, options, partial(_inspect, check)) for arguments in groups]
    files = [*opened[0].files]
    for ranks in opened[1:]:
        reference = "rank 0 of group A", files[0]
        ranks.alike = compare("rank 0 of group B", ranks.files[0], reference, inputs) and ranks.alike
        files += ranks.files
    if inputs.is_particular:
        check_formats(inputs, {file.format for file in files}, raw_result=raw_result)
    pipes: dict[tuple[int, int], str] = {}
    for source in (file.source.packed or file.source for file in files if file.source.is_sequential):
        pipe: tuple[int, int] | None = getattr(source, "pipe", None)
        if pipe in pipes:  # each rank would get a part of the bytes
            raise UsageError(source.name, f"is the same pipe as {pipes[pipe]!r}, and can be one rank only")
        if pipe is not None:
            pipes[pipe] = source.name
    return opened


def _inspect(
    check: Check | None, ranks: OpenedRanks, argument: RankArgument, inputs: InputOptions, rank: int
) -> RankFile:
    """Return the file of a rank; raise an `ExceptionGroup` of its faults, compared with the first good rank."""
    file = open_rank(argument, inputs)
    if ranks.first and file.names and (reordered_file := file.in_order_of(ranks.first[1])) is not file:
        file = reordered_file
        if not file.format.has_arrays:
            log.plan("columns match by name: some ranks have them in another order")
    number, first = ranks.first or (rank, file)
    if check is not None:
        check(file, rank, (number, first))
        return file
    is_plain = not file.others and len(file.buffers) == 1 and not file.buffers[0].nulls  # as in most files
    errors = [] if is_plain else file.errors(inputs.op_groups, complete=not inputs.in_place, keeps=True)
    try:
        if not errors and first is not file:
            ranks.alike = compare(f"rank {rank}", file, (f"rank {number}", first), inputs) and ranks.alike
    except MpiredError as error:
        errors.append(error)
    try:
        kept = None if first is file else first.kept
        if file.kept and kept and kept.kind == "arrays" and inputs.check_coordinates:
            kept.check_same(file.kept, f"rank {number}")
    except MpiredError as error:
        errors.append(error)
    if errors:
        raise ExceptionGroup("obstacles", errors)
    return file


def warn_of_units(groups: Sequence[Sequence[RankFile]]) -> None:
    """Warn of the first rank in which a buffer has another unit than in the first rank, if both have one."""
    first = groups[0][0]
    for position, buffer in enumerate(first.buffers):
        for file in itertools.chain(*groups) if buffer.unit else ():
            unit = file.buffers[position].unit
            if unit not in ("", buffer.unit):
                difference = f"{file.source.name!r} has {buffer.name} in {unit!r}"
                difference += f", but {first.source.name!r} has it in {buffer.unit!r}"
                hint = "convert one of them if the units differ"
                log.warn(InputWarning(f"{difference}, and the numbers are combined as they are; {hint}"))
                break


def is_of_rank(error: MpiredError | OSError) -> bool:
    """Return whether an error is a permanent fault of a rank; a file that is being replaced is good a moment later."""
    if isinstance(error, MpiredError):
        return not isinstance(error, ChangedError) and exit_status(error) in _RANK_STATUSES
    return error.errno not in _SYSTEM_ERRNOS


def skipped_warning(skipped: Sequence[Skipped], nranks: int, noun: str = "ranks") -> SkippedWarning:
    """Return the warning of skipped ranks, out of `nranks`."""
    errors = [MpiredError(rank.file, rank.reason) for rank in skipped]
    reasons = RanksError(nranks, errors, noun).reason
    return SkippedWarning(f"{len(skipped)} of {nranks} {noun} left out: {reasons}", skipped)


def _cut(path: str, inputs: InputOptions, options: Options) -> list[RankInFile]:
    """Return the ranks in a raw file: each begins `stride` bytes after the last, or there are `ranks_in_file`."""
    stride, nranks = options["stride"], options["ranks_in_file"]
    option = "`ranks_in_file`" if stride is None else "`stride`"
    datatype = inputs.datatype
    if datatype is None:
        raise UsageError(option, "is for raw files, which do not store the type of their elements; give `type`")
    check_holds_several(path)
    if codecs.by_suffix(path):
        raise BufferFileError(path, "is compressed, and only raw files hold several ranks; decompress it first")
    nbytes = open_source(path, inputs.context).nbytes - inputs.offset
    if nbytes < 0:
        raise CountError(path, f"has fewer bytes than `offset={inputs.offset}` skips")
    if stride is None:
        assert nranks is not None  # noqa: S101 - one of both is set
        stride, remainder = divmod(nbytes, nranks)
        if remainder or not stride:
            raise CountError(path, f"{nbytes} bytes do not make {nranks} ranks of the same length")
    itemsize = datatype.extent if inputs.spreads(datatype) else inputs.stored(datatype).itemsize
    count, remainder = divmod(stride, itemsize) if inputs.count is None else (inputs.count, 0)
    if remainder:
        reason = f"a rank of {stride} bytes has no whole number of elements of {datatype.label}, of {itemsize} bytes"
        reason = f"{reason}; say with `count` how many it has"
        # With `ranks_in_file` the length of a rank follows from the file.
        raise UsageError(option, reason) if nranks is None else CountError(path, reason)
    needed = count * itemsize
    if needed > stride:
        raise UsageError(option, f"a rank has {stride} bytes, fewer than the {needed} of `count={count}`")
    held = (nbytes + stride - max(needed, 1)) // stride  # number of ranks, of which the last may end after its elements
    if nranks is not None and held < nranks:
        raise CountError(path, f"holds {held} ranks of {stride} bytes, fewer than `ranks_in_file={nranks}`")
    if nranks is None and (nbytes > held * stride or not held):
        raise CountError(path, f"{nbytes} bytes are not a multiple of the {stride} bytes of a rank")
    return [RankInFile(path, rank * stride, count) for rank in range(held if nranks is None else nranks)]


def in_one_order(groups: Sequence[Sequence[RankFile]], root: int) -> tuple[tuple[RankFile, ...], ...]:
    """Return all ranks with the elements of their arrays in the order of the root: C or Fortran."""
    if not any(buffer.fortran_order for group in groups for file in group for buffer in file.buffers):
        return tuple(map(tuple, groups))
    # If the root's array has no shape, the order is that of the first rank with a shape.
    files = [*groups[0][root : root + 1], *itertools.chain(*groups)]
    columns = zip(*(file.buffers for file in files), strict=True)
    orders = [next((array.fortran_order for array in ranks if array.shape is not None), False) for ranks in columns]
    return tuple(tuple(_reorder(file, orders) for file in group) for group in groups)


def _reorder(file: RankFile, orders: Sequence[bool]) -> RankFile:
    """Return a rank with each array in C order, or in Fortran order where `orders` is true."""
    arrays = []
    for array, fortran_order in zip(file.buffers, orders, strict=True):
        arrays.append(ordered := in_order(array, fortran_order=fortran_order))
        if ordered.shape is not None and ordered.fortran_order != fortran_order:
            reason = f"its format cannot be read in {'Fortran' if fortran_order else 'C'} order, the root's"
            raise CountError(file.source.name, f"{reason}; save all ranks in one order")
    return file._replace(buffers=tuple(arrays))


def check_formats(inputs: InputOptions, formats: Collection[Format], *, raw_result: bool = False) -> None:
    """Raise `UsageError` if an option has no meaning for files of any of the formats."""
    exempt = {"byte_order", "datarep"} if raw_result else set()  # of the result
    exempt |= {"check_coordinates"} if inputs.keep else set()  # of kept columns
    for field, files, options in _FORMAT_OPTIONS:
        names = [name for name in options if getattr(inputs, name) != getattr(_NO_OPTIONS, name) and name not in exempt]
        if names and not any(getattr(form, field) for form in formats):
            subject = " and ".join(f"`{name}`" for name in names)
            pronoun = "it" if len(names) == 1 else "them"
            raise UsageError(subject, f"only for {files}, and there is none; leave {pronoun} out")


def compare(label: str, file: RankFile, reference: tuple[str, RankFile], inputs: InputOptions = _NO_OPTIONS) -> bool:
    """Raise an error if the arrays of a rank do not match those of a reference, both with their labels for messages.

    Return whether the ranks differ by their sources alone.
    """
    arrays, models = file.buffers, reference[1].buffers
    pairs = zip(arrays, models, strict=False)
    if len(arrays) == len(models) and not any(array.reader or array[1:] != model[1:] for array, model in pairs):
        return True
    labels = label, f"{reference[0]} ({reference[1].source.name!r})"
    check_alike(file, models, labels, HINTS, partial(_datatype_hint, inputs, arrays, models))
    return False


def check_alike(
    file: RankFile,
    models: Sequence[Array],
    labels: tuple[str, str],
    hints: Mapping[str, str],
    datatype_hint: Callable[[int], str | None],
) -> None:
    """Raise an error if the arrays of a file differ from others, with the labels of both, or "", in the message.

    `hints` has the end of the message for each kind of difference that is an error. `datatype_hint` returns the end for
    the datatypes of the arrays in a position, or None if these may differ.
    """
    has, other, names = f"{labels[0]} has".lstrip(), labels[1], [array.name for array in file.buffers]
    if len(names) != len(models):
        short = other.partition(" (")[0] if other.endswith(")") else other  # without a path in parentheses
        lacking = missing_arrays_text("this file", names, short, [model.name for model in models])
        noun = file.format.noun if file.format else "array"
        reason = f"{has} {number(len(names), noun)}, but {other} has {len(models)}{lacking}"
        raise CountError(file.source.name, f"{reason}{hints['number']}")
    for i, (array, model) in enumerate(zip(file.buffers, models, strict=True)):
        for kind, value, expected in _differences(array, model):
            if (hint := datatype_hint(i) if kind == "datatype" else hints.get(kind)) is not None:
                error = DatatypeError if kind in {"name", "datatype", "fields"} else CountError
                raise error(array.source.name, f"{has} {value}, but {other} has {expected}{hint}")


def _differences(array: Array, model: Array) -> Iterator[tuple[str, str, str]]:
    """Yield the kinds of differences between two arrays, each with the values of both for messages."""
    dims, others = array.dims, model.dims
    pairs = zip(dims, others, strict=True) if len(dims) == len(others) else ()
    if any(dim != other and dim in others and not dim.startswith("phony_dim_") for dim, other in pairs if dim):
        yield "dims", f"dimensions ({', '.join(dims)})", f"({', '.join(others)})"
    if array.name and model.name and array.name != model.name:
        yield "name", repr(array.name), repr(model.name)
    where = f" in {array.name!r}" if array.name else ""
    if array.datatype != model.datatype:
        yield "datatype", f"datatype {array.datatype.label}{where}", model.datatype.label
    fields, expected = array.stored.names or (), model.stored.names or ()
    if fields != expected and {*fields} == {*expected} != {*(array.datatype.form.names or ())}:
        yield "fields", f"fields {', '.join(map(escaped, fields))}", ", ".join(map(escaped, expected))
    sizes = [("count", array.count, model.count), ("shape", array.shape, model.shape)]
    if array.shape is not None and model.shape is not None and len(array.shape) != len(model.shape):
        sizes.reverse()  # such as strings beside their characters
    for noun, size, expected_size in sizes:
        if size != expected_size and not {None, UNKNOWN_COUNT} & {size, expected_size}:
            yield noun, f"{noun} {size}{where}", f"{expected_size}"


def _datatype_hint(inputs: InputOptions, arrays: Sequence[Array], models: Sequence[Array], i: int) -> str | None:
    """Return the hint about the datatypes of two ranks; None if the op computes in a wider one."""
    op, both, hint = inputs.op, (arrays[i].datatype, models[i].datatype), ""
    if op is not None:
        if ops.widest(op, both) is not None:
            return None
        wide = ops.widening(op, [(a.datatype, b.datatype) for a, b in zip(arrays, models, strict=True)])
        # The last rank of reduce-local is replaced, and must keep its datatype.
        if wide and not (inputs.in_place and ops.widest(op, both, real_type(wide)) != both[0]):
            hint = f", compute in a wider one with `accumulate_in={wide!r}`"
            if inputs.op_groups == Group(0):  # ops of pairs and of plain values
                hint += " and `index='rank'`"
    return f"; convert to one datatype{hint}{_OR_SKIP}"
