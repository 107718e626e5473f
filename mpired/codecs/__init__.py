"""Compression and decompression."""

from mpired.codecs.table import CODECS, Codec, by_content, by_suffix, packing_nbytes, stripped

__all__ = ["CODECS", "Codec", "by_content", "by_suffix", "packing_nbytes", "stripped"]
