"""Entry points of installed packages, by group.

No package's code runs to find them, and a package whose metadata cannot be read is as good as not
installed: it must not spoil the others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from mpired.errors import MpiredError, UsageError, installation, is_of_loader


def entry_points(group: str) -> dict[str, list[Any]]:
    """Return the entry points of a group by name, without loading any."""
    from importlib import metadata  # noqa: PLC0415 - slow, and seldom needed

    found: dict[str, list[Any]] = {}
    seen = set()
    for distribution in metadata.distributions():
        with contextlib.suppress(Exception):  # any error in the metadata of another package
            is_named = group in (distribution.read_text("entry_points.txt") or "")
            points = list(distribution.entry_points.select(group=group)) if is_named else []
            # Python imports the first of two that are installed under one name.
            if points and distribution.name not in seen:
                seen.add(distribution.name)
                for point in points:
                    found.setdefault(point.name, []).append(point)
    return found


_LOADING = threading.RLock()  # a package may use mpired while it is imported


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Send what a package prints when it is imported to standard error; it must not come among the elements."""
    # One thread at a time: standard output is the process's.
    with _LOADING, contextlib.redirect_stdout(sys.stderr):
        yield


def check(subject: str, what: str, library: str, extra: str) -> None:
    """Raise `UsageError` unless the library of a format is installed, which an extra of mpired installs."""
    if importlib.util.find_spec(library) is None:
        install = installation(f"mpired[{extra}]")
        raise UsageError(subject, f"is {what}, for which mpired needs {library}; install it with {install}")


@contextlib.contextmanager
def importing(library: str) -> Iterator[None]:
    """Turn what goes wrong when a library is imported into an error that names it, not the file that it is for."""
    try:
        with loading():
            yield
    except (MemoryError, MpiredError):
        raise
    except Exception as error:
        if is_of_loader(error):
            raise
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        reason = f"cannot be imported ({what}); install it again with {installation('--force-reinstall', library)}"
        raise UsageError(library, reason) from error


def homes(points: Sequence[Any]) -> str:
    """Return the places that entry points name, each with its package."""
    return ", ".join(sorted(f"{point.value} of {point.dist.name}" for point in points))
