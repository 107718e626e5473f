"""What combining means: the predefined MPI ops, user-defined ones, and the gate before them."""

from mpired.ops.resolve import of_function, resolve, with_properties
from mpired.ops.table import OPS, Op, Use, check, get

__all__ = ["OPS", "Op", "Use", "check", "get", "of_function", "resolve", "with_properties"]
