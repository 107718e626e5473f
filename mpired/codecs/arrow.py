"""pyarrow, set up before it is imported, and the codecs that it has."""

from __future__ import annotations

import copyreg
import os
from collections.abc import Callable
from types import SimpleNamespace

# One thread a worker: the pool is ours. The system's allocator gives memory back after each batch,
# and starts no thread, so that a process may still fork.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")  # else the import itself starts one
import pyarrow as pa

# Python's names of types do not have all that pyarrow reads, such as intervals of months; Arrow's messages do.
copyreg.pickle(pa.Schema, lambda schema: (pa.ipc.read_schema, (schema.serialize(),)))

__all__ = ["Framing", "pa", "unframing"]

_FRAME_NBYTES = 4 << 20


def unframing(codec: str, read: Callable[[int], bytes]) -> Callable[[memoryview], int]:
    """Return what fills a view with the contents of one frame after another; `read` gives the compressed bytes."""
    file = SimpleNamespace(read=read, closed=False, close=lambda: None)
    stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)

    def fill(view: memoryview) -> int:
        done = 0
        try:
            while done < len(view) and (got := stream.readinto(view[done:])):
                done += got
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of reading the compressed bytes
                raise
            raise ValueError(str(error)) from None
        return done

    return fill


class Framing:
    """Compresses bytes into frames of one size, which blocks of 1 MiB fill."""

    def __init__(self, codec: str, level: int) -> None:
        self._codec = pa.Codec(codec, compression_level=level)
        self._rest = bytearray()
        self._any = False

    def compress(self, data: memoryview) -> bytes:
        """Return the frame that is whole with some more bytes."""
        self._rest += data
        return self.flush() if len(self._rest) >= _FRAME_NBYTES else b""

    def flush(self) -> bytes:
        """Return the last frame."""
        if self._any and not self._rest:
            return b""
        frame: bytes = self._codec.compress(bytes(self._rest), asbytes=True)
        self._rest.clear()
        self._any = True
        return frame
