"""The engines, one row each: who runs the segments of a plan.

Every process of this user can open the files of a task: the paths of ranks and of user-defined ops become
absolute when a task is sent, and a rank is known without the number of its device, which other machines do not share.
An output has a name where the workers of an engine are not children of this process; workers on other machines send
results back instead, and this process writes them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from mpired.errors import UsageError, installation

SMALL_NBYTES = 48 << 20
"""With fewer bytes in all ranks workers cost more than they give: the command does the work itself."""


class Limits(NamedTuple):
    """The limits of the workers of an engine."""

    workers: int  # unless the user says how many
    descriptors: int  # open files of each; `resource.RLIM_INFINITY` for any number
    machines: int = 1


Lines: TypeAlias = tuple[tuple[int, ...], ...]
"""The workers of each line, in the order of its stages."""

IN_FLIGHT = 4
"""The most values that wait between a stage and the next."""


Runner: TypeAlias = Any
"""An engine: its module, or an object with these functions.

- `run(function, items, jobs, *, isolated=False)` applies the function to every item with at most `jobs` workers, and
  yields the results as they come. The function and the items can be pickled. What a generator function yields are
  results. With `isolated` none of it runs in this process. When the generator is closed, no worker goes on with an
  item.
- `limits()` returns the `Limits` of its workers.

Of an engine whose workers may be on other machines:

- `everywhere(function)` applies the function once in each worker, to a number, and returns the results; it raises the
  errors of `run`.

Of an engine whose workers can be stages of lines, each of which sends values to the next:

- `lines(jobs, most)` returns `Lines` of at most `jobs` workers with at most `most` stages each, all as long; none
  without workers. A machine is a stage and each of its workers in another line; if there is one only, each worker is a
  stage.
- `chain(function, items, lines)` applies the function to the items of each stage, and its `messages.Link`. The rest is
  like `run`. A stage hands as many values as the next one takes.
"""


class Engine(NamedTuple):
    """An engine: a row of the table."""

    name: str
    module: str  # imported when it is used: a `Runner`, or it has `connect`, a context manager that returns one
    extra: str = ""  # the extra that installs its package, "" if it needs none
    # whether its workers are children of this process: they open files that it has open, and write results themselves
    same_host: bool = True
    doc: str = ""
    package: str = ""  # the package that it needs, "" for none
    options: tuple[str, ...] = ()  # that it alone has
    can_stop_ops: bool = True  # whether a worker can end a call of an op: its main thread has to be its own
    # Environment variables of a launcher or a scheduler, each with the variable that has the number of this process,
    # from 0 on.
    variables: Mapping[str, str] = {}
    closes_files: bool = True  # whether the open files of a worker are closed at the end of a run
    # Whether a launcher has started its workers, which end together. It may write to standard output; the workers write
    # several results themselves, since none of them writes later than the command; and they can be stages of lines.
    is_launched: bool = False
    connected: Runner | None = None  # the result of `connect` of the module, while the engine is used

    def __reduce__(self) -> tuple[Any, ...]:
        return Engine, (*self._replace(connected=None),)  # a worker has no workers

    @property
    def started(self) -> dict[str, str]:
        """The variables of the environment that show a launcher or a scheduler."""
        return {name: os.environ[name] for name in self.variables if os.environ.get(name)}

    @property
    def is_first(self) -> bool:
        """Whether this process is the first of those that the same launcher has started, or there is none."""
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
    Engine("dask", "mpired.engines.dask", extra="dask", package="distributed", same_host=False,
        doc="the workers of a Dask scheduler that runs", options=("scheduler", "engine_timeout"), can_stop_ops=False,
        variables={"DASK_SCHEDULER_ADDRESS": ""}),
)  # fmt: skip
ENGINES = {row.name: row for row in _ROWS}
EXECUTOR = Engine(
    "executor",
    "mpired.engines.futures",
    same_host=False,
    doc="an executor of concurrent.futures, in Python",
    can_stop_ops=False,
    closes_files=False,
)
"""The engine of an executor that a program passes instead of a name."""


@contextlib.contextmanager
def connected(options: Mapping[str, Any]) -> Iterator[Engine]:
    """Connect with the engine that options name while the block runs."""
    value = options["engine"]
    if isinstance(value, str):
        row = ENGINES[value]
    elif callable(getattr(value, "everywhere", None)):  # of `mpired.mpi`
        row = ENGINES["mpi"]
    else:
        row = ENGINES["dask"] if type(value).__module__.partition(".")[0] == "distributed" else EXECUTOR
    for name in ("scheduler", "engine_timeout"):
        if options[name] is not None and name not in row.options:
            engines = ", ".join(each.name for each in ENGINES.values() if name in each.options)
            raise UsageError(f"`{name}`", f"is for the engine {engines}, and this one is {row.name}; leave it out")
    if options.get("spread") == "ranks" and not row.is_launched:
        engines = ", ".join(each.name for each in ENGINES.values() if each.is_launched)
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


def launched() -> int:
    """Return the number of processes of the launcher in the first of them; 1 in the others, or without a launcher."""
    row = ENGINES["mpi"]
    return max(map(int, filter(str.isdecimal, row.started.values())), default=1) if row.is_first else 1


def not_installed(row: Engine) -> str:
    """Return the reason of the error for an engine whose package is missing."""
    hint = installation(f"mpired[{row.extra}]")
    return f"{row.name} needs {row.package}, which is not installed; install it with {hint}"
