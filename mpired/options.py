"""What may be said of inputs and of a reduction, checked as far as that can be without a file."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from mpired import datatypes
from mpired.buffers import FORMATS, Declared
from mpired.errors import UsageError

if TYPE_CHECKING:
    from mpired.datatypes.text.definitions import Definitions

PathLike = str | os.PathLike[str]


class Inputs(TypedDict, total=False):
    """What may be said of the inputs; see `mpired reduce --help` for each."""

    type: str | None
    types: PathLike | None
    format: str | None
    columns: Sequence[str]
    pair: Sequence[str] | None
    offset: int
    count: int | None
    byte_order: str | None
    datarep: str | None


class LocalOptions(Inputs, total=False):
    """What may be said of every call that combines ranks, and all that may be of `reduce_local`."""

    jobs: int
    max_memory: int | None
    commute: bool | None
    op_timeout: float | None
    lock_timeout: float | None
    overflow: str | None


class GroupOptions(LocalOptions, total=False):
    """What may be said of every call whose results are files of their own."""

    to: str | None
    overwrite: bool
    in_place: bool
    group_b: Sequence[PathLike] | None


class KeywordOptions(GroupOptions, total=False):
    """What may be said of a collective; the last four are options of some, as their rows in the table say."""

    root: int
    link: bool
    counts_b: Sequence[int] | None
    exscan_first: str


class CallOptions(KeywordOptions, total=False):
    """The same, with what is an argument of its own in Python."""

    counts: Sequence[int] | None


def declared(**inputs: Unpack[Inputs]) -> Declared:
    """Return what the user says of the inputs, checked as far as that can be without them.

    Raises
    ------
    UsageError
        If it makes no sense.
    UnknownDatatypeError, DatatypeError
        If `type` is not the name of a datatype, or of one that NumPy cannot hold.
    """
    text = inputs.get("type")
    if not isinstance(text, str | None):
        raise UsageError("--type", f"{text!r} is not the name of a datatype")
    defined = _definitions(inputs.get("types"))
    datatype, order = (None, None) if text is None else datatypes.parse(text, defined)
    byte_order, datarep = inputs.get("byte_order"), inputs.get("datarep")
    if order is not None and byte_order not in (None, order):
        raise UsageError("--byte-order", f"{byte_order} contradicts --type {text}")
    check_word("--byte-order", byte_order, ("little", "big", "native"))
    check_word("--datarep", datarep, ("native", "external32"))
    if datarep == "external32" and {byte_order, order} - {"big", None}:
        raise UsageError("--datarep", f"external32 is big-endian, not {byte_order or order}")
    check_word("--from", inputs.get("format"), [row.name for row in FORMATS.values() if row.readable])
    columns, pair = _names(inputs.get("columns")), _names(inputs.get("pair")) or None
    if pair is not None and (columns or len(pair) != 2 or pair[0] == pair[1]):  # noqa: PLR2004 - a pair
        raise UsageError("--pair", "names two different columns, value and index, and takes the place of --columns")
    if len(set(columns)) < len(columns):
        raise UsageError("--columns", "names a column twice")
    for name in ("offset", "count"):
        number = inputs.get(name, 0)
        if (number is not None or name == "offset") and not 0 <= integer(f"--{name}", number) < 2**63:
            raise UsageError(f"--{name}", f"{number} is not between 0 and 2**63 - 1")
    return Declared(
        datatype=datatype,
        byte_order=byte_order,
        datarep=datarep,
        type_order=order,
        format=inputs.get("format"),
        columns=columns,
        pair=None if pair is None else (pair[0], pair[1]),
        offset=inputs.get("offset", 0),
        count=inputs.get("count"),
    )


def _definitions(path: object) -> Definitions | None:
    if not isinstance(path, str | os.PathLike | None):
        raise UsageError("--types", f"{path!r} is not the path of a file")
    return None if path is None else datatypes.definitions(os.fspath(path))


def check_word(option: str, word: str | None, known: Sequence[str]) -> None:
    """Raise `UsageError` unless an option's word is known, or was not given."""
    if word is not None and word not in known:
        raise UsageError(option, f"{word!r} is none of {', '.join(known)}")


def integer(option: str, number: object) -> int:
    """Return what an option was given as an integer, or raise `UsageError`."""
    try:
        return operator.index(cast("Any", number))
    except TypeError:
        raise UsageError(option, f"{number!r} is not an integer") from None


def _names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return names that may also be written as on the command line, with commas."""
    return tuple(names.split(",")) if isinstance(names, str) else tuple(names or ())


def only_inputs(options: Mapping[str, Any]) -> Inputs:
    """Return the options that describe the inputs."""
    names = Inputs.__annotations__
    return cast("Inputs", {name: value for name, value in options.items() if name in names})


def check_names(options: Mapping[str, object], known: type) -> None:
    """Raise `TypeError` for a keyword that is no option, as a function with written-out parameters would."""
    for name in options.keys() - known.__annotations__.keys():
        raise TypeError(f"unexpected keyword argument {name!r}; the options are {', '.join(known.__annotations__)}")


def check_no_file(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` if something is said of files while the results are arrays."""
    for said in ("to", "overwrite", "link"):
        if options.get(said):
            raise UsageError(f"--{said}", "is said of files; name them with output, or leave it out")
