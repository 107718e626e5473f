"""The two protocols of an update, as `--commit` names them, and the journal of one."""

from __future__ import annotations

COMMITS = ("rename", "journal")
JOURNAL = ".t.npy.mpired-journal"
