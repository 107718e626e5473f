"""The two protocols of an update, as `--commit` names them, and the log of one."""

from __future__ import annotations

COMMITS = ("rename", "journal")
LOG = ".t.npy.mpired"
