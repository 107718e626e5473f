"""The two protocols of an update, as `--commit` names them."""

from __future__ import annotations

COMMITS = ("rename", "journal")
