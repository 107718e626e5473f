"""Formats of files, and the arrays in them: a rank's buffers."""

from mpired.formats.array import Array
from mpired.formats.format import Format
from mpired.formats.input_options import InputOptions
from mpired.formats.layout import ArrayLayout, Encoder, FlatLayout, Layout
from mpired.formats.memory import RankObject
from mpired.formats.rank import Model, RankFile, SkippedArray, check_declared
from mpired.formats.recognise import (
    ARRAY,
    FORMATS,
    LINES,
    RAW,
    arrays_in_place,
    format_named,
    format_names,
    format_to_create,
    open_rank,
    output_format,
    recognise,
)
from mpired.sources.source import Source

__all__ = [
    "ARRAY", "FORMATS", "LINES", "RAW", "Array", "ArrayLayout", "Encoder", "FlatLayout", "Format", "InputOptions",
    "Layout", "Model", "RankFile", "RankObject", "SkippedArray", "Source", "arrays_in_place", "check_declared",
    "format_named", "format_names", "format_to_create", "open_rank", "output_format", "recognise",
]  # fmt: skip
