"""The processes of MPI as the engine of a program."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

from mpired.engines.mpi import Mpi, joined


def mpi() -> AbstractContextManager[Mpi]:
    """Use the processes that `mpiexec` or `srun` has started for a program: `with mpired.mpi() as engine:`.

    All processes run the program. Rank 0 of MPI runs the block, and hands `engine` to reductions; the others do the
    work of these meanwhile, and go on after the block when rank 0 does. Write it as a `with` statement.

    If an exception leaves the block of rank 0, the others end as by `sys.exit(1)`; after `sys.exit(N)` as by that.

    Returns
    -------
    context manager
        Its block gets the engine, for `engine=` of the reductions and of `locate`.

    Raises
    ------
    mpired.errors.UsageError
        If mpi4py is not installed, or no launcher has started the processes.

    Examples
    --------
    With the file sums.py, run by `mpiexec -n 4 python sums.py`::

        import mpired

        with mpired.mpi() as engine:
            mpired.reduce("run7/rank*.npy", "sum", output="total.npy", engine=engine)
    """
    return _Block()


class _LeftError(SystemExit):
    """Raised in the block of a process that is not to run it; where that is no `with` statement the process ends."""


class _Block(AbstractContextManager[Mpi]):
    def __enter__(self) -> Mpi:
        self._before: tuple[Any, FrameType, Any, bool] | None = None
        self._mpi = joined()
        if self._mpi.is_worker:
            self._mpi.serve()
            # Let the block end before its first instruction: a context manager can only let an exception do that.
            frame = sys._getframe(1)  # noqa: SLF001 - nothing else skips a block

            def leave(*_: object) -> None:
                raise _LeftError

            self._before = sys.gettrace(), frame, frame.f_trace, frame.f_trace_opcodes
            frame.f_trace, frame.f_trace_opcodes = leave, True
            sys.settrace(lambda *_: None)
        return self._mpi

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._before is not None:
            tracer, frame, of_frame, opcodes = self._before
            frame.f_trace, frame.f_trace_opcodes = of_frame, opcodes
            sys.settrace(tracer)
            return kind is _LeftError
        self._mpi.leave(error)
        return False
