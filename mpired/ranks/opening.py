"""Ranks that are looked at: what all of them must have in common, and those that cannot be used."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Collection, Sequence
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
    exit_status,
    merged,
    number,
    parts,
)
from mpired.formats import InputOptions, RankFile, format_named, open_rank
from mpired.formats.array import UNKNOWN_COUNT
from mpired.formats.derived import in_order
from mpired.formats.input_options import OF_ARRAYS
from mpired.formats.memory import RankInFile, check_holds_several
from mpired.formats.rank import lacking, reordered, turned
from mpired.ops.rules import real_type
from mpired.ranks.order import RankArgument
from mpired.sources.open import inspected_together, open_source

if TYPE_CHECKING:
    from mpired.options import Options

Check: TypeAlias = Callable[[RankFile, int, tuple[int, RankFile]], object]
"""Checks a file as a rank, beside the first good rank with its number."""

# Errors of the system, not of a rank.
_OF_THE_SYSTEM = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_OR_SKIP = ", or skip the others with `skip_bad`"
_NO_OPTIONS = InputOptions()
# Options that have a meaning for some formats alone: the attribute of their rows, their files in words, the options.
_OPTIONS_OF = (
    ("needs_type", "raw files", ("offset", "count", "byte_order", "datarep")),
    ("has_columns", "files with columns or arrays", ("columns", "pair")),
    ("has_arrays", "files of arrays", OF_ARRAYS),
)
_OF_A_RANK = {2, 3, 4}  # exit statuses: a lock, a worker that died and the like are none


class Skipped(NamedTuple):
    """A rank that was left out: its number among those that were named, its name, and why."""

    rank: int
    file: str
    reason: str


class OpenedRanks:
    """Ranks, or origins, that are opened one after another: those that can be used, and those that are left out."""

    def __init__(
        self,
        named: Sequence[Any],
        inputs: InputOptions,
        options: Options,
        inspect: Callable[[OpenedRanks, Any, InputOptions, int], Any],
        what: str = "ranks",
    ) -> None:
        """Inspect each word, of a number; several at once where each waits for other machines."""
        if options["stride"] is not None or options["ranks_in_file"] is not None:
            named = [
                each for word in named for each in (_cut(word, inputs, options) if isinstance(word, str) else [word])
            ]
        self.files: list[Any] = []  # of an origin its arrays
        self.words: list[Any] = []  # the words for them
        self.skipped: list[Skipped] = []
        self.first: tuple[int, Any] | None = None  # the first good rank, and its number
        self.alike = True  # whether the ranks differ by their sources alone, as far as that is known
        skips, found = options["skip_bad"], list[MpiredError | OSError]()
        with inspected_together(named, inputs.context) as context:
            inputs = inputs._replace(context=context)  # one for all: by it a header is remembered
            for number, word in enumerate(named):
                interrupts.raise_pending()
                try:
                    file = inspect(self, word, inputs, number)
                except (MpiredError, OSError, ExceptionGroup) as error:  # a rank may have several
                    errors = getattr(error, "exceptions", [error])
                    if skips and not all(map(is_of_rank, errors)):
                        raise errors[0] from None
                    found += [each.with_traceback(None) for each in errors] if skips else errors
                    self.skipped.append(Skipped(number, *parts(errors[0])))
                else:
                    self.first = self.first or (number, file)
                    self.files.append(file)
                    self.words.append(word)
        if found or options["min_inputs"] is not None:
            self._check(found, options, what)

    def _check(self, errors: Sequence[MpiredError | OSError], options: Options, what: str) -> None:
        """Raise one error for all that is wrong, unless these ranks are skipped and enough are left."""
        total = len(self.files) + len(self.skipped)
        is_usage = not self.files and all(isinstance(error, UsageError) for error in errors)
        if errors and (is_usage or not options["skip_bad"]):
            distinct = list({str(error): error for error in errors}.values())
            own = [error for error in distinct if isinstance(error, MpiredError)]
            if len(distinct) == 1:  # an error of an option is raised once
                raise distinct[0]
            if len(own) == len(distinct) and len({error.subject for error in own}) == 1:
                raise merged(own)
            raise RanksError(total, errors, what, nbad=len(self.skipped))
        least = options["min_inputs"] or min(1, total)
        if len(self.files) < least:
            wrong = f": {RanksError(total, errors, what).reason}" if errors else ""
            reason = f"{len(self.files)} can be used, and `min_inputs` is {least}{wrong}"
            raise CountError(what, reason, errors)


def open_groups(
    groups: Sequence[Sequence[RankArgument]],
    inputs: InputOptions,
    options: Options,
    *,
    raw_result: bool = False,
    check: Check | None = None,
) -> list[OpenedRanks]:
    """Inspect every rank's header, and compare it with the first good one; group B's first with that of group A."""
    if not all(groups):
        raise UsageError("ranks", "there are none; name at least one file")
    opened = [OpenedRanks(words, inputs, options, partial(_inspect, check)) for words in groups]
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
        if pipe in pipes:  # each would get a part of its bytes
            raise UsageError(source.name, f"is the same pipe as {pipes[pipe]!r}, and can be one rank only")
        if pipe is not None:
            pipes[pipe] = source.name
    return opened


def _inspect(check: Check | None, ranks: OpenedRanks, word: RankArgument, inputs: InputOptions, rank: int) -> RankFile:
    """Return the file of a rank, or raise all that is wrong with it, beside the first good one."""
    file = open_rank(word, inputs)
    if ranks.first and file.names and (matched := file.ordered_as(ranks.first[1])) is not file:
        file = matched
        if not format_named(file.format).has_arrays:
            log.plan("columns match by name: some ranks have them in another order")
    number, first = ranks.first or (rank, file)
    if check is not None:
        check(file, rank, (number, first))
        return file
    is_plain = not file.others and len(file.buffers) == 1 and not file.buffers[0].nulls  # as most files
    errors = [] if is_plain else file.obstacles(inputs.taken, complete=not inputs.in_place, keeps=True)
    try:
        if not errors and first is not file:
            ranks.alike = compare(f"rank {rank}", file, (f"rank {number}", first), inputs) and ranks.alike
    except MpiredError as error:
        errors.append(error)
    try:  # only formats of arrays carry others
        kept = None if first is file else first.kept
        if file.kept and kept and kept.kind == "arrays" and inputs.check_coordinates:
            kept.check_same(file.kept, f"rank {number}")
    except MpiredError as error:
        errors.append(error)
    if errors:
        raise ExceptionGroup("obstacles", errors)
    return file


def warn_of_units(groups: Sequence[Sequence[RankFile]]) -> None:
    """Warn of the first rank in which a buffer has another unit than in the first rank, if both name one."""
    first = groups[0][0]
    for place, buffer in enumerate(first.buffers):
        for file in itertools.chain(*groups) if buffer.unit else ():
            unit = file.buffers[place].unit
            if unit not in ("", buffer.unit):
                what = f"{file.source.name!r} has {buffer.name} in {unit!r}"
                what += f", but {first.source.name!r} has it in {buffer.unit!r}"
                hint = "convert one of them if the units differ"
                log.warn(InputWarning(f"{what}, and the numbers are combined as they are; {hint}"))
                break


def is_of_rank(error: MpiredError | OSError) -> bool:
    """Return whether an error is of a rank, and permanent: a file that is being replaced is good a moment later."""
    if isinstance(error, MpiredError):
        return not isinstance(error, ChangedError) and exit_status(error) in _OF_A_RANK
    return error.errno not in _OF_THE_SYSTEM


def skipped_warning(skipped: Sequence[Skipped], nranks: int, what: str = "ranks") -> SkippedWarning:
    """Return the warning of the ranks that were left out of `nranks`."""
    errors = [MpiredError(each.file, each.reason) for each in skipped]
    reasons = RanksError(nranks, errors, what).reason
    return SkippedWarning(f"{len(skipped)} of {nranks} {what} left out: {reasons}", skipped)


def _cut(path: str, inputs: InputOptions, options: Options) -> list[RankInFile]:
    """Return the ranks in a raw file, which lie `stride` bytes apart, or are `ranks_in_file` of the same length."""
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
        assert nranks is not None  # noqa: S101 - one of both is given
        stride, rest = divmod(nbytes, nranks)
        if rest or not stride:
            raise CountError(path, f"{nbytes} bytes do not make {nranks} ranks of the same length")
    itemsize = datatype.extent if inputs.spreads(datatype) else inputs.stored(datatype).itemsize
    count, rest = (stride // itemsize, stride % itemsize) if inputs.count is None else (inputs.count, 0)
    if rest:
        reason = f"a rank of {stride} bytes has no whole number of elements of {datatype.label}, of {itemsize} bytes"
        reason = f"{reason}; say with `count` how many it has"
        # With the number of ranks their length follows from the file.
        raise UsageError(option, reason) if nranks is None else CountError(path, reason)
    needed = count * itemsize
    if needed > stride:
        raise UsageError(option, f"a rank has {stride} bytes, fewer than the {needed} of `count={count}`")
    there = (nbytes + stride - max(needed, 1)) // stride
    if nranks is not None and there < nranks:
        raise CountError(path, f"holds {there} ranks of {stride} bytes, fewer than `ranks_in_file={nranks}`")
    if nranks is None and (nbytes > there * stride or not there):
        raise CountError(path, f"{nbytes} bytes are not a multiple of the {stride} bytes of a rank")
    return [RankInFile(path, rank * stride, count) for rank in range(there if nranks is None else nranks)]


def in_one_order(groups: Sequence[Sequence[RankFile]], root: int) -> tuple[tuple[RankFile, ...], ...]:
    """Return all ranks with the elements of arrays in the order of the root's: C or Fortran."""
    # If the root's file has no shape, the order is that of the first rank that has one.
    if not any(buffer.fortran_order for group in groups for file in group for buffer in file.buffers):
        return tuple(map(tuple, groups))
    files = [*groups[0][root : root + 1], *itertools.chain(*groups)]
    columns = zip(*(file.buffers for file in files), strict=True)
    orders = [next((each.fortran_order for each in ranks if each.shape is not None), False) for ranks in columns]
    return tuple(tuple(_ordered(file, orders) for file in group) for group in groups)


