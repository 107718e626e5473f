"""Descriptions of files: the arrays that are combined, kept or skipped, and the errors that explain it.

`RankFile` is the result of the `inspect` function of a format, and `Model` the input of its `prepare` function.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpired import values
from mpired.context import NO_LIMITS, Context
from mpired.datatypes import Datatype, Group, from_dtype, has_same_components, rename_fields, value_index
from mpired.datatypes.predefined import FIELDS
from mpired.errors import BufferFileError, DatatypeError, MpiredError, UsageError, merged
from mpired.formats.array import Array
from mpired.formats.input_options import ORDERS, InputOptions
from mpired.sources.source import Source

_MAX_NAMES_SHOWN = 20
_WILDCARDS = frozenset("*?[")
ELSEWHERE = "is stored in another file"
NO_DATATYPE = ", which no MPI datatype has; convert them to numbers"


class SkippedArray(NamedTuple):
    """An array that cannot be combined, and why."""

    name: str
    type: str  # type of its elements in the file
    reason: str  # reason why it cannot be combined, for an error of the file
    count: int | None = None  # type: ignore[assignment]  # tuples are not counted
    shape: tuple[int, ...] | None = None
    label: str = ""  # description of its elements, or "" if `type` is clear
    hint: str = ""  # way to combine it after all, or ""
    group: Group | None = None  # group of its datatype if it is combined when it is chosen, else None
    nulls: int | None = None  # number of missing values, or None if it is not known
    keeps: bool = True  # results can keep it
    unit: str = ""
    storage: str = ""  # kind of storage, in a few words


KeptContent: TypeAlias = Any
"""Arrays or columns that a result copies from its model, see `keep`: `arrays.KeptArrays` or `columns.TableHeader`."""


class Cells(NamedTuple):
    """Changes of a result against its model: new units, and new times if the ranks are different times."""

    values: Mapping[str, np.ndarray] = {}  # new values of kept arrays
    attributes: Mapping[str, Mapping[str, str]] = {}  # new attributes of combined arrays; "" removes an attribute

    def remaining_attributes(self, name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of the model of an array without those that are removed."""
        changes = self.attributes.get(name, {})
        return {key: value for key, value in attributes.items() if changes.get(key) != ""}


class Model(NamedTuple):
    """The model of a result."""

    format: Any  # row of the default format of the result, or None
    buffers: tuple[Array, ...]  # its arrays, at least one
    source: Source | None = None  # file of that format, whose schema, compression and header spelling the result gets
    kept: KeptContent | None = None
    cells: Cells = Cells()
    provenance: Any = None  # provenance of the result, in its attribute `text`
    context: Context = NO_LIMITS
    in_place: bool = False  # the result replaces the file of `source`
    has_history: bool = False  # the result gets an attribute `history` even if the first rank has none

    @property
    def subject(self) -> str:
        """The subject of errors."""
        return "the result" if self.source is None else self.source.name

    def declared(self, inputs: InputOptions) -> Model:
        """Return the model of a raw result with the declared byte order and data representation."""
        arrays = [
            array._replace(stored=array.stored.newbyteorder(inputs.order), datarep=inputs.datarep, fixed_order=False)
            for array in self.buffers
        ]
        return self._replace(buffers=tuple(arrays))


