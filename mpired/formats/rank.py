"""The file of a rank: with one array, or with several, which are chosen by their names or by patterns of them."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpired import values
from mpired.context import NO_LIMITS, Context
from mpired.datatypes import Datatype, Group, agrees, from_dtype, value_index, with_fields
from mpired.datatypes.pairs import FIELDS
from mpired.errors import BufferFileError, DatatypeError, MpiredError, UsageError, escaped, merged
from mpired.formats.array import Array
from mpired.formats.input_options import ORDERS, InputOptions
from mpired.formats.missing import null_error
from mpired.sources.source import Source

_FEW = 20  # names in a message
_SIGNS = frozenset("*?[")  # of patterns
ELSEWHERE = "is stored in another file"
NO_DATATYPE = ", which no MPI datatype has; convert them to numbers"


class SkippedArray(NamedTuple):
    """An array that cannot be combined, and why."""

    name: str
    type: str  # what its elements are
    reason: str  # why it cannot be combined, for an error of the file
    count: int | None = None  # type: ignore[assignment]  # tuples are not counted
    shape: tuple[int, ...] | None = None
    label: str = ""  # what its elements are, in words; "" for the type
    hint: str = ""  # what can be done about it; "" for nothing
    # the group of its datatype if it can be combined when it is chosen, None if it cannot
    group: Group | None = None
    nulls: int | None = None  # how many values are missing; None if that is not known
    keeps: bool = True  # results can carry it
    unit: str = ""
    storage: str = ""  # how the values of an array are stored, in a few words


Kept: TypeAlias = Any
"""Arrays that a result has as the modelled file has them: an `arrays.KeptArrays`, or a `columns.TableHeader`."""


class Cells(NamedTuple):
    """Changes of a result against its model: other units, and other times where ranks are different times."""

    values: Mapping[str, np.ndarray] = {}  # of carried arrays
    attributes: Mapping[str, Mapping[str, str]] = {}  # those of combined arrays that are new; "" for those that go

    def staying(self, name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of the model of an array without those that go."""
        changes = self.attributes.get(name, {})
        return {key: value for key, value in attributes.items() if changes.get(key) != ""}


class Model(NamedTuple):
    """The model of a result."""

    format: str  # the name of the format that the result has unless the user wants another
    buffers: tuple[Array, ...]  # its arrays, one at least
    # a file of that format, from which the result has the schema and the compression, or the spelling of a header
    source: Source | None = None
    kept: Kept | None = None  # columns that the result has too
    cells: Cells = Cells()
    provenance: Any = None  # its `text` says where the result comes from
    context: Context = NO_LIMITS
    has_history: bool = False  # whether its file gets the attribute `history` if that of the first rank has none

    @property
    def subject(self) -> str:
        """The file that errors are of."""
        return "the result" if self.source is None else self.source.name

    def declared(self, inputs: InputOptions) -> Model:
        """Return the model of a raw result with the declared byte order and data representation."""
        ordered = ((each, each.stored.newbyteorder(inputs.order)) for each in self.buffers)
        buffers = (each._replace(stored=form, datarep=inputs.datarep, fixed_order=False) for each, form in ordered)
        return self._replace(buffers=tuple(buffers))


