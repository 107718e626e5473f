"""pyarrow, set up before it is imported, and the codecs that it has."""

from __future__ import annotations

import copyreg
import io
import os
from collections.abc import Callable

# One thread a worker: the pool is ours. The system's allocator gives memory back after each batch,
# and starts no thread, so that a process may still fork.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")  # else the import itself starts one
import pyarrow as pa

# Python's names of types do not have all that pyarrow reads, such as intervals of months; Arrow's messages do.
copyreg.pickle(pa.Schema, lambda schema: (pa.ipc.read_schema, (schema.serialize(),)))

__all__ = ["Framing", "Unframing", "pa"]

_FRAME_NBYTES = 4 << 20


class Unframing:
    """The contents of one frame after another; `read` gives the next compressed bytes, at most a number of them."""

    def __init__(self, codec: str, read: Callable[[int], bytes]) -> None:
        self._compressed = _Compressed(read)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._compressed, mode="r"), codec)

    def fill(self, view: memoryview) -> int:
        """Fill a view with the next bytes, and return how many there were before the end."""
        done = 0
        try:
            while done < len(view) and (got := self._stream.readinto(view[done:])):
                done += got
        except (OSError, pa.ArrowException) as error:
            raise self._compressed.error or ValueError(str(error)) from None
        return done


class _Compressed(io.RawIOBase):
    """Compressed bytes as a file, for a library that loses the errors of reading it."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        super().__init__()
        self._read = read
        self.error: BaseException | None = None

    def readable(self) -> bool:
        return True

    def read(self, nbytes: int = -1) -> bytes:
        try:
            return self._read(nbytes)
        except BaseException as error:
            self.error = error
            raise


class Framing:
    """Compresses bytes into frames of one size, whatever the size of the blocks that it gets."""

    def __init__(self, codec: str, level: int) -> None:
        self._codec = pa.Codec(codec, compression_level=level)
        self._rest = bytearray()
        self._any = False

    def compress(self, data: memoryview) -> bytes:
        """Return the frames that are whole with some more bytes."""
        self._rest += data
        frames = []
        while len(self._rest) >= _FRAME_NBYTES:
            frames.append(self._frame(_FRAME_NBYTES))
        return b"".join(frames)

    def flush(self) -> bytes:
        """Return the last frame."""
        return self._frame(len(self._rest)) if self._rest or not self._any else b""

    def _frame(self, nbytes: int) -> bytes:
        frame: bytes = self._codec.compress(bytes(self._rest[:nbytes]), asbytes=True)
        del self._rest[:nbytes]
        self._any = True
        return frame
