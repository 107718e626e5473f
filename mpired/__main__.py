"""The start of the command, and `python -m mpired`."""

import _signal as signal  # type: ignore[import-not-found]  # built in like all of these, so that nothing shadows it
import gc
import posix
import sys


def run() -> None:
    """Run the command, and exit with its status."""
    early_signals: list[int] = []

    def keep(number: int, _frame: object) -> None:
        early_signals.append(number)
        for kept in signals:
            signal.signal(kept, signal.SIG_DFL)

    try:
        # Modules and ranks have no reference cycles, and garbage collection of thousands of objects is slow.
        gc.set_threshold(100_000)
        # The first signal before the command has its handlers is kept for them; the second signal ends the process.
        defaults = (signal.SIG_DFL, signal.default_int_handler)
        signals = [
            number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) in defaults
        ]
        for number in signals:
            signal.signal(number, keep)
        try:
            if _is_for_mpi(sys.argv, posix.environ):
                from mpired.engines import mpi  # noqa: PLC0415 - its workers need no command line

                status = mpi.main(lambda: _command(early_signals), _import_fold)
            else:
                status = _command(early_signals)
        except (MemoryError, ImportError) as error:
            from mpired.errors import escaped, not_loaded  # noqa: PLC0415 - before, the search path is not safe

            reason, status = not_loaded(error)
            posix.write(2, f"mpired: {escaped(reason)}\n".encode())
        # All output is written and closed. Without the finalization of NumPy a small job takes a tenth less time.
        posix._exit(status)  # noqa: SLF001 - public as `os._exit`
    except KeyboardInterrupt:
        posix.write(2, b"mpired: interrupted; no result was written\n")
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        posix.kill(posix.getpid(), signal.SIGINT)


def _command(early_signals: list[int]) -> int:
    from mpired.cli import main  # noqa: PLC0415 - after the handlers, because its import takes long

    return main(early_signals=early_signals)


def _import_fold() -> None:
    """Import the code of workers."""
    import mpired.collectives.fold  # noqa: F401, PLC0415


def _is_for_mpi(arguments: list[str], environment: dict[bytes, bytes]) -> bool:
    """Return whether the command uses the engine mpi; all processes of a launcher have the same arguments."""
    if "--engine=mpi" in arguments or "--engine" in arguments:
        return "--engine=mpi" in arguments or arguments[arguments.index("--engine") + 1 :][:1] == ["mpi"]
    return environment.get(b"MPIRED_ENGINE") == b"mpi"


if __name__ == "__main__":
    # `-m` puts the working directory first in the search path, where a file may have the name of a library.
    if not sys.flags.safe_path:
        sys.path.pop(0)
    run()
