"""What a user asks for by `recover`: to finish or to list what interrupted commands have left of some files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpired import log
from mpired.context import Context
from mpired.errors import MpiredError, RanksError, UsageError
from mpired.options import Options
from mpired.storage import calls, names, recovery, staging
from mpired.storage.lock import NoLocksError, Waiting, lock_target
from mpired.storage.recovery import Discard
from mpired.storage.remains import finish_staged, has_journal

_Heard = tuple[Sequence[str], str]
"""The files that were finished, and the message."""
_DONE = {
    "forgotten": "removed the journal of an update that was never committed",
    "discarded": "removed the journal without finishing its update",
}
_FOUND = {
    "": [],
    "pending": ["a committed update to finish"],
    "incomplete": ["the journal of an update that was never committed"],
    "busy": ["an update at work"],
    "foreign": ["a journal that is not its own"],
    "doubtful": ["a committed update that only its user may finish"],
    "missing": ["a committed update whose journal is missing"],
}


class Recovered(NamedTuple):
    """Leftovers beside a file, and what became of them.

    Parameters
    ----------
    file
        The file, as it was named.
    words
        The actions, or with `only_list` the leftovers; empty if there are none.
    changed
        Whether anything has changed by it.
    """

    file: str
    words: tuple[str, ...] = ()
    changed: bool = False


def recover_files(files: Sequence[str], options: Options, context: Context, tell: Callable[[Recovered], None]) -> None:
    """Finish the interrupted update of each file, and remove its leftovers."""
    check(options)
    how, waiting = Discard(options["discard"] + options["force"]), Waiting(context.lock_timeout)
    errors: list[MpiredError | OSError] = []
    heard: list[_Heard] = []
    done: list[str] = []
    with log.heard_by(lambda *notice: heard.append(notice)):
        for name in files:
            try:
                names.check_is_data(name)
                found = _listed(name) if options["only_list"] else _recovered(name, heard, waiting, how)
            except (MpiredError, OSError) as error:
                errors.append(error)
            else:
                tell(found)
                done.append(name)
    for paths, words in heard:
        if not any(_concerns(paths, name) for name in done):
            log.notice(paths, words)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise RanksError(len(files), errors, "files")


def check(options: Options) -> None:
    """Raise `UsageError` if the options contradict each other."""
    if options["only_list"] and options["discard"]:
        raise UsageError("`only_list`", "changes nothing, and `discard` removes journals; say one of the two")
    if options["force"] and not options["discard"]:
        reason = "says that `discard` removes a journal that is needed; say `discard` too, or neither"
        raise UsageError("`force`", reason)


def _concerns(paths: Sequence[str], name: str) -> bool:
    return os.path.realpath(name) in map(os.path.realpath, paths)


def _recovered(name: str, heard: Sequence[_Heard], waiting: Waiting, how: Discard) -> Recovered:
    finish_staged([calls.followed(name)], alone=True)  # who asks for this knows that no other command is at work
    removed: Sequence[str] = ()
    if how is not Discard.NO and names.is_orphan(name):
        journal = recovery.discard_orphan(name, how)
    else:
        names.check_not_orphan(name)
        try:
            with lock_target(name, waiting, alone=True) as target:
                removed = recovery.clean(target)
                journal = recovery.recover(target, discard=how)
        except NoLocksError:
            if has_journal(name):
                raise
            journal = ""  # no file is updated in place there
    done = [words for paths, words in heard if _concerns(paths, name)]
    done += [_DONE[journal]] if journal in _DONE else []
    done += [f"removed {temporary}" for temporary in removed]
    changed = bool(done)
    others = staging.of_others(os.path.dirname(os.path.realpath(name)))
    done += [
        f"results of user {user} may wait in {path}, which `mpired recover` of that user finishes"
        for path, user in others
    ]
    return Recovered(name, tuple(done), changed)


def _listed(name: str) -> Recovered:
    state, temporaries = recovery.look(name)
    found = _FOUND[state] + [f"temporary file {temporary}" for temporary in temporaries]
    if staging.pending(os.path.dirname(os.path.realpath(name))):
        found.append("results of an interrupted or a living command in its directory")
    return Recovered(name, tuple(found))
