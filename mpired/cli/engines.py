"""`mpired engines`."""

from __future__ import annotations

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
            found = list(map(_described, ENGINES.values())) if all(row.is_first for row in ENGINES.values()) else []
        else:
            found, wrong = _workers(engine, ranks)
    if found:
        answer([row for row, _ in found], (escaped(line) for _, line in found))
    if wrong:
        raise UsageError("`engine`", f"{wrong}; let all workers have the same programs and see the same files")


def _described(engine: Engine) -> tuple[dict[str, Any], str]:
    """Return what there is of an engine, for JSON and on a line."""
    try:
        version = metadata.version(engine.package) if engine.package else ""
    except metadata.PackageNotFoundError:
        version = None
    started = "".join(f", and started: {name} is {value}" for name, value in engine.started.items())
    state, workers = f"{engine.package} {version} is installed{started}", None
    if engine is LOCAL:
        workers = engine.runner.limits().workers
        state = number(workers, "worker")
    elif version is None:
        state = f"not installed: {installation(f'mpired[{engine.extra}]')}"
    row = {
        "engine": engine.name,
        "what": engine.doc,
        "package": engine.package or None,
        "version": version or None,
        "extra": engine.extra or None,
        "workers": workers,
        "usable": version is not None,
        "started": engine.started,
    }
    return row, f"{engine.name:8}{engine.doc}; {state}"


def _workers(engine: Engine, ranks: tuple[str, ...]) -> tuple[list[tuple[dict[str, Any], str]], str]:
    """Describe each worker of the engine, and return the error of one of them, "" if there is none."""
    sources = [open_source(cast("str", rank), params.context()) for rank in params.expand(ranks)[0]] if ranks else []
    found, wrong = [], ""
    own = probe.versions()
    for seen in engine.runner.everywhere(partial(probe.look, sources, None)):
        bad = {source.name: reason for source, reason in zip(sources, seen.files, strict=True) if reason}
        other = [what for what, here in own.items() if seen.versions.get(what) != here]
        line = f"{seen.host}: {', '.join(map(' '.join, seen.versions.items()))}"
        if sources:
            line += f"; sees {len(sources) - len(bad)} of {len(sources)} ranks"
        found.append(({"host": seen.host, **seen.versions, "ranks": len(sources), "not_seen": bad}, line))
        for reason in (*(f"{what} differs" for what in other), *(f"{name}: {why}" for name, why in bad.items())):
            wrong = wrong or f"{reason}, in the worker on {seen.host}"
    return found, wrong
