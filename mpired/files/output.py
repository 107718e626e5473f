"""New results: a file that appears whole or not at all, or a stream that starts when everything is computed.

Both are first a file without a name, filled by ranges from several processes, and then committed.
"""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from mpired.context import NO_LIMITS, Context
from mpired.files import calls
from mpired.files.lock import NOTHING_HELD, Held
from mpired.files.places import check_stdout, descriptor_of, is_stream
from mpired.files.scratch import Compression, Scratch, temporary_directory
from mpired.files.transaction import Draft
from mpired.files.urls import is_url

if TYPE_CHECKING:
    from mpired.files.stores import RemoteOutput


Output: TypeAlias = "Draft | StreamOutput | RemoteOutput"
"""The place of a result: fill `fd` by ranges, then `commit`. Leaving the block without it changes nothing."""


class StreamOutput(Scratch):
    """A result for standard output, a FIFO or a device: nothing is sent before all of it is known."""

    def __init__(
        self,
        path: str,
        number: int | None,  # of the descriptor that the path means
        packing: Compression | None = None,  # how it is compressed
    ) -> None:
        self.stream_name = "standard output" if path == "-" else path  # in messages
        super().__init__(name=f"{self.stream_name}, kept in {temporary_directory()} first")
        self._path, self._number, self._packing = path, number, packing
        self._flowing = False

    @cached_property
    def _stream(self) -> int:
        # A second opening of a descriptor would start at offset 0 of a redirected file and write over its bytes. That
        # of a FIFO waits for its reader.
        return os.open(self._path, os.O_WRONLY | os.O_CLOEXEC) if self._number is None else os.dup(self._number)

    def flow(self) -> int | None:
        """Return the stream, for a result that is sent in order as it is computed; None if it is compressed."""
        if self._packing is not None:
            return None
        with calls.errors_name(self.stream_name):
            self._flowing = True
            return self._stream

    def check(self) -> None:
        """Open the stream, and raise `OSError` if it takes nothing, as far as that can be known before."""
        if self._number is None and stat.S_ISFIFO(os.stat(self._path).st_mode):
            return  # its opening waits for its reader
        with calls.errors_name(self.stream_name):
            calls.write_all(self._stream, b"")
            gone = select.poll()
            gone.register(self._stream, 0)
            if any(events & select.POLLERR for _, events in gone.poll(0)):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Send all bytes, unless the result has flowed."""
        with calls.errors_name(self.stream_name):
            stream = self._stream
            if not self._flowing:
                size, packing = os.fstat(self.fd).st_size, self._packing
                for block in packing.blocks(self.fd) if packing else calls.blocks(self.fd, 0, size):
                    calls.write_all(stream, block)
        on_commit()

    def close(self) -> None:
        """Close the stream too, so that its reader gets to the end."""
        super().close()
        if "_stream" in self.__dict__:
            calls.let_go(self._stream)


def open_output(
    path: str,
    *,
    overwrite: bool = False,
    context: Context = NO_LIMITS,
    held: Held = NOTHING_HELD,  # the files that this process has locked, by their names
    level: int | None = None,  # of compression, where the suffix of the path asks for a codec; None for the usual one
) -> Output:
    """Open the output of a path: `-` is standard output, a URL an object, anything but a file a stream."""
    packing = Compression.of(path, level)
    if "://" in path and is_url(path):
        from mpired.files.stores import RemoteOutput  # noqa: PLC0415 - most results are files

        return RemoteOutput(path, overwrite=overwrite, packing=packing)
    if is_stream(path):
        check_stdout(path)
        return StreamOutput(path, descriptor_of(path), packing)
    return Draft(path, overwrite=overwrite, context=context, place=held.get(path), packing=packing)
