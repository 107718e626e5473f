"""What a user asks for by `recover`: to finish or to list what interrupted commands have left of some files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mpired import log
from mpired.context import Context
from mpired.errors import MpiredError, UsageError, raise_all
from mpired.files import calls, names, recovery
from mpired.files.lock import Waiting
from mpired.files.recovery import FINISHED, How
from mpired.files.scratch import remove_dead
from mpired.options import Options

_Heard = tuple[Sequence[str], str]
"""The files that were finished, and the message."""
_SCRATCH_FILES = 100
"""So many of one result may have been left; more commands are not at work on it at a time."""


class Recovered(NamedTuple):
    """Leftovers beside a file, and what became of them."""

    file: str  # as it was named
    words: tuple[str, ...] = ()  # the actions, or with `only_list` the leftovers
    changed: bool = False


def recover_files(files: Sequence[str], options: Options, context: Context, tell: Callable[[Recovered], None]) -> None:
    """Finish the interrupted update of each file, and remove its leftovers."""
    check(options)
    wanted = {name: options[name] for name in ("adopt", "discard", "force")}
    how = How(Waiting(context.lock_timeout), alone=True, **wanted)
    errors: list[MpiredError | OSError] = []
    heard: list[_Heard] = []
    done: list[str] = []
    with log.heard_by(lambda *notice: heard.append(notice)):
        for name in files:
            try:
                path = names.check_is_data(name)
                only_listed = options["only_list"] and Recovered(name, tuple(recovery.look(name)))
                found = only_listed or _recovered(name, path, heard, how)
            except (MpiredError, OSError) as error:
                errors.append(error)
            else:
                tell(found)
                done.append(name)
    for paths, words in heard:
        if not any(_concerns(paths, name) for name in done):
            log.notice(paths, words)
    raise_all(errors, len(files), "files")


def check(options: Options) -> None:
    """Raise `UsageError` if the options contradict each other."""
    if options["only_list"] and options["discard"]:
        raise UsageError("`only_list`", "changes nothing, and `discard` removes logs; give one of the two")
    if options["force"] and not options["discard"]:
        reason = "lets `discard` remove a log that is needed; give `discard` too, or neither"
        raise UsageError("`force`", reason)


def _concerns(paths: Sequence[str], name: str) -> bool:
    return os.path.realpath(name) in map(os.path.realpath, paths)


def _recovered(name: str, path: str, heard: Sequence[_Heard], how: How) -> Recovered:
    """Recover a file; who asks for this knows that no other command is at work where locks do not show that."""
    path = os.path.realpath(path)
    names.check_no_old_journal(path)
    found = recovery.recover(name, path, how)
    removed = _remove_drafts(name, path)
    if not found and not removed:
        calls.let_go(calls.open_existing(path, name, writable=False))  # what is missing, or not a file, is an error
    done = [words for paths, words in heard if _concerns(paths, name)]
    done += [found] if found not in {"", FINISHED} else []
    done += [f"removed {draft}" for draft in removed]
    return Recovered(name, tuple(done), bool(done))


def _remove_drafts(name: str, path: str) -> list[str]:
    """Remove the drafts and scratch files that interrupted commands have left beside a file; return their names."""
    directory, base = os.path.split(os.fsencode(path))
    with calls.blaming(name):
        dirfd = calls.open_directory(directory)
        try:
            own = [names.draft_name(base), *(names.scratch_name(base, number) for number in range(_SCRATCH_FILES))]
            return [os.fsdecode(each) for each in own if remove_dead(each, dirfd, alone=True)]
        finally:
            calls.let_go(dirfd)
