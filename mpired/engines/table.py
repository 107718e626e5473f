"""The engines, one row each: who runs the segments of a plan.

What a task has of files can be opened by every process of this user on this host: the paths of ranks and of
user-defined ops become absolute when a task is sent, and an output has a name where the workers of an engine are no
children of this process.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, cast

_Item = TypeVar("_Item")


class Limits(NamedTuple):
    """What the workers of an engine may use.

    Parameters
    ----------
    workers
        How many there are, unless the user says how many.
    descriptors
        How many files each of them may have open, `resource.RLIM_INFINITY` for any number.
    """

    workers: int
    descriptors: int


class Runner(Protocol):
    """What the module of an engine defines."""

    def run(
        self, function: Callable[[_Item], Any], items: Iterable[_Item], jobs: int, *, isolated: bool = False
    ) -> Generator[Any, None, None]:
        """Apply the function to every item with at most `jobs` workers; yield the results as they come.

        The function and the items can be pickled. What a generator function yields are results. With `isolated` none
        of it runs in this process. When the generator is closed, no worker goes on with an item.

        Raises
        ------
        WorkerError
            If a worker is lost, with its `exitcode` where that tells that the code it ran is to blame. An error of the
            function itself is raised as it is.
        """

    def limits(self) -> Limits:
        """Return what the workers may use."""


@dataclass(frozen=True)
class Engine:
    """An engine: a row of the table.

    Parameters
    ----------
    name
        Its name.
    module
        The module that has it, which is imported when it is used: a `Runner`.
    extra
        The extra that installs what it needs, "" if it needs nothing more.
    same_host
        Whether its workers are on this host, where a file has the same device and inode number.
    same_tree
        Whether they are children of this process, which open files that it has open and that have no name.
    """

    name: str
    module: str
    extra: str = ""
    same_host: bool = True
    same_tree: bool = True

    @property
    def runner(self) -> Runner:
        """What runs the segments."""
        return cast("Runner", importlib.import_module(self.module))


def table(rows: Iterable[Engine]) -> dict[str, Engine]:
    """Return the rows by name.

    Raises
    ------
    ValueError
        If two have one name, or one has workers on other hosts, which cannot know a rank by device and inode number.
    """
    by_name: dict[str, Engine] = {}
    for row in rows:
        if row.name in by_name:
            raise ValueError(f"{row.name}: two engines have this name")
        if row.same_tree and not row.same_host:
            raise ValueError(f"{row.name}: children of this process are on its host")
        if not row.same_host:
            raise ValueError(f"{row.name}: a rank is known by device and inode number, which other hosts do not share")
        by_name[row.name] = row
    return by_name


LOCAL = Engine("local", "mpired.engines.pool")
ENGINES = table([LOCAL])


def usual() -> Engine:
    """Return the engine that is used if none is chosen."""
    return LOCAL
