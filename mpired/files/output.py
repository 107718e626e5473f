"""New results: a file that appears whole or not at all, or a stream that starts when all is computed.

Both are first a file without a name, filled by ranges from several processes, and then committed.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from mpired.context import NO_LIMITS, Context
from mpired.files import calls
from mpired.files.lock import NOTHING_HELD, Held
from mpired.files.places import closed_stdout, descriptor_of, is_stream
from mpired.files.scratch import Packing, Scratch, temporary_directory
from mpired.files.transaction import Draft
from mpired.files.urls import is_url

if TYPE_CHECKING:
    from mpired.files.upload import RemoteOutput


Output: TypeAlias = "Draft | StreamOutput | RemoteOutput"
"""Where a result goes: fill `fd` by ranges, then `commit`. Leaving the block without it changes nothing."""


class StreamOutput(Scratch):
    """A result for standard output, a FIFO or a device: nothing is sent before all of it is known."""

    directory = None

    def __init__(
        self,
        name: str,  # what messages call the stream
        opener: Callable[[], int],  # gives a descriptor to write to; called at the commit, where a FIFO waits
        on_commit: Callable[[], None],
        *,
        named: bool = False,  # as of `Scratch`
        packing: Packing | None = None,  # how it is compressed
    ) -> None:
        super().__init__(name=f"{name}, kept in {temporary_directory()} first", named=named)
        self.stream_name = name
        self._opener = opener
        self._stream: int | None = None
        self._on_commit = on_commit
        self._packing = packing
        self._flowing = False

    def flow(self) -> int | None:
        """Return the stream, for a result that is sent as it is made, in order; None if it is compressed.

        Nothing else of it is sent at the commit then.
        """
        if self._packing is not None:
            return None
        with calls.blaming(self.stream_name):
            self._stream = self._opener()
        self._flowing = True
        return self._stream

    def check(self) -> None:
        """Open the stream, and raise `OSError` if it takes nothing, as far as that can be known before."""
        with calls.blaming(self.stream_name):
            self._stream = self._opener()
            calls.write_all(self._stream, b"")
            gone = select.poll()
            gone.register(self._stream, 0)
            if any(events & select.POLLERR for _, events in gone.poll(0)):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def commit(self) -> None:
        """Send all bytes."""
        with calls.blaming(self.stream_name):
            if self._stream is None:
                self._stream = self._opener()
            if not self._flowing:
                size, packing = os.fstat(self.fd).st_size, self._packing
                for block in packing.blocks(self.fd) if packing else calls.blocks(self.fd, 0, size):
                    calls.write_all(self._stream, block)
        self._on_commit()

    def close(self) -> None:
        """Close the stream too, so that its reader gets to the end."""
        super().close()
        if self._stream is not None:
            calls.let_go(self._stream)


def open_output(
    path: str,
    *,
    overwrite: bool = False,
    context: Context = NO_LIMITS,
    held: Held = NOTHING_HELD,
    named: bool = False,
    level: int | None = None,
) -> Output:
    """Open the output that `path` asks for: `-` is standard output, a URL an object, anything but a file a stream.

    `held` has the files that this process has locked, by their names; `named` is as of `Draft` and `Scratch`.
    The suffix of the path may ask for a codec, and `level` is that of the compression, None for the usual one.
    """
    packing = Packing.of(path, level)
    if is_url(path):
        from mpired.files.upload import RemoteOutput  # noqa: PLC0415 - most results are files

        return RemoteOutput(path, overwrite=overwrite, on_commit=context.on_commit, named=named, packing=packing)
    if path == "-" and sys.__stdout__ is None:  # closed by the caller; descriptor 1 may be any file by now
        raise closed_stdout()
    if (number := descriptor_of(path)) is not None:
        # A second opening would start at offset 0 of a redirected file and write over what is there.
        shown = "standard output" if path == "-" else path
        return StreamOutput(shown, lambda: os.dup(number), context.on_commit, named=named)
    if is_stream(path):
        return StreamOutput(
            path, lambda: os.open(path, os.O_WRONLY | os.O_CLOEXEC), context.on_commit, named=named, packing=packing
        )
    return Draft(path, overwrite=overwrite, context=context, target=held.get(path), named=named, packing=packing)
