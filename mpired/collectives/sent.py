"""Partial results on their way from workers on other machines to this process, which writes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpired.collectives.fold import BlockResult, Fold, PieceResult, ResultFile, Writers
from mpired.collectives.plan import Plan

# Bytes of partial results that are sent at once; both processes hold twice as many.
_SENT_BYTES = 4 << 20


class SendingFold(Fold):
    """A fold whose results are sent back; of its targets a worker needs no more than the shares."""

    def results(self, buffer: int, own: range) -> _Sender:
        """Return what takes the partial results of a buffer that are made in the stage with these ranks."""
        return _Sender(self.plan, self.targets_of(own), buffer)


class _Sender(Writers):
    """Writers in another process: the partial results of one buffer wait to be sent there."""

    def __init__(self, plan: Plan, targets: Sequence[ResultFile], buffer: int) -> None:
        super().__init__(plan, targets, buffer)
        self.after = {target.share.last: [] for target in targets}
        self._waiting: list[BlockResult] = []
        self._nbytes = 0

    def take(self, result: BlockResult) -> None:
        """Keep copies: the fold uses its arrays again."""
        nadded = np.copy(result.nadded) if isinstance(result.nadded, np.ndarray) else result.nadded
        self._waiting.append(result._replace(block=result.block.copy(), nadded=nadded))
        self._nbytes += result.block.nbytes
        self.are_many = self._nbytes >= _SENT_BYTES

    def described(self, part: PieceResult) -> PieceResult:
        """Return the part with the waiting partial results, and start anew."""
        waiting, self._waiting = self._waiting, []
        self._nbytes, self.are_many = 0, False
        return part._replace(sent=waiting)


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
            writers.take(each._replace(block=block))
        return writers.described(part._replace(sent=()))

    def close(self) -> None:
        """Close the files."""
        for writers in self._writers.values():
            writers.close()
        self._writers.clear()
