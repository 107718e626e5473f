"""Object stores: requests through obstore, their errors, and results that are objects.

Each process makes its own store from the URL, with the credentials in its environment.
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
from urllib.parse import unquote, urlsplit

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
from mpired.files.scratch import Compression, Scratch, kept_first
from mpired.files.urls import (
    PART_NBYTES,
    SERVERS,
    SIMULTANEOUS_PARTS,
    SINGLE_NBYTES,
    STORES,
    query_of,
    signed,
    without_query,
)
from mpired.log import step

_T = TypeVar("_T")

THREADS = 32
"""The maximum number of simultaneous requests of a process."""
RETRYING = {"max_retries": 10}
"""The configuration of retries; the pauses take some seconds altogether."""
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_PROFILE = ("AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")
_HINTS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of ~/.aws with boto3 installed,"
    " or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "set GOOGLE_SERVICE_ACCOUNT to a file of credentials, or GOOGLE_SKIP_SIGNATURE=true for a public bucket",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or a token of AZURE_STORAGE_SAS_KEY",
}
# A request for the credentials of a virtual machine in a cloud, which the library tries last.
_NO_CREDENTIALS = re.compile(
    r"169\.254\.169\.254|metadata\.google|token request|Missing ?(Account|Credential|AccessKeyId|SecretAccessKey)",
    re.ASCII,
)
_SIGN_AGAIN = "its signature is not valid, or not any more; ask for a new URL that is signed for GET"
_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3} ?[^:\n]*)")
_NOT_A_NAME = "has a name with an empty part, `.`, `..` or a control character, which cannot be asked for"
_RETRIES = re.compile(r"after (\d+) retries")
_MAX_STORES = 256  # each URL with a query has its own store, of about 100 KiB and a connection
_NOT_FOUND, _NO_RANGE = "404", "416"
_LIST_PAGE = 1000  # names; the maximum of stores
_MAX_PARTS = 9_000  # stores allow 10,000
# Time limit, in seconds, for the end of a request after an interruption, because the request may make the object.
_PATIENCE = 20
# With other characters the library crashes during a request, or sends the request to another host.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.~$-]+)(:[0-9]{1,5})?")


class StoreObject(NamedTuple):
    """An object of a store. If the URL has a query, the store has this object only, and its key is empty."""

    scheme: str  # the part before `://`
    root: str  # URL of the store
    key: str  # name in the store


def object_of(url: str) -> StoreObject:
    """Return the object of a URL, or raise `UsageError`."""
    url = signed(url)
    query = query_of(url)
    scheme, _, address = url.partition("://")
    host, _, key = address.partition("/")
    if scheme in SERVERS:
        if "#" in address or "#" in query:
            reason = "has a part behind `#`, which no server gets"
            raise UsageError(without_query(url), f"{reason}; leave it out, or write %23 if it is of the name")
        key = key if query else unquote(key, errors="surrogateescape")
    if not host or not key or key.endswith("/"):
        raise UsageError(url, f"names no object; write {scheme}://{host or 'BUCKET'}/{key}NAME")
    if not _HOST.fullmatch(host):
        reason = f"has {host!r} in the place of a host or bucket, whose names have letters, digits and `.-_~$`"
        raise UsageError(url, f"{reason}; correct it")
    return StoreObject(scheme, f"{url}?{query}", "") if query else StoreObject(scheme, f"{scheme}://{host}", key)


class Version(NamedTuple):
    """The version of an object: its size, and values that change with its bytes."""

    nbytes: int
    etag: str | None  # None if the store does not send one
    modified: float  # seconds since 1970

    @classmethod
    def of(cls, meta: Any) -> Version:
        """Return the version in the answer of a store."""
        etag = meta["e_tag"]
        if etag and not etag.endswith('"'):  # lists of Azure have no quotes (RFC 9110, 8.8.3)
            etag = f'"{etag}"'
        return cls(meta["size"], etag, meta["last_modified"].timestamp())

    def is_like(self, other: Version) -> bool:
        """Return whether both versions have the same bytes."""
        if self.etag is None or other.etag is None:
            return self[::2] == other[::2]
        return self[:2] == other[:2]


class GoneError(Exception):
    """Raised if an object has changed since the first request, or is shorter than the requested range."""


_DENIED = {"PermissionDeniedError": "access is denied", "UnauthenticatedError": "the credentials are not valid"}


def get(url: str, start: int, stop: int, version: Version | None = None) -> tuple[memoryview, Version]:
    """Return the bytes of an object from `start` to `stop`, or to its end, and its version."""
    options: dict[str, Any] = {"range": (start, stop)}
    if version is not None and version.etag is not None and not version.etag.startswith("W/"):
        options["if_match"] = version.etag

    def request(store: Any, key: str) -> tuple[memoryview, Version]:
        answer = _obstore().get(store, key, options=options)
        current = Version.of(answer.meta)
        if version is not None and not version.is_like(current):
            raise GoneError
        return memoryview(answer.bytes()), current

    return _send(url, request)


def version_of(url: str) -> Version | None:
    """Return the version of an object; None if it does not exist. Raises the errors of `get`."""

    def request(store: Any, key: str) -> Version:
        # Servers refuse HEAD for a URL that is signed for GET.
        return Version.of(_obstore().get(store, key).meta if query_of(url) else _obstore().head(store, key))

    try:
        return _send(url, request)
    except FileNotFoundError:
        return None


def names_in(url: str, folder: str) -> list[str]:
    """Return the names of the objects in a folder of the store, and of its subfolders, which end with a slash."""
    answer = _send(url, lambda store, _key: _obstore().list_with_delimiter(store, folder or None))
    names = [meta["path"] for meta in answer["objects"]]
    return [*names, *(f"{prefix}/" for prefix in answer["common_prefixes"])]


def versions_under(url: str, folder: str, limit: int | None = None) -> dict[str, Version]:
    """Return the versions of all objects in a folder and its subfolders, by name."""

    def request(store: Any, _key: str) -> dict[str, Version]:
        versions: dict[str, Version] = {}
        for page in _obstore().list(store, folder or None, chunk_size=_LIST_PAGE):
            versions |= {meta["path"]: Version.of(meta) for meta in page}
            if limit is not None and len(versions) > limit:
                raise BufferFileError(url, f"has more than {limit} objects under it; put them into fewer")
        return versions

    return _send(url, request)


submit = ThreadPoolExecutor(THREADS).submit
"""Calls a function in a thread, and returns its future."""


def _send(url: str, request: Callable[[Any, str], _T]) -> _T:
    """Return the answer to a request. A signal ends only the wait of the main thread, not the request."""
    place = object_of(url)
    _obstore(url)

    def answer() -> _T:
        return request(_store(place.root), place.key)

    try:
        if threading.current_thread() is threading.main_thread():
            return interrupts.interruptible(submit(answer).result)
        return answer()
    except BaseException as error:  # noqa: BLE001 - an error of another kind is raised again
        _raise_store_error(url, error)


def _obstore(url: str = "") -> Any:
    try:
        import obstore  # noqa: PLC0415 - an extra
    except ImportError:
        reason = f"needs the library obstore; install it with {installation('mpired[remote]')}"
        raise UsageError(url, reason) from None
    return obstore


@functools.lru_cache(_MAX_STORES)
def _store(root: str) -> Any:
    """Return the store of a bucket, of a server, or of one object with a query."""
    scheme = root.partition("://")[0]
    options: dict[str, Any] = {"retry_config": RETRYING}
    if scheme == "http":
        options["client_options"] = {"allow_http": True}
    if scheme == "https" and (login := _login(root)):
        options["client_options"] = {"default_headers": {"Authorization": login}}
    if scheme == "s3" and (provider := _profile()) is not None:
        options["credential_provider"] = provider
    # For a host of Amazon or Azure `from_url` would make a store that needs credentials.
    library = _obstore().store
    return (library.HTTPStore.from_url if scheme in SERVERS else library.from_url)(root, **options)


def _login(root: str) -> str | None:
    """Return the header with the login of ~/.netrc for the host of a URL, or None."""
    path = os.path.expanduser("~/.netrc")
    if not os.path.exists(path):
        return None
    try:
        login = netrc.netrc().hosts.get(urlsplit(root).hostname or "")  # without the default login for all hosts
    except netrc.NetrcParseError:  # its message may have a password
        reason = "is not this user's alone, or has more than entries as `machine HOST login USER password PASSWORD`"
        raise UsageError(path, f"{reason}; `chmod 600` it, or correct it") from None
    if login is None:
        return None
    user, _, password = login
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _profile() -> Any:
    """Return the boto3 provider of the credentials of a profile; None if no profile is used."""
    files = map(os.path.exists, map(os.path.expanduser, ("~/.aws/credentials", "~/.aws/config")))
    if any(map(os.environ.get, _CREDENTIALS)) or not (any(map(os.environ.get, _PROFILE)) or any(files)):
        return None
    try:
        import boto3  # noqa: PLC0415 - optional
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - as above
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - as above
    except ImportError:
        if name := os.environ.get("AWS_PROFILE"):  # without boto3 the role of the machine would be used instead
            reason = f"names the profile {name!r}, which needs boto3; {installation('boto3')}, or set AWS_ACCESS_KEY_ID"
            raise UsageError("AWS_PROFILE", reason) from None
        return None
    try:
        session = boto3.Session()
        return None if session.get_credentials() is None else Boto3CredentialProvider(session)
    except BotoCoreError as error:
        raise UsageError("AWS_PROFILE", f"gives no credentials ({error})") from None


def _raise_store_error(url: str, error: BaseException) -> NoReturn:
    """Raise the error of mpired for an error of the library; raise other errors unchanged."""
    text, kind = without_secrets(str(error)), type(error).__name__
    status = _STATUS.search(text)
    answer = status[1].strip() if status else ""
    if kind in {"PreconditionError", "NotModifiedError"} or answer.startswith(_NO_RANGE):
        raise GoneError from None
    if kind == "AlreadyExistsError":
        raise exists_error(url, appeared=True) from None
    if isinstance(error, FileNotFoundError) or answer.startswith(_NOT_FOUND):
        reason = "there is no such bucket" if "NoSuchBucket" in text else "there is no such object"
        raise FileNotFoundError(errno.ENOENT, reason, url) from None
    if denied := _DENIED.get(kind) or (_NO_CREDENTIALS.search(text) and "there are no credentials"):
        hint = _SIGN_AGAIN if query_of(url) else _HINTS.get(object_of(url).scheme)
        raise PermissionError(errno.EACCES, f"{denied}; {hint}" if hint else denied, url) from None
    if kind == "NotSupportedError":
        raise BufferFileError(url, "its server sends no ranges of bytes; write it to a file first") from None
    if kind == "InvalidPathError":  # of an object in a list
        reason = "has an object beside it whose name has an empty part, `.`, `..` or a control character"
        raise UsageError(url, f"{reason}, so that its store cannot be listed; name the objects one by one") from None
    if isinstance(error, ValueError) and not isinstance(error, MpiredError):
        reason = f"is not a URL that can be asked for ({text.splitlines()[0]})"
        raise UsageError(url, _NOT_A_NAME if "parse path" in text else reason) from None
    if kind != "PanicException" and not isinstance(error, _obstore().exceptions.BaseError):
        raise error
    retries = _RETRIES.search(text)
    times = f", after {retries[1]} repetitions" if retries and retries[1] != "0" else ""
    message = " ".join(text.partition("\n\nDebug source")[0].split())[:200]
    reason = f"the store answers {answer}{times}" if answer else f"the store fails ({message})"
    raise OSError(errno.EIO, reason, url) from None


class RemoteOutput(Scratch):
    """A result that is an object of a store, which appears completely or not at all."""

    def __init__(
        self,
        url: str,
        *,
        overwrite: bool = False,  # whether an existing object may be replaced
        compression: Compression | None = None,
    ) -> None:
        self._url, self._overwrite = url, overwrite
        self._replaced = check_new(url, overwrite=overwrite)
        super().__init__()
        self.name = kept_first(url)
        self._compression = compression
        self._is_interrupted = False

    def commit(self, on_commit: Callable[[], None]) -> None:
        """Send the object; the end of the last request is the commit point."""
        with contextlib.ExitStack() as stack:
            fd = self.fd
            if self._compression is not None:
                fd = stack.enter_context(Scratch(name=self.name)).fd
                with calls.errors_name(self.name):
                    self._compression.pack(self.fd, fd)
            nbytes = os.fstat(fd).st_size
            if not self._overwrite and nbytes > SINGLE_NBYTES and version_of(self._url) is not None:
                raise exists_error(self._url, appeared=True)
            future = submit(self._put, fd, nbytes)
            try:
                with step("sending results"):
                    future.result()
                on_commit()
            except Exception as error:  # noqa: BLE001 - raised again
                self._check_failure(error, fd, nbytes)
                on_commit()
            except BaseException:
                self._is_interrupted = True
                if wait([future], _PATIENCE).not_done:
                    reason = "was interrupted while it was sent; look whether it is there"
                    raise UnconfirmedError(self._url, reason) from None
                if future.exception() is not None:
                    raise
                on_commit()  # the object was complete before the interruption

    def _put(self, fd: int, nbytes: int) -> None:
        """Send the bytes of a file, in a thread."""
        content: Any = self._blocks(fd, nbytes)
        part_nbytes = max(PART_NBYTES, -(-nbytes // _MAX_PARTS))
        options: dict[str, Any] = {"chunk_size": part_nbytes, "max_concurrency": SIMULTANEOUS_PARTS}
        if nbytes <= SINGLE_NBYTES:
            mode = "overwrite" if self._overwrite else "create"
            content, options = calls.pread_some(fd, nbytes, 0), {"mode": mode, "use_multipart": False}
        _send(self._url, lambda store, key: _obstore().put(store, key, content, **options))

    def _blocks(self, fd: int, nbytes: int) -> Iterator[bytes]:
        for block in calls.blocks(fd, 0, nbytes):
            if self._is_interrupted:  # the error lets the library discard the parts
                raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
            yield bytes(block)

    def _check_failure(self, error: Exception, fd: int, nbytes: int) -> None:
        """Raise the error of a failed request, unless the store has the complete object."""
        appeared = isinstance(error, OutputExistsError)  # perhaps made by the first of two attempts of the library
        if not appeared and not (isinstance(error, OSError) and error.errno == errno.EIO):
            raise error
        try:
            version = version_of(self._url)
        except OSError:
            state = "it could not be looked at; look whether the object is there"
        else:
            if version == self._replaced:
                raise error
            if version is not None and nbytes <= SINGLE_NBYTES:  # sent by one request, so the ETag is the MD5 digest
                digest = hashlib.md5(usedforsecurity=False)
                for block in calls.blocks(fd, 0, nbytes):
                    digest.update(block)
                if version.etag == f'"{digest.hexdigest()}"':
                    return
            state = "it was another object; look whether it is the result"
        if appeared:
            raise error
        raise UnconfirmedError(self._url, f"{getattr(error, 'strerror', error)}, and then {state}") from None


def check_new(url: str, *, overwrite: bool) -> Version | None:
    """Check that a result can be written to a URL; return the version of the replaced object, or None."""
    if object_of(url).scheme not in STORES:
        schemes = ", ".join(f"{scheme}://" for scheme in STORES)
        reason = f"is of a server that may show a part of a result; write to {schemes} or a file"
        raise UsageError(url, reason)
    version = version_of(url)
    if version is not None and not overwrite:
        raise exists_error(url)
    return version
