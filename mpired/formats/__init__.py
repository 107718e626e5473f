"""Where elements lie: the formats, and one rank's buffers."""

from mpired.formats.declared import Declared
from mpired.formats.flat import ArrayLayout, FlatBuffer, FlatLayout, MarkingLayout
from mpired.formats.format import Encoder, Format, Layout
from mpired.formats.memory import AtHand
from mpired.formats.model import BufferModel, Model
from mpired.formats.rank import RankBuffer, RankFile
from mpired.formats.recognise import (
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
from mpired.sources.source import Source

__all__ = [
    "ARRAY", "FORMATS", "LINES", "RAW", "ArrayLayout", "AtHand", "BufferModel", "Declared", "Encoder", "FlatBuffer",
    "FlatLayout", "Format", "Layout", "MarkingLayout", "Model", "RankBuffer", "RankFile", "Source", "changed_there",
    "format_named", "format_names", "format_to_create", "look", "open_rank", "output_format", "recognise",
]  # fmt: skip