def _ordered(file: RankFile, orders: Sequence[bool]) -> RankFile:
    """Return a rank with each buffer in its order, Fortran or not."""
    buffers = tuple(in_order(each, fortran_order=order) for each, order in zip(file.buffers, orders, strict=True))
    for buffer, fortran_order in zip(buffers, orders, strict=True):
        if buffer.shape is not None and buffer.fortran_order != fortran_order:
            reason = f"its format cannot be read in {'Fortran' if fortran_order else 'C'} order, the root's"
            raise CountError(file.source.name, f"{reason}; save all ranks in one order")
    return file._replace(buffers=buffers)


def check_formats(inputs: InputOptions, formats: Collection[str], *, raw_result: bool = False) -> None:
    """Raise `UsageError` if an option has no meaning for files of any of the formats."""
    others = {"byte_order", "datarep"} if raw_result else set()  # options that have a meaning besides
    others |= {"check_coordinates"} if inputs.keep else set()  # of kept columns
    for has_these, files, options in _OPTIONS_OF:
        names = [each for each in options if getattr(inputs, each) != getattr(_NO_OPTIONS, each) and each not in others]
        if names and not any(getattr(format_named(name), has_these) for name in formats):
            what = " and ".join(f"`{name}`" for name in names)
            them = "it" if len(names) == 1 else "them"
            raise UsageError(what, f"only for {files}, and there is none; leave {them} out")


