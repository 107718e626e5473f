"""Messages between a process and its worker: objects, one after another, through two pipes.

Not a connection of `multiprocessing`: its imports, sockets first, take as long as the start of the workers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
from typing import Any

from mpired.files import calls

_SIZE_NBYTES = 8  # before each object
_PIPE_NBYTES = 1 << 20  # the most that every user may have


class Channel:
    """One end: the pipe that it reads, and the one that it writes."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming, self.outgoing = incoming, outgoing

    def send(self, value: Any) -> None:
        """Send an object, and wait until the other end has taken what the pipe does not hold."""
        octets = pickle.dumps(value, 5)
        calls.write_all(self.outgoing, len(octets).to_bytes(_SIZE_NBYTES, "little"))
        calls.write_all(self.outgoing, octets)

    def recv(self) -> Any:
        """Wait for an object, and return it."""
        nbytes = int.from_bytes(self._read(_SIZE_NBYTES), "little")
        return pickle.loads(self._read(nbytes))  # noqa: S301 - of a process of this one

    def close(self) -> None:
        """Close it."""
        os.close(self.incoming)
        os.close(self.outgoing)

    def _read(self, nbytes: int) -> bytearray:
        content = bytearray(nbytes)
        view = memoryview(content)
        while view:
            got = os.readv(self.incoming, [view])
            if not got:
                raise EOFError
            view = view[got:]
        return content


def channel() -> tuple[Channel, Channel]:
    """Return both ends of a new one."""
    there, back = os.pipe(), os.pipe()
    with contextlib.suppress(PermissionError):  # the pipes of this user are full-sized already
        for _, writing in (there, back):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_NBYTES)
    return Channel(back[0], there[1]), Channel(there[0], back[1])
