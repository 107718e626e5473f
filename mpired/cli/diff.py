"""`mpired diff`."""

from __future__ import annotations

import traceback
from dataclasses import asdict
from typing import Any

import click

from mpired.cli import params
from mpired.cli.messages import answer
from mpired.errors import MpiredError
from mpired.options import DIFF
from mpired.queries import diff as queries
from mpired.queries.elements import in_json

_STATUSES = {"the same": 0, "different": 1, "not known": 3}
_ALWAYS = ("equal", "a", "b", "reason", "buffers", "examples")  # keys of JSON
_BUG = 70  # EX_SOFTWARE of sysexits.h
_EXIT_STATUS = "Exit status: 0 the same, 1 different, 3 not known; `mpired help statuses` lists the others."


class _Comparing(params.Command):
    """A command whose status 1 has a meaning, so that a bug has another."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what `main` knows nothing of is a bug."""
        try:
            return super().invoke(ctx)
        except (MpiredError, OSError, MemoryError, ImportError, click.ClickException, click.exceptions.Exit):
            raise
        except Exception:  # noqa: BLE001 - a bug
            traceback.print_exc()
            ctx.exit(_BUG)


@params.command(*DIFF, "quiet@diff", "as_json@print", cls=_Comparing, settings={"epilog": _EXIT_STATUS}, a="A", b="B")
@click.pass_context
def diff(ctx: click.Context, /, *, a: str, b: str, quiet: bool, **options: Any) -> None:
    """Compare the elements of A and B, or all files of two directories: how many differ, how much, and where.

    \b
    Examples:
      mpired diff sample_data/maxloc_0.npy sample_data/maxloc_0.parquet
      mpired diff --rtol 1e-9 --nan-equal sample_data/waves_1.npy \\
          sample_data/waves_1.npy

    Without a tolerance they are compared bit by bit: 0.0 and -0.0 differ, and so do two NaNs of other bits.
    With --ulp, --rtol or --atol numbers are compared by their values, and a NaN equals nothing unless
    --nan-equal is given. Elements that are not numbers, such as flags, text and times, must be equal. A missing
    element equals a missing one.

    The padding of pairs, byte order, format and the order of dimensions make no difference. Another count,
    shape, datatype or column does. A and B can also be two lists, @LIST, whose files are compared line by line.
    """
    words = zip((a, b), params.expand([a], [b]), strict=True)
    one, other = (ranks if word.startswith("@") or len(ranks) > 1 else word for word, ranks in words)
    found = queries.diff(one, other, options, params.context())
    if not quiet:
        answer(_described(in_json(asdict(found))), [str(found)])
    ctx.exit(_STATUSES[found.verdict])


def _described(found: dict[str, Any]) -> dict[str, Any]:
    """Return a comparison as JSON has it; what only some have is left out of the others."""
    found |= {"reason": found["reason"] or None, "files": list(map(_described, found["files"]))}
    for each in found["buffers"]:
        each["reason"] = each["reason"] or None
    return {key: value for key, value in found.items() if key in _ALWAYS or (value and key != "noun")}
