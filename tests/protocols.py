"""The two protocols of an update, as `--commit` names them, and the log of one."""

COMMITS = ("rename", "journal")
LOG = ".t.npy.mpired"
