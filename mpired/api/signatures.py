"""Signatures and documentation of functions whose keywords are rows of the table of options, and their ranks."""

from __future__ import annotations

import contextlib
import difflib
import functools
import glob
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from mpired import interrupts
from mpired.context import Context
from mpired.errors import MpiredError, UsageError
from mpired.files.urls import signed
from mpired.formats.memory import ArrayRank, OpenFile, RankObject
from mpired.log import log_steps, no_progress, shown_by
from mpired.options import Group, Option, checked, keyword, rows

_F = TypeVar("_F", bound=Callable[..., Any])
_RAISES = """\
Raises
------
mpired.errors.MpiredError
    If the request breaks a rule of MPI, a file is not usable, or its lock is not free; the class says which. Nothing
    has changed, except after an `UnconfirmedError`.
OSError
    If the system refuses."""


def with_options(*group: str) -> Callable[[_F], _F]:
    """Give a function the options of a group in place of its `**options`, and document each from its row.

    `help`, editors and notebooks show them, after the parameters in its docstring, and the errors that all functions
    raise. It raises `TypeError` for a keyword that it has not, with a suggestion.
    """
    return functools.partial(_with_options, group)


def _with_options(group: Group, function: _F) -> _F:
    signature = inspect.signature(function)
    parameters = signature.parameters
    own = [each for each in parameters.values() if each.name != "context" and each.kind is not each.VAR_KEYWORD]
    table = {name: row for name, row in rows(group).items() if name not in parameters}
    written = [each if each.name == "self" else each.replace(annotation=_TypeText(each.annotation)) for each in own]
    for name, row in table.items():
        default = inspect.Parameter.empty if row.required else row.default
        kind, static = inspect.Parameter.KEYWORD_ONLY, _TypeText(row.static)
        written.append(inspect.Parameter(name, kind, default=default, annotation=static))
    taken = {each.name: "" for each in own if each.name != "self" and each.kind is not each.VAR_POSITIONAL}
    taken |= {name: row.flags or "" for name, row in table.items()}
    keys = tuple(key for key in group if keyword(key) in table)

    @functools.wraps(function)
    def call(*arguments: Any, **given: Any) -> Any:
        __tracebackhide__ = True  # IPython and pytest leave such frames out
        for name, value in given.items():
            if name not in taken:
                called = function.__qualname__.removesuffix(".__init__")
                raise TypeError(f"{called}() has no keyword {name!r}; {_suggestion(name, taken)}")
            given[name] = _signed(value)
        record: dict[str, Any] = {}
        if given.get("provenance"):
            keywords = {name: repr(value) for name, value in given.items()}
            record = {"call": f"mpired.{function.__qualname__}", "keywords": keywords}
        with interrupts.HoldInterrupt() as end, log_steps():
            try:
                # A window has options of all its calls.
                options = {**getattr(arguments[0], "_options", {}), **given} if "self" in parameters else given
                given |= checked(keys, options)
                show = given.pop("progress", None)
                if "context" in parameters:
                    progress = no_progress if show is None else shown_by(show)
                    given["context"] = Context.of(given, progress=progress, record=record)
                found = function(*_signed(arguments), **given)
            except (MpiredError, OSError) as error:  # the caller's mistake: our frames do not help
                raise error.with_traceback(None)  # noqa: B904 - as it is
        del end
        return found

    returned = _TypeText(signature.return_annotation)
    call.__signature__ = signature.replace(parameters=written, return_annotation=returned)  # type: ignore[attr-defined]
    call.__doc__ = _documented(inspect.cleandoc(function.__doc__ or ""), table)
    return cast("_F", call)


