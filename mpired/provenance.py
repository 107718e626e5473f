"""The origin of a result: a record in the result's file or in a file beside it."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from mpired.context import Context
from mpired.engines import pool
from mpired.errors import escaped, number, without_secrets
from mpired.log import step, track
from mpired.sources.source import OpenStore, Source
from mpired.sources.stream import StreamSource

_BLOCK_BYTES = 1 << 20
# With less to read workers cost more than they give.
_SMALL_BYTES = 16 << 20


class Provenance:
    """The record of a call, made when the first result that has it is written: streams are read by then."""

    suffix = ".json"  # of the file beside a result that has no place for it

    def __init__(self, context: Context) -> None:
        self._how = context.record
        self._call: tuple[Mapping[str, Any], Sequence[tuple[str, Source]], int] | None = None

    @functools.cached_property
    def text(self) -> str:
        """The record; "" before it is set."""
        if self._call is None:
            return ""
        call, inputs, jobs = self._call
        files = [(name, source.packed or source) for name, source in inputs]
        with step("digests of the inputs"):
            digests = _digests([source for _, source in files if not source.is_sequential], jobs)
        read = []
        for name, source in files:
            # Of a stream nothing is left to be read for a digest.
            nbytes, digest = source.passed if isinstance(source, StreamSource) else (source.nbytes, digests.pop(0))
            of = "file" if source.inode is not None else "content"
            read.append({"as": name, "file": source.name, "nbytes": nbytes, "sha256": digest, "of": of})
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return without_secrets(json.dumps({**call, "inputs": read, "time": now, "host": os.uname().nodename}, indent=1))

    def write(self, what: Mapping[str, Any], inputs: Sequence[tuple[str, Source]], jobs: int) -> None:
        """Set the record: the call, and its inputs, each with its role in the call."""
        self._call = {**self._how, **what}, inputs, jobs
        with suppress(AttributeError):
            del self.text


def _digests(sources: Sequence[Source], jobs: int) -> list[str]:
    """Return the SHA-256 of all bytes of some files."""
    jobs = jobs if sum(source.nbytes for source in sources) >= _SMALL_BYTES else 1
    digests = [""] * len(sources)
    with closing(pool.run(_digest, enumerate(sources), max(1, min(jobs, len(sources))))) as found:
        for _, (number, digest) in zip(track(sources), found, strict=True):
            digests[number] = digest
    return digests


def _digest(numbered: tuple[int, Source]) -> tuple[int, str]:
    """Return the digest of the bytes of a source, with its number."""
    number, source = numbered
    digest, block = hashlib.sha256(), memoryview(bytearray(min(_BLOCK_BYTES, max(1, source.nbytes))))
    with closing(source.open()) as file:
        if isinstance(file, OpenStore):  # as `sha256sum` lists its files, and that list
            names = file.names()
            file.expect_names(names, source.nbytes)
            for name in names:
                line = f"{hashlib.sha256(file.content(name, source.nbytes)).hexdigest()}  {name}\n"
                digest.update(line.encode("utf-8", "surrogateescape"))
        else:
            at = 0
            while got := file.read_into(block, at):
                digest.update(block[:got])
                at += got
    source.check_unchanged()
    return number, digest.hexdigest()


def found(path: str, within: str | None) -> dict[str, Any] | None:
    """Return the record of a file, with the place where it is: within it, or beside; None for no record."""
    where, text, is_older = path, within, False
    try:
        if text is None:
            where = path + Provenance.suffix
            with open(where, encoding="utf-8") as file:
                text = file.read()
            is_older = os.stat(where).st_mtime_ns < os.stat(path).st_mtime_ns
        record = json.loads(text)
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or "function" not in record or not isinstance(record.get("inputs"), list):
        return None
    if is_older:  # than the file, which may have another content
        record["stale"] = True
    return {"where": where, **record}


def lines(record: Mapping[str, Any]) -> Iterable[str]:
    """Yield what a record says, in lines for people."""
    op = f" with {record['op']}" if record.get("op") else ""
    inputs = [each.get("file") for each in record["inputs"] if isinstance(each, dict)]
    stale = "; older than the file, which may have another content" if record.get("stale") else ""
    made = f"{record['function']}{op} of {number(len(inputs), 'input')}, {record.get('time')}"
    yield escaped(f"made by mpired {record.get('version')}: {made}")
    if "argv" in record:
        yield escaped(f"by {shlex.join(map(str, record['argv']))}")
    elif "call" in record:
        yield escaped(f"by {record['call']}")
    yield escaped(f"recorded in {record['where']}{stale}")
