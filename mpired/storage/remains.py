"""Whether an interrupted command has left something of a file; only then is loaded what knows more of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from mpired.storage import calls
from mpired.storage.names import journal_path, mark_of, staging_in, status


def has_journal(path: str, *, is_link: bool = True, listed: bool = False) -> bool:
    """Tell whether there is something that may be a journal of the file that `path` leads to, perhaps as a link.

    That is what has the name of one beside it, unless its directory is `listed` and has none; or what the mark of a
    file with several names leads to.
    """
    if not listed and status(journal_path(path, is_link=is_link)):
        return True
    if mark_of(path) is None:
        return False
    from mpired.storage import marks  # noqa: PLC0415 - few files are marked

    mark = marks.read(path)
    return mark is not None and (mark.begun or status(mark.journal) is not None)


def finish_staged(paths: Iterable[str], *, alone: bool = False, dry_run: bool = False) -> bool:
    """Finish what an interrupted command has committed in the directories of these files, and clear what it has not.

    A path that is none, as `-`, is taken for a name in the current directory, where that does no harm.

    Returns
    -------
    bool
        Whether results were put in place.
    """
    directories: list[str] = []
    with contextlib.suppress(FileNotFoundError):  # there may be no current directory
        named = set(map(calls.folder_of, paths))
        directories += sorted({os.path.realpath(directory) for directory in named})
    found = [path for directory in directories for path in staging_in(directory)]
    if not found:
        return False
    from mpired.storage import staging  # noqa: PLC0415 - most commands meet none

    return staging.finish_all(found, alone=alone, dry_run=dry_run)
