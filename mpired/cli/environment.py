"""Options that environment variables set: they do not stand on the command line, so they are always told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from mpired.options import Option as Row

_given: list[str] = []


class Option(click.Option):
    """An option that notes when the environment sets it, whether the command succeeds then or fails.

    Not while a shell asks what it can offer. `row` is what the table of options says of it.
    """

    def __init__(self, *names: Any, row: Row | None = None, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.row = row

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return what the help shows: the flags and the text, with what the kind of the values adds to it."""
        shown, note = super().get_help_record(ctx), getattr(self.type, "note", None)
        return (shown[0], f"{shown[1]} {note()}") if shown and note else shown

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value in its type; of an option that may be given once, the one there is."""
        found = super().type_cast_value(ctx, value)
        if self.row is None or not self.row.once or not isinstance(found, tuple):
            return found
        if len(found) > 1 and not ctx.resilient_parsing:
            raise click.BadOptionUsage(self.opts[-1], f"{self.opts[-1]}: can be given once; {self.row.once}", ctx)
        return found[0] if found else None

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, click.core.ParameterSource]:
        """Return the value, and where it is from."""
        value, source = super().consume_value(ctx, opts)
        if source is click.core.ParameterSource.ENVIRONMENT and not ctx.resilient_parsing:
            names = [self.envvar] if isinstance(self.envvar, str) else self.envvar or []
            variable = next((name for name in names if os.environ.get(name)), "")
            own = f"--{(self.name or '').replace('_', '-')}"
            flag = own if own in self.opts else max(self.opts, key=len)
            _given.append(f"{flag} ({variable})")
        return value, source


def told() -> list[str]:
    """Return what is still to be told of the options that the environment set: one text, or none."""
    given = ", ".join(_given)
    _given.clear()
    return [f"from the environment: {given}"] if given else []
