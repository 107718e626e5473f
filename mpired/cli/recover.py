"""`mpired recover`."""

from __future__ import annotations

import os

import click

from mpired.cli import params
from mpired.cli.accumulate import waits
from mpired.cli.messages import show
from mpired.errors import MpiredError, RanksError, escaped
from mpired.storage import recovery, staging
from mpired.storage.lock import Waiting, lock_target


@click.command()
@click.option("--list", "only_list", is_flag=True, help="Only say what is there.")
@click.option("--discard", is_flag=True, help="Remove the journal without finishing its update.")
@params.option("--lock-timeout", type=float, default=60.0, metavar="SECONDS", help="The most to wait for others.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def recover(*, files: tuple[str, ...], only_list: bool, discard: bool, lock_timeout: float) -> None:
    """Finish the update of each FILE that a crash has interrupted, and remove what else it left behind.

    Every mpired command that opens a file does this first; this is for programs that know nothing of
    mpired. An update whose journal is whole was committed, and is finished; one whose journal is not
    whole never happened. --discard is for a journal that belongs to another file.

    \b
    Examples:
      mpired recover sample_data/counts_?.npy
      mpired recover --list sample_data/counts_0.npy
    """
    errors: list[MpiredError | OSError] = []
    if not only_list:
        staging.settle(files)
    for name in files:
        try:
            show(_listed(name) if only_list else _recovered(name, Waiting(lock_timeout, waits), discard=discard))
        except (MpiredError, OSError) as error:
            errors.append(error)
    params.tell(None)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise RanksError(len(files), errors, "files")


def _recovered(name: str, waiting: Waiting, *, discard: bool) -> str:
    with lock_target(name, waiting) as target:
        found = recovery.settle(target, discard=discard)
        removed = recovery.clean(target)
    words = {
        "finished": f"finished an update of {found.nbytes} bytes",
        "forgotten": "removed the journal of an update that was never committed",
        "discarded": "removed the journal without looking at it",
    }
    done = [words[found.journal]] if found.journal else []
    done += [f"removed {temporary}" for temporary in removed]
    return escaped(f"{name}: {', '.join(done) or 'nothing to do'}")


def _listed(name: str) -> str:
    state, temporaries = recovery.look(name)
    words = {
        "": [],
        "pending": ["a committed update to finish"],
        "incomplete": ["the journal of an update that was never committed"],
        "busy": ["an update at work"],
        "foreign": ["a journal that is not its own"],
    }
    found = words[state] + [f"temporary file {temporary}" for temporary in temporaries]
    if staging.pending(os.path.dirname(os.path.realpath(name))):
        found.append("results of an interrupted or a living command in its directory")
    return escaped(f"{name}: {', '.join(found) or 'nothing'}")
