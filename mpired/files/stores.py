"""Requests to object stores, through obstore, with their errors in words; and results that are objects.

A store is made from the URL in each process that needs it, with the credentials that this process finds.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import hashlib
import netrc
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple, NoReturn, TypeVar
from urllib.parse import urlsplit

from mpired import interrupts
from mpired.errors import (
    BufferFileError,
    MpiredError,
    OutputExistsError,
    UnconfirmedError,
    UsageError,
    installation,
    without_secrets,
)
from mpired.files import calls
from mpired.files.places import exists_error
from mpired.files.scratch import Compression, Scratch
from mpired.files.urls import SERVERS, STORES, place_of, query_of
from mpired.log import step

_T = TypeVar("_T")

THREADS = 32
"""The most requests of the command itself at the same time."""
RETRYING = {"max_retries": 10}
"""Repetitions of a request, with pauses of some seconds together."""
_KEYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_PROFILE = ("AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")
_WAYS_IN = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of ~/.aws with boto3 installed,"
    " or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "set GOOGLE_SERVICE_ACCOUNT to a file of credentials, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or a token of AZURE_STORAGE_SAS_KEY",
}
# Where machines of a cloud get credentials, which is asked last.
_NO_CREDENTIALS = re.compile(
    r"169\.254\.169\.254|metadata\.google|token request|Missing ?(Account|Credential|AccessKeyId|SecretAccessKey)",
    re.ASCII,
)
_SIGN_AGAIN = "its signature is not valid, or not any more; ask for a new URL that is signed for GET"
_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3} ?[^:\n]*)")
_NOT_A_NAME = "has a name with an empty part, `.`, `..` or a control character, which cannot be asked for"
_RETRIES = re.compile(r"after (\d+) retries")
_MOST_STORES = 256  # each URL with a query is one, of about 100 KiB and a connection
_NOT_FOUND, _NO_RANGE = "404", "416"
_PAGE_OF_LIST = 1000  # what stores send at most
_SINGLE_NBYTES = 64 << 20
"""The most bytes that are put by one request; more are put in parts, which become an object at the end."""
_PART_NBYTES = 8 << 20
_PARTS_AT_A_TIME = 4
_MOST_PARTS = 9_000  # stores take 10,000
# Seconds that a request which may make the object has to end in after an interruption.
_PATIENCE = 20


class Version(NamedTuple):
    """The size of an object, and values that change with its bytes."""

    nbytes: int
    etag: str | None  # None if the store has none
    modified: float

    @classmethod
    def of(cls, meta: Any) -> Version:
        """Return the version in the answer of a store."""
        etag = meta["e_tag"]
        if etag and not etag.endswith('"'):  # Azure leaves the quotes (RFC 9110, 8.8.3) out in lists
            etag = f'"{etag}"'
        return cls(meta["size"], etag, meta["last_modified"].timestamp())

    def is_like(self, other: Version) -> bool:
        """Return whether another answer is about the same bytes."""
        if self.etag is None or other.etag is None:
            return self[::2] == other[::2]
        return self[:2] == other[:2]


class GoneError(Exception):
    """Raised when an object has changed since the first request, or has no byte in the requested range."""


_DENIED = {"PermissionDeniedError": "access is denied", "UnauthenticatedError": "the credentials are not valid"}


def get(url: str, start: int, stop: int, version: Version | None = None) -> tuple[memoryview, Version]:
    """Return the bytes of an object from `start` to `stop`, or fewer at its end, and its version."""
    options: dict[str, Any] = {"range": (start, stop)}
    if version is not None and version.etag is not None and not version.etag.startswith("W/"):
        options["if_match"] = version.etag

    def answered(store: Any, key: str) -> tuple[memoryview, Version]:
        answer = _obstore().get(store, key, options=options)
        found = Version.of(answer.meta)
        if version is not None and not version.is_like(found):
            raise GoneError
        return memoryview(answer.bytes()), found

    return _called(url, answered)


def look(url: str) -> Version | None:
    """Return the version of an object, None if there is none. Raises the errors of `get`."""

    def answered(store: Any, key: str) -> Version:
        # A URL that is signed for GET is refused for HEAD.
        return Version.of(_obstore().get(store, key).meta if query_of(url) else _obstore().head(store, key))

    try:
        return _called(url, answered)
    except FileNotFoundError:
        return None


def names_in(url: str, folder: str) -> list[str]:
    """Return the names of the objects in a folder of the store of a URL, and of the folders there, with a slash."""
    found = _called(url, lambda store, _key: _obstore().list_with_delimiter(store, folder or None))
    return [*(each["path"] for each in found["objects"]), *(f"{each}/" for each in found["common_prefixes"])]


def versions_under(url: str, folder: str, most: int | None = None) -> dict[str, Version]:
    """Return the names and versions of all objects in a folder and the folders in it."""

    def listed(store: Any, _key: str) -> dict[str, Version]:
        found: dict[str, Version] = {}
        for page in _obstore().list(store, folder or None, chunk_size=_PAGE_OF_LIST):
            found |= {each["path"]: Version.of(each) for each in page}
            if most is not None and len(found) > most:
                raise BufferFileError(url, f"has more than {most} objects under it; put them into fewer")
        return found

    return _called(url, listed)


begun = ThreadPoolExecutor(THREADS).submit
"""Calls a function in a thread, and returns its future."""


def _called(url: str, request: Callable[[Any, str], _T]) -> _T:
    """Return the answer to a request to a store. A signal ends only the waiting of the main thread."""
    place = place_of(url)
    _obstore(url)

    def answered() -> _T:
        return request(_store(place.root), place.key)

    try:
        if threading.current_thread() is threading.main_thread():
            return interrupts.interruptible(begun(answered).result)
        return answered()
    except BaseException as error:  # noqa: BLE001 - an error of another kind is raised again
        _raise_again(url, error)


def _obstore(url: str = "") -> Any:
    try:
        import obstore  # noqa: PLC0415 - an extra
    except ImportError:
        reason = f"needs the library obstore; install it with {installation('mpired[remote]')}"
        raise UsageError(url, reason) from None
    return obstore


@functools.lru_cache(_MOST_STORES)
def _store(root: str) -> Any:
    """Return the store of a bucket or a server, or of one object with its query."""
    from obstore.store import HTTPStore, from_url  # noqa: PLC0415 - as above

    scheme = root.partition("://")[0]
    options: dict[str, Any] = {"retry_config": RETRYING}
    if scheme == "http":
        options["client_options"] = {"allow_http": True}
    if scheme == "https" and (login := _login(root)):
        options["client_options"] = {"default_headers": {"Authorization": login}}
    if scheme == "s3" and (provider := _profile()) is not None:
        options["credential_provider"] = provider
    # Of a host of Amazon or Azure the library would make a store that asks for credentials.
    return (HTTPStore.from_url if scheme in SERVERS else from_url)(root, **options)


def _login(root: str) -> str | None:
    """Return the login of ~/.netrc for the host of a URL, as a header; None if there is none."""
    path = os.path.expanduser("~/.netrc")
    if not os.path.exists(path):
        return None
    try:
        found = netrc.netrc().hosts.get(urlsplit(root).hostname or "")  # not its default, which is for any host
    except netrc.NetrcParseError:  # whose text may have a password
        reason = "is not this user's alone, or has more than entries as `machine HOST login USER password PASSWORD`"
        raise UsageError(path, f"{reason}; `chmod 600` it, or correct it") from None
    if found is None:
        return None
    return f"Basic {base64.b64encode(f'{found[0]}:{found[2]}'.encode()).decode()}"


def _profile() -> Any:
    """Return the provider of the credentials of a profile, from boto3; None if the environment has others."""
    files = map(os.path.exists, map(os.path.expanduser, ("~/.aws/credentials", "~/.aws/config")))
    if any(map(os.environ.get, _KEYS)) or not (any(map(os.environ.get, _PROFILE)) or any(files)):
        return None
    try:
        import boto3  # noqa: PLC0415 - found if it is installed
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - as above
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - as above
    except ImportError:
        if name := os.environ.get("AWS_PROFILE"):  # which the role of a machine would take the place of
            reason = f"names the profile {name!r}, which needs boto3; {installation('boto3')}, or set AWS_ACCESS_KEY_ID"
            raise UsageError("AWS_PROFILE", reason) from None
        return None
    try:
        session = boto3.Session()
        return None if session.get_credentials() is None else Boto3CredentialProvider(session)
    except BotoCoreError as error:
        raise UsageError("AWS_PROFILE", f"gives no credentials ({error})") from None


def _raise_again(url: str, error: BaseException) -> NoReturn:
    """Raise an error of the library in our own words, and another error as it is."""
    text, kind = without_secrets(str(error)), type(error).__name__
    status = _STATUS.search(text)
    answer = status[1].strip() if status else ""
    if kind in {"PreconditionError", "NotModifiedError"} or answer.startswith(_NO_RANGE):
        raise GoneError from None
    if kind == "AlreadyExistsError":
        raise exists_error(url, appeared=True) from None
    if isinstance(error, FileNotFoundError) or answer.startswith(_NOT_FOUND):
        what = "there is no such bucket" if "NoSuchBucket" in text else "there is no such object"
        raise FileNotFoundError(errno.ENOENT, what, url) from None
    if denied := _DENIED.get(kind) or (_NO_CREDENTIALS.search(text) and "there are no credentials"):
        way_in = _SIGN_AGAIN if query_of(url) else _WAYS_IN.get(place_of(url).scheme)
        raise PermissionError(errno.EACCES, f"{denied}; {way_in}" if way_in else denied, url) from None
    if kind == "NotSupportedError":
        raise BufferFileError(url, "its server sends no ranges of bytes; write it to a file first") from None
    if kind == "InvalidPathError":  # in a list of names
        reason = "has an object beside it whose name has an empty part, `.`, `..` or a control character"
        raise UsageError(url, f"{reason}, so that its store cannot be listed; name the objects one by one") from None
    if isinstance(error, ValueError) and not isinstance(error, MpiredError):
        words = f"is not a URL that can be asked for ({text.splitlines()[0]})"
        raise UsageError(url, _NOT_A_NAME if "parse path" in text else words) from None
    if kind != "PanicException" and not isinstance(error, _obstore().exceptions.BaseError):
        raise error
    retries = _RETRIES.search(text)
    times = f", after {retries[1]} repetitions" if retries and retries[1] != "0" else ""
    words = " ".join(text.partition("\n\nDebug source")[0].split())[:200]
    raise OSError(
        errno.EIO, f"the store answers {answer}{times}" if answer else f"the store fails ({words})", url
    ) from None


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
        with contextlib.ExitStack() as stack:
            fd = self.fd
            if self._packing is not None:
                fd = stack.enter_context(Scratch(name=self.name)).fd
                with calls.errors_name(self.name):
                    self._packing.pack(self.fd, fd)
            nbytes = os.fstat(fd).st_size
            if not self._overwrite and nbytes > _SINGLE_NBYTES and look(self._url) is not None:
                raise exists_error(self._url, appeared=True)
            sent = begun(self._send, fd, nbytes)
            try:
                with step("sending results"):
                    sent.result()
                on_commit()
            except Exception as error:  # noqa: BLE001 - raised again
                self._check_failure(error, fd, nbytes)
                on_commit()
            except BaseException:
                self._stopped = True
                if wait([sent], _PATIENCE).not_done:
                    reason = "was interrupted while it was sent; look whether it is there"
                    raise UnconfirmedError(self._url, reason) from None
                if sent.exception() is not None:
                    raise
                on_commit()  # the interruption came too late

    def _send(self, fd: int, nbytes: int) -> None:
        """Put the bytes of a file, in a thread."""
        content: Any = self._blocks(fd, nbytes)
        part = max(_PART_NBYTES, -(-nbytes // _MOST_PARTS))
        options: dict[str, Any] = {"chunk_size": part, "max_concurrency": _PARTS_AT_A_TIME}
        if nbytes <= _SINGLE_NBYTES:
            mode = "overwrite" if self._overwrite else "create"
            content, options = calls.pread_some(fd, nbytes, 0), {"mode": mode, "use_multipart": False}
        _called(self._url, lambda store, key: _obstore().put(store, key, content, **options))

    def _blocks(self, fd: int, nbytes: int) -> Iterator[bytes]:
        for block in calls.blocks(fd, 0, nbytes):
            if self._stopped:
                raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))  # then the parts are given up
            yield bytes(block)

    def _check_failure(self, error: Exception, fd: int, nbytes: int) -> None:
        """Raise the error of a failure, unless the object exists all the same, with exactly the content of a file."""
        appeared = isinstance(error, OutputExistsError)  # the first of two requests that are the same may have made it
        if not appeared and not (isinstance(error, OSError) and error.errno == errno.EIO):
            raise error
        try:
            found = look(self._url)
        except OSError:
            what = "it could not be looked at; look whether the object is there"
        else:
            if found == self._before:
                raise error
            if found is not None and nbytes <= _SINGLE_NBYTES:  # one request, so the ETag is a digest
                digest = hashlib.md5(usedforsecurity=False)
                for block in calls.blocks(fd, 0, nbytes):
                    digest.update(block)
                if found.etag == f'"{digest.hexdigest()}"':
                    return
            what = "it was another object; look whether it is the result"
        if appeared:
            raise error
        raise UnconfirmedError(self._url, f"{getattr(error, 'strerror', error)}, and then {what}") from None


def sending_nbytes(nbytes: int) -> int:
    """Return the memory needed to send a result with elements of `nbytes`."""
    # A result as text may have twice the bytes.
    return min(2 * nbytes + _PART_NBYTES, max(_SINGLE_NBYTES, (_PARTS_AT_A_TIME + 1) * _PART_NBYTES))


def check_new(url: str, *, overwrite: bool) -> Version | None:
    """Return the version of an object at a URL, if a result may be put there."""
    if place_of(url).scheme not in STORES:
        takers = ", ".join(f"{name}://" for name in STORES)
        reason = f"is of a server that may show a part of a result; write to {takers} or a file"
        raise UsageError(url, reason)
    there = look(url)
    if there is not None and not overwrite:
        raise exists_error(url)
    return there
