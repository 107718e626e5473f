"""Overflow of SUM and PROD: integers that wrap, and floating-point numbers that finite operands make infinite.

Each step of the left fold is checked, so the findings are exact, and the same for any number of workers. The bits of
the result do not depend on it. The cost is small:

- Integers: the bounds of the partial result and of the next operand show whether a step can overflow at all. Only
  where it can, each element is checked.
- Floating-point numbers: the processor notes that something overflowed. Only then each element is checked.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpired import log
from mpired.datatypes import Datatype, Group
from mpired.errors import OverflowWarning, ResultOverflowError
from mpired.ops.op import Op

Reread: TypeAlias = Callable[[], np.ndarray]
"""Reads the upper operand of a step again, which the kernel has written over."""


class Overflow(NamedTuple):
    """Overflow: the number of steps, and the place of the first one."""

    times: int  # how many steps overflowed: an element combined with that of the next rank is one
    buffer: int  # the first of them: the smallest buffer, then element, then rank
    element: int
    rank: int
    op: int = 0  # the number of the op in its call

    @classmethod
    def at(cls, overflowed: np.ndarray, start: int, rank: int, op: int = 0) -> Overflow:
        """Return the overflow of one step, of whose elements, from `start` on, some overflowed."""
        return cls(int(np.count_nonzero(overflowed)), 0, start + int(overflowed.argmax()), rank, op)


def by_op(found: Iterable[Overflow]) -> tuple[Overflow, ...]:
    """Return the overflow of several parts of the work, of each op that has some."""
    parts: dict[int, list[Overflow]] = {}
    for each in found:
        parts.setdefault(each.op, []).append(each)
    firsts = {op: min(each, key=lambda each: each[1:]) for op, each in sorted(parts.items())}
    return tuple(first._replace(times=sum(each.times for each in parts[op])) for op, first in firsts.items())


class Steps:
    """The steps of a fold, one after another, which look for overflow if the op can and the user wants to know."""

    bounds: tuple[int, int] | None = None
    """Bounds of the partial result, if they are known; None where a fold begins with other elements."""
    _is_negative = False  # whether an element was

    def __init__(self, op: Op, datatype: Datatype) -> None:
        self.op, self.datatype = op, datatype

    def __call__(self, invec: np.ndarray, inoutvec: np.ndarray, reread: Reread) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the operand that holds the result, and which elements overflowed; None for none."""
        exact = None if self.op.rules.overflow == "wrap" else self.op.exact
        if exact is not None and self.datatype.form.kind in "iu":
            return self._of_integers(invec, inoutvec, exact)
        noted: list[object] = []
        with np.errstate(over="call", call=lambda *each: noted.append(each)):
            result = self.op.kernel(invec, inoutvec, self.datatype)
        if exact is None or not noted:
            return result, None
        # Infinities, or NaNs of a complex product, that finite operands gave.
        infinite = self._finite(invec) & self._finite(reread()) & ~self._finite(result)
        infinite = infinite.any(axis=1)
        return result, infinite if infinite.any() else None

    def _of_integers(
        self, invec: np.ndarray, inoutvec: np.ndarray, compute: Callable[[Any, Any], Any]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Combine, and look at each element if the bounds of the operands do not exclude that one wraps."""
        limits, upper = np.iinfo(self.datatype.form), self._range(inoutvec)
        for bounds in (self.bounds, None):
            # Both ops have the bounds of their results at the corners.
            corners = list(itertools.starmap(compute, itertools.product(bounds or self._range(invec), upper)))
            low, high = min(corners), max(corners)
            if limits.min <= low and high <= limits.max:
                self.bounds = low, high
                return self.op.kernel(invec, inoutvec, self.datatype), None
        self.bounds = None
        exact = compute(invec.astype(np.float64), inoutvec.astype(np.float64))
        result = self.op.kernel(invec, inoutvec, self.datatype)
        exact -= result
        # Rounding is far below the modulus, of which a wrapped result is a multiple away.
        wrapped = np.abs(exact, out=exact) > 2.0**limits.bits / 2
        return result, wrapped if wrapped.any() else None

    def _range(self, block: np.ndarray) -> tuple[int, int]:
        """Return bounds of the elements, by one pass as long as none is negative."""
        if not self._is_negative:
            high = int(np.maximum.reduce(block.view(f"u{block.itemsize}"), initial=0))
            if high <= np.iinfo(block.dtype).max:
                return 0, high
            self._is_negative = True
        return int(np.minimum.reduce(block)), int(np.maximum.reduce(block))

    def _finite(self, block: np.ndarray) -> np.ndarray:
        """Return which elements are finite, or which of their parts where the op does not mix these."""
        numbers = block.view(self.datatype.component) if self.datatype.group is Group.COMPLEX else block
        finite: np.ndarray = np.isfinite(numbers).reshape(len(block), -1)
        return finite if self.op.exact is operator.add else np.logical_and.reduce(finite, axis=1, keepdims=True)


def _wider(op: Op, datatype: Datatype) -> str:
    """Return how the op can compute in a wider datatype, for a message; "" if it cannot."""
    if op.rules.window or "accumulate_in" not in op.takes or datatype.group in Group.PAIR | Group.COMPLEX:
        return ""
    is_long, is_real = datatype.itemsize >= 8, datatype.form.kind == "f"  # noqa: PLR2004 - bytes
    wide = ("longdouble" if is_long else "double") if is_real else "double" if is_long else "int64_t"
    names = [f"`{name}='{wide}'`" for name in ("accumulate_in", "result_type") if getattr(op.rules, name) is None]
    return f"compute with {' and '.join(names)}; " if names and datatype.itemsize < 16 else ""  # noqa: PLR2004


def tell(op: Op, datatype: Datatype, found: Overflow | None, files: Sequence[str], buffer: str = "") -> None:
    """Warn of overflow, or refuse it."""
    if found is None or op.rules.overflow == "wrap":
        return
    file = files[found.rank]
    times = "once" if found.times == 1 else f"{found.times} times"
    column = f" of {buffer!r}" if buffer else ""
    where = f"first in element {found.element}{column} with rank {found.rank} ({file})"
    text = f"overflowed {times}, {where}"
    wider = _wider(op, datatype)
    if op.rules.overflow == "error":
        raise ResultOverflowError(str(op), f"{text}; {wider}`overflow='wrap'` keeps the result as it is")
    details = {"count": found.times, "element": found.element, "rank": found.rank, "file": file, "buffer": buffer}
    way = f"{wider}`overflow='error'` refuses that, `overflow='wrap'` expects it"
    log.tell(OverflowWarning(f"{op} {text}; {way}", details))
