"""The start of the command, and `python -m mpired`."""

import sys


def run() -> None:
    """Run the command. Until it has handlers, ctrl-C ends the process without telling where the imports were."""
    import os  # noqa: PLC0415 - the search path is not safe before
    import signal  # noqa: PLC0415

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mpired.cli import main  # noqa: PLC0415 - most of the time of a start

    # All is written and closed. To take NumPy apart before the end is a tenth of a small job.
    os._exit(main())


if __name__ == "__main__":
    # `-m` puts the working directory first, where data and anything else may lie: a numpy.py there is not NumPy.
    if not sys.flags.safe_path:
        sys.path.pop(0)
    run()
