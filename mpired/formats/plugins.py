"""Installed formats: the entry points of the group `mpired.formats`, each of which is a row.

They are looked for only where no row of mpired's own has a name, a suffix or the first bytes of a file, so that no
package takes one of these over. A package that cannot be loaded is an error of its own files: those whose format is
named, and those with the suffix `.NAME`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mpired import installed, interrupts
from mpired.errors import BufferFileError
from mpired.formats.format import Format


@functools.cache
def points() -> dict[str, list[Any]]:
    """Return the entry points of the installed formats by their names, in order; no package's code runs."""
    return dict(sorted(installed.entry_points("mpired.formats").items()))


@functools.cache
def _loaded(name: str) -> Format | str:
    """Return the row of an entry point, or the reason why there is none."""
    own = points()[name]
    if len(own) > 1:
        return f"is the format of {len(own)} entry points ({installed.homes(own)}); remove all but one"
    whose = f"is an installed format, and {installed.homes(own)}"
    try:
        with interrupts.defer_signals(), installed.loading():
            row = own[0].load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any error of another package
        return f"{whose} cannot be loaded ({type(error).__name__}: {error}); repair or remove the package"
    if not isinstance(row, Format) or row.name != name or not row.place:
        return f"{whose} is not an mpired.formats.Format with this name and a `place`; repair or remove the package"
    return row


def named(name: str) -> Format | None:
    """Return the installed format of that name, None if there is none."""
    row = _loaded(name) if name in points() else None
    if isinstance(row, str):
        raise BufferFileError(f"format {name!r}", row)
    return row


def by_suffix(path: str, suffix: str) -> Format | None:
    """Return the installed format that the suffix of a path means, None if it means none."""
    found = _only(path, "by its suffix", lambda row: suffix in row.suffixes)
    if found is None and suffix[1:] in points() and isinstance(reason := _loaded(suffix[1:]), str):
        raise BufferFileError(path, f"{suffix[1:]}, by its suffix, {reason}")
    return found


def by_content(path: str, start: bytes) -> Format | None:
    """Return the installed format whose files begin as this one does, None if there is none."""
    return _only(path, "by its first bytes", lambda row: bool(row.magic) and start.startswith(row.magic))


def _only(path: str, how: str, test: Callable[[Format], bool]) -> Format | None:
    """Return the only installed format for which a test holds, None if there is none."""
    found = [row for row in map(_loaded, points()) if isinstance(row, Format) and test(row)]
    if len(found) > 1:
        texts = " and ".join(row.name for row in found)
        way_out = "say which with `format`, or with `to` for a result"
        raise BufferFileError(path, f"is {texts} {how}, which are installed formats; {way_out}")
    return found[0] if found else None
