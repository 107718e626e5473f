"""What holds for the options of all commands."""

from __future__ import annotations

import contextlib
import importlib

import click
import pytest

from mpired.cli import cli


def _options():
    for name in cli.list_commands(click.Context(cli)):
        word = name.replace("-", "_")
        command = getattr(importlib.import_module(f"mpired.cli.{word}"), word)
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for flag in (*parameter.opts, *parameter.secondary_opts):
                    yield pytest.param(command, parameter.name, flag, id=f"{name} {flag}")


@pytest.mark.parametrize(("command", "name", "flag"), list(_options()))
def test_an_option_has_always_a_value_or_never(command, name, flag):
    """A value that may be left out would take the file behind it for itself."""

    def value(*words):
        return command.make_parser(click.Context(command)).parse_args([flag, *words])[0][name]

    with contextlib.suppress(click.BadOptionUsage):  # which says that it needs a value
        assert value() == value("file")
