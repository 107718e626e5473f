"""Several ops in one call: their list, the names that tell their results apart, and their rules in words."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

from mpired.errors import UsageError
from mpired.ops.op import Op
from mpired.ops.resolve import OpLike

Ops: TypeAlias = OpLike | Sequence[OpLike]
"""An op, or several: a list, or their names with commas between them."""


def is_list(op: Ops) -> bool:
    """Return whether a caller gives several ops, or a list of one."""
    if not isinstance(op, str):
        return isinstance(op, Sequence) and not isinstance(op, Op)
    home, _, function = op.rpartition(":")
    return "," in op and ("," in function or not os.path.isfile(home))  # the name of a file may have a comma


def each_of(op: Ops) -> list[OpLike]:
    """Return the ops that a caller gives."""
    named: Any = [op] if not is_list(op) else map(str.strip, op.split(",")) if isinstance(op, str) else op
    if not (named := [*named]):
        raise UsageError("`op`", "has no op; name one at least")
    return [*named]


def labels(ops: Sequence[Op]) -> list[str]:
    """Return what the result of each op is called, in names of arrays and files: a function by its own name."""
    found = [_label(op) for op in ops]
    twice = next((label for label, count in Counter(found).items() if count > 1), None)
    if twice is not None:
        reason = f"has two ops whose results would be named {twice!r}; leave one out, or combine in two calls"
        raise UsageError("`op`", reason)
    return found


def _label(op: Op) -> str:
    if op.user:
        name = op.name.removesuffix(":count").rpartition(":")[2]
        return re.sub(r"\W+", "_", name).strip("_")
    return op.name.lower() + ("" if op.rules.quantile is None else f"_{op.rules.quantile}")


def summary(ops: Sequence[Op]) -> tuple[str, ...]:
    """Return the rules of ops in words; those that not all have with the ops that have them."""
    holders: dict[str, list[str]] = {}
    for op in ops:
        for rule in op.rules.summary():
            holders.setdefault(rule, []).append(_label(op))
    return tuple(rule if len(names) == len(ops) else f"{rule} ({', '.join(names)})" for rule, names in holders.items())
