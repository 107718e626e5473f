"""Completions of values of options and arguments: names or files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from click.shell_completion import CompletionItem

from mpired import installed
from mpired.datatypes import DATATYPES
from mpired.datatypes.dtypes import BY_NUMPY_NAME
from mpired.formats import format_names
from mpired.ops import STATISTICS, Use, ops_for
from mpired.values import INPUT_FORMAT, Kind


def offered(kind: Kind, begun: str) -> list[CompletionItem[str]]:
    """Return the names for a value, else a wish for files."""
    names: list[str] = []
    with contextlib.suppress(Exception):  # a shell has no place for a message in the middle of a line
        written, comma, _ = begun.rpartition(",") if kind.use == "REDUCE" else ("", "", begun)  # a list of ops
        names = [f"{written}{comma}{name}" for name in _names(kind) if name not in written.split(",")]
        names = [name for name in names if name.startswith(begun)]
    may_be_function = kind.use == "REDUCE" and not kind.names
    if not names and (kind.offers in {"file", "dir"} or may_be_function):
        return [CompletionItem(begun, type="dir" if kind.offers == "dir" else "file")]
    return [CompletionItem(name) for name in names]


def _names(kind: Kind) -> Iterator[str]:
    if kind.offers == "op":
        yield from kind.names or (op.name.lower() for op in ops_for(Use[kind.use]))
        if kind.use == "REDUCE" and not kind.names:
            yield from (op.name.lower() for op in STATISTICS)
            yield from installed.entry_points("mpired.ops")
    if kind.offers == "datatype":
        yield from (row.name.lower() for row in DATATYPES if row.dtype is not None)
        yield from BY_NUMPY_NAME
    if "format" in kind.offers:
        yield from format_names(readable=kind is INPUT_FORMAT)
