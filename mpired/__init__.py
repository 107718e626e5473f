"""MPI's reductions over files, one file per rank.

    >>> import mpired
    >>> total = mpired.reduce(["sample_data/counts_0.npy", "sample_data/counts_1.npy"], op="sum")

The functions are the commands. Errors are in `mpired.errors`.
"""

from __future__ import annotations

__version__ = "0.2.0.dev0"

# Nothing is imported here that a folder of data could shadow under `python -m mpired`. The types are in `__init__.pyi`.

__all__ = [
    "BAND",
    "BOR",
    "BXOR",
    "DATATYPES",
    "LAND",
    "LOR",
    "LXOR",
    "MAX",
    "MAXLOC",
    "MIN",
    "MINLOC",
    "NO_OP",
    "OPS",
    "PROD",
    "REPLACE",
    "SUM",
    "Abort",
    "MpiredError",
    "PackSummary",
    "Recovered",
    "Shown",
    "Summary",
    "Window",
    "__version__",
    "allreduce",
    "datatypes",
    "diff",
    "errors",
    "exscan",
    "info",
    "locate",
    "mpi",
    "op",
    "pack",
    "recover",
    "reduce",
    "reduce_local",
    "reduce_scatter",
    "reduce_scatter_block",
    "scan",
    "show",
    "unpack",
]

# Imported when first used: the command has things to set before NumPy starts.
_HOMES = {
    "Abort": "mpired.errors",
    "DATATYPES": "mpired.datatypes",
    "MpiredError": "mpired.errors",
    "OPS": "mpired.ops",
    "PackSummary": "mpired.report",
    "Recovered": "mpired.storage.recovering",
    "Shown": "mpired.queries.show",
    "Summary": "mpired.report",
    "Window": "mpired.api.windows",
    "allreduce": "mpired.api.collectives",
    "diff": "mpired.api.queries",
    "exscan": "mpired.api.collectives",
    "info": "mpired.api.queries",
    "locate": "mpired.api.queries",
    "mpi": "mpired.api.mpi",
    "op": "mpired.ops.user",
    "pack": "mpired.api.pack",
    "recover": "mpired.api.recover",
    "reduce": "mpired.api.collectives",
    "reduce_local": "mpired.api.collectives",
    "reduce_scatter": "mpired.api.collectives",
    "reduce_scatter_block": "mpired.api.collectives",
    "scan": "mpired.api.collectives",
    "show": "mpired.api.queries",
    "unpack": "mpired.api.pack",
}
_HOMES |= dict.fromkeys(
    ("BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR", "MAX", "MAXLOC", "MIN", "MINLOC", "NO_OP", "PROD", "REPLACE", "SUM"),
    "mpired.ops.table",
)


def __getattr__(name: str) -> object:
    import importlib  # noqa: PLC0415 - here, so that ctrl-C finds less to interrupt before the command has begun

    if name in {"datatypes", "errors"}:
        return importlib.import_module(f"mpired.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'mpired' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
