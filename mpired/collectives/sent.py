"""Partial results on their way from workers on other machines to this process, which writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpired.collectives.fold import Fold, PieceResult, ResultFile, Writers, is_made
from mpired.collectives.plan import Plan

# Bytes of partial results that are sent at once; both processes hold twice as many.
_SENT_BYTES = 4 << 20


class Partial(NamedTuple):
    """A partial result of a block."""

    last: int  # the last rank that is in it
    start: int  # the first element of the block
    block: np.ndarray
    n: int | np.ndarray  # how many ranks have each element
    valid: np.ndarray | None  # which elements are valid; None for all


class SendingFold(Fold):
    """A fold whose results are sent back; of its targets a worker needs no more than the shares."""

    def results(self, buffer: int, own: range) -> _Sender:
        """Return what takes the partial results of a buffer that are made in the stage with these ranks."""
        del buffer
        return _Sender({target.share.last for target in self.targets if is_made(target.share.last, own)})


class _Sender:
    """The partial results of one buffer that wait to be sent."""

    def __init__(self, after: set[int]) -> None:
        self.after = after
        self._waiting: list[Partial] = []

    @property
    def are_many(self) -> bool:
        """Whether the waiting partial results must be sent."""
        return sum(each.block.nbytes for each in self._waiting) >= _SENT_BYTES

    def take(self, last: int, start: int, block: np.ndarray, n: int | np.ndarray, valid: np.ndarray | None) -> None:
        """Keep copies: the fold uses its arrays again."""
        each = np.copy(n) if isinstance(n, np.ndarray) else n
        self._waiting.append(Partial(last, start, block.copy(), each, valid))

    def described(self, part: PieceResult) -> PieceResult:
        """Return the part with the waiting partial results, and start anew."""
        waiting, self._waiting = self._waiting, []
        return part._replace(sent=waiting)

    def close(self) -> None:
        """Close nothing."""


class Receiver:
    """Writes the partial results that workers send."""

    def __init__(self, plan: Plan, targets: Sequence[ResultFile]) -> None:
        self._plan, self._targets = plan, targets
        self._writers: dict[int, Writers] = {}

    def written(self, part: PieceResult) -> PieceResult:
        """Write the partial results of a part, and return it without them."""
        if not part.sent:
            return part
        if part.buffer not in self._writers:
            self.close()  # few files are open at a time
            self._writers[part.buffer] = Writers(self._plan, self._targets, part.buffer)
        writers = self._writers[part.buffer]
        for each in part.sent:
            block = each.block if each.block.flags.writeable else each.block.copy()
            writers.take(each.last, each.start, block, each.n, each.valid)
        return writers.described(part._replace(sent=()))

    def close(self) -> None:
        """Close the files."""
        for writers in self._writers.values():
            writers.close()
        self._writers.clear()
