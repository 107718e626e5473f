"""`mpired locate`."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from mpired import ops
from mpired.cli import params
from mpired.cli.messages import answer, collect_warnings, end_without, tell_cautions
from mpired.errors import SkippedWarning, escaped
from mpired.options import LOCATE
from mpired.queries import locate as queries
from mpired.queries.elements import in_json, place_text


@params.command("op@locate", *LOCATE, "rank_numbers", "as_json@print", ranks="RANK...")
def locate(*, ranks: tuple[str, ...], op: str, **options: Any) -> None:
    """Find the maximum or minimum of all RANKs: its value, its rank and its index there.

    \b
    Examples:
      mpired locate --op maxloc,minloc sample_data/counts_?.npy
      mpired locate --op minloc --top 3 --columns hits sample_data/cells_?.parquet

    The ranks may have different counts and shapes. --columns limits the search to some columns or variables.
    Of equal elements the one of the lowest rank comes first, then the one with the smallest index. If --nan,
    --nulls and --missing leave all elements out, that is an error.
    """
    with collect_warnings() as warned:
        found = queries.locate(params.expand(ranks)[0], op, options, params.context())
    several = ops.is_list(op)
    places = [(label, each) for label, own in found.items() for each in own]
    skipped = [each for warning in warned if isinstance(warning, SkippedWarning) for each in warning.skipped]
    left_out = [each._asdict() for each in skipped]
    more = {"skipped": left_out} if left_out else {}
    rows = [({"op": op} if several else {}) | in_json(dataclasses.asdict(each)) | more for op, each in places]
    labels = (f"{op}: " if several else "" for op, _ in places)
    lines = (
        f"{each.value} in rank {each.rank}, {escaped(each.file)}, at {place_text(each.column, each.index)}"
        for _, each in places
    )
    answer(rows, map(operator.add, labels, lines))
    tell_cautions(warned)
    end_without(skipped)
