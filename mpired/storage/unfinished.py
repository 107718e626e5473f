"""The doors to `recovery`, which is loaded only where an update of a file was left unfinished."""

from __future__ import annotations

from mpired.context import Context
from mpired.storage import calls
from mpired.storage.lock import Target, Waiting
from mpired.storage.names import check_is_data, journal_name, mark_of
from mpired.storage.remains import has_journal


def recover(target: Target) -> str:
    """Finish or forget what an interrupted command has begun with a target that is locked; as `recovery.recover`."""
    check_is_data(target.path)
    with calls.blaming(target.name):
        if mark_of(target.fd) is None and calls.status_at(journal_name(target.base), target.dirfd) is None:
            return ""
    from mpired.storage import recovery  # noqa: PLC0415 - most targets have no journal

    return recovery.recover(target)


def recover_for_reading(name: str, context: Context) -> None:
    """Make sure that no update of the file is half done, before it is read or a new file takes its name."""
    check_is_data(name)
    if has_journal(name):
        from mpired.storage import recovery  # noqa: PLC0415 - as above

        recovery.finish_for_reading(name, Waiting(context.lock_timeout), dry_run=context.dry_run)