def _documented(text: str, table: Mapping[str, Option]) -> str:
    """Return a docstring with a paragraph for each option after those of the parameters, and the errors of all."""
    head, *sections = re.split(r"\n\n(?=\w+\n---)", text)
    titles = [section.partition("\n")[0] for section in sections]
    if "Parameters" in titles:
        for name, row in table.items():
            words = f" One of {', '.join(map(repr, row.kind.words))}." if row.kind.words else ""
            default = "" if row.default is None else f", default {row.default!r}"
            flag = f" ({row.long_flags[0]})" if row.flags else ""
            body = textwrap.indent(textwrap.fill(f"{row.help}{words}{flag}", 96), "    ")
            sections[0] += f"\n{name}{default}\n{body}"
        if "Raises" not in titles:
            sections.insert(2 if "Returns" in titles else 1, _RAISES)
    return "\n\n".join([head, *sections])


def as_rank(rank: object, name: str) -> str | RankObject:
    """Return what a caller in Python means by a rank: a path as text, or else an array or an open file by this name."""
    if isinstance(rank, str | os.PathLike):
        return os.fsdecode(rank)
    if isinstance(rank, RankObject):
        return rank
    if isinstance(rank, np.ndarray):
        return ArrayRank(f"array of {name}", rank)
    if hasattr(rank, "read"):
        file, path = OpenFile(f"open file of {name}", rank), getattr(rank, "name", None)
        with contextlib.suppress(AttributeError, OSError, TypeError, ValueError):
            if isinstance(path, str | bytes) and os.path.samestat(os.stat(path), os.fstat(cast("Any", rank).fileno())):
                file.path = file.name = os.fsdecode(path)
        return file
    kind = type(rank).__name__
    reason = f"is of the type {kind}; a rank is the path of a file, an array, or a file that is open as bytes"
    raise UsageError(name, reason)


def as_path(path: object, name: str) -> str:
    """Return the path that a caller in Python gives by a parameter of this name."""
    if isinstance(path, str | os.PathLike):
        return os.fsdecode(path)
    raise UsageError(f"`{name}`", f"is of the type {type(path).__name__}; give the path of a file, such as 'a.npy'")


def as_ranks(ranks: object, option: str = "ranks", which: str = "rank {}") -> Sequence[str | RankObject]:
    """Return what a caller in Python means by several ranks, in order."""
    if isinstance(ranks, str | bytes | os.PathLike):
        path = os.fsdecode(ranks)
        hint = f"sorted(glob.glob({path!r}))" if glob.has_magic(path) else "a list of paths, one per rank"
        raise UsageError(option, f"is one path; give {hint}")
    if isinstance(ranks, np.ndarray) or hasattr(ranks, "read"):
        kind = "array" if isinstance(ranks, np.ndarray) else "open file"
        raise UsageError(option, f"is one {kind}; give a list, one a rank")
    try:
        each = list(ranks)  # type: ignore[call-overload]
    except TypeError:
        reason = f"is of the type {type(ranks).__name__}; give a list of paths, arrays or open files"
        raise UsageError(option, reason) from None
    words: list[str | RankObject] = []
    for number, rank in enumerate(each):
        word = rank if isinstance(rank, str) else as_rank(rank, which.format(number))
        if isinstance(word, str) and "://" in word:
            word = signed(word)
        elif isinstance(rank, str) and glob.has_magic(rank) and not os.path.lexists(rank):
            reason = f"is a pattern, and there is no such file; use sorted(glob.glob({rank!r}))"
            raise UsageError(rank, reason)
        words.append(word)
    return words


def _signed(value: Any) -> Any:
    """Return an argument in which URLs with a query are as no message shows them; a list or tuple is another one."""
    if isinstance(value, str):
        return signed(value) if "://" in value else value
    return type(value)(map(_signed, value)) if type(value) in {list, tuple} else value


class _TypeText(str):
    """A type as `help` shows it, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _suggestion(word: str, taken: Mapping[str, str]) -> str:
    """Return the keyword that a word may stand for, by its flag or its spelling; else all of them."""
    flag = f"--{word.strip('_').replace('_', '-')}"
    close = [name for name, flags in taken.items() if flag in flags.split()]
    close = close or difflib.get_close_matches(word, taken, n=2)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"the keywords are {', '.join(taken)}"
