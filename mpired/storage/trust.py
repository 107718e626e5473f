"""Who may have written a journal: whoever puts one beside a file has its bytes written into the file."""

from __future__ import annotations

import os
import stat

from mpired.storage import metadata


def may_write(user: int, fd: int) -> bool:
    """Tell whether a user may write to an open file, by its rights and the user database; this user and root may.

    Of a file with an access control list only the owner is believed: its mode does not say who may do what.
    """
    status = os.fstat(fd)
    if user in {0, os.geteuid(), status.st_uid}:
        return True
    group, others = status.st_mode & stat.S_IWGRP, status.st_mode & stat.S_IWOTH
    if metadata.access_list(fd) or not group | others:
        return False
    if group and others:
        return True
    return bool(group if _is_member(user, status.st_gid) else others)


def _is_member(user: int, group: int) -> bool:
    import pwd  # noqa: PLC0415 - most commands meet no journal

    try:
        entry = pwd.getpwuid(user)
        return group in os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OSError):  # a user that the system does not know
        return False


def can_be_changed_by_others(journal: os.stat_result, target: os.stat_result) -> bool:
    """Tell whether others than the owner of a journal may write to it who may not write to its target."""
    everybody = stat.S_IWGRP | stat.S_IWOTH
    allowed = target.st_mode & everybody
    if journal.st_gid != target.st_gid and allowed != everybody:
        allowed = 0  # members of the one group are others to the other file
    return bool(journal.st_mode & everybody & ~allowed)


def shown_user(user: int) -> str:
    """Return a user as messages name it."""
    import pwd  # noqa: PLC0415

    try:
        return f"user {pwd.getpwuid(user).pw_name} ({user})"
    except KeyError:
        return f"user {user}"
