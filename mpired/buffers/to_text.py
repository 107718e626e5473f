"""Results as text: an element a line, the index after the value for a pair."""

from __future__ import annotations

from mpired.buffers import textual
from mpired.buffers.formats import Encoder
from mpired.buffers.rank import RankFile


def prepare(template: RankFile) -> Encoder:
    """Say how a result like `template` becomes lines of text; it must have one buffer."""
    template.only_buffer("text")
    return textual.encoder(lambda results: textual.rows(results, " "))