def compare(this: str, file: RankFile, reference: tuple[str, RankFile], inputs: InputOptions = _NO_OPTIONS) -> bool:
    """Raise an error if a rank's buffers are not like those of the reference, which has its name in words.

    Return whether they differ by their sources alone.
    """
    mine, theirs = file.buffers, reference[1].buffers
    if len(mine) != len(theirs):
        reason = f"{this} has {number(len(mine), file.noun)}, but {_named(reference)} has {len(theirs)}"
        names = [each.name for each in mine], reference[0], [each.name for each in theirs]
        ways = f"choose those of all with `columns`{_OR_SKIP}"
        raise CountError(file.source.name, f"{reason}{lacking('this file', *names)}; {ways}")
    alike = True
    for at, (buffer, like) in enumerate(zip(mine, theirs, strict=True)):
        if buffer.dims and (how := turned(buffer.dims, like.dims)):
            raise CountError(file.source.name, f"{this} has {how}, as in {_named(reference)}")
        if buffer.reader or buffer[1:] != like[1:]:
            alike = False
            _compare_buffers(this, file, reference, at, inputs)
    return alike


def _named(reference: tuple[str, RankFile]) -> str:
    """Return what messages call the reference; thousands of ranks are like it, and need none."""
    return f"{reference[0]} ({reference[1].source.name!r})"


def _compare_buffers(this: str, file: RankFile, reference: tuple[str, RankFile], at: int, inputs: InputOptions) -> None:
    op, buffer, like = inputs.op, file.buffers[at], reference[1].buffers[at]
    path = buffer.source.name
    where = f" in {buffer.name!r}" if buffer.name else ""
    if buffer.name and like.name and buffer.name != like.name:
        reason = f"{this} has {buffer.name!r} where {_named(reference)} has {like.name!r}"
        raise DatatypeError(path, f"{reason}; choose those of all with `columns`{_OR_SKIP}")
    both = buffer.datatype, like.datatype
    if both[0] != both[1] and (op is None or ops.widest(op, both) is None):
        pairs = [(a.datatype, b.datatype) for a, b in zip(file.buffers, reference[1].buffers, strict=True)]
        wider, wide = "", "" if op is None else ops.widening(op, pairs)
        # A file that is replaced, the last one, has no place for another datatype.
        if op is not None and wide and not (inputs.in_place and ops.widest(op, both, real_type(wide)) != both[0]):
            wider = f", compute in a wider one with `accumulate_in={wide!r}`"
            if inputs.taken == Group(0):  # ops of pairs and of plain values
                wider += " and `index='rank'`"
        reason = f"{this} has datatype {both[0].label}{where}, but {_named(reference)} has {both[1].label}"
        raise DatatypeError(path, f"{reason}; convert to one datatype{wider}{_OR_SKIP}")
    if how := reordered(buffer.stored.names or (), like.stored.names or (), buffer.datatype):
        raise DatatypeError(path, f"{this} has {how}, as in {_named(reference)}")
    sizes = [("count", buffer.count, like.count), ("shape", buffer.shape, like.shape)]
    if buffer.shape is not None and like.shape is not None and len(buffer.shape) != len(like.shape):
        sizes.reverse()  # such as strings beside their characters
    for what, own, theirs in sizes:
        if own != theirs and not {None, UNKNOWN_COUNT} & {own, theirs}:
            reason = f"{this} has {what} {own}{where}, but {_named(reference)} has {theirs}"
            raise CountError(path, f"{reason}; give ranks of one {what}{_OR_SKIP}")
