"""What combining means: the predefined MPI ops and the gate before them."""

from mpired.ops.table import OPS, Op, Use, check, get

__all__ = ["OPS", "Op", "Use", "check", "get"]
