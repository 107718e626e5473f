"""Where elements lie: the formats, and one rank's buffers."""

from mpired.buffers.declared import Declared
from mpired.buffers.flat import ArrayLayout, FlatBuffer, FlatLayout, MarkingLayout
from mpired.buffers.format import Encoder, Format, Layout
from mpired.buffers.formats import (
    ARRAY,
    FORMATS,
    LINES,
    RAW,
    changed_there,
    format_named,
    format_names,
    format_to_create,
    look,
    open_rank,
    output_format,
    recognise,
)
from mpired.buffers.memory import AtHand
from mpired.buffers.model import BufferModel, Model
from mpired.buffers.rank import RankBuffer, RankFile
from mpired.sources.source import Source

__all__ = [
    "ARRAY", "FORMATS", "LINES", "RAW", "ArrayLayout", "AtHand", "BufferModel", "Declared", "Encoder", "FlatBuffer",
    "FlatLayout", "Format", "Layout", "MarkingLayout", "Model", "RankBuffer", "RankFile", "Source", "changed_there",
    "format_named", "format_names", "format_to_create", "look", "open_rank", "output_format", "recognise",
]  # fmt: skip
