"""The engines, one row each: workers that run the segments of a plan.

Tasks can be sent to other machines: they have absolute paths, and compare files without the numbers of their devices.
Workers on this machine write results themselves. Workers on other machines send the results to this process, which
writes them, or open the drafts of results by their names.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from mpired.errors import UsageError, installation

SMALL_NBYTES = 48 << 20  # smaller jobs run in this process: to start workers takes longer


class Limits(NamedTuple):
    """The limits of the workers of an engine."""

    workers: int  # default number
    descriptors: int  # open files of each worker; `resource.RLIM_INFINITY` without a limit
    machines: int = 1


# The workers of each line, in the order of its stages.
Lines: TypeAlias = tuple[tuple[int, ...], ...]

IN_FLIGHT = 4  # values that wait between a stage and the next, at most


Runner: TypeAlias = Any
"""A module or an object with these functions.

- `run(function, items, jobs, *, isolated=False)` applies the function to every item in at most `jobs` workers, and
  yields the results as they arrive. The function and the items can be pickled. Each value that a generator function
  yields is a result. With `isolated` no item runs in this process. When the generator is closed, all workers stop.
- `limits()` returns the `Limits` of its workers.

If the workers may be on other machines:

- `everywhere(function)` applies the function once in each worker, to a number, and returns the results. It raises the
  errors of `run`.

If the workers can be stages of lines, in which each stage sends values to the next:

- `lines(jobs, max_stages)` returns `Lines` of equal length: at most `jobs` workers, at most `max_stages` in a line,
  and no line without workers. A machine is a stage, and each of its workers is in another line; on a single machine
  each worker is a stage.
- `chain(function, items, lines)` is like `run`, and applies the function to the items of each stage and its
  `messages.Link`. A stage sends as many values as the next one receives.
"""


class Engine(NamedTuple):
    """An engine: a row of the table."""

    name: str
    module: str  # a `Runner`, or a module with `connect`, a context manager that returns a `Runner`
    extra: str = ""  # that installs its package; "" if it needs no package
    same_host: bool = True  # whether workers are children of this process, which open its files and write results
    doc: str = ""
    package: str = ""  # that it needs; "" for none
    options: tuple[str, ...] = ()  # of this engine alone
    can_stop_ops: bool = True  # whether a worker can stop an op after `op_timeout`, in a main thread of its own
    # environment variables of a launcher or a scheduler, each with the variable of the number of this process, from 0
    variables: Mapping[str, str] = {}
    closes_files: bool = True  # whether the open files of a worker are closed at the end of a run
    # Whether a launcher has started the workers. The launcher may write to standard output. The workers end together
    # with the command, so they may write results themselves; and they can be stages of lines.
    is_launched: bool = False
    connected: Runner | None = None  # the result of `connect` of the module, while the engine is connected

    def __reduce__(self) -> tuple[Any, ...]:
        return Engine, (*self._replace(connected=None),)  # workers do not start workers

    @property
    def started(self) -> dict[str, str]:
        """The environment variables that a launcher or a scheduler has set."""
        return {name: os.environ[name] for name in self.variables if os.environ.get(name)}

    @property
    def is_first(self) -> bool:
        """Whether this process is the first of its launcher, or has no launcher."""
        numbers = {os.environ.get(self.variables[name]) for name, number in self.started.items() if number != "1"}
        return numbers <= {None, "0"}

    @property
    def runner(self) -> Runner:
        """The object that runs the segments."""
        return self.connected or importlib.import_module(self.module)


LOCAL = Engine("local", "mpired.engines.pool", doc="processes of this machine")
_MPI_VARIABLES = {
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "PMI_SIZE": "PMI_RANK",
    "SLURM_STEP_NUM_TASKS": "SLURM_PROCID", "PALS_SIZE": "PALS_RANKID",
}  # fmt: skip
_ROWS = (
    LOCAL,
    Engine("mpi", "mpired.engines.mpi", extra="mpi", package="mpi4py", same_host=False,
        doc="the processes that srun or mpiexec has started", is_launched=True,
        options=("engine_timeout",), variables=_MPI_VARIABLES),
    Engine("dask", "mpired.engines.futures", extra="dask", package="distributed", same_host=False,
        doc="the workers of a Dask scheduler that runs", options=("scheduler", "engine_timeout"), can_stop_ops=False,
        variables={"DASK_SCHEDULER_ADDRESS": ""}),
)  # fmt: skip
ENGINES = {row.name: row for row in _ROWS}
EXECUTOR = Engine(  # that a program passes in place of the name of an engine
    "executor", "mpired.engines.futures", same_host=False, doc="an executor of concurrent.futures, in Python",
    can_stop_ops=False, closes_files=False,
)  # fmt: skip


@contextlib.contextmanager
def connected(options: Mapping[str, Any]) -> Iterator[Engine]:
    """Connect to the engine of the options while the block runs."""
    value = options["engine"]
    if isinstance(value, str):
        row = ENGINES[value]
    elif callable(getattr(value, "everywhere", None)):  # of `mpired.mpi`
        row = ENGINES["mpi"]
    else:
        row = ENGINES["dask"] if is_dask(value) else EXECUTOR
    for name in ("scheduler", "engine_timeout"):
        if options[name] is not None and name not in row.options:
            engines = ", ".join(engine.name for engine in ENGINES.values() if name in engine.options)
            raise UsageError(f"`{name}`", f"is for the engine {engines}, and this one is {row.name}; leave it out")
    if options.get("spread") == "ranks" and not row.is_launched:
        engines = ", ".join(engine.name for engine in ENGINES.values() if engine.is_launched)
        reason = f"ranks is for the engine {engines}, whose workers hand blocks to one another, and this one is"
        raise UsageError("`spread`", f"{reason} {row.name}; leave it out")
    with contextlib.ExitStack() as stack:
        if row is not LOCAL:
            connect = importlib.import_module(row.module).connect
            try:
                row = row._replace(connected=stack.enter_context(connect(options)))
            except ModuleNotFoundError as error:
                if not row.package or (error.name or "").partition(".")[0] not in {row.package, "dask"}:
                    raise
                raise UsageError("`engine`", not_installed(row)) from None
        yield row


def is_dask(engine: object) -> bool:
    """Return whether an engine of a program is a client of Dask."""
    return type(engine).__module__.partition(".")[0] == "distributed"


def launched() -> int:
    """Return the number of processes of the launcher, in the first process; else, or without a launcher, 1."""
    row = ENGINES["mpi"]
    return max(map(int, filter(str.isdecimal, row.started.values())), default=1) if row.is_first else 1


def not_installed(row: Engine) -> str:
    """Return the reason of the error for an engine whose package is missing."""
    hint = installation(f"mpired[{row.extra}]")
    return f"{row.name} needs {row.package}, which is not installed; install it with {hint}"
