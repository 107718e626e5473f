"""What combining means: the predefined MPI ops, user-defined ones, and the gate before them."""

from mpired.ops.resolve import OpLike, check_file, file_of, meant, of_function, resolve, with_properties
from mpired.ops.table import (
    COMPARE_AND_SWAP,
    OPS,
    OVERFLOWS,
    Op,
    Use,
    check,
    check_buffers,
    check_use,
    get,
    neutral,
    user_op,
    with_overflow,
)

__all__ = [
    "COMPARE_AND_SWAP",
    "OPS",
    "OVERFLOWS",
    "Op",
    "OpLike",
    "Use",
    "check",
    "check_buffers",
    "check_file",
    "check_use",
    "file_of",
    "get",
    "meant",
    "neutral",
    "of_function",
    "resolve",
    "user_op",
    "with_overflow",
    "with_properties",
]
