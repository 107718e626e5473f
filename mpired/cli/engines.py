"""`mpired engines`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import metadata
from typing import Any, cast

from mpired.cli import params
from mpired.cli.messages import answer
from mpired.engines import ENGINES, LOCAL, Engine, connected, probe
from mpired.errors import UsageError, escaped, installation, number
from mpired.options import ENGINE
from mpired.sources.open import open_source


@params.command(*ENGINE, "rank_numbers", "as_json@print", ranks="[RANK...]")
def engines(*, ranks: tuple[str, ...], **options: Any) -> None:
    """List the engines (local, mpi, dask): whether each is installed and running.

    \b
    Examples:
      mpired engines

    With --engine, describe each of its workers, and check that it sees the RANKs as this machine does. The status is
    that of an error if a worker cannot be used.
    """
    wrong = ""
    with connected(cast("Any", options)) as engine:
        if engine is LOCAL:
            if ranks:
                raise UsageError("ranks", "are seen by this machine's processes as by all others; name an `engine`")
            # Of processes that a launcher has started the first one speaks for all.
            rows = list(map(_row, ENGINES.values())) if all(row.is_first for row in ENGINES.values()) else []
        else:
            rows, wrong = _looked(engine, ranks)
    if rows:
        answer(rows, (escaped("".join(_words(row))) for row in rows))
    if wrong:
        raise UsageError("`engine`", f"{wrong}; let all workers have the same programs and see the same files")


def _row(engine: Engine) -> dict[str, Any]:
    """Return what there is of an engine."""
    try:
        version = metadata.version(engine.package) if engine.package else ""
    except metadata.PackageNotFoundError:
        version = None
    workers = engine.runner.limits().workers if engine is LOCAL else None
    return {
        "engine": engine.name,
        "what": engine.doc,
        "package": engine.package or None,
        "version": version or None,
        "extra": engine.extra or None,
        "workers": workers,
        "usable": version is not None,
        "started": engine.started,
    }


def _looked(engine: Engine, ranks: tuple[str, ...]) -> tuple[list[dict[str, Any]], str]:
    """Return a line for each worker of the engine, and the error of one of them, "" if there is none."""
    sources = [open_source(cast("str", rank), params.context()) for rank in params.expand(ranks)[0]] if ranks else []
    rows, wrong = [], ""
    own = probe.versions()
    for seen in engine.runner.everywhere(partial(probe.look, sources, None)):
        bad = {source.name: reason for source, reason in zip(sources, seen.files, strict=True) if reason}
        other = [what for what, here in own.items() if seen.versions.get(what) != here]
        rows.append({"host": seen.host, **seen.versions, "ranks": len(sources), "not_seen": bad})
        for reason in (*(f"{what} differs" for what in other), *(f"{name}: {why}" for name, why in bad.items())):
            wrong = wrong or f"{reason}, in the worker on {seen.host}"
    return rows, wrong


def _words(row: dict[str, Any]) -> Iterator[str]:
    if "host" in row:
        versions = (f"{what} {row[what]}" for what in row if what not in {"host", "ranks", "not_seen"})
        yield f"{row['host']}: {', '.join(versions)}"
        if row["ranks"]:
            yield f"; sees {row['ranks'] - len(row['not_seen'])} of {row['ranks']} ranks"
        return
    yield f"{row['engine']:8}{row['what']}; "
    if row["workers"]:
        yield number(row["workers"], "worker")
    elif row["usable"]:
        yield f"{row['package']} {row['version']} is installed"
        for name, value in row["started"].items():
            yield f", and started: {name} is {value}"
    else:
        extra = f"mpired[{row['extra']}]"
        yield f"not installed: {installation(extra)}"
