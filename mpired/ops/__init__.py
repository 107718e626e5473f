"""Ops: predefined by MPI, user-defined, and statistics, with their rules and checks."""

from mpired.ops.op import Op, Rules, Use
from mpired.ops.rules import (
    PURPOSES,
    OpLike,
    Ops,
    check_buffers,
    check_file,
    check_rules,
    in_new_file,
    is_list,
    labels,
    null_result_error,
    op_of_function,
    resolve,
    split_ops,
    summary,
    use_error,
    widening,
    widest,
    with_properties,
    with_rules,
)
from mpired.ops.state import has_fill_value, may_be_null
from mpired.ops.table import COMPARE_AND_SWAP, OPS, STATISTICS, get, named, neutral, ops_for, user_op

__all__ = [
    "COMPARE_AND_SWAP", "OPS", "PURPOSES", "STATISTICS", "Op", "OpLike", "Ops", "Rules", "Use", "check_buffers",
    "check_file", "check_rules", "get", "has_fill_value", "in_new_file", "is_list", "labels", "may_be_null",
    "named", "neutral", "null_result_error", "op_of_function", "ops_for", "resolve", "split_ops", "summary",
    "use_error", "user_op", "widening", "widest", "with_properties", "with_rules",
]  # fmt: skip
