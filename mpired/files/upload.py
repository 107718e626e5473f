"""Results that are objects of a store: written to a scratch file, and then put in one piece or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait

from mpired.errors import UnconfirmedError, UsageError
from mpired.files import calls, stores, urls
from mpired.files.names import exists_error
from mpired.files.scratch import Compression, Scratch
from mpired.files.stores import Version
from mpired.log import step

_SINGLE_NBYTES = 64 << 20
"""The most bytes that are put by one request; more are put in parts, which become an object at the end."""
_PART_NBYTES = 8 << 20
_PARTS_AT_A_TIME = 4
_MOST_PARTS = 9_000  # stores take 10,000
# Seconds that a request which may make the object has to end in after an interruption.
_PATIENCE = 20


class RemoteOutput(Scratch):
    """A result that is an object of a store: it appears whole, or not at all."""

    def __init__(
        self,
        url: str,
        *,
        overwrite: bool = False,  # whether an existing object may be replaced
        packing: Compression | None = None,
    ) -> None:
        self._url, self._overwrite = url, overwrite
        self._before = check_new(url, overwrite=overwrite)
        super().__init__()
        self.name = f"{url}, kept in {self.name} first"
        self._packing = packing
        self._stopped = False  # whether sending has to end

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Put the object: the end of the last request is the commit point."""
        if self._packing is None:
            self._put(self.fd, on_commit)
            return
        with Scratch(name=self.name) as packed:
            with calls.errors_name(self.name):
                self._packing.pack(self.fd, packed.fd)
            self._put(packed.fd, on_commit)

    def _put(self, fd: int, on_commit: Callable[[], None]) -> None:
        nbytes = os.fstat(fd).st_size
        if not self._overwrite and nbytes > _SINGLE_NBYTES and stores.look(self._url) is not None:
            raise exists_error(self._url, appeared=True)
        sent = stores.begun(self._send, fd, nbytes)
        try:
            with step("sending results"):
                sent.result()
            on_commit()
        except (Exception, stores.ThereError) as error:  # noqa: BLE001 - raised again
            self._check_failure(error, _etag(fd, nbytes))
            on_commit()
        except BaseException:
            self._stopped = True
            if not self._came_too_late(sent):
                raise
            on_commit()

    def _send(self, fd: int, nbytes: int) -> None:
        """Put the bytes of a file, in a thread."""
        if nbytes <= _SINGLE_NBYTES:
            whole = bytearray(nbytes)
            calls.pread_into(fd, memoryview(whole), 0)
            mode = "overwrite" if self._overwrite else "create"
            stores.put(self._url, whole, mode=mode, use_multipart=False)
            return
        part = max(_PART_NBYTES, -(-nbytes // _MOST_PARTS))
        stores.put(self._url, self._blocks(fd, nbytes), chunk_size=part, max_concurrency=_PARTS_AT_A_TIME)

    def _blocks(self, fd: int, nbytes: int) -> Iterator[bytes]:
        for block in calls.blocks(fd, 0, nbytes):
            if self._stopped:
                raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))  # then the parts are given up
            yield bytes(block)

    def _came_too_late(self, sent: Future[None]) -> bool:
        """Return whether the object exists after an interruption."""
        if wait([sent], _PATIENCE).not_done:
            raise UnconfirmedError(self._url, "was interrupted while it was sent; look whether it is there")
        return sent.exception() is None

    def _check_failure(self, error: Exception, etag: str | None) -> None:
        """Raise the error of a failure, unless the object exists all the same, with exactly this content."""
        if isinstance(error, stores.ThereError):
            found = stores.look(self._url)  # the first of two requests that are the same may have made it
            if found is None or found == self._before or found.etag != etag:
                raise exists_error(self._url, appeared=True) from None
            return
        if not isinstance(error, OSError) or error.errno != errno.EIO:
            raise error
        try:
            found = stores.look(self._url)
        except OSError:
            reason = f"{error.strerror}, and then it could not be looked at; look whether the object is there"
            raise UnconfirmedError(self._url, reason) from None
        if found == self._before:
            raise error
        if found is None or found.etag != etag:
            reason = f"{error.strerror}, and then it was another object; look whether it is the result"
            raise UnconfirmedError(self._url, reason) from None


def _etag(fd: int, nbytes: int) -> str | None:
    """Return the ETag of an object that one request made of a file; None if it was sent in parts."""
    if nbytes > _SINGLE_NBYTES:
        return None
    digest = hashlib.md5(usedforsecurity=False)
    for block in calls.blocks(fd, 0, nbytes):
        digest.update(block)
    return f'"{digest.hexdigest()}"'


def sending_nbytes(nbytes: int) -> int:
    """Return the memory needed to send a result with elements of `nbytes`."""
    # A result as text may have twice the bytes.
    return min(2 * nbytes + _PART_NBYTES, max(_SINGLE_NBYTES, (_PARTS_AT_A_TIME + 1) * _PART_NBYTES))


def check_new(url: str, *, overwrite: bool) -> Version | None:
    """Return the version of an object at a URL, if a result may be put there."""
    if urls.place_of(url).scheme not in urls.STORES:
        takers = ", ".join(f"{name}://" for name in urls.STORES)
        reason = f"is of a server that may show a part of a result; write to {takers} or a file"
        raise UsageError(url, reason)
    there = stores.look(url)
    if there is not None and not overwrite:
        raise exists_error(url)
    return there
