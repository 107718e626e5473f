"""`mpired compare-and-swap`."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from mpired.cli import params
from mpired.cli.accumulate import split
from mpired.cli.fetch_and_op import fetch
from mpired.errors import UsageError
from mpired.options import SWAP, checked
from mpired.windows.call import plan_compare_and_swap

_OPERANDS = 2


@click.command(cls=params.Command, context_settings={"ignore_unknown_options": True})  # -5 is a value
@params.options("windows", SWAP, "quiet", "as_json@print", "dry_run")
@click.argument("words", nargs=-1, metavar="TARGET COMPARE VALUE", type=params.FILE)
def compare_and_swap(*, words: tuple[str, ...], windows: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Set one element of TARGET to VALUE if it is COMPARE, and print its old value (MPI_Compare_and_swap).

    The element has changed if COMPARE is printed. Elements are integers, truth values or bytes, and are
    compared bit by bit. COMPARE and VALUE are numbers, or files with one element.

    \b
    Examples:
      mpired fetch-and-op --op sum --type int32_t --create 1 owner.npy 0
      mpired compare-and-swap owner.npy 0 42
      mpired compare-and-swap owner.npy 0 43
    """
    options = checked(SWAP, options)
    targets, operands = split(windows, params.values(words))
    if len(operands) != _OPERANDS:
        raise UsageError("COMPARE and VALUE", f"are two words after the target, and there are {len(operands)}")
    plan = partial(plan_compare_and_swap, targets, operands[0], operands[1], options)
    fetch("MPI_Compare_and_swap", plan, targets, operands, as_json=as_json)
