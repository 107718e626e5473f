"""An S3 server on loopback: moto behind a door that counts requests and makes faults.

`python object_store.py FILE` serves until it is ended, and writes its port to the file. Under `/_/` it is told which
faults to make, and tells what was asked of it.
"""

import contextlib
import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

BUCKET = "bucket"
MEBIBYTE = 1 << 20
BYTES = ("--op", "bxor", "--type", "uint8_t")
"""The words for ranks of single bytes."""
_CONTROL = "/_/"
_NOWHERE = "http://127.0.0.1:9"
_KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ALLOW_HTTP": "true"}
CLOSED = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), _NOWHERE),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), None),
    **_KEYS,
    "AWS_ENDPOINT_URL": _NOWHERE,
    "GOOGLE_SKIP_SIGNATURE": "true",
    "AZURE_STORAGE_ACCOUNT_NAME": "account",
    "AZURE_SKIP_SIGNATURE": "true",
}
"""An environment in which no URL leads anywhere but to a port where nobody listens."""


class Door:
    """A WSGI application before another one: what `faults` says happens to requests, one after another.

    A fault has a `method`, a pattern of what is asked for (`of`: path, query and range), a number of such requests to
    let pass (`after`) and then of `times` that it happens, and what happens: `slow` (a pause of some seconds before),
    `fresh` (so many other bytes are under the key, or that which is named as `key`, before), `gone` (nothing is
    under the key any more), `status` (an answer of that status), `late` (an answer of that status when all is done),
    `cut` (so many bytes of the body, and the connection ends).
    """

    def __init__(self, application: Callable[..., Iterable[bytes]], backend: Any) -> None:
        self._application, self._backend = application, backend
        self._faults: list[dict[str, Any]] = []
        self._log: list[dict[str, Any]] = []
        self._busy = 0

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path.startswith(_CONTROL):
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            what, _, key = path.removeprefix(_CONTROL).partition("/")
            answer = getattr(self, what)(key, body)
            start("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(answer)))])
            return [answer]
        asked = f"{path}?{environ.get('QUERY_STRING', '')} {environ.get('HTTP_RANGE', '')}"
        heads = {name: environ.get(f"HTTP_{name.upper()}") for name in ("if_match", "if_none_match", "authorization")}
        self._log.append({"method": method, "of": asked, **heads})
        fault = self._fault(method, asked) or {}
        self._busy += 1
        try:
            return self._answer(fault, environ, start)
        finally:
            self._busy -= 1

    def _answer(self, fault: dict[str, Any], environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        time.sleep(fault.get("slow", 0))
        key = environ["PATH_INFO"].removeprefix(f"/{BUCKET}/")
        if "fresh" in fault:
            self.put(fault.get("key", key), os.urandom(fault["fresh"]))
        if "gone" in fault:
            self._backend.delete_object(BUCKET, key)
        if "status" in fault:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return _failed(fault["status"], start)
        answers = self._application(environ, start if "late" not in fault else _ignored)
        if "late" in fault:
            b"".join(answers)
            return _failed(fault["late"], start)
        if "cut" in fault:
            return _broken(b"".join(answers), fault, environ["werkzeug.socket"])
        return answers

    def _fault(self, method: str, asked: str) -> dict[str, Any] | None:
        for fault in self._faults:
            if fault.get("method", method) == method and re.search(fault.get("of", ""), asked):
                if fault.get("after", 0) > 0:
                    fault["after"] -= 1
                elif fault.get("times", 1) > 0:
                    fault["times"] = fault.get("times", 1) - 1
                    return fault
        return None

    def faults(self, _key: str, body: bytes) -> bytes:
        """Take the faults to make."""
        self._faults = json.loads(body)
        return b""

    def log(self, key: str, _body: bytes) -> bytes:
        """Return the requests since the last time; with the key "kept" they are told again."""
        told = json.dumps(self._log)
        if key != "kept":
            self._log = []
        return told.encode()

    def put(self, key: str, body: bytes) -> bytes:
        """Put an object that everybody may read."""
        from moto.s3.models import get_canned_acl

        self._backend.put_object(BUCKET, key, body).set_acl(get_canned_acl("public-read"))
        return b""

    def get(self, key: str, _body: bytes) -> bytes:
        """Return "+" and the content of an object, or nothing if there is none."""
        found = self._backend.buckets[BUCKET].keys.get(key)
        return b"" if found is None else b"+" + found.value

    def busy(self, _key: str, _body: bytes) -> bytes:
        """Return how many requests are being answered."""
        return str(self._busy).encode()

    def uploads(self, _key: str, _body: bytes) -> bytes:
        """Return how many uploads in parts are neither an object nor given up."""
        return str(len(self._backend.buckets[BUCKET].multiparts)).encode()

    def clear(self, _key: str, _body: bytes) -> bytes:
        """Forget everything."""
        self._backend.buckets[BUCKET].keys.clear()
        self._backend.buckets[BUCKET].multiparts.clear()
        self._faults, self._log = [], []
        return b""


def _ignored(*_: object) -> None:
    """Begin no answer."""


def _failed(status: int, start: Callable[..., Any]) -> Iterable[bytes]:
    start(f"{status} Fault", [("Content-Length", "0")])
    return [b""]


def _broken(body: bytes, fault: dict[str, Any], connection: socket.socket) -> Iterator[bytes]:
    """Yield the first bytes of a body; the others never come."""
    yield body[: fault["cut"]]
    connection.shutdown(socket.SHUT_RDWR)


def serve(place: str) -> None:
    """Serve an S3 with one bucket."""
    logging.disable(logging.CRITICAL)
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: object) -> None:
            """Say nothing."""

    backend = s3_backends["123456789012"]["aws"]
    backend.create_bucket(BUCKET, "us-east-1")
    door = Door(DomainDispatcherApplication(create_backend_app), backend)
    server = make_server("127.0.0.1", 0, door, threaded=True, request_handler=Quiet)
    with open(f"{place}.new", "w", encoding="ascii") as file:
        file.write(str(server.server_port))
    os.rename(f"{place}.new", place)
    server.serve_forever()


class Store:
    """What a test does with the server: it tells it what to do, and looks at what is there."""

    def __init__(self, port: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        others = dict.fromkeys(name for name in os.environ if name.startswith("AWS_"))
        self.environment = {**others, **_KEYS, "AWS_ENDPOINT_URL": self.url, "no_proxy": "127.0.0.1"}

    def tell(self, what: str, body: bytes = b"") -> bytes:
        """Tell the server something, and return what it says."""
        request = urllib.request.Request(f"{self.url}{_CONTROL}{urllib.parse.quote(what)}", body, method="POST")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return answer.read()

    def put(self, key: str, content: bytes) -> None:
        self.tell(f"put/{key}", content)

    def get(self, key: str) -> bytes | None:
        found = self.tell(f"get/{key}")
        return found[1:] if found else None

    def put_folder(self, folder: Path, prefix: str) -> None:
        """Put the files of a folder under a prefix."""
        for path in filter(Path.is_file, folder.rglob("*")):
            self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def faults(self, *faults: dict[str, Any]) -> None:
        self.tell("faults", json.dumps(faults).encode())

    def log(self, *, kept: bool = False) -> list[dict[str, Any]]:
        return json.loads(self.tell("log/kept" if kept else "log"))

    def asked(self) -> list[str]:
        """Return the requests since the last time, each in a few words."""
        return [f"{each['method']} {each['of'].removeprefix(f'/{BUCKET}')}".strip() for each in self.log()]


def big(store: Store, nranks: int, nbytes: int) -> bytes:
    """Put ranks of single bytes, r0.bin and so on, and return their exclusive or."""
    import numpy as np

    draw = np.random.default_rng(nranks)
    arrays = [draw.integers(0, 256, nbytes, np.uint8) for _ in range(nranks)]
    for rank, array in enumerate(arrays):
        store.put(f"r{rank}.bin", array.tobytes())
    return np.bitwise_xor.reduce(arrays).tobytes()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Store]:
    """Serve in a process of its own while the block runs."""
    place = folder / "port"
    server = subprocess.Popen([sys.executable, __file__, str(place)], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not place.exists():
            assert server.poll() is None, "the server did not start"
            assert time.monotonic() < end, "the server does not start"
            time.sleep(0.05)
        yield Store(place.read_text(encoding="ascii"))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    serve(sys.argv[1])
