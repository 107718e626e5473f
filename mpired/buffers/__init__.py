"""Where elements lie: the formats, and one rank's buffers."""

from mpired.buffers.declared import Declared
from mpired.buffers.flat import FlatBuffer, FlatLayout
from mpired.buffers.formats import FORMATS, Encoder, Format, format_to_create, open_rank, output_format, recognise
from mpired.buffers.rank import RankBuffer, RankFile

__all__ = [
    "FORMATS",
    "Declared",
    "Encoder",
    "FlatBuffer",
    "FlatLayout",
    "Format",
    "RankBuffer",
    "RankFile",
    "format_to_create",
    "open_rank",
    "output_format",
    "recognise",
]
