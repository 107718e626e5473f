"""An S3 server on loopback: moto behind a door that counts requests and makes faults.

`python object_store.py FILE` serves until it is ended, and writes its port to the file. Under `/_/` it is told which
faults to make, and tells what was asked of it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

BUCKET = "bucket"
_CONTROL = "/_/"


class Door:
    """A WSGI application before another one: what `faults` says happens to requests, one after another.

    A fault has a `method`, a pattern of the `path`, a number of matching requests to let pass (`after`) and then of
    `times` that it happens, and what happens: `status` (an answer of that status), `cut` (so many bytes of the body,
    and the connection ends), `stall` (so many bytes, and nothing more for some `seconds`), `slow` (a pause before the
    answer), `put` (another content under a key).
    """

    def __init__(self, application: Callable[..., Iterable[bytes]], put: Callable[[str, bytes], None]) -> None:
        self._application, self._put = application, put
        self.faults: list[dict[str, Any]] = []
        self.log: list[dict[str, Any]] = []

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path.startswith(_CONTROL):
            return self._told(path.removeprefix(_CONTROL), environ, start)
        self.log.append(
            {
                "method": method,
                "path": path,
                "query": environ.get("QUERY_STRING", ""),
                "range": environ.get("HTTP_RANGE"),
                "if_match": environ.get("HTTP_IF_MATCH"),
                "if_none_match": environ.get("HTTP_IF_NONE_MATCH"),
                "signed": environ.get("HTTP_AUTHORIZATION", ""),
            }
        )
        fault = self._fault(method, f"{path}?{environ.get('QUERY_STRING', '')}")
        if fault is None:
            return self._application(environ, start)
        if "put" in fault:
            self._put(path.removeprefix(f"/{BUCKET}/"), bytes.fromhex(fault["put"]))
        if "slow" in fault:
            time.sleep(fault["slow"])
        if "status" in fault:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start(f"{fault['status']} Fault", [("Content-Length", "0")])
            return [b""]
        answer = self._application(environ, start)
        if "cut" in fault or "stall" in fault:
            return _broken(b"".join(answer), fault, environ["werkzeug.socket"])
        return answer

    def _fault(self, method: str, path: str) -> dict[str, Any] | None:
        for fault in self.faults:
            if fault.get("method", method) == method and re.search(fault.get("path", ""), path):
                if fault.get("after", 0) > 0:
                    fault["after"] -= 1
                elif fault.get("times", 1) > 0:
                    fault["times"] = fault.get("times", 1) - 1
                    return fault
        return None

    def _told(self, what: str, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        answer: Any = None
        if what == "faults":
            self.faults = json.loads(body)
        elif what == "log":
            answer, self.log = self.log, []
        else:
            self._put(what.removeprefix("put/"), body)
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]


def _broken(body: bytes, fault: dict[str, Any], connection: socket.socket) -> Iterator[bytes]:
    """Yield the first bytes of a body; the others never come."""
    yield body[: fault.get("cut", fault.get("stall", 0))]
    if "stall" in fault:
        time.sleep(fault["seconds"])
    connection.shutdown(socket.SHUT_RDWR)


def serve(place: str) -> None:
    """Serve an S3 with one bucket."""
    logging.disable(logging.CRITICAL)
    from moto.core.utils import get_equivalent_url_in_aws_domain  # noqa: F401
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: object) -> None:
            """Say nothing."""

    backend = s3_backends["123456789012"]["aws"]
    backend.create_bucket(BUCKET, "us-east-1")

    def put(key: str, content: bytes) -> None:
        backend.put_object(BUCKET, key, content)

    door = Door(DomainDispatcherApplication(create_backend_app), put)
    server = make_server("127.0.0.1", 0, door, threaded=True, request_handler=Quiet)
    with open(f"{place}.new", "w", encoding="ascii") as file:
        file.write(str(server.server_port))
    os.rename(f"{place}.new", place)
    server.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1])
