"""Compression and decompression."""

from mpired.codecs.table import CODECS, Codec, Packer, Unpacker, by_content, by_suffix, packing_nbytes, stripped

__all__ = ["CODECS", "Codec", "Packer", "Unpacker", "by_content", "by_suffix", "packing_nbytes", "stripped"]