class RankFile(NamedTuple):
    """The file of a rank, with its buffers in order."""

    source: Source
    buffers: Sequence[Array]
    others: Sequence[SkippedArray] = ()  # other arrays of the file; () if columns were chosen
    names: Sequence[str] = ()  # names of all columns or arrays
    format: Any = None  # row of the format, set by `Format.inspect`
    obstacle: str = ""  # reason why the file has no buffers, if it is only described
    kept: KeptContent | None = None
    headers: Sequence[Any] = ()  # `arrays.ArrayHeader` of each combined array, in formats with attributes
    shards: Sequence[Source] = ()  # files with the elements, if the source is only their index
    not_kept: Sequence[SkippedArray] = ()  # arrays that match a pattern of `keep`, but cannot be kept

    def __repr__(self) -> str:
        """Return the description of `mpired info` on one line."""
        arrays = [(array.name, f"{array.count} x {array.datatype.label}") for array in self.buffers]
        arrays += [(skipped.name, f"{skipped.type}, no buffer") for skipped in self.others]
        texts = (f"{name}: {text}" if name else text for name, text in arrays)
        form = self.format.name if self.format else "undetermined"
        return f"<{form} file {self.source.name!r}: {', '.join(texts) or 'no buffer'}>"

    @property
    def sources(self) -> tuple[Source, ...]:
        """All files with its data: the index, if there is one, and the shards."""
        return (self.source, *self.shards) if self.source.nbytes or not self.shards else tuple(self.shards)

    @property
    def left_out(self) -> list[str]:
        """The names of arrays that results neither combine nor keep."""
        used = {name for array in self.buffers for name in array.columns}.union(self.kept.names if self.kept else ())
        return [name for name in self.names if name not in used]

    def in_order_of(self, other: RankFile) -> RankFile:
        """Return this description with the buffers in the order of `other`, if both have the same names."""
        names, by_name = [array.name for array in other.buffers], {array.name: array for array in self.buffers}
        if names == list(by_name) or by_name.keys() != set(names):
            return self
        return self._replace(buffers=[by_name[name] for name in names])

    def check(self, taken: Group | None = None, *, complete: bool = False) -> None:
        """Raise the `errors`, if there are any."""
        is_plain = self.buffers and not any(array.nulls for array in self.buffers)
        if (complete or not is_plain) and (errors := self.errors(taken, complete=complete)):
            raise merged(errors)

    def errors(self, taken: Group | None = None, *, complete: bool = True, keeps: bool = False) -> list[MpiredError]:
        """Return an error for each reason why arrays cannot be combined.

        Unless `complete`, skipped arrays are an error only if all arrays are skipped.
        Hints list the arrays of groups that are `taken` by the op, and the option `keep` if the result `keeps` arrays.
        """
        skipped = self.others if complete or not self.buffers else ()
        errors: list[MpiredError] = []
        if lacking := [array for array in self.buffers if array.nulls and not array.nullable]:
            first, *others = lacking
            errors.append(first.null_error(first.nulls or 0, and_others([",".join(array.columns) for array in others])))
        hints: list[str] = []  # those of all skipped arrays, at the end of the last error
        if self.names:
            groups = [(array.name, array.datatype.group) for array in self.buffers]
            groups += [(array.name, array.group) for array in skipped if array.group is not None and not array.nulls]
            hints.append(columns_hint(groups, taken))
            names = [array.name for array in skipped]
            if keeps and hints[0] and len(set(names)) == len(names) and all(array.keeps for array in skipped):
                hints.append(f"carry what all ranks have in common with `keep='{values.listed(names)}'`")
        by_reason = reasons(skipped)
        for number, (reason, arrays) in enumerate(by_reason.items(), 1):
            hint = max((array.hint for array in arrays), key=len)
            ending = hint_text(hint, *(hints if number == len(by_reason) else ()))
            errors.append(DatatypeError(self.source.name, f"{reason}{ending}"))
        if not self.buffers and not skipped:
            reason, kept = "holds no array or column", self.kept.names if self.kept else ()
            if kept:
                reason = f"has no {self.format.noun} to combine, because results carry {list_names(kept)}"
                reason += "; choose those to combine with `columns`"
            errors.append(BufferFileError(self.source.name, reason))
        return errors

    def only_buffer(self) -> Array:
        """Return the only buffer of a file; raise an error if there are several or none."""
        self.check()
        if len(self.buffers) > 1:
            names = f"{len(self.buffers)} {self.format.noun}s ({', '.join(buffer.name for buffer in self.buffers)})"
            reason = f"holds {names}, and one is needed; choose one with `columns`"
            raise UsageError(self.source.name, reason)
        return self.buffers[0]


def reasons(skipped: Iterable[SkippedArray]) -> dict[str, list[SkippedArray]]:
    """Return skipped arrays grouped by their reasons, which name all arrays of the group."""
    groups: dict[str, list[SkippedArray]] = {}
    for array in skipped:
        groups.setdefault(array.reason.replace(repr(array.name), "", 1), []).append(array)
    return {
        f"{arrays[0].reason}{and_others([array.name for array in arrays[1:]])}": arrays for arrays in groups.values()
    }


def columns_hint(columns: Sequence[tuple[str, Group]], taken: Group | None) -> str:
    """Return the hint to choose among columns, given as names and groups, those that the op takes; or ""."""
    names = [name for name, group in columns if taken is None or group in taken]
    if not names and len(columns) > 1 and taken is not None and Group.PAIR in taken:
        return "make pairs of two columns with `pair='VALUE,INDEX'`"
    return f"choose with `columns='{values.listed(names)}'`" if names else ""


def hint_text(*hints: str) -> str:
    """Return the end of a message with hints; "" if all are empty."""
    hints = tuple(filter(None, hints))
    return f"; {', or '.join(hints)}" if hints else ""


def element_text(dtype: np.dtype) -> str:
    """Return the description of elements for messages: the names of MPI and NumPy, or the dtype."""
    with contextlib.suppress(DatatypeError):
        return from_dtype(dtype).label
    return dtype_text(dtype)


