"""What the words of a command want of its messages, as far as they are understood: an error may be among them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import click

REPORT = f"{__name__}.report"
"""Where the context of a command keeps what the options of the report say."""


class Wanted(NamedTuple):
    """What is wanted: JSON, no summary, and whether nothing else goes to standard output.

    The files are `inputs` and `output`, as far as the words name them.
    """

    as_json: bool
    quiet: bool = False
    is_free: bool = False
    files: Mapping[str, object] = {}


def wanted(cli: click.Group, words: Sequence[str]) -> Wanted:
    """Return what the words and the environment want; words that make no sense are left out."""
    name = next((word for word in words if not word.startswith("-")), "")
    # Of a command that there is not, or that cannot be loaded, nothing is known but its words.
    with contextlib.suppress(Exception):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None  # noqa: S101 - caught here
        rest = list(words[words.index(name) + 1 :])
        context = command.make_context(name, rest, resilient_parsing=True, ignore_unknown_options=True)
        report, files = context.meta.get(REPORT, {}), _files(command, context.params)
        if "as_json" in report:
            return Wanted(bool(report["as_json"]), bool(report["quiet"]), leaves_free(_place(context.params)), files)
        # One that prints something of its own on standard output.
        return Wanted(bool(context.params.get("as_json")), bool(report.get("quiet")), files=files)
    return Wanted("--json" in itertools.takewhile("--".__ne__, words))


def _place(options: Mapping[str, Any]) -> str | None:
    """Return where a command writes; None in place."""
    place: str | None = options.get("into") or options.get("output", options.get("fetch", options.get("directory")))
    return None if place == "-" and options.get("in_place") else place


def _files(command: click.Command, options: Mapping[str, Any]) -> dict[str, object]:
    """Return the inputs and the output of a command: of one on windows what follows the target, and that."""
    arguments = [each for each in command.params if isinstance(each, click.Argument) and each.type.name == "FILE"]
    given = [options.get(each.name or "") or () for each in arguments]
    inputs = [word for each in given for word in ([each] if isinstance(each, str) else each)]
    place = _place(options)
    if "windows" in options:
        windows = options["windows"] or inputs[:1]
        inputs = inputs if options["windows"] else inputs[1:]
        place = place or (windows[0] if len(windows) == 1 else None)
    return {"inputs": inputs, "output": place}


def leaves_free(output: str | None) -> bool:
    """Tell whether a result goes neither to standard output nor to what may be that under a name."""
    if output is None or output.startswith("/dev/shm/"):  # noqa: S108 - no name of ours
        return True
    return output != "-" and not output.startswith(("/dev/", "/proc/"))
