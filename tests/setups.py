"""Setups of commands that a small process finds by their names, as tests/template.py needs them."""

import faulthandler
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial

from mpired.collectives import plan
from mpired.files import stores
from mpired.formats import recognise


def seeing(*folders: object) -> Callable[[], None]:
    """Return a setup by which the packages in some folders are installed, the first ones found first."""
    return partial(_see, *map(str, folders))


def _see(*folders: str) -> None:
    sys.path[:0] = folders
    faulthandler.disable()  # pytest has the interpreter write a report of a crash
    warnings.simplefilter("ignore", ResourceWarning)  # of what an op leaves behind
    for cached in vars(recognise).values():  # what this process has found before
        getattr(cached, "cache_clear", bool)()


def without(library: str) -> Callable[[], None]:
    """Return a setup by which a library is not installed."""
    return partial(_hide, library)


def _hide(library: str) -> None:
    sys.modules[library] = None  # type: ignore[assignment]


def little_is_enough() -> None:
    """Let little data be enough for a pool."""
    vars(plan)["SMALL_NBYTES"] = 0


def repeating(times: int) -> Callable[[], None]:
    """Return a setup by which a request is repeated some times only."""
    return partial(_repeat, times)


def _repeat(times: int) -> None:
    stores.RETRYING["max_retries"] = times


def on_terminal(name: str, stream: int) -> Callable[[], None]:
    """Return a setup by which a stream is a terminal."""
    return partial(_open_terminal, name, stream)


def _open_terminal(name: str, stream: int) -> None:
    os.dup2(os.open(name, os.O_RDWR | os.O_NOCTTY), stream)
