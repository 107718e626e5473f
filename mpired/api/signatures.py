"""Signatures and documentation of functions whose keywords are rows of the table of options."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

from mpired.options import Option, rows
from mpired.values import Word

_F = TypeVar("_F", bound=Callable[..., Any])
_KEYWORDS = "**options\n"


def with_options(function: _F) -> _F:
    """Give a function a signature with every option that its `**options` unpacks, and document each from its row.

    `help`, editors and notebooks show them. A line `**options` of its docstring, and the text below, make place for
    them.
    """
    signature = inspect.signature(function)
    (unpacked,) = (name for name, each in signature.parameters.items() if each.kind is each.VAR_KEYWORD)
    # The other annotations are for type checkers, and some of their names are imported for these alone.
    known = function.__globals__[function.__annotations__[unpacked].removeprefix("Unpack[").removesuffix("]")]
    table = rows(known)
    types = {name: annotation.__origin__ for name, annotation in known.__annotations__.items()}
    keywords = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(row), annotation=types[name])
        for name, row in table.items()
    ]
    written = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=[*written, *keywords])  # type: ignore[attr-defined]
    function.__doc__ = _documented(inspect.cleandoc(function.__doc__ or ""), table)
    return function


def _default(row: Option) -> Any:
    return inspect.Parameter.empty if row.required else row.default


def _documented(text: str, table: dict[str, Option]) -> str:
    """Put a paragraph for each option in the place of the one for `**options`."""
    before, found, after = text.partition(_KEYWORDS)
    if not found:
        return text
    _, _, rest = after.partition("\n\n")
    return f"{before}{''.join(_paragraph(name, row) for name, row in table.items() if not row.hidden)}\n{rest}"


def _paragraph(name: str, row: Option) -> str:
    words = f" One of {', '.join(map(repr, row.kind.words))}." if isinstance(row.kind, Word) else ""
    default = "" if row.default is None else f", default {row.default!r}"
    flag = f" ({row.long_flags[0]})" if row.flags else ""
    body = textwrap.fill(f"{row.help}{words}{flag}", 96)
    return f"{name}{default}\n{textwrap.indent(body, '    ')}\n"
