"""`mpired recover`."""

from __future__ import annotations

from typing import Any

from mpired.cli import params, signals
from mpired.cli.messages import json_line, report, say, show, tell
from mpired.errors import escaped
from mpired.files.recovery import Recovered, recover_files
from mpired.options import RECOVER, checked


@params.command(*RECOVER, "as_json@print", required=True, files="FILE...")
def recover(*, files: tuple[str, ...], **options: Any) -> None:
    """Finish the interrupted update of each FILE, and remove its leftovers.

    \b
    Examples:
      mpired recover sample_data/counts_?.npy
      mpired recover --list sample_data/counts_0.npy

    Every mpired command that opens a file does this first, so use it before another program reads the file. A change
    whose log is whole was committed, and is finished; otherwise the file has not changed, and the log is removed.
    --discard --force gives a committed change up: the file may stay half changed.
    """
    options = checked(RECOVER, options)
    signals.state.left = "repeat it for the files that have no line yet"
    nothing = "nothing" if options["only_list"] else "nothing to do"
    errors: list[OSError] = []  # of lines that could not be written; other files have their turn all the same
    unseen = []  # changes that standard error has instead

    def tell_file(done: Recovered) -> None:
        line = escaped(f"{done.file}: {', '.join(done.words) or nothing}")
        try:
            show(json_line(done._asdict()) if report()["as_json"] else line)
        except OSError as error:
            errors.append(error)
            if done.changed:
                unseen.append(line)
                say(line)

    try:
        recover_files(files, options, params.context(), tell_file)
    finally:
        tell(None)
    if unseen:
        signals.commit()  # the status is about the files
    if errors:
        raise errors[0]
