"""The start of the command, and `python -m mpired`."""

import _signal as signal  # type: ignore[import-not-found]  # built in like all of these, so that nothing shadows it
import gc
import posix
import sys


def run() -> None:
    """Run the command; after ctrl-C that comes before anything listens to it, say so and end as by the signal."""
    came: list[int] = []

    def keep(number: int, _frame: object) -> None:
        came.append(number)
        for each in kept:
            signal.signal(each, signal.SIG_DFL)

    try:
        # Modules and thousands of ranks are objects without cycles, and looking for some takes long.
        gc.set_threshold(100_000)
        # A signal that comes before the command has handlers is kept for these; another one ends the process.
        usual = (signal.SIG_DFL, signal.default_int_handler)
        kept = [each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) in usual]
        for each in kept:
            signal.signal(each, keep)
        try:
            if _is_for_mpi(sys.argv, posix.environ):
                from mpired.engines import mpi  # noqa: PLC0415 - its workers need no command line

                status = mpi.main(lambda: _command(came), _fold)
            else:
                status = _command(came)
        except (MemoryError, ImportError) as error:
            from mpired.errors import escaped, not_loaded  # noqa: PLC0415 - the search path is not safe before

            reason, status = not_loaded(error)
            posix.write(2, f"mpired: {escaped(reason)}\n".encode())
        # All is written and closed. To take NumPy apart before the end is a tenth of a small job.
        posix._exit(status)  # noqa: SLF001 - the public name of it
    except KeyboardInterrupt:
        posix.write(2, b"mpired: interrupted; no result was written\n")
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        posix.kill(posix.getpid(), signal.SIGINT)


def _command(came: list[int]) -> int:
    from mpired.cli import main  # noqa: PLC0415 - most of the time of a start

    return main(came=came)


def _fold() -> None:
    """Import what workers do."""
    import mpired.collectives.fold  # noqa: F401, PLC0415


def _is_for_mpi(words: list[str], environment: dict[bytes, bytes]) -> bool:
    """Return whether a command is for the engine mpi: all processes that a launcher starts have the same words."""
    if "--engine=mpi" in words or "--engine" in words:
        return "--engine=mpi" in words or words[words.index("--engine") + 1 :][:1] == ["mpi"]
    return environment.get(b"MPIRED_ENGINE") == b"mpi"


if __name__ == "__main__":
    # `-m` puts the working directory first, where data and anything else may lie: a numpy.py there is not NumPy.
    if not sys.flags.safe_path:
        sys.path.pop(0)
    run()
