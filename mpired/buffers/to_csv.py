"""Results as CSV: a header line, then a column a buffer, or two for pairs; nulls are empty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpired.buffers import textual
from mpired.buffers.flat import FlatBuffer
from mpired.buffers.format import Encoder
from mpired.buffers.model import Model
from mpired.errors import escaped


def prepare(_model: Model) -> Encoder:
    """Say how any result becomes CSV."""
    return textual.encoder(_lines)


def _lines(results: Sequence[FlatBuffer]) -> Iterator[str]:
    # A name is the file's word, and a terminal would obey what control characters in it say.
    yield ",".join(_quoted(escaped(name)) for result in results for name in textual.column_names(result))
    # An empty line would be skipped by those who read it.
    yield from (line or '""' for line in textual.rows(results, ",", null=""))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in '",') else name
