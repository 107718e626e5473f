"""Provenance: the record of a call and its inputs, in the file of a result or in a sidecar."""

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

_BLOCK_NBYTES = 1 << 20
# Inputs smaller than this are read in this process.
_SMALL_NBYTES = 16 << 20


class Provenance:
    """The record of a call; its text is made for the first result, after all streams are read."""

    suffix = ".json"  # of a sidecar

    def __init__(self, context: Context) -> None:
        self._record = context.record
        self._call: tuple[Mapping[str, Any], Sequence[tuple[str, Source]], int] | None = None

    @functools.cached_property
    def text(self) -> str:
        """The record as JSON; "" before `write`."""
        if self._call is None:
            return ""
        call, inputs, jobs = self._call
        files = [(name, source.packed or source) for name, source in inputs]
        with step("digests of the inputs"):
            digests = _digests([source for _, source in files if not source.is_sequential], jobs)
        rows = []
        for name, source in files:
            nbytes, digest = source.totals if isinstance(source, StreamSource) else (source.nbytes, digests.pop(0))
            subject = "file" if source.inode is not None else "content"
            rows.append({"as": name, "file": source.name, "nbytes": nbytes, "sha256": digest, "of": subject})
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return without_secrets(json.dumps({**call, "inputs": rows, "time": now, "host": os.uname().nodename}, indent=1))

    def write(self, call: Mapping[str, Any], inputs: Sequence[tuple[str, Source]], jobs: int) -> None:
        """Set the call, and its inputs with their roles."""
        self._call = {**self._record, **call}, inputs, jobs
        with suppress(AttributeError):
            del self.text


def _digests(sources: Sequence[Source], jobs: int) -> list[str]:
    """Return the SHA-256 digests of sources."""
    jobs = jobs if sum(source.nbytes for source in sources) >= _SMALL_NBYTES else 1
    digests = [""] * len(sources)
    with closing(pool.run(_digest, enumerate(sources), max(1, min(jobs, len(sources))))) as results:
        for _, (index, digest) in zip(track(sources), results, strict=True):
            digests[index] = digest
    return digests


def _digest(task: tuple[int, Source]) -> tuple[int, str]:
    """Return the index and the digest of a source."""
    index, source = task
    digest, block = hashlib.sha256(), memoryview(bytearray(min(_BLOCK_NBYTES, max(1, source.nbytes))))
    with closing(source.open()) as file:
        if isinstance(file, OpenStore):  # the digest of the list that `sha256sum` makes of its files
            names = file.names()
            file.expect_names(names, source.nbytes)
            for name in names:
                line = f"{hashlib.sha256(file.content(name, source.nbytes)).hexdigest()}  {name}\n"
                digest.update(line.encode("utf-8", "surrogateescape"))
        else:
            offset = 0
            while nbytes := file.read_into(block, offset):
                digest.update(block[:nbytes])
                offset += nbytes
    source.check_unchanged()
    return index, digest.hexdigest()


def read_record(path: str, embedded: str | None) -> dict[str, Any] | None:
    """Return the record of a file, `embedded` or in a sidecar, with its location; None if the file has no record."""
    where, text, is_older = path, embedded, False
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
    if is_older:
        record["stale"] = True
    return {"where": where, **record}


def lines(record: Mapping[str, Any]) -> Iterable[str]:
    """Yield lines that describe a record to users."""
    op = f" with {record['op']}" if record.get("op") else ""
    inputs = [row.get("file") for row in record["inputs"] if isinstance(row, dict)]
    stale = "; older than the file, which may have another content" if record.get("stale") else ""
    call = f"{record['function']}{op} of {number(len(inputs), 'input')}, {record.get('time')}"
    yield escaped(f"made by mpired {record.get('version')}: {call}")
    if "argv" in record:
        yield escaped(f"by {shlex.join(map(str, record['argv']))}")
    elif "call" in record:
        yield escaped(f"by {record['call']}")
    yield escaped(f"recorded in {record['where']}{stale}")
