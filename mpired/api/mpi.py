"""The processes of MPI as the engine of a program."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

from mpired.engines.mpi import Mpi, joined


def mpi() -> AbstractContextManager[Mpi]:
    """Use the processes of `mpiexec` or `srun` as an engine: `with mpired.mpi() as engine:`.

    All processes run the program. Rank 0 of MPI runs the block, and passes `engine` to reductions. The other processes
    are workers of these reductions, and continue after the block together with rank 0. The function is for `with`
    statements only.

    If an exception leaves the block of rank 0, the other processes end with status 1, or with the status of its
    `sys.exit(N)`.

    Returns
    -------
    context manager
        Gives its block the engine, for `engine=` of the reductions and of `locate`.

    Raises
    ------
    mpired.errors.UsageError
        If mpi4py is not installed, or no launcher has started the processes.

    Examples
    --------
    The file sums.py, run with `mpiexec -n 4 python sums.py`::

        import mpired

        with mpired.mpi() as engine:
            mpired.reduce("run7/rank*.npy", "sum", output="total.npy", engine=engine)
    """
    return _Block()


class _LeftError(SystemExit):
    """Raised in a worker to skip the block; outside a `with` statement it ends the process."""


class _Block(AbstractContextManager[Mpi]):
    def __enter__(self) -> Mpi:
        # the tracer, and the frame of the block with its settings of tracing, while a worker skips the block
        self._tracing: tuple[Any, FrameType, Any, bool] | None = None
        self._mpi = joined()
        if self._mpi.is_worker:
            self._mpi.serve()
            # A context manager can end the block before its first instruction only by an exception.
            frame = sys._getframe(1)  # noqa: SLF001 - nothing else skips a block

            def leave(*_: object) -> None:
                raise _LeftError

            self._tracing = sys.gettrace(), frame, frame.f_trace, frame.f_trace_opcodes
            frame.f_trace, frame.f_trace_opcodes = leave, True
            sys.settrace(lambda *_: None)
        return self._mpi

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._tracing is not None:
            tracer, frame, frame_tracer, opcodes = self._tracing
            frame.f_trace, frame.f_trace_opcodes = frame_tracer, opcodes
            sys.settrace(tracer)
            return kind is _LeftError
        self._mpi.leave(error)
        return False
