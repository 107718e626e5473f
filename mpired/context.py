"""Settings of one call: made by the API or the command line, and passed down."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mpired import interrupts
from mpired.errors import UsageError, without_secrets
from mpired.log import Progress, no_progress
from mpired.machine import usable_memory
from mpired.options import Options

LOCK_TIMEOUT = 60.0  # seconds

BASE_NBYTES = 60 << 20
"""Memory of a process before its blocks: Python and NumPy."""
STREAMED_BASE_NBYTES = 188 << 20
"""The same with pyarrow, for formats with columns; of all processes together if the one that reads is a worker."""
STREAMED_LEAST_NBYTES = 100 << 20
"""The part of that which is needed before anything is decoded."""
FEW_BYTES = 1 << 10
"""About as much as is known of a rank besides."""
RESERVED = 24
"""Open files that a process needs for itself: the streams, the output, the pool's pipes, libraries."""


class Context(NamedTuple):
    """Settings of one call. What a worker gets of it are the limits."""

    max_memory: int | None = None  # bytes of all processes together; None without a limit
    max_open_files: int | None = None  # of each process; None without a limit
    lock_timeout: float = LOCK_TIMEOUT  # seconds
    is_of_group: bool = False  # whether the limit of memory is that of the control group, because the user gave none
    jobs: int = 0  # the most workers; 0 for as many as the engine has
    spread: str = "elements"  # what the workers divide: "elements", "ranks", or "auto" for fewer open files
    engine: Any = None  # the `Engine` that runs the segments; None for the pool of this process
    dry_run: bool = False  # whether leftovers of interrupted commands are reported and not finished
    progress: Progress = no_progress  # watches the bytes as they are done
    on_commit: Callable[[], None] = interrupts.committed  # called when the results are in place
    argv: tuple[str, ...] = ()  # the command line, for `history` attributes; empty in Python
    record: Mapping[str, Any] = {}  # how the call was made, for the record of its results; empty without a record
    # the `Decoder` that calls libraries on files that may be damaged; None for a new one each time
    worker: Any = None
    prefetch: Any = None  # the `ReadAhead` of the files that are inspected together
    few_bytes: int = FEW_BYTES  # the largest file that is read when it is inspected

    @classmethod
    def of(cls, options: Options, **settings: Any) -> Context:
        """Return the settings of a call: those among its options, which are checked and may lack some, and others."""
        memory, seconds, most = map(options.get, ("max_memory", "lock_timeout", "max_open_files"))
        is_of_group = memory is None and (memory := usable_memory()) is not None
        context = cls(
            memory,
            most,
            LOCK_TIMEOUT if seconds is None else seconds,
            is_of_group,
            options.get("jobs", 0),
            options.get("spread", "auto"),
            **settings,
        )
        if most is not None:
            context.check_open_files(RESERVED + 1)
        return context

    def __reduce__(self) -> tuple[Any, ...]:
        return Context, (self.max_memory, self.max_open_files, self.lock_timeout, self.is_of_group)

    def check_memory(self, needed: int) -> None:
        """Raise `UsageError` if the limit of memory is less than is needed."""
        if self.max_memory is not None and self.max_memory < needed:
            reason = f"{self.max_memory} bytes is too little, one process needs {-(-needed >> 20)}M"
            reason += "; it is the limit of the control group, give more to try it all the same" * self.is_of_group
            raise UsageError("`max_memory`", reason)

    def spare_memory(self, needed: int) -> int | None:
        """Return the bytes that the limit leaves beside those that are needed; None without a limit."""
        return None if self.max_memory is None else max(0, self.max_memory - needed)

    def allowed(self, nbytes: int, usual: int) -> int:
        """Return the bytes of memory for a purpose, which are more than the usual ones if the user allows that."""
        return min(nbytes, usual) if self.is_of_group else nbytes

    def check_open_files(self, needed: int) -> None:
        """Raise `UsageError` if the limit of open files is less than is needed."""
        if self.max_open_files is not None and self.max_open_files < needed:
            raise UsageError("`max_open_files`", f"{self.max_open_files} is too few, a process needs {needed}")

    def history(self) -> str:
        """Return the line of history of a result, with the time and the command line."""
        # The time is that of SOURCE_DATE_EPOCH, if it is set, so that a result can be made again bit for bit.
        epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
        when = time.gmtime(int(epoch)) if epoch.isdecimal() else time.localtime()
        words = [*map(without_secrets, self.argv)]
        return f"{time.asctime(when)}: {shlex.join(words) if words else 'mpired, called from Python'}"


NO_LIMITS = Context()