class RankFile(NamedTuple):
    """A rank: its file, and its buffers in order."""

    source: Source
    buffers: Sequence[Array]
    others: Sequence[SkippedArray] = ()  # other arrays of the file, unless columns were chosen
    names: Sequence[str] = ()  # of all its columns or arrays
    format: str = ""  # filled in by its row
    obstacle: str = ""  # why a file that is only looked at has no buffers
    kept: Kept | None = None
    headers: Sequence[Any] = ()  # an `arrays.ArrayHeader` for each array that is combined, in formats with attributes
    noun: str = "array"  # the format's word for one
    shards: Sequence[Source] = ()  # the files with its elements, if the source is only their index
    unkept: Sequence[SkippedArray] = ()  # arrays that a pattern of `keep` matches, and that results cannot carry

    def __repr__(self) -> str:
        """Say what `mpired info` says, on one line."""
        what = [(each.name, f"{each.count} x {each.datatype.label}") for each in self.buffers]
        what += [(each.name, f"{each.type}, no buffer") for each in self.others]
        texts = (f"{name}: {text}" if name else text for name, text in what)
        return f"<{self.format} file {self.source.name!r}: {', '.join(texts) or 'no buffer'}>"

    @property
    def sources(self) -> tuple[Source, ...]:
        """All files that it is read from: without an index the shards alone."""
        return (self.source, *self.shards) if self.source.nbytes or not self.shards else tuple(self.shards)

    @property
    def left_out(self) -> list[str]:
        """The names of those that results like this file have neither combined nor carried."""
        there = {name for each in self.buffers for name in each.columns}.union(self.kept.names if self.kept else ())
        return [name for name in self.names if name not in there]

    def ordered_as(self, other: RankFile) -> RankFile:
        """Return it with its buffers in the order of another file's, if they have the same names."""
        names, own = [each.name for each in other.buffers], {each.name: each for each in self.buffers}
        if names == list(own) or own.keys() != set(names):
            return self
        return self._replace(buffers=[own[name] for name in names])

    def check(self, taken: Group | None = None, *, complete: bool = False) -> None:
        """Raise an error if no column is a buffer, one has nulls, or, of a `complete` file, one is not a buffer."""
        is_plain = self.buffers and not any(each.nulls for each in self.buffers)
        if (complete or not is_plain) and (errors := self.obstacles(taken, complete=complete)):
            raise merged(errors)

    def obstacles(self, taken: Group | None = None, *, complete: bool = True, keeps: bool = False) -> list[MpiredError]:
        """Return an error for each reason why a column is not a buffer: to leave one out is the user's decision."""
        unused = self.others if complete or not self.buffers else ()
        # Columns are offered whose datatypes are `taken` by the op, or the others, if the result `keeps` them.
        errors: list[MpiredError] = []
        if lacking := [each for each in self.buffers if each.nulls and not each.nullable]:
            array, *others = lacking
            more = also([",".join(each.columns) for each in others])
            errors.append(null_error(self.source, array.columns, array.nulls or 0, more=more))
        alike = reasons(unused)
        ways: list[str] = []  # out of all these reasons, which the last one has
        if self.names:
            groups = [(each.name, each.datatype.group) for each in self.buffers]
            groups += [(each.name, each.group) for each in unused if each.group is not None and not each.nulls]
            ways.append(choice(groups, taken))
            names = [each.name for each in unused]
            if keeps and ways[0] and len(set(names)) == len(names) and all(each.keeps for each in unused):
                ways.append(f"carry what all ranks have in common with `keep='{values.listed(names)}'`")
        for number, (reason, same) in enumerate(alike.items(), 1):
            own = max((each.hint for each in same), key=len)
            ends = hint_text(own, *(ways if number == len(alike) else ()))
            errors.append(DatatypeError(self.source.name, f"{reason}{ends}"))
        if not self.buffers and not unused:
            reason, carried = "holds no array or column", self.kept.names if self.kept else ()
            if carried:
                reason = f"has no {self.noun} to combine, because results carry {some_names(carried)}"
                reason += "; choose those to combine with `columns`"
            errors.append(BufferFileError(self.source.name, reason))
        return errors

    def only_buffer(self) -> Array:
        """Return the one buffer, where only one can be used."""
        self.check()
        if len(self.buffers) > 1:
            names = ", ".join(buffer.name for buffer in self.buffers)
            reason = f"holds {len(self.buffers)} {self.noun}s ({names}), and one is needed; choose one with `columns`"
            raise UsageError(self.source.name, reason)
        return self.buffers[0]


def reasons(others: Iterable[SkippedArray]) -> dict[str, list[SkippedArray]]:
    """Return arrays that are not combined or carried by their reason, which names all that have it."""
    alike: dict[str, list[SkippedArray]] = {}
    for each in others:
        alike.setdefault(each.reason.replace(repr(each.name), "", 1), []).append(each)
    return {f"{first.reason}{also([each.name for each in same])}": [first, *same] for first, *same in alike.values()}


def choice(columns: Sequence[tuple[str, Group]], taken: Group | None) -> str:
    """Return the way out where a column cannot be combined: those that can, by their names and groups; "" for none."""
    names = [name for name, group in columns if taken is None or group in taken]
    if not names and len(columns) > 1 and taken is not None and Group.PAIR in taken:
        return "make pairs of two columns with `pair='VALUE,INDEX'`"
    return f"choose with `columns='{values.listed(names)}'`" if names else ""


def hint_text(*ways: str) -> str:
    """Return the end of a message with the ways out; "" if there are none."""
    there = list(filter(None, ways))
    return f"; {', or '.join(there)}" if there else ""


def element_text(dtype: np.dtype) -> str:
    """Return what messages call elements of a dtype: MPI's name and NumPy's, or their form if no datatype has it."""
    with contextlib.suppress(DatatypeError):
        return from_dtype(dtype).label
    return dtype_text(dtype)


def dtype_text(dtype: np.dtype, byte_order: str | None = None) -> str:
    """Return a short text for a dtype, perhaps in another byte order: `<f8`, or `(<f8, <i4)` for a structure."""
    if byte_order is not None:
        dtype = dtype.newbyteorder(ORDERS[byte_order])
    if dtype.names is None:
        return dtype.str
    fields = [dtype[name] for name in dtype.names]
    return f"({', '.join(each.base.str + ''.join(f'[{n}]' for n in each.shape) for each in fields)})"


