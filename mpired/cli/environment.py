"""Options that environment variables set: they do not stand on the command line, so they are always told."""

from __future__ import annotations

import os

import click

from mpired.options import Option as Row

_given: list[str] = []


class Option(click.Option):
    """An option that notes when the environment sets it, whether the command succeeds then or fails."""

    # Not while a shell asks what it can offer.

    row: Row | None = None  # of the table of options

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value in the environment; click asks once, and only if the command line has none."""
        value = super().resolve_envvar_value(ctx)
        if value is not None and not ctx.resilient_parsing:
            names = [self.envvar] if isinstance(self.envvar, str) else self.envvar or []
            variable = next(name for name in names if os.environ.get(name))
            own = f"--{(self.name or '').replace('_', '-')}"
            _given.append(f"{own if own in self.opts else max(self.opts, key=len)} ({variable})")
        return value


def told() -> list[str]:
    """Return what is still to be told of the options that the environment set: one text, or none."""
    given = ", ".join(_given)
    _given.clear()
    return [f"from the environment: {given}"] if given else []
