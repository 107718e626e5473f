"""Installed packages: entry points, imports of libraries, and their errors.

Entry points are found without running code of the packages. A package with damaged metadata is ignored.
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
    """Return the entry points of a group by name, without loading them."""
    from importlib import metadata  # noqa: PLC0415 - slow, and few calls need it

    points_by_name: dict[str, list[Any]] = {}
    packages = set()
    for distribution in metadata.distributions():
        with contextlib.suppress(Exception):  # any error in the metadata of another package
            has_group = group in (distribution.read_text("entry_points.txt") or "")
            points = list(distribution.entry_points.select(group=group)) if has_group else []
            # If a package is installed twice, Python imports the first.
            if points and distribution.name not in packages:
                packages.add(distribution.name)
                for point in points:
                    points_by_name.setdefault(point.name, []).append(point)
    return points_by_name


_LOADING = threading.RLock()  # reentrant, because a package may use mpired during its import


@contextlib.contextmanager
def redirect_output() -> Iterator[None]:
    """Redirect the output of packages during their import to standard error, away from a result."""
    # Only one thread at a time, because standard output belongs to the process.
    with _LOADING, contextlib.redirect_stdout(sys.stderr):
        yield


def check(subject: str, description: str, library: str, extra: str) -> None:
    """Raise `UsageError` with a hint at an extra of mpired if the library of a format is missing."""
    if importlib.util.find_spec(library) is None:
        install = installation(f"mpired[{extra}]")
        raise UsageError(subject, f"is {description}, for which mpired needs {library}; install it with {install}")


@contextlib.contextmanager
def import_library(library: str) -> Iterator[None]:
    """Convert an error of the import of a library to `UsageError`."""
    try:
        with redirect_output():
            yield
    except (MemoryError, MpiredError):
        raise
    except Exception as error:
        if is_of_loader(error):
            raise
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        reason = f"cannot be imported ({message}); install it again with {installation('--force-reinstall', library)}"
        raise UsageError(library, reason) from error


def describe_points(points: Sequence[Any]) -> str:
    """Return the objects and packages of entry points, for messages."""
    return ", ".join(sorted(f"{point.value} of {point.dist.name}" for point in points))
