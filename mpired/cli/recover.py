"""`mpired recover`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import click

from mpired.cli import params, signals
from mpired.cli.messages import finished, say, show
from mpired.errors import MpiredError, RanksError, UsageError, escaped
from mpired.options import Locking, Recovering
from mpired.storage import notices, recovery, staging
from mpired.storage.lock import NoLocksError, Waiting, lock_target, with_timeout
from mpired.storage.recovery import Discard

Heard = tuple[Sequence[str], str]
"""The files that were finished, and the message."""
_DONE = {
    "forgotten": "removed the journal of an update that was never committed",
    "discarded": "removed the journal without finishing its update",
}


@click.command(cls=params.Command)
@params.options(Recovering, Locking)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def recover(*, files: tuple[str, ...], only_list: bool, discard: bool, force: bool, lock_timeout: float | None) -> None:
    """Finish the update of each FILE that a crash has interrupted, and remove what else it left behind.

    Every mpired command that opens a file does this first; this is for programs that know nothing of
    mpired. An update whose journal is whole was committed, and is finished; one whose journal is not
    whole never happened. A whole journal that is of FILE, of another file, or of one that is gone is removed by
    --discard with --force only: the file that it is of, which may have another name now, stays half changed.

    \b
    Examples:
      mpired recover sample_data/counts_?.npy
      mpired recover --list sample_data/counts_0.npy
    """
    if only_list and discard:
        raise UsageError("--list", "changes nothing, and --discard removes journals; say one of the two")
    if force and not discard:
        raise UsageError(
            "--force", "says that --discard removes a journal that is needed; say --discard too, or neither"
        )
    how = Discard(discard + force)
    waiting = with_timeout(lock_timeout)
    errors: list[MpiredError | OSError] = []
    heard: list[Heard] = []
    shown = _Shown()
    with notices.heard_by(lambda *notice: heard.append(notice)):
        for name in files:
            try:
                recovery.check_is_data(name)
                done = _Done([_listed(name)]) if only_list else _recovered(name, heard, waiting, how)
            except (MpiredError, OSError) as error:
                errors.append(error)
            else:
                shown.add(name, done)
    for paths, words in heard:
        if not any(_concerns(paths, name) for name in shown.names):
            finished(paths, words)
    params.tell(None)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise RanksError(len(files), errors, "files")
    shown.check()


class _Done(NamedTuple):
    """What was found and done beside a file, in words, and whether anything has changed by it."""

    words: Sequence[str]
    changed: bool = False


class _Shown:
    """The files whose line was written; where standard output takes none, standard error has what was changed."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._error: OSError | None = None
        self._changed = False

    def add(self, name: str, done: _Done) -> None:
        """Write the line of a file; the first error of that is kept, so that the other files have their turn."""
        line = escaped(f"{name}: {', '.join(done.words)}")
        try:
            show(line)
        except OSError as error:
            self._error = self._error or error
            if not done.changed:
                return
            self._changed = True
            say(line)
        self.names.append(name)

    def check(self) -> None:
        """Raise the error of the first line that could not be written; the status is about the files."""
        if self._error is None:
            return
        if self._changed:
            signals.commit()
        raise self._error


def _concerns(paths: Sequence[str], name: str) -> bool:
    return os.path.realpath(name) in map(os.path.realpath, paths)


def _recovered(name: str, heard: Sequence[Heard], waiting: Waiting, how: Discard) -> _Done:
    staging.recover([name], alone=True)  # who calls this knows that no other command is at work
    removed: Sequence[str] = ()
    if how is not Discard.NO and recovery.is_orphan(name):
        journal = recovery.discard_orphan(name, how)
    else:
        recovery.check_not_orphan(name)
        try:
            with lock_target(name, waiting) as target:
                removed = recovery.clean(target)
                journal = recovery.recover(target, discard=how)
        except NoLocksError:
            if recovery.has_journal(name):
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
    return _Done(done or ["nothing to do"], changed)


def _listed(name: str) -> str:
    state, temporaries = recovery.look(name)
    words = {
        "": [],
        "pending": ["a committed update to finish"],
        "incomplete": ["the journal of an update that was never committed"],
        "busy": ["an update at work"],
        "foreign": ["a journal that is not its own"],
        "doubtful": ["a committed update that only its user may finish"],
        "missing": ["a committed update whose journal is missing"],
    }
    found = words[state] + [f"temporary file {temporary}" for temporary in temporaries]
    if staging.pending(os.path.dirname(os.path.realpath(name))):
        found.append("results of an interrupted or a living command in its directory")
    return ", ".join(found) or "nothing"