def declared(source: Source, inputs: InputOptions, dtype: np.dtype, what: str) -> Datatype:
    """Return the datatype of elements of a dtype, which messages call `what`: the declared one, or their own."""
    if inputs.datatype is None:
        try:
            datatype = from_dtype(dtype)
        except DatatypeError:
            raise DatatypeError(source.name, f"{what} elements of {dtype_text(dtype)}{NO_DATATYPE}") from None
        return with_fields(datatype, dtype.names) if inputs.named else datatype
    check_declared(source, inputs, inputs.datatype, dtype, what)
    return inputs.datatype


# Part of the interface of formats in packages.
def check_declared(source: Source, inputs: InputOptions, datatype: Datatype, dtype: np.dtype, what: str) -> None:
    """Raise `DatatypeError` if elements of a dtype are not of the datatype, or not in the byte order of its type."""
    if not agrees(datatype, dtype):
        raise inputs.refused(source, datatype, f"{what} {element_text(dtype)}")
    if inputs.type_order and dtype.newbyteorder(ORDERS[inputs.type_order]) != dtype:
        what = f"{what} {element_text(dtype)} as {dtype_text(dtype)}"
        raise DatatypeError(source.name, f"{what}, which is not {inputs.type_order}-endian")


def turned(dims: Sequence[str], others: Sequence[str]) -> str | None:
    """Return how the order of the dimensions of two arrays differs, by the names that are in the files."""
    pairs = zip(dims, others, strict=True) if len(dims) == len(others) else ()
    if not any(mine != other and mine in others and not mine.startswith("phony_dim_") for mine, other in pairs if mine):
        return None
    return f"dimensions ({', '.join(dims)}), not ({', '.join(others)}); write all in one order"


def reordered(fields: Sequence[str], others: Sequence[str], datatype: Datatype) -> str | None:
    """Return how the order of the fields of two structures differs, unless the datatype finds them by their names."""
    if list(fields) == list(others) or set(fields) != set(others) or set(fields) == set(datatype.form.names or ()):
        return None
    return f"fields {', '.join(map(escaped, fields))}, not {', '.join(map(escaped, others))}; save all in one order"


def picked(source: Source, names: Iterable[str], wanted: Sequence[str], what: str) -> list[str]:
    """Return the names that are wanted, in that order; a pattern stands for those that it matches, as in a shell."""
    there = dict.fromkeys(names)
    found: dict[str, None] = {}
    for name in wanted:
        some = [name] if name in there else [each for each in there if fnmatch.fnmatchcase(each, name)]
        is_pattern = bool(_SIGNS & set(name))
        if not some or (name not in there and not is_pattern):
            pattern = " like" if is_pattern else ""
            raise BufferFileError(
                source.name, f"has no {what}{pattern} {name!r}; its {what}s are {some_names([*there])}"
            )
        found |= dict.fromkeys(some)
    return list(found)


def chosen(source: Source, names: Collection[str], inputs: InputOptions) -> tuple[dict[str, None], dict[str, None]]:
    """Return the names of the arrays that are combined, none if all others are, and of those that are kept."""
    # A name goes before a pattern, and of two patterns that of the arrays that are combined.
    free = [name for name in names if name not in inputs.keep]
    combined = dict.fromkeys(picked(source, free, inputs.pair or inputs.columns, inputs.noun))
    if inputs.pair and len(combined) != 2:  # noqa: PLR2004 - a pair
        raise UsageError("`pair`", f"means the {inputs.noun}s {some_names([*combined])} of {source.name}; name two")
    kept = (name for name in picked(source, names, inputs.keep, inputs.noun) if name not in combined)
    return combined, dict.fromkeys(kept)


def some_names(names: Sequence[str]) -> str:
    """Return some names, the first ones of many."""
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"{', '.join(map(repr, names[:_FEW])) or 'none'}{more}"


def also(names: Sequence[str]) -> str:
    """Return what a message about the first of some columns adds for the others."""
    return f" (also {some_names(names)})" if names else ""


def lacking(this: str, mine: Sequence[str], other: str, theirs: Sequence[str]) -> str:
    """Say which buffers each of two lacks that the other has, for the end of a message; "" if some have no names."""
    if not all([*mine, *theirs]):
        return ""
    text = ""
    for who, names, others in ((this, mine, theirs), (other, theirs, mine)):
        own = set(names)
        if lacks := [name for name in others if name not in own]:
            text += f", and {who} lacks {some_names(lacks)}"
    return text


def check_pair(source: Source, pair: Sequence[str], dtype: np.dtype, what: str) -> None:
    """Raise `DatatypeError` if two columns or arrays of numbers, `dtype` together, are not a value and an index."""
    if from_dtype(dtype).group is Group.PAIR:
        return
    value, index = (from_dtype(dtype[name]) for name in FIELDS)
    reason = f"{what} {pair[0]!r}, {value.label}, and {pair[1]!r}, {index.label}, are not a value and an index"
    hint = "an index is an integer"
    if value_index(index, value) is not None:
        hint += f"; `pair='{pair[1]},{pair[0]}'` has them in the other order"
    raise DatatypeError(source.name, f"{reason}; {hint}")
