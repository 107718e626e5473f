"""Compression and decompression."""

from mpired.codecs.table import CODECS, Codec, Fill, by_content, by_suffix, packing_nbytes, stripped

__all__ = ["CODECS", "Codec", "Fill", "by_content", "by_suffix", "packing_nbytes", "stripped"]
