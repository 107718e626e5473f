"""MPI's reductions over files, one file per rank.

    >>> import mpired
    >>> total = mpired.reduce(["sample_data/counts_0.npy", "sample_data/counts_1.npy"], op="sum")

The functions are the commands. Errors are in `mpired.errors`.
"""

from __future__ import annotations

__version__ = "0.2.0.dev0"

# Types are in `__init__.pyi`. With `python -m mpired` a file in the working directory could have the name of a library,
# so this module imports no library. The command sets variables before the import of NumPy, so names are imported at
# their first use.
_MODULES = {
    name: module
    for module, names in {
        "mpired.api.collectives": "allreduce exscan reduce reduce_local reduce_scatter reduce_scatter_block scan",
        "mpired.api.mpi": "mpi",
        "mpired.api.pack": "pack unpack",
        "mpired.api.queries": "diff info locate show",
        "mpired.api.windows": "Window recover",
        "mpired.datatypes": "DATATYPES",
        "mpired.errors": "Abort MpiredError",
        "mpired.ops": "OPS",
        "mpired.ops.table": "BAND BOR BXOR LAND LOR LXOR MAX MAXLOC MIN MINLOC NO_OP PROD REPLACE SUM",
        "mpired.ops.user": "op",
        "mpired.queries.figures": "Shown",
        "mpired.report": "PackSummary Summary",
        "mpired.files.recovery": "Recovered",
    }.items()
    for name in names.split()
}
__all__ = ["__version__", "datatypes", "errors"]
__all__ += list(_MODULES)


def __getattr__(name: str) -> object:
    import importlib  # noqa: PLC0415 - so that the command has its handlers of signals early

    if name in {"datatypes", "errors"}:
        return importlib.import_module(f"mpired.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'mpired' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
