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
    shown = _Outcomes("nothing" if options["only_list"] else "nothing to do")
    try:
        recover_files(files, options, params.context(), shown.add)
    finally:
        tell(None)
    shown.check()


class _Outcomes:
    """The files whose line was written; where standard output takes none, standard error has the changes."""

    def __init__(self, nothing: str) -> None:
        self._nothing, self._changed = nothing, False
        self._error: OSError | None = None

    def add(self, done: Recovered) -> None:
        """Write the line of a file; the first error of that is kept, so that the other files have their turn."""
        line = escaped(f"{done.file}: {', '.join(done.words) or self._nothing}")
        try:
            show(json_line(done._asdict()) if report()["as_json"] else line)
        except OSError as error:
            self._error = self._error or error
            if done.changed:
                self._changed = True
                say(line)

    def check(self) -> None:
        """Raise the error of the first line that could not be written; the status is about the files."""
        if self._error is None:
            return
        if self._changed:
            signals.commit()
        raise self._error
