"""pyarrow, configured before its import, and its codecs."""

from __future__ import annotations

import copyreg
import os
from collections.abc import Callable
from types import SimpleNamespace

# Each worker uses one thread. The allocator of the system frees memory after each batch, and starts no thread, so that
# a process can still fork.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")  # otherwise the import starts a thread
import pyarrow as pa

# pyarrow cannot pickle all types that it reads, such as intervals of months, but it can serialize them.
copyreg.pickle(pa.Schema, lambda schema: (pa.ipc.read_schema, (schema.serialize(),)))

__all__ = ["ArrowCompressor", "decompressor", "pa"]

_FRAME_NBYTES = 4 << 20


def decompressor(codec: str, read: Callable[[int], bytes]) -> Callable[[memoryview], int]:
    """Return the function that fills a view with decompressed bytes; `read` returns compressed bytes."""
    file = SimpleNamespace(read=read, closed=False, close=lambda: None)
    stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)

    def fill(view: memoryview) -> int:
        filled = 0
        try:
            while filled < len(view) and (nbytes := stream.readinto(view[filled:])):
                filled += nbytes
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of `read`
                raise
            raise ValueError(str(error)) from None
        return filled

    return fill


class ArrowCompressor:
    """Compresses bytes into frames of 4 MiB."""

    def __init__(self, codec: str, level: int) -> None:
        self._codec = pa.Codec(codec, compression_level=level)
        self._pending = bytearray()
        self._has_frames = False

    def compress(self, data: memoryview) -> bytes:
        """Add bytes; return a frame if enough bytes are pending, otherwise b""."""
        self._pending += data
        return self.flush() if len(self._pending) >= _FRAME_NBYTES else b""

    def flush(self) -> bytes:
        """Return a frame of the pending bytes; an empty input has one frame."""
        if self._has_frames and not self._pending:
            return b""
        frame: bytes = self._codec.compress(bytes(self._pending), asbytes=True)
        self._pending.clear()
        self._has_frames = True
        return frame
