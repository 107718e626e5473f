"""Ops: predefined by MPI, user-defined, and statistics, with their rules and checks."""

from mpired.ops.op import Op, Rules, Use
from mpired.ops.rules import (
    PURPOSES,
    OpLike,
    Ops,
    check_buffers,
    check_file,
    check_rules,
    each_of,
    in_new_file,
    is_list,
    labels,
    null_refused,
    of_function,
    resolve,
    summary,
    widening,
    widest,
    with_policies,
    with_properties,
    wrong_use,
)
from mpired.ops.state import may_be_null, stands_for_null
from mpired.ops.table import COMPARE_AND_SWAP, OPS, STATISTICS, get, named, neutral, ops_for, user_op

__all__ = [
    "COMPARE_AND_SWAP", "OPS", "PURPOSES", "STATISTICS", "Op", "OpLike", "Ops", "Rules", "Use",
    "check_buffers", "check_file", "check_rules", "each_of", "get", "in_new_file", "is_list", "labels",
    "may_be_null", "named", "neutral", "null_refused", "of_function", "ops_for",
    "resolve", "stands_for_null", "summary", "user_op", "widening", "widest", "with_policies",
    "with_properties", "wrong_use",
]  # fmt: skip
