"""Results as text: an element a line, the index after the value for a pair."""

from __future__ import annotations

from mpired.buffers import textual
from mpired.buffers.format import Encoder
from mpired.buffers.model import Model


def prepare(_model: Model) -> Encoder:
    """Say how any result becomes lines of text."""
    return textual.encoder(lambda results: textual.rows(results, " "))