def dtype_text(dtype: np.dtype, byte_order: str | None = None) -> str:
    """Return a short text for a dtype, optionally in another byte order: `<f8`, or `(<f8, <i4)` for a structure."""
    if byte_order is not None:
        dtype = dtype.newbyteorder(ORDERS[byte_order])
    if dtype.names is None:
        return dtype.str
    fields = [dtype[name] for name in dtype.names]
    return f"({', '.join(field.base.str + ''.join(f'[{n}]' for n in field.shape) for field in fields)})"


def declared_datatype(source: Source, inputs: InputOptions, dtype: np.dtype, subject: str) -> Datatype:
    """Return the declared datatype of elements, or that of their dtype; messages begin with the `subject`."""
    if inputs.datatype is None:
        try:
            datatype = from_dtype(dtype)
        except DatatypeError:
            raise DatatypeError(source.name, f"{subject} elements of {dtype_text(dtype)}{NO_DATATYPE}") from None
        return rename_fields(datatype, dtype.names) if inputs.named else datatype
    check_declared(source, inputs, inputs.datatype, dtype, subject)
    return inputs.datatype


# Part of the interface of formats in packages.
def check_declared(source: Source, inputs: InputOptions, datatype: Datatype, dtype: np.dtype, what: str) -> None:
    """Raise `DatatypeError` if elements of a dtype are not of the datatype, or not in its declared byte order."""
    if not has_same_components(datatype, dtype):
        raise inputs.datatype_error(source, datatype, f"{what} {element_text(dtype)}")
    if inputs.type_order and dtype.newbyteorder(ORDERS[inputs.type_order]) != dtype:
        what = f"{what} {element_text(dtype)} as {dtype_text(dtype)}"
        raise DatatypeError(source.name, f"{what}, which is not {inputs.type_order}-endian")


def select_names(source: Source, names: Iterable[str], patterns: Sequence[str], noun: str) -> list[str]:
    """Return the names that match names or shell patterns, in the order of the patterns."""
    by_name = dict.fromkeys(names)
    selected: dict[str, None] = {}
    for pattern in patterns:
        matches = [pattern] if pattern in by_name else [name for name in by_name if fnmatch.fnmatchcase(name, pattern)]
        has_wildcards = bool(_WILDCARDS & set(pattern))
        if not matches or (pattern not in by_name and not has_wildcards):
            like = " like" if has_wildcards else ""
            reason = f"has no {noun}{like} {pattern!r}; its {noun}s are {list_names([*by_name])}"
            raise BufferFileError(source.name, reason)
        selected |= dict.fromkeys(matches)
    return list(selected)


def select_arrays(
    source: Source, names: Collection[str], inputs: InputOptions
) -> tuple[dict[str, None], dict[str, None]]:
    """Return the names of combined arrays, empty if all arrays that are not kept are combined, and of kept arrays."""
    # An exact name of `keep` precedes patterns of `columns`, and these precede patterns of `keep`.
    free = [name for name in names if name not in inputs.keep]
    combined = dict.fromkeys(select_names(source, free, inputs.pair or inputs.columns, inputs.noun))
    if inputs.pair and len(combined) != 2:  # noqa: PLR2004 - a pair
        raise UsageError("`pair`", f"means the {inputs.noun}s {list_names([*combined])} of {source.name}; name two")
    kept = (name for name in select_names(source, names, inputs.keep, inputs.noun) if name not in combined)
    return combined, dict.fromkeys(kept)


def list_names(names: Sequence[str]) -> str:
    """Return a list of the first names for a message."""
    more = f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    return f"{', '.join(map(repr, names[:_MAX_NAMES_SHOWN])) or 'none'}{more}"


def and_others(names: Sequence[str]) -> str:
    """Return the insertion for a message about a column that concerns other columns too, or ""."""
    return f" (also {list_names(names)})" if names else ""


def missing_arrays_text(this: str, names: Sequence[str], other: str, other_names: Sequence[str]) -> str:
    """Return the end of a message with the arrays that either of two ranks lacks; "" if arrays have no names."""
    if not all([*names, *other_names]):
        return ""
    text = ""
    for rank, present, required in ((this, {*names}, other_names), (other, {*other_names}, names)):
        if missing := [name for name in required if name not in present]:
            text += f", and {rank} lacks {list_names(missing)}"
    return text


def check_pair(source: Source, pair: Sequence[str], dtype: np.dtype, nouns: str) -> None:
    """Raise `DatatypeError` if two columns or arrays, with the joint dtype `dtype`, are not a value and an index."""
    if from_dtype(dtype).group is Group.PAIR:
        return
    value, index = (from_dtype(dtype[name]) for name in FIELDS)
    reason = f"{nouns} {pair[0]!r}, {value.label}, and {pair[1]!r}, {index.label}, are not a value and an index"
    hint = "an index is an integer"
    if value_index(index, value) is not None:
        hint += f"; `pair='{pair[1]},{pair[0]}'` has them in the other order"
    raise DatatypeError(source.name, f"{reason}; {hint}")
