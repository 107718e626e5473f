"""The start of the command, and `python -m mpired`."""

import sys


def run() -> None:
    """Run the command. Until it has handlers, ctrl-C ends the process without telling where the imports were."""
    # Both are built in, so that ctrl-C finds no import to interrupt before.
    import _signal as signal  # type: ignore[import-not-found]  # noqa: PLC0415 - the search path is not safe before
    import posix  # noqa: PLC0415

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from mpired.cli import main  # noqa: PLC0415 - most of the time of a start
    except (MemoryError, ImportError) as error:
        from mpired.errors import escaped, not_loaded  # noqa: PLC0415 - as above

        reason, status = not_loaded(error)
        posix.write(2, f"mpired: {escaped(reason)}\n".encode())
        posix._exit(status)  # noqa: SLF001 - the public name of it

    # All is written and closed. To take NumPy apart before the end is a tenth of a small job.
    posix._exit(main())  # noqa: SLF001


if __name__ == "__main__":
    # `-m` puts the working directory first, where data and anything else may lie: a numpy.py there is not NumPy.
    if not sys.flags.safe_path:
        sys.path.pop(0)
    run()
