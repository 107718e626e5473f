"""One-sided communication with files as windows (MPI-4.1, 12.3)."""

from mpired.rma.plans import (
    Call,
    plan_accumulate,
    plan_compare_and_swap,
    plan_fetch_and_op,
    plan_get_accumulate,
)
from mpired.rma.window import Window

__all__ = [
    "Call",
    "Window",
    "plan_accumulate",
    "plan_compare_and_swap",
    "plan_fetch_and_op",
    "plan_get_accumulate",
]
